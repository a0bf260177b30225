"""Faults of a spec as data: what is wrong, at which path, and what would be right.

Diagnostics carry paths; `source` alone turns a path into a place in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from memtopo.diagnostics.codes import CODES

Path = tuple[str | int, ...]
"""Keys and list indices from the top of the document: `("chunks", "hot", "size")`."""

At = Literal["key", "value"]
Severity = Literal["error", "warning"]


class Span(NamedTuple):
    """A stretch of text, in lines and columns from 1, counted in characters; the end column is the first after it."""

    line: int
    column: int
    end_line: int
    end_column: int


class Label(NamedTuple):
    """A second place that a diagnostic speaks of, and what stands there."""

    text: str
    path: Path
    at: At = "value"
    span: Span | None = None


class Diagnostic(NamedTuple):
    """One fault. `path` and `at` say where; `span` is set only where there is no path (syntax errors)."""

    code: str
    message: str
    path: Path = ()
    at: At = "value"
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    span: Span | None = None

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity


class InvalidValue(ValueError):
    """A value that a field refuses: becomes a `Diagnostic` at the field's path."""

    def __init__(self, code: str, message: str, *, help: str | None = None, at: At = "value") -> None:
        super().__init__(message)
        self.code, self.message, self.help, self.at = code, message, help, at

    def __str__(self) -> str:
        return self.message


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of them stops the spec from being built."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)
