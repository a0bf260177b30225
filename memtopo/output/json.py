"""Everything that is shown, as JSON: whole documents in a stable order, sizes in bytes, places resolved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Diagnostic, Label, Path, Severity, Span
from memtopo.output.diagram.model import Diagram
from memtopo.output.validation import Placed, placed
from memtopo.plans.report import MachineLine, Report
from memtopo.rules.files import Checked, File, Result, SharedDiagnostic

if TYPE_CHECKING:
    from memtopo.language import Document

VERSION: Literal[1] = 1
"""The version of each of these documents; its first key names the kind: `memtopo_plan`, `memtopo_report`…"""

_NOWHERE = {"line": None, "column": None, "end_line": None, "end_column": None}


@dataclass(frozen=True, slots=True)
class FaultLabel:
    """A second place that a fault speaks of; null where there is no text to stand in."""

    text: str
    line: int | None
    column: int | None
    end_line: int | None
    end_column: int | None
    path: Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One diagnostic with its place: lines and columns from 1, the end column the first after it.

    It stands once for all the `machines` that it is a fault on.
    """

    code: str
    severity: Severity
    message: str
    file: str
    line: int | None
    column: int | None
    end_line: int | None
    end_column: int | None
    path: Path
    labels: tuple[FaultLabel, ...]
    notes: tuple[str, ...]
    help: str | None
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one file fared on one machine; `ignored` diagnostics are those that comments in the file ignore."""

    file: str
    machine: str | None
    ok: bool
    errors: int
    warnings: int
    ignored: int


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that is wrong with some specs: how each fared on each machine, and the faults by file and place.

    `errors` and `warnings` count `diagnostics`. `ok` is what the exit status tells.
    """

    memtopo_diagnostics: Literal[1]
    ok: bool
    errors: int
    warnings: int
    results: tuple[Outcome, ...]
    diagnostics: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong outside of a spec, what may help, and the exit status."""

    message: str
    details: tuple[str, ...]
    hint: str | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A document of nothing but an error."""

    error: Error


@dataclass(frozen=True, slots=True)
class Drawn:
    """What `draw` shows: the picture of a layout, by name, on a machine."""

    memtopo_picture: Literal[1]
    name: str
    machine: MachineLine
    picture: Diagram


def dumps(thing: object, *, compact: bool = False) -> str:
    """A report, a plan, a machine, or mappings and lists of them and of what `faults` and `error` give, as JSON.

    Only ASCII is written, so that no text in it can reach a terminal's controls. Raises `ValueError` for a NaN.
    """
    return json.dumps(thing, default=_plain, indent=None if compact else 2, allow_nan=False) + "\n"


def report(report: Report) -> dict[str, Any]:
    """What `apply` shows: a report's fields behind the marker."""
    return marked("report", report)


def marked(kind: str, thing: object) -> dict[str, Any]:
    """A frozen class of data as a document: its fields behind the marker that tells its kind."""
    return {f"memtopo_{kind}": VERSION, **_fields(thing)}


def faults(diagnostics: Iterable[Diagnostic], document: Document, machine: str | None = None) -> Faults:
    """The diagnostics of one document, as `checked` gives those of many."""
    result = Result(document, machine or "", tuple(diagnostics))
    return checked(Checked((machine or "",), (File(document, (result,)),)))


def checked(found: Checked) -> Faults:
    """What `validate` shows."""
    told = tuple(fault for file in found.files for fault in _file(file))
    severities = [fault.severity for fault in told]
    return Faults(
        VERSION,
        found.ok,
        severities.count("error"),
        severities.count("warning"),
        tuple(_outcome(result, ok=not found.failed(result)) for result in found.results),
        told,
    )


def lines(found: Checked) -> list[str]:
    """A check as the lines of its document."""
    return dumps(checked(found)).splitlines()


def failure(error_: MemtopoError) -> list[str]:
    """The lines of a document of nothing but an error."""
    return dumps(error(error_)).splitlines()


def error(error: MemtopoError) -> Failed:
    """An error with its hint and its exit status."""
    return Failed(Error(error.message, error.details, error.hint, error.exit_code))


def _outcome(result: Result, *, ok: bool) -> Outcome:
    errors, warnings = result.count("error"), result.count("warning")
    return Outcome(result.document.name, result.machine or None, ok, errors, warnings, result.ignored)


def _file(file: File) -> list[Fault]:
    shared = {each.diagnostic: each for each in file.diagnostics()}
    return [_fault(fault, shared[fault.diagnostic]) for fault in placed(shared, file.document)]


def _fault(fault: Placed, shared: SharedDiagnostic) -> Fault:
    diagnostic = fault.diagnostic
    return Fault(
        code=diagnostic.code,
        severity=diagnostic.severity,
        message=diagnostic.message,
        file=fault.file,
        **_place(fault.span),
        path=diagnostic.path,
        labels=tuple(_label(label, span) for label, span in fault.labels),
        notes=diagnostic.notes,
        help=diagnostic.help,
        machines=tuple(filter(None, shared.machines)),
    )


def _label(label: Label, span: Span | None) -> FaultLabel:
    return FaultLabel(label.text, **_place(span), path=label.path)


def _place(span: Span | None) -> dict[str, int | None]:
    if span is None:
        return dict(_NOWHERE)
    line, column, end_line, end_column = span.line, span.column, span.end_line, span.end_column
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}


def _plain(thing: object) -> object:
    # A recorded machine is pydantic's, whose import takes longer than most commands.
    if dump := getattr(thing, "model_dump", None):
        return dump(mode="json", exclude_none=True)
    if is_dataclass(thing) and not isinstance(thing, type):
        return _fields(thing)
    raise TypeError(f"{type(thing).__name__} has no place in JSON")


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing) if field.metadata.get("json", True)}
