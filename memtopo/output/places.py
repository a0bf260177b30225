"""Diagnostics with their places in the text, sorted: what every way of showing them begins with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtopo.diagnostics.model import Diagnostic, Label, Span

if TYPE_CHECKING:
    from memtopo.language import Document


@dataclass(frozen=True, slots=True)
class Placed:
    """A diagnostic, its file's name, its own span, and the span of each of its labels; None where there is no place."""

    diagnostic: Diagnostic
    file: str
    span: Span | None
    label_spans: tuple[Span | None, ...]

    @property
    def place(self) -> str:
        """`file:line:column`, or the file's name alone."""
        return f"{self.file}:{self.span.line}:{self.span.column}" if self.span else self.file

    @property
    def labels(self) -> Iterable[tuple[Label, Span | None]]:
        return zip(self.diagnostic.labels, self.label_spans, strict=True)


def placed(diagnostics: Iterable[Diagnostic], document: Document) -> list[Placed]:
    """The diagnostics of one document in the order of their places, those without one first."""
    return sorted((_place(diagnostic, document) for diagnostic in diagnostics), key=_order)


def _place(diagnostic: Diagnostic, document: Document) -> Placed:
    labels = tuple(_find(label, document) for label in diagnostic.labels)
    return Placed(diagnostic, document.name, _find(diagnostic, document), labels)


def _find(thing: Diagnostic | Label, document: Document) -> Span | None:
    return thing.span or (document.span(thing.path, thing.at) if thing.path else None)


def _order(fault: Placed) -> tuple[Span, str, str]:
    return fault.span or Span(0, 0, 0, 0), fault.diagnostic.code, fault.diagnostic.message
