"""Results of commands: on stdout, as text or as JSON, and in files."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from memtopo.cli.options import option
from memtopo.cli.process import REPORT_VARIABLES, RefusedSpec
from memtopo.common.errors import MemtopoError, NotWritten, UsageError, on_failure, reason, system_errors
from memtopo.common.files import open_output, output_path, write_pipe
from memtopo.output import plain

if TYPE_CHECKING:
    from memtopo.language import Document
    from memtopo.output.blocks import Page, Section
    from memtopo.output.json import DiagnosticsDocument
    from memtopo.plans.report import Report
    from memtopo.session.composition import Composition

_OWN = rb'(?s)(/\*|""") ?Program of memtopo plan:|\s*\{.{,60}"memtopo_'
"""How documents and the programs of 'plan --as' begin."""


def show(data: object, page: Callable[[], Any], *, as_json: bool, marker: str = "") -> None:
    """Print data as JSON, after the marker of its type if it has one, or its page, which is made if it is printed."""
    if as_json:
        plain.print_document(_json(data, marker).splitlines())
    else:
        from memtopo.output import console

        console.show(page())


def _json(data: Any, marker: str) -> str:
    from memtopo.output import json

    return json.dumps(json.marked(marker, data) if marker else data)


def pages(room: str) -> Any:
    """Return the module of `output` that makes pages; rich takes longer to import than many commands."""
    return import_module(f"memtopo.output.{room}")


def save(output: str, document: str) -> None:
    """Write a document to the file of `-o`, and print a message; replace only files that memtopo wrote.

    Raises `UsageError` for `-` and for a file that memtopo did not write, `NotWritten` if it cannot be written.
    """
    if output == "-":
        raise UsageError("-o needs a file", hint="--json writes the same document to standard output")
    require_replaceable(output, _OWN)
    write(output, document)
    plain.print_message(f"saved to {output}")


def save_in_folder(folder: str, documents: Mapping[str, str]) -> None:
    """Write documents to the files of these names in a folder, which is made, as `save` does.

    Raises `UsageError` before the first is written, if one of them may not be.
    """
    files = {str(Path(folder) / name): document for name, document in documents.items()}
    for file in files:
        require_replaceable(file, _OWN)
    with system_errors(UsageError, f"the folder {folder!r} cannot be created"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for file, document in files.items():
        save(file, document)


def of_memtopo(document: Document) -> bool:
    """Return true for a text that is JSON of memtopo, such as a saved plan, and no spec."""
    return '"memtopo_' in document.text[:64]


def require_replaceable(output: str, own: bytes, why: str = "memtopo did not write it") -> None:
    """Raise `UsageError` for a file that is not empty and begins with none of memtopo's `own` beginnings."""
    # A Path of an empty name is the current folder.
    if os.path.isfile(output) and (start := _start(output)) and not re.match(own, start):  # noqa: PTH113
        raise UsageError(f"{output!r} exists, and {why}", hint="name another file, or remove it")


def remove(output: str, own: bytes) -> None:
    """Remove a file of memtopo, if it is one."""
    with suppress(OSError):
        if os.path.isfile(output) and re.match(own, _start(output)):  # noqa: PTH113 as above
            os.unlink(output_path(output))  # noqa: PTH108 as above


def _start(file: str) -> bytes:
    """First bytes of a file; none if it cannot be read."""
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 as above
            return opened.read(8192)  # a report may begin with the path of a spec
    except OSError:
        return b""


def write(output: str, document: str) -> None:
    """Write a document to a file, completely or not at all. Raises `NotWritten`.

    What is no regular file, such as a pipe, is written directly, and has to be read. A link of another user is not
    followed.
    """
    try:
        target = output_path(output)
        if os.path.exists(target) and not os.path.isfile(target):  # noqa: PTH110, PTH113 as above
            write_pipe(target, document.encode())
        else:
            # A file beside the target gets its name and mode.
            temporary = f"{target}.{os.urandom(4).hex()}.new"
            fd = os.open(temporary if target else target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with on_failure(os.unlink, temporary):
                with suppress(FileNotFoundError):
                    os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))  # noqa: PTH116 as above
                with os.fdopen(fd, "w", encoding="utf-8") as written:
                    written.write(document)
                os.replace(temporary, target)  # noqa: PTH105 as above
    except (OSError, ValueError) as error:
        raise NotWritten(f"{output!r} cannot be written: {reason(error)}") from error


def append(output: str, document: str) -> None:
    """Write a document to a file, after an empty line behind what the file has. Raises `NotWritten`."""
    if not (os.path.isfile(output) and _start(output)):  # noqa: PTH113 as above
        write(output, document)
        return
    with system_errors(NotWritten, f"{output!r} cannot be written"):
        fd = open_output(output, os.O_APPEND)
        with os.fdopen(fd, "wb") as opened:
            opened.write(f"\n\n{document}".encode())


_HTML, _JSON = (".html", ".htm"), (".json",)
_REPORTS = rb'(?s)\{\s*"(memtopo_(report|probe|diagnostics)"|error": \{)|<!doctype html>.{,60}content="memtopo"'
"""How reports begin."""


_REPORT = "also to a file: an HTML page (.html), or the output of --json (.json)."
RunPage = Annotated[str | None, option("--report", f"Write the report {_REPORT}", "FILE", REPORT_VARIABLES["apply"])]
ProbePage = Annotated[str | None, option("--report", f"Write the result {_REPORT}", "FILE", REPORT_VARIABLES["probe"])]


def require_writable(file: str | None) -> None:
    """Raise `UsageError` unless a report can be written to a file, before there is any."""
    if file is None:
        return
    if PurePath(file).suffix.lower() not in (*_HTML, *_JSON):
        message = f"{file!r} does not have the suffix of a report" if file else "--report names no file"
        raise UsageError(message, hint="name a .html or a .json file")
    try:
        folder = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 a path as it was written
    except FileNotFoundError:  # the current folder was removed
        folder = ""
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{file!r} cannot be written: its folder does not exist, or is not writable")
    require_replaceable(file, _REPORTS, "is no report")


class RunOutput(Struct, frozen=True):
    """Places for the report of a run: stdout, as text or JSON, and a file if there is to be one.

    Its page has a summary of the `trace`, if that is written: a file, or a folder.
    """

    file: str | None
    trace: str | None
    as_json: bool
    every: bool = False

    def show(self, report: Report) -> int:
        """Print the report, and write it. Returns the exit status of the run, or that of a failure to write it."""
        show(report, lambda: pages("report").text_page(report, every=self.every), as_json=self.as_json, marker="report")
        sys.stdout.flush()
        if self.file is None:
            return report.exit_code
        try:
            traced = _traced(self.trace) if self.trace else ()
            page = pages("report").full_page
            write_report(self.file, report, lambda: page(report, traced, every=self.every), marker="report")
        except NotWritten as error:
            plain.print_error(error)
            return report.exit_code or error.exit_code
        return report.exit_code


def run_output(file: str | None, trace: str | None, *, as_json: bool, every: bool = False) -> RunOutput:
    """The places for a report. Raises `UsageError` if it cannot be written to the file, or that is the trace too."""
    require_writable(file)
    if file and trace and os.path.realpath(file) == os.path.realpath(trace):
        raise UsageError(f"{file!r} cannot be both a trace and a report", hint="name two files")
    return RunOutput(file, trace, as_json, every)


def write_error(file: str, command: str, error: MemtopoError) -> None:
    """Write the error of a command that has no other result, if it can be written."""
    from memtopo.output import json

    try:
        require_writable(file)
        found = refusal(error.composition) if isinstance(error, RefusedSpec) else json.error_document(error)
        write_report(file, found, lambda: _error_page(command, error))
    except MemtopoError as failure:
        if failure.message != error.message:
            plain.print_error(failure)


def _traced(path: str) -> Sequence[Section]:
    """The calls of a trace; nothing, with a message, if it cannot be read."""
    from memtopo.output.calls import driver_calls
    from memtopo.plans.trace import read_traces, summary

    try:
        return driver_calls(summary(read_traces([path])))
    except UsageError as error:  # such as a trace that ended as its disk was full
        plain.print_error(error)
        return ()


def refusal(composition: Composition) -> DiagnosticsDocument:
    """The document of an invalid spec."""
    from memtopo.output import json

    return json.diagnostics_document(composition.diagnostics, composition.document, composition.target.name)


def _error_page(command: str, error: MemtopoError) -> Page:
    from memtopo.output import diagnostics
    from memtopo.output.report import diagnostics_page, error_page

    if not isinstance(error, RefusedSpec):
        return error_page(command, error)
    found, document = error.composition.diagnostics, error.composition.document
    return diagnostics_page(refusal(error.composition), diagnostics.text(found, document), document.name)


def write_report(file: str, data: object, page: Callable[[], Page], marker: str = "") -> None:
    """Write what `show` prints: as JSON, or the page as HTML. Raises `NotWritten`."""
    if PurePath(file).suffix.lower() in _HTML:
        from memtopo.output import html

        write(file, html.document(page()))
    else:
        write(file, _json(data, marker))
    plain.print_message(f"report written to {file}")
