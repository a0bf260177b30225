"""Diagnostics of a spec as data: the error, its path, and the correction.

A diagnostic has a path; `memtopo.language` converts paths to positions in the text.
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
    """Part of a text, in lines and columns from 1, counted in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Label(NamedTuple):
    """Secondary location of a diagnostic, with a text about it."""

    text: str
    path: Path
    at: At = "value"
    span: Span | None = None


class Diagnostic(NamedTuple):
    """One error or warning at `path` and `at`; `span` is set only if there is no path (syntax errors)."""

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
    """Rejection of a value by a field; becomes a `Diagnostic` at the field's path."""

    def __init__(self, code: str, message: str, *, help: str | None = None, at: At = "value") -> None:
        super().__init__(message)
        self.code, self.message, self.help, self.at = code, message, help, at

    def __str__(self) -> str:
        return self.message


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Return true if any of the diagnostics is an error, so that the spec cannot be built."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)
