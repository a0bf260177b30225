"""`memtopo validate --fix` and `--diff`: corrections of specs in place, and the difference that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer

from memtopo.cli.files import of_memtopo, write
from memtopo.common.errors import NotWritten, UsageError
from memtopo.language import Document
from memtopo.rules import files
from memtopo.rules.files import File, Source

Fix = Annotated[
    bool,
    typer.Option("--fix", envvar="MEMTOPO_FIX", help="Correct in place what has exactly one correction."),
]
Diff = Annotated[
    bool,
    typer.Option("--diff", envvar="MEMTOPO_DIFF", help="Print what --fix would change, and change nothing."),
]

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Correction:
    """A spec's file with its text before and after its corrections, and the number of errors that they end."""

    file: str
    before: str
    after: str
    errors: int

    @property
    def difference(self) -> Iterator[str]:
        """Lines of a unified difference."""
        return unified_diff(
            self.before.splitlines(), self.after.splitlines(), f"a/{self.file}", f"b/{self.file}", lineterm=""
        )

    def write(self) -> None:
        """Write the file, completely or not at all. Raises `NotWritten`, also if it has changed since it was read."""
        try:
            written = Path(self.file).read_bytes().decode()
        except (OSError, ValueError):
            written = ""
        if written.removeprefix(_BOM) != self.before:
            raise NotWritten(f"{self.file!r} has changed while it was corrected", hint="correct it again")
        write(self.file, _BOM * written.startswith(_BOM) + self.after)


def corrections(sources: Iterable[Source], check: Callable[[Document], File]) -> Iterator[Correction]:
    """Yield the corrections of specs that have some. `check` validates a document on all machines.

    Raises `UsageError` for standard input. Saved plans have none.
    """
    for source in sources:
        document = files.read(source)
        if document.name == "<stdin>":
            raise UsageError("standard input cannot be corrected in place", hint="name a file")
        if not of_memtopo(document):
            done = files.fixed(document, check)
            if done.text != document.text:
                yield Correction(document.name, document.text, done.text, done.errors)
