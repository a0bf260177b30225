"""`--report`: the report of a run or of a probe in a file, also where it failed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memtopo.cli.files import replaceable, write
from memtopo.cli.specs import INVALID
from memtopo.common.errors import MemtopoError, NotWritten, UsageError
from memtopo.output import plain

if TYPE_CHECKING:
    from memtopo.cli.specs import Loaded
    from memtopo.output.blocks import Section
    from memtopo.plans.report import Report
    from memtopo.probe.report import ProbeReport

VARIABLES = {"apply": "MEMTOPO_APPLY_REPORT", "probe": "MEMTOPO_PROBE_REPORT"}
"""Variables of `--report` by command."""

_HTML, _JSON = (".html", ".htm"), (".json",)
_OWN = re.compile(
    rb'\{\s*"(memtopo_(report|probe|diagnostics)"|error": \{)|<!doctype html>.{,60}content="memtopo"', re.DOTALL
)
"""How reports begin."""


def _option(command: str, what: str) -> Any:
    text = f"Write the {what} to a file too: a page for a browser (.html), or what --json prints (.json)."
    return typer.Option("--report", envvar=VARIABLES[command], metavar="FILE", help=text)


RunPage = Annotated[str | None, _option("apply", "report")]
ProbePage = Annotated[str | None, _option("probe", "result")]


def require_writable(file: str | None) -> None:
    """Raise `UsageError` unless a report can be written to a file, before there is any."""
    if file is None:
        return
    if PurePath(file).suffix.lower() not in (*_HTML, *_JSON):
        message = f"{file!r} has no suffix of a report" if file else "--report names no file"
        raise UsageError(message, hint="name a .html or a .json file")
    try:
        folder = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 a path as it was written
    except FileNotFoundError:  # the current folder was removed
        folder = ""
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{file!r} cannot be written: its folder does not exist, or is not writable")
    if not replaceable(file, _OWN):
        raise UsageError(f"{file!r} exists, and is no report", hint="name another file, or remove it")


@dataclass(frozen=True, slots=True)
class RunOutput:
    """Places for the report of a run: stdout, as text or JSON, and a file if there is to be one.

    Its page has a summary of the `trace`, if that is written: a file, or a folder.
    """

    file: str | None
    trace: str | None
    as_json: bool

    def show(self, report: Report) -> int:
        """Print the report, and write it. Returns the exit status of the run, or that of a failure to write it."""
        if self.as_json:
            from memtopo.output import json

            plain.print_document(json.dumps(json.marked("report", report)).splitlines())
        else:
            from memtopo.output import console
            from memtopo.output.report import text_page

            console.show(text_page(report))
        sys.stdout.flush()
        return self._saved(report.exit_code, lambda: self._document(report))

    def _document(self, report: Report) -> str:
        if not _is_page(self.file):
            from memtopo.output import json

            return json.dumps(json.marked("report", report))
        from memtopo.output import html
        from memtopo.output.report import full_page

        return html.document(full_page(report, _traced(self.trace) if self.trace else ()))

    def refuse(self, loaded: Loaded) -> int:
        """Print the diagnostics of an invalid spec, and write them. Returns the exit status."""
        status = self._saved(INVALID, lambda: _refusal(loaded, page=_is_page(self.file)))
        return loaded.refuse(as_json=self.as_json) or status

    def _saved(self, status: int, document: Callable[[], str]) -> int:
        if self.file is None:
            return status
        try:
            _write(self.file, document())
        except NotWritten as error:
            plain.print_error(error)
            return status or error.exit_code
        return status


def run_output(file: str | None, trace: str | None, *, as_json: bool) -> RunOutput:
    """The places for a report. Raises `UsageError` if it cannot be written to the file, or that is the trace too."""
    require_writable(file)
    if file and trace and os.path.realpath(file) == os.path.realpath(trace):
        raise UsageError(f"{file!r} cannot be both a trace and a report", hint="name two files")
    return RunOutput(file, trace, as_json)


def write_probe(file: str | None, report: ProbeReport) -> None:
    """Write the report of a probe. Raises `NotWritten`."""
    if file is None:
        return
    from memtopo.output import html, json
    from memtopo.output.probe import full_page

    _write(file, html.document(full_page(report)) if _is_page(file) else json.dumps(report))


def write_error(file: str, command: str, error: MemtopoError) -> None:
    """Write the error of a command that has no other result, if it can be written."""
    from memtopo.output import html, json
    from memtopo.output.failure import error_page

    try:
        require_writable(file)
        _write(
            file,
            html.document(error_page(command, error)) if _is_page(file) else json.dumps(json.error_document(error)),
        )
    except MemtopoError as failure:
        if failure.message != error.message:
            plain.print_error(failure)


def _traced(path: str) -> Sequence[Section]:
    """The calls of a trace; nothing, with a message, if it cannot be read."""
    from memtopo.output.trace import driver_calls
    from memtopo.plans.trace import read_traces, summary

    try:
        return driver_calls(summary(read_traces([path])))
    except UsageError as error:  # such as a trace that ended as its disk was full
        plain.print_error(error)
        return ()


def _refusal(loaded: Loaded, *, page: bool) -> str:
    from memtopo.output import diagnostics, html, json
    from memtopo.output.failure import diagnostics_page

    diagnosed = loaded.validated.diagnostics
    found = json.diagnostics_document(diagnosed, loaded.document, loaded.target.name)
    if not page:
        return json.dumps(found)
    return html.document(diagnostics_page(found, diagnostics.text(diagnosed, loaded.document), loaded.document.name))


def _is_page(file: str | None) -> bool:
    return PurePath(file or "").suffix.lower() in _HTML


def _write(file: str, document: str) -> None:
    write(file, document)
    plain.print_message(f"report written to {file}")
