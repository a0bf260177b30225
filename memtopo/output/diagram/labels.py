"""Labels beside a bar, in the order of its blocks, each with a line to its block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtopo.output.diagram.bar import Block, badge
from memtopo.output.diagram.context import DrawingContext
from memtopo.output.diagram.markup import curve, dot, words
from memtopo.output.diagram.typography import NAME, WORDS, fitting, packed

MOST_LABELS = 12
_LEADER = 24.0  # width of the lines between a bar and its labels
_LETTER = 22.0
_HEAD, _LINE, _GAP = 18.0, 16.0, 10.0


@dataclass(frozen=True, slots=True)
class Label:
    """The lines of a label, and the index of its block; a label `between` blocks counts those without one."""

    block: int
    mark: str
    lines: tuple[str, ...]
    between: bool = False

    @property
    def height(self) -> float:
        """Height with the gap below."""
        return _HEAD + _LINE * (len(self.lines) - 1) + _GAP


def bar_labels(blocks: Sequence[Block], room: float) -> list[Label]:
    """A label for each block, or for the first ones and the last one."""
    made = [_label(index, blocks[index], room - _LEADER - _LETTER) for index in _labelled(len(blocks))]
    if more := len(blocks) - len(made):
        made.insert(-1, Label(made[-2].block + 1, "", (f"… {more:,} more",), between=True))
    return made


def labels_height(labels: Sequence[Label]) -> float:
    """Height of labels below one another."""
    return sum(label.height for label in labels)


def draw_labels(
    labels: Sequence[Label], tops: Sequence[float], end: float, x: float, context: DrawingContext, *, start: float = 0
) -> Iterator[str]:
    """Labels with lines from the edge of a bar at `x`, between `start` and `end`; `tops` are those of all blocks."""
    middles = [(tops[label.block] + [*tops, end][label.block + 1]) / 2 for label in labels]
    label_tops = separated(
        [max(0.0, middle - _HEAD / 2 - start) for middle in middles],
        [label.height for label in labels],
        max(end - start, labels_height(labels)),
    )
    for label, middle, top in zip(labels, middles, label_tops, strict=True):
        yield from _draw_label(label, middle, top + start, x, context)


def separated(preferred: Sequence[float], heights: Sequence[float], end: float) -> list[float]:
    """Tops of labels, near the preferred ones, without overlap, in the same order, all labels above `end`.

    `preferred` ascends, and the sum of `heights` is at most `end`.
    """
    tops: list[float] = []
    floor = 0.0
    for top, height in zip(preferred, heights, strict=True):
        tops.append(max(top, floor))
        floor = tops[-1] + height
    for index in range(len(tops) - 1, -1, -1):
        tops[index] = min(tops[index], end - heights[index])
        end = tops[index]
    return tops


def _labelled(count: int) -> list[int]:
    return list(range(count)) if count <= MOST_LABELS else [*range(MOST_LABELS - 1), count - 1]


def _label(index: int, block: Block, room: float) -> Label:
    if not block.mark:
        return Label(index, "", tuple(packed(["hole", *block.words], room + _LETTER, WORDS)))
    name = fitting(block.name, room, NAME)
    return Label(index, block.mark, (name, *packed(list(block.words), room, WORDS)))


def _draw_label(label: Label, middle: float, top: float, x: float, context: DrawingContext) -> Iterator[str]:
    level, right = top + _HEAD / 2, x + _LEADER
    if not label.between:
        yield curve((x + 2, middle), (right - 3, level), x + _LEADER / 2, "l")
        yield dot(x + 2, middle, "d", 2)
    if label.mark:
        yield from badge(context.letter(label.mark), right + 8, level)
    first, *more = label.lines
    indent = right + (_LETTER if label.mark else 0)
    yield words(indent, level + 4.5, first, "n" if label.mark else "w")
    for index, line in enumerate(more):
        yield words(indent, level + 4.5 + _LINE * (index + 1) + 1, line, "w")
