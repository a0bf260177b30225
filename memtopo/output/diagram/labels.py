"""Labels beside a bar, each with a line to its place; they keep their order and clear of one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtopo.output.diagram.bar import Block, badge
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.markup import curve, dot, words
from memtopo.output.diagram.typography import NAME, WORDS, fitting, packed

LEADER = 24.0
MOST = 12
_KEY = 22.0
_HEAD, _LINE, _GAP = 18.0, 16.0, 10.0


@dataclass(frozen=True, slots=True)
class Label:
    """The lines of one label, and the turn of the block that it belongs to; one without a block stands between."""

    block: int
    mark: str
    lines: tuple[str, ...]
    between: bool = False

    @property
    def height(self) -> float:
        """With the space to the next one."""
        return _HEAD + _LINE * (len(self.lines) - 1) + _GAP


def labels(blocks: Sequence[Block], room: float) -> list[Label]:
    """A label for each block, or for the first ones and the last one."""
    made = [_label(turn, blocks[turn], room - LEADER - _KEY) for turn in _labelled(len(blocks))]
    if more := len(blocks) - len(made):
        made.insert(-1, Label(made[-2].block + 1, "", (f"… {more:,} more",), between=True))
    return made


def height(shown: Sequence[Label]) -> float:
    """What labels need below one another."""
    return sum(label.height for label in shown)


def drawn(
    shown: Sequence[Label], tops: Sequence[float], end: float, x: float, pen: Pen, *, start: float = 0
) -> Iterator[str]:
    """Labels with their lines from a bar's edge at `x`, between `start` and `end`; `tops` are those of all blocks."""
    middles = [(tops[label.block] + [*tops, end][label.block + 1]) / 2 for label in shown]
    places = clear(
        [max(0.0, middle - _HEAD / 2 - start) for middle in middles],
        [label.height for label in shown],
        max(end - start, height(shown)),
    )
    for label, middle, place in zip(shown, middles, places, strict=True):
        yield from _drawn(label, middle, place + start, x, pen)


def _labelled(count: int) -> list[int]:
    return list(range(count)) if count <= MOST else [*range(MOST - 1), count - 1]


def _label(turn: int, block: Block, room: float) -> Label:
    if not block.mark:
        return Label(turn, "", tuple(packed(["hole", *block.words], room + _KEY, WORDS)))
    name = fitting(block.name, room, NAME)
    return Label(turn, block.mark, (name, *packed(list(block.words), room, WORDS)))


def _drawn(label: Label, middle: float, top: float, x: float, pen: Pen) -> Iterator[str]:
    level, right = top + _HEAD / 2, x + LEADER
    if not label.between:
        yield curve((x + 2, middle), (right - 3, level), x + LEADER / 2, "l")
        yield dot(x + 2, middle, "d", 2)
    if label.mark:
        yield from badge(pen.letter(label.mark), right + 8, level)
    first, *more = label.lines
    indent = right + (_KEY if label.mark else 0)
    yield words(indent, level + 4.5, first, "n" if label.mark else "w")
    for turn, line in enumerate(more):
        yield words(indent, level + 4.5 + _LINE * (turn + 1) + 1, line, "w")


def clear(wished: Sequence[float], heights: Sequence[float], end: float) -> list[float]:
    """Where labels of these heights begin, near where they wish to, in their order and apart; all of them before `end`.

    `wished` ascends, and `heights` have room before `end`.
    """
    tops: list[float] = []
    floor = 0.0
    for wish, height in zip(wished, heights, strict=True):
        tops.append(max(wish, floor))
        floor = tops[-1] + height
    for index in range(len(tops) - 1, -1, -1):
        tops[index] = min(tops[index], end - heights[index])
        end = tops[index]
    return tops
