"""Lines from exports to imports, beside the frames of processes and never through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.output.diagram.box import path
from memtopo.output.diagram.markup import number

MOST = 24
_APART = 8.0
_ROUND = 8.0


class End(NamedTuple):
    """Left and right edge of a frame, the height in it, and its column."""

    left: float
    right: float
    y: float
    column: int


class Line(NamedTuple):
    """From an export's row to an import's."""

    start: End
    end: End


def channel(lines: int) -> float:
    """The room that lines beside one another need."""
    return 16 + _APART * min(lines, MOST) if lines else 0.0


def drawn(lines: Sequence[Line], starts: Sequence[float], rooms: Sequence[float]) -> Iterator[str]:
    """Lines through the channels of columns, which begin at `starts` and have `rooms`."""
    turns: dict[int, int] = {}
    for line in lines[:MOST]:
        start, end = line
        through = max(start.column, end.column)
        turn = turns[through] = turns.get(through, 0) + 1
        x = starts[through] + rooms[through] - 12 - _APART * (turn - 0.5)
        out = start.right if start.column < end.column else start.left
        into = end.right if end.column < start.column else end.left
        yield path([_way(out, start.y, x, into, end.y)], "f")
        yield _arrow(into, end.y, 1 if into > x else -1)


def _way(out: float, y: float, x: float, into: float, to_y: float) -> str:
    """Along, up or down at `x`, and along, round at the corners."""
    if abs(to_y - y) < 1:
        return f"M{number(out)} {number(y)}H{number(into)}"
    bend = min(_ROUND, abs(to_y - y) / 2)
    down = bend if to_y > y else -bend
    first = bend if x > out else -bend
    last = bend if into > x else -bend
    return (
        f"M{number(out)} {number(y)}H{number(x - first)}Q{number(x)} {number(y)} {number(x)} {number(y + down)}"
        f"V{number(to_y - down)}Q{number(x)} {number(to_y)} {number(x + last)} {number(to_y)}H{number(into)}"
    )


def _arrow(x: float, y: float, way: int) -> str:
    back = number(-7 * way)
    return path([f"M{number(x)} {number(y)}l{back} -4v8z"], "u")
