"""A source line as a terminal can show it: escaped, cut around its marks to the width, with the underlines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.common.text import display_width, printable
from memtopo.diagnostics.model import Span

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
