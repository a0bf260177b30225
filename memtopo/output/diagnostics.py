"""Diagnostics as lines of text: the place first, then the source line, underlined, then notes and help."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtopo.common.text import printable
from memtopo.diagnostics.model import Diagnostic
from memtopo.output import excerpt
from memtopo.output.excerpt import Mark
from memtopo.output.places import Placed, placed
from memtopo.output.plain import DEFAULT_WIDTH, paint
from memtopo.output.words import plural

if TYPE_CHECKING:
    from memtopo.language import Document

WIDEST_PROSE = 100


@dataclass(frozen=True, slots=True)
class _Page:
    width: int
    colour: bool

    def paint(self, text: str, style: str) -> str:
        return paint(text, style, colour=self.colour)


def text(
    diagnostics: Iterable[Diagnostic], document: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False
) -> list[str]:
    """Every diagnostic of one document with its source lines, by place, and a last line that counts them.

    Nothing where there are no diagnostics.
    """
    faults = placed(diagnostics, document)
    page = _Page(width, colour)
    lines = [line for fault in faults for line in (*_one(fault, document, page), "")]
    return [*lines, summary(faults)] if faults else []


def concise(diagnostics: Iterable[Diagnostic], document: Document, *, colour: bool = False) -> list[str]:
    """One line for each diagnostic, by place."""
    page = _Page(DEFAULT_WIDTH, colour)
    return [_headline(fault, page) for fault in placed(diagnostics, document)]


def summary(faults: list[Placed]) -> str:
    """How many there are, as `3 errors, 1 warning in spec.yaml`."""
    counts = Counter(fault.diagnostic.severity for fault in faults)
    told = [plural(counts[severity], severity) for severity in ("error", "warning") if counts[severity]]
    return f"{', '.join(told) or 'no faults'} in {printable(faults[0].file)}" if faults else "no faults"


def _headline(fault: Placed, page: _Page) -> str:
    diagnostic = fault.diagnostic
    kind = page.paint(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
    return f"{page.paint(printable(fault.place), 'strong')}: {kind}: {printable(diagnostic.message)}"


def _one(fault: Placed, document: Document, page: _Page) -> Iterator[str]:
    yield _headline(fault, page)
    marks = list(_marks(fault))
    gutter = len(str(max((mark.span.line for mark in marks), default=0))) + 1
    if marks:
        yield from _source(marks, document, gutter, page)
    yield from _remarks(fault, gutter, page)


def _marks(fault: Placed) -> Iterator[Mark]:
    if fault.span:
        yield Mark(fault.span, "^", fault.diagnostic.severity)
    yield from (Mark(span, "-", "note", printable(label.text)) for label, span in fault.labels if span)


def _source(marks: list[Mark], document: Document, gutter: int, page: _Page) -> Iterator[str]:
    bar = page.paint("|", "gutter")
    yield f"{'':{gutter}} {bar}"
    before = None
    for number in sorted({mark.span.line for mark in marks}):
        if before is not None and number > before + 1:
            yield page.paint("...", "gutter")
        here = [mark for mark in marks if mark.span.line == number]
        for source, underlines in excerpt.excerpts(document.line(number), here, page.width - gutter - 3):
            yield f"{page.paint(f'{number:{gutter}}', 'gutter')} {bar} {source}".rstrip()
            yield from (f"{'':{gutter}} {bar} {page.paint(line, mark.style)}" for mark, line in underlines)
        before = number


def _remarks(fault: Placed, gutter: int, page: _Page) -> Iterator[str]:
    unplaced = [label.text for label, span in fault.labels if span is None]
    remarks = [("note", note) for note in (*unplaced, *fault.diagnostic.notes)]
    if fault.diagnostic.help:
        remarks.append(("help", fault.diagnostic.help))
    for kind, remark in remarks:
        first, *more = _wrapped(printable(remark), min(page.width, WIDEST_PROSE) - gutter - 9)
        yield f"{'':{gutter}} {page.paint('=', 'gutter')} {page.paint(f'{kind}:', kind)} {first}"
        yield from (f"{'':{gutter + 9}}{line}" for line in more)


def _wrapped(prose: str, width: int) -> list[str]:
    return textwrap.wrap(prose, max(width, 10), break_long_words=False, break_on_hyphens=False) or [""]
