"""Diagnostics as lines of text: the place first, then the source line, underlined, then notes and help."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtopo.common.text import display_width, printable
from memtopo.diagnostics.model import Diagnostic, Span
from memtopo.output.humanize import plural
from memtopo.output.plain import DEFAULT_WIDTH, paint
from memtopo.output.validation import Placed, placed

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
        for source, underlines in excerpts(document.line(number), here, page.width - gutter - 3):
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


_DENSEST = 4  # characters for each column: more are combining marks piled up by someone who means harm
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Mark:
    """A span to underline with a sign, in a style, with words after it."""

    span: Span
    sign: str
    style: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Window:
    """The characters `first` to `stop` of a line are shown."""

    line: str
    first: int
    stop: int

    @property
    def shown(self) -> str:
        before, after = _CUT if self.first else "", _CUT if self.stop < len(self.line) else ""
        return before + printable(self.line[self.first : self.stop]) + after

    def blocks(self, start: int) -> bool:
        return self.first <= start < self.stop or start == self.stop == len(self.line)

    def underlined(self, start: int, stop: int) -> tuple[int, int]:
        """Where the underline of some characters begins, and its length, in columns."""
        indent = bool(self.first) + display_width(printable(self.line[self.first : start]))
        return indent, max(display_width(printable(self.line[start : min(stop, self.stop)])), 1)


def excerpts(line: str, marks: list[Mark], room: int) -> Iterator[tuple[str, list[tuple[Mark, str]]]]:
    """The parts of a line, at most `room` columns wide, that hold the marks, each with its marks' underlines.

    One part where everything fits. All marks begin on this line; what ends on another is underlined to the end.
    """
    rest = sorted(marks, key=lambda mark: (mark.sign != "^", mark.span))
    while rest:
        window = _window(line, *_characters(line, rest[0]), room)
        inside = [mark for mark in rest if mark is rest[0] or window.blocks(_characters(line, mark)[0])]
        rest = [mark for mark in rest if mark not in inside]
        yield window.shown, [(mark, row) for mark in inside for row in _underlines(window, mark, room)]


def _characters(line: str, mark: Mark) -> tuple[int, int]:
    """The half-open stretch of the line's characters that a mark means, from 0."""
    span = mark.span
    start = min(span.column - 1, len(line))
    stop = len(line.rstrip()) if span.end_line > span.line else min(span.end_column - 1, len(line))
    return start, max(stop, start)


def _underlines(window: _Window, mark: Mark, room: int) -> Iterator[str]:
    indent, length = window.underlined(*_characters(window.line, mark))
    row = " " * indent + mark.sign * length
    if not mark.text:
        yield row
    elif len(row) + 1 + display_width(mark.text) <= room:
        yield f"{row} {mark.text}"
    else:
        yield row
        yield " " * max(min(indent, room - display_width(mark.text)), 0) + mark.text


def _window(line: str, start: int, stop: int, room: int) -> _Window:
    if len(line) <= room * _DENSEST and display_width(printable(line)) <= room:
        return _Window(line, 0, len(line))
    free = room - 2 * len(_CUT)
    last, free = _grow(line, range(start, stop), free)
    left, after = _grow(line, range(start - 1, -1, -1), free // 2)
    right, free = _grow(line, range(start + last, len(line)), free - free // 2 + after)
    more, _ = _grow(line, range(start - left - 1, -1, -1), free)
    return _Window(line, start - left - more, start + last + right)


def _grow(line: str, indices: range, free: int) -> tuple[int, int]:
    """How many of the characters fit into `free` columns, and the columns that are then free."""
    limit = free * _DENSEST
    for taken, index in enumerate(indices):
        needs = display_width(printable(line[index]))
        if needs > free or taken >= limit:
            return taken, free
        free -= needs
    return len(indices), free
