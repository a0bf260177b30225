"""Diagnostics at their places in a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from memtopo.common.text import printable
from memtopo.diagnostics.model import Diagnostic, Label, Span
from memtopo.language.document import Document


def _unstyled(text: str, style: str) -> str:
    del style
    return text


@dataclass(frozen=True, slots=True)
class Located:
    """A diagnostic with its file's name, its span, and the span of each label; None for what is not in the text."""

    diagnostic: Diagnostic
    file: str
    span: Span | None
    label_spans: tuple[Span | None, ...]

    @property
    def location(self) -> str:
        """`file:line:column`, or the file's name alone."""
        return f"{self.file}:{self.span.line}:{self.span.column}" if self.span else self.file

    @property
    def labels(self) -> Iterable[tuple[Label, Span | None]]:
        """Each label with its span."""
        return zip(self.diagnostic.labels, self.label_spans, strict=True)

    def headline(self, paint: Callable[[str, str], str] = _unstyled) -> str:
        """`file:line:column: error[MT301]: …`; `paint` gives a text a style."""
        code = paint(f"{self.diagnostic.severity}[{self.diagnostic.code}]", self.diagnostic.severity)
        return f"{paint(printable(self.location), 'strong')}: {code}: {printable(self.diagnostic.message)}"


def located(diagnostics: Iterable[Diagnostic], document: Document) -> list[Located]:
    """Locate the diagnostics of one document, sorted by position; those without one come first."""
    return sorted((_locate(diagnostic, document) for diagnostic in diagnostics), key=_order)


def _locate(diagnostic: Diagnostic, document: Document) -> Located:
    labels = tuple(_span(label, document) for label in diagnostic.labels)
    return Located(diagnostic, document.name, _span(diagnostic, document), labels)


def _span(subject: Diagnostic | Label, document: Document) -> Span | None:
    return subject.span or (document.span(subject.path, subject.at) if subject.path else None)


def _order(each: Located) -> tuple[Span, str, str]:
    return each.span or Span(0, 0, 0, 0), each.diagnostic.code, each.diagnostic.message
