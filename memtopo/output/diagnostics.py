"""Diagnostics as text: location and message, the source line with underlines, notes and help."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from memtopo.common.text import display_width, plural, printable
from memtopo.diagnostics.model import Diagnostic, TextSpan
from memtopo.language.located import Located, located
from memtopo.output.plain import DEFAULT_WIDTH, WIDEST_PROSE, paint

if TYPE_CHECKING:
    from memtopo.language import Document

_DENSEST = 4  # characters for each column: more would be combining marks piled up on purpose
_FACT = re.compile(r"\(facts? [0-9]")
_FACTS = "docs/driver-facts.md, and 'memtopo explain CODE'"
_ELLIPSIS = "…"


Paint = Callable[[str, str], str]
"""Function that styles a text, in colours if the output has some."""


def text(
    diagnostics: Iterable[Diagnostic], document: Document, *, width: int = DEFAULT_WIDTH, colour: bool = False
) -> list[str]:
    """Every diagnostic of one document with its source lines, sorted by position, and a last line with counts.

    Empty if there are no diagnostics.
    """
    found = located(diagnostics, document)
    if not found:
        return []
    painted = partial(paint, colour=colour)
    lines = [line for each in found for line in (*_one(each, document, width, painted), "")]
    prose = (note for each in found for note in (*each.diagnostic.notes, each.diagnostic.help or ""))
    if any(map(_FACT.search, prose)):
        lines.append(f"facts are observations of the driver: {_FACTS}")
    counts = Counter(each.diagnostic.severity for each in found)
    phrases = [plural(counts[severity], severity) for severity in ("error", "warning") if counts[severity]]
    return [*lines, f"{', '.join(phrases)} in {printable(found[0].file)}"]


def concise(diagnostics: Iterable[Diagnostic], document: Document, *, colour: bool = False) -> list[str]:
    """One line for each diagnostic, sorted by position."""
    return [each.headline(partial(paint, colour=colour)) for each in located(diagnostics, document)]


def _one(each: Located, document: Document, width: int, paint: Paint) -> Iterator[str]:
    yield each.headline(paint)
    marks = [_Mark(each.span, "^", each.diagnostic.severity)] if each.span else []
    marks += [_Mark(label.span, "-", "note", printable(label.text)) for label in each.labels if label.span]
    gutter = len(str(max((mark.span.line for mark in marks), default=0))) + 1
    if marks:
        yield from _source(marks, document, gutter, width, paint)
    notes = [("note", label.text) for label in each.labels if label.span is None]
    notes += [("note", note) for note in each.diagnostic.notes]
    notes += [("help", each.diagnostic.help)] if each.diagnostic.help else []
    room = max(min(width, WIDEST_PROSE) - gutter - 9, 10)
    for kind, note in notes:
        lines = textwrap.wrap(printable(note), room, break_long_words=False, break_on_hyphens=False)
        first, *more = lines or [""]
        yield f"{'':{gutter}} {paint('=', 'gutter')} {paint(f'{kind}:', kind)} {first}"
        yield from (f"{'':{gutter + 9}}{line}" for line in more)


class _Mark(Struct, frozen=True):
    """A span to underline with `sign` in a style, followed by a text."""

    span: TextSpan
    sign: str
    style: str
    text: str = ""


class _Window(Struct, frozen=True):
    """The characters `first` to `stop` of a line, which are shown."""

    line: str
    first: int
    stop: int

    @property
    def shown(self) -> str:
        before, after = _ELLIPSIS if self.first else "", _ELLIPSIS if self.stop < len(self.line) else ""
        return before + printable(self.line[self.first : self.stop]) + after

    def contains(self, start: int) -> bool:
        return self.first <= start < self.stop or start == self.stop == len(self.line)

    def underline(self, start: int, stop: int) -> tuple[int, int]:
        """Indent and length, in columns, of the underline of the characters from `start` to `stop`."""
        indent = bool(self.first) + display_width(printable(self.line[self.first : start]))
        return indent, max(display_width(printable(self.line[start : min(stop, self.stop)])), 1)


def _source(marks: list[_Mark], document: Document, gutter: int, width: int, paint: Paint) -> Iterator[str]:
    bar = paint("|", "gutter")
    yield f"{'':{gutter}} {bar}"
    before = None
    for number in sorted({mark.span.line for mark in marks}):
        if before is not None and number > before + 1:
            yield paint("...", "gutter")
        here = [mark for mark in marks if mark.span.line == number]
        for source, underlines in _excerpts(document.line(number), here, width - gutter - 3):
            yield f"{paint(f'{number:{gutter}}', 'gutter')} {bar} {source}".rstrip()
            yield from (f"{'':{gutter}} {bar} {paint(line, mark.style)}" for mark, line in underlines)
        before = number


def _excerpts(line: str, marks: list[_Mark], room: int) -> Iterator[tuple[str, list[tuple[_Mark, str]]]]:
    """Excerpts of a line that contain the marks, at most `room` columns wide, each with its underlines.

    A line that fits is one excerpt. All marks begin on this line; one that ends on a later line is underlined up to
    the end of this one.
    """
    rest = sorted(marks, key=lambda mark: (mark.sign != "^", mark.span))
    while rest:
        window = _window(line, *_characters(line, rest[0]), room)
        inside = [mark for mark in rest if mark is rest[0] or window.contains(_characters(line, mark)[0])]
        rest = [mark for mark in rest if mark not in inside]
        yield window.shown, [(mark, row) for mark in inside for row in _underlines(window, mark, room)]


def _characters(line: str, mark: _Mark) -> tuple[int, int]:
    """The half-open range of characters of the line that a mark covers, from 0."""
    span = mark.span
    start = min(span.column - 1, len(line))
    stop = len(line.rstrip()) if span.end_line > span.line else min(span.end_column - 1, len(line))
    return start, max(stop, start)


def _underlines(window: _Window, mark: _Mark, room: int) -> Iterator[str]:
    indent, length = window.underline(*_characters(window.line, mark))
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
    free = room - 2 * len(_ELLIPSIS)
    last, free = _fitting(line, range(start, stop), free)
    left, after = _fitting(line, range(start - 1, -1, -1), free // 2)
    right, free = _fitting(line, range(start + last, len(line)), free - free // 2 + after)
    more, _ = _fitting(line, range(start - left - 1, -1, -1), free)
    return _Window(line, start - left - more, start + last + right)


def _fitting(line: str, indices: range, free: int) -> tuple[int, int]:
    """Number of the characters that fit into `free` columns, and the columns that remain."""
    limit = free * _DENSEST
    for taken, index in enumerate(indices):
        needed = display_width(printable(line[index]))
        if needed > free or taken >= limit:
            return taken, free
        free -= needed
    return len(indices), free
