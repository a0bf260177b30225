"""Everything that is shown, as JSON: whole documents in a stable order, sizes in bytes, places resolved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from memtopo.diagnostics import Diagnostic, Label, Span
from memtopo.errors import MemtopoError
from memtopo.render.places import Placed, placed

if TYPE_CHECKING:
    from memtopo.source import Document

_NOWHERE = {"line": None, "column": None, "end_line": None, "end_column": None}


def dumps(thing: object) -> str:
    """A report, a plan, a machine, or mappings and lists of them and of what `faults` and `error` give, as JSON.

    Only ASCII is written, so that no text in it can reach a terminal's controls. Raises `ValueError` for a NaN.
    """
    return json.dumps(thing, default=_plain, indent=2, allow_nan=False) + "\n"


def faults(diagnostics: Iterable[Diagnostic], document: Document) -> dict[str, Any]:
    """The diagnostics of one document by place, with how many errors and warnings they are."""
    found = placed(diagnostics, document)
    severities = [fault.diagnostic.severity for fault in found]
    return {
        "file": document.name,
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
        "diagnostics": [_fault(fault) for fault in found],
    }


def error(error: MemtopoError) -> dict[str, Any]:
    """An error with its hint and its exit status."""
    return {"error": {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}}


def _fault(fault: Placed) -> dict[str, Any]:
    diagnostic = fault.diagnostic
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "file": fault.file,
        **_place(fault.span),
        "path": diagnostic.path,
        "labels": [_label(label, span) for label, span in fault.labels],
        "notes": diagnostic.notes,
        "help": diagnostic.help,
    }


def _label(label: Label, span: Span | None) -> dict[str, Any]:
    return {"text": label.text, **_place(span), "path": label.path}


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
        return {field.name: getattr(thing, field.name) for field in fields(thing)}
    raise TypeError(f"{type(thing).__name__} has no place in JSON")
