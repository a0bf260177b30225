"""Where a check goes: in one form to stdout, and in any others to files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from memtopo.cli.writing import write
from memtopo.common.errors import MemtopoError, UsageError
from memtopo.diagnostics.messages import choose
from memtopo.output import formats, plain
from memtopo.output.formats import FORMATS, Format
from memtopo.rules.files import Checked

_TRUE = ("1", "true", "t", "yes", "y", "on")


class Reports(NamedTuple):
    """The form for stdout, the form for each file, and whether GitHub's runner reads stdout and was not spoken of."""

    form: Format
    files: dict[str, Format]
    runner: bool = False

    def tell(self, checked: Checked) -> None:
        """Write a check in every form that was asked for. Raises `NotWritten` at the end where a file was not."""
        self._write(lambda form: formats.written(form, checked))
        stdout = sys.stdout
        shown = formats.written(self.form, checked, width=plain.width(stdout), colour=plain.colour(stdout))
        plain.print_lines(_for_runner(shown, formats.written("github", checked)) if self.runner else shown)

    def tell_failure(self, error: MemtopoError) -> None:
        """Write into every file that the check could not be made; stdout is left to `print_failure`."""
        self._write(lambda form: formats.failure(form, error))
        if self.runner:
            plain.print_lines(formats.failure("github", error))

    def _write(self, lines: Callable[[Format], list[str]]) -> None:
        failed: MemtopoError | None = None
        for file, form in self.files.items():
            try:
                write(file, "".join(f"{line}\n" for line in lines(form)))
            except MemtopoError as error:
                failed = failed or error
        if failed:
            raise failed


def reports(form: str | None, wanted: Iterable[str], *, as_json: bool) -> Reports:
    """What `--format`, `--report` and `--json` ask for together. Raises `UsageError`."""
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} are two forms for one output", hint="write --report FORM=FILE")
    files: dict[str, Format] = {}
    for word in wanted:
        name, equals, file = word.partition("=")
        if not equals or file in ("", "-"):
            raise UsageError(f"report {word!r} names no file", hint="write --report FORM=FILE, such as sarif=out.sarif")
        if files.setdefault(file, _known(name)) != name:
            raise UsageError(f"two reports go to {file!r}", hint="give each a file of its own")
    if form is None and not as_json:
        return Reports("text", files, runner=os.environ.get("GITHUB_ACTIONS") == "true")
    return Reports(_known(form or "json"), files)


def print_failure(error: MemtopoError, arguments: Sequence[str]) -> None:
    """Print an error in the form that a command line asks for, also where it is wrong and nobody has read it."""
    words = list(takewhile(lambda word: word != "--", arguments))
    asked = [os.environ.get("MEMTOPO_FORMAT", "")] if words[:1] == ["validate"] else []
    asked += [word.partition("=")[2] for word in _joined(words) if word.startswith("--format=")]
    if "--json" in words or os.environ.get("MEMTOPO_JSON", "").lower() in _TRUE:
        asked = ["json"]
    if asked and asked[-1] in FORMATS:
        plain.print_lines(formats.failure(_known(asked[-1]), error))


def _joined(words: Sequence[str]) -> Iterator[str]:
    """The words of a command line, `--format json` as `--format=json`."""
    return (f"{word}={after}" if word == "--format" else word for word, after in pairwise([*words, ""]))


def _known(name: str) -> Format:
    for form in FORMATS:
        if form == name:
            return form
    raise UsageError(f"there is no format {name!r}", hint=choose(name, FORMATS))


def _for_runner(text: list[str], commands: list[str]) -> list[str]:
    from memtopo.output import github

    return [*github.quoted(text, f"memtopo-{os.urandom(16).hex()}"), *commands]
