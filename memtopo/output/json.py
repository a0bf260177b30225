"""Results as JSON documents: keys in a stable order, sizes in bytes, diagnostics with lines and columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics import Severity
from memtopo.diagnostics.model import Diagnostic, Path, TextSpan
from memtopo.geometry.diagram import Diagram
from memtopo.language.located import Located, located
from memtopo.machine import MachineLine
from memtopo.rules.files import Checked, CheckedFile, Result, SharedDiagnostic

if TYPE_CHECKING:
    from memtopo.language import Document

VERSION: Literal[1] = 1
"""Version of each of these documents, whose first key is the marker of its type: `memtopo_plan`, `memtopo_report`…"""


class FaultLabel(Struct, frozen=True):
    """A secondary position of a diagnostic; its lines and columns are null if it is not in the text."""

    text: str
    line: int | None
    column: int | None
    end_line: int | None
    end_column: int | None
    path: Path


class Fault(Struct, frozen=True):
    """One diagnostic with its position: lines and columns from 1; the end column is the first one after it.

    Listed once, with all the `machines` that it applies to.
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


class Outcome(Struct, frozen=True):
    """Result of one file on one machine; `ignored` counts the diagnostics that comments in the file ignore.

    `untried` has the features that the file uses and nobody tried on an estimated machine; it is null for a probed one.
    """

    file: str
    machine: str | None
    ok: bool
    errors: int
    warnings: int
    ignored: int
    untried: tuple[str, ...] | None = None


class DiagnosticsDocument(Struct, frozen=True):
    """Results of validating specs: one for each file and machine, and the diagnostics by file and position.

    `errors` and `warnings` count `diagnostics`. `ok` agrees with the exit status.
    """

    memtopo_diagnostics: Literal[1]
    ok: bool
    errors: int
    warnings: int
    results: tuple[Outcome, ...]
    diagnostics: tuple[Fault, ...]


class Error(Struct, frozen=True):
    """An error outside of a spec, with details, a hint and the exit status."""

    message: str
    details: tuple[str, ...]
    hint: str | None
    exit_code: int


class ErrorDocument(Struct, frozen=True):
    """A document that contains only an error."""

    error: Error


class PictureDocument(Struct, frozen=True):
    """Output of `draw`: the picture of a layout, by name, on a machine; in the `state` that was requested, if any."""

    memtopo_picture: Literal[1]
    name: str
    machine: MachineLine
    picture: Diagram
    state: str | None = None


def dumps(data: object) -> str:
    """Encode structs, machines, and mappings and lists of them as JSON.

    Writes ASCII only and no `##`, so that no text in it is a control sequence of a terminal or a command to a CI
    runner. Raises `ValueError` for a NaN.
    """
    return _harmless(json.dumps(data, default=_encodable, indent=2, allow_nan=False))


def dumps_by_row(data: object) -> str:
    """Encode like `dumps`, with one line for each row and for each line of a text that is a list of them.

    A comparison of two results shows the rows that differ, and git merges changes of different ones.
    """
    return _harmless(_by_row(json.loads(json.dumps(data, default=_encodable, allow_nan=False)), "\n"))


def _harmless(text: str) -> str:
    return text.replace("##", r"#\u0023") + "\n"


_ROW = 2
"""Depth of a row: a mapping, some values of which are lists of text."""


def _by_row(value: Any, line: str) -> str:
    """Encode a value; `line` begins a line at its level. Rows of lists, and lists without any, are not divided."""
    inner = f"{line}  "
    if isinstance(value, dict) and value:
        entries = [f"{json.dumps(key)}: {_by_row(each, inner)}" for key, each in value.items()]
        return f"{{{inner}{f',{inner}'.join(entries)}{line}}}"
    if isinstance(value, list) and (_depth(value) > 1 or _is_text(value)):
        rows = [json.dumps(each) if _depth(each) <= _ROW else _by_row(each, inner) for each in value]
        return f"[{inner}{f',{inner}'.join(rows)}{line}]"
    return json.dumps(value)


def _is_text(value: list[Any]) -> bool:
    """Return true for the lines of a text."""
    return any(isinstance(each, str) and each.endswith("\n") for each in value)


def _depth(value: object) -> int:
    """Depth of a value: 0 for text and numbers, 1 for a list of them."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def marked(marker: str, data: Struct) -> dict[str, Any]:
    """A document with the fields of a struct after the marker of its type, `memtopo_<marker>`."""
    return {f"memtopo_{marker}": VERSION, **_fields(data)}


def diagnostics_document(
    diagnostics: Iterable[Diagnostic], document: Document, machine: str | None = None
) -> DiagnosticsDocument:
    """The diagnostics of one spec, in the document of `validate`."""
    result = Result(document, machine or "", tuple(diagnostics))
    return validation_document(Checked((machine or "",), (CheckedFile(document, (result,)),)))


def validation_document(checked: Checked) -> DiagnosticsDocument:
    """The document that `validate --json` prints."""
    diagnostics: list[Fault] = []
    for file in checked.files:
        shared = {each.diagnostic: each for each in file.diagnostics()}
        diagnostics += [_diagnostic(each, shared[each.diagnostic]) for each in located(shared, file.document)]
    severities = [each.severity for each in diagnostics]
    counts = severities.count("error"), severities.count("warning")
    outcomes = tuple(_outcome(result, ok=not checked.failed(result)) for result in checked.results)
    return DiagnosticsDocument(VERSION, checked.ok, *counts, outcomes, tuple(diagnostics))


def error_document(error: MemtopoError) -> ErrorDocument:
    """An error with its hint and its exit status."""
    return ErrorDocument(Error(error.message, error.details, error.hint, error.exit_code))


def _outcome(result: Result, *, ok: bool) -> Outcome:
    errors, warnings = result.count("error"), result.count("warning")
    return Outcome(result.document.file, result.machine or None, ok, errors, warnings, result.ignored, result.untried)


def _diagnostic(found: Located, shared: SharedDiagnostic) -> Fault:
    diagnostic = found.diagnostic
    return Fault(
        code=diagnostic.code,
        severity=diagnostic.severity,
        message=diagnostic.message,
        file=found.file,
        **_position(found.span),
        path=diagnostic.path,
        labels=tuple(FaultLabel(each.text, **_position(each.span), path=each.path) for each in found.labels),
        notes=diagnostic.notes,
        help=diagnostic.help,
        machines=tuple(filter(None, shared.machines)),
    )


def _position(span: TextSpan | None) -> dict[str, int | None]:
    return {name: getattr(span, name) if span else None for name in ("line", "column", "end_line", "end_column")}


def _encodable(data: object) -> object:
    # A recorded machine is a pydantic model; importing pydantic takes longer than most commands.
    if dump := getattr(data, "model_dump", None):
        return dump(mode="json", exclude_none=True)
    if isinstance(data, Struct):
        return _fields(data)
    raise TypeError(f"{type(data).__name__} cannot be written as JSON")


def _fields(data: Struct) -> dict[str, Any]:
    drawn = getattr(data, "drawn", ())
    return {name: getattr(data, name) for name in data.__struct_fields__ if name not in drawn}
