"""Cards: a heading and a bar with its labels and lanes, in a frame; labels and the lines that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memtopo.output.diagram.bar import (
    LANES_HEAD,
    MOST_LANES,
    SHORTEST_BLOCK,
    Block,
    badge,
    draw_bar,
    draw_lanes,
    lane_devices,
    lanes_width,
    lengths,
)
from memtopo.output.diagram.context import DrawingContext
from memtopo.output.diagram.markup import Box, beside, curve, dot, placed, rect, stacked, text_at
from memtopo.output.diagram.typography import BODY, NAME, fitting, packed, width

_NARROW_CARD = 284.0
_WIDE_BAR, _MIDDLE_BAR, _NARROW_BAR = 84.0, 44.0, 36.0
_ROOM_FOR_WIDE_BAR, _ROOM_FOR_MIDDLE_BAR = 440.0, 240.0
_ROOM_FOR_WIDE_LANES = 330.0
_LOWEST_BAR, _HIGHEST_BAR = 132.0, 420.0
_GAP = 10.0
_LINKS = 20.0  # width of the curves between blocks of one bar

Draw = Callable[[float, float], Box]


def padding(wide: float) -> float:
    """Space between the edges of a card or a frame and its content."""
    return 16.0 if wide >= _NARROW_CARD else 10.0


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading of a card: the kind of object that it shows, its name, its size, and notes."""

    kind: str
    name: str
    size: str
    notes: tuple[str, ...] = ()

    def box(self, room: float) -> Box:
        """The kind in small type, the name and the size in a line, and the notes in as many lines as they need."""
        size = width(self.size, BODY)
        parts = [text_at(0, 10, self.kind, "c w")]
        name = fitting(self.name, room - size - 12, NAME + 1.5)
        parts += [text_at(0, 30, name, "n a"), text_at(room, 30, self.size, "", end=True)]
        lines = packed(list(self.notes), room, BODY)
        parts += [text_at(0, 48 + 16 * index, line, "w") for index, line in enumerate(lines)]
        return Box(room, 36 + 16 * len(lines), "".join(parts))


@dataclass(frozen=True, slots=True)
class Card:
    """A heading above a content, which `draw` draws in a width and a least height.

    Edges behind the card show that it stands for several `copies`.
    """

    heading: Heading
    draw: Draw
    copies: int = 1

    def box(self, wide: float, tall: float = 0) -> Box:
        """The card in a width and a least height."""
        behind = 8.0 if self.copies > 1 else 0.0
        edge = padding(wide)
        room = wide - 2 * edge - behind
        head = self.heading.box(room)
        content = stacked([head, self.draw(room, tall - behind - 2 * edge - head.height - _GAP)], _GAP)
        height = max(content.height + 2 * edge, tall - behind)
        edges = [rect(4 * index, 4 * index, wide - 8, height, "k", 8) for index in (2, 1)] if behind else []
        front = rect(0, 0, wide - behind, height, "k", 8)
        return Box(wide, height + behind, "".join([*edges, front, placed(content, edge, edge)]))


def grid(cards: Sequence[Card], columns: int, wide: float, gap: float, tall: float = 0) -> Box:
    """Cards in rows of `columns`, all of a row as high as its highest; a single row is at least `tall`."""
    rows = [cards[start : start + columns] for start in range(0, len(cards), columns)]
    least = tall if len(rows) == 1 else 0
    return stacked([_row(row, wide, gap, least) for row in rows], gap)


def _row(cards: Sequence[Card], wide: float, gap: float, least: float) -> Box:
    tall = max([least, *(card.box(wide).height for card in cards)])
    return beside([card.box(wide, tall) for card in cards], gap)


def labelled_bar(blocks: Sequence[Block], room: float, tall: float, context: DrawingContext) -> Box:
    """A bar to scale with lanes of access on its left and labels on its right."""
    granted = lane_devices(blocks)
    devices = granted if len(granted) <= MOST_LANES else []
    links = [(block.twin, index) for index, block in enumerate(blocks) if block.twin is not None]
    wide = _bar_width(room)
    tight = room < _ROOM_FOR_WIDE_LANES
    left = lanes_width(devices, tight=tight) + (_LINKS if links else 0)
    labels = bar_labels(blocks, room - left - wide)
    start = LANES_HEAD if devices else 4
    natural = min(_HIGHEST_BAR, len(blocks) * SHORTEST_BLOCK * 2)
    height = max(_LOWEST_BAR, labels_height(labels), natural, tall - start - 1)
    sizes = lengths([block.size for block in blocks], height, SHORTEST_BLOCK)
    *tops, end = accumulate(sizes, initial=start)
    parts = [
        *draw_lanes(blocks, tops, end, devices, tight=tight),
        *_draw_links(links, tops, end, left),
        *draw_bar(blocks, tops, end, left, wide, context),
        *draw_labels(labels, tops, end, left + wide, context, start=start),
    ]
    return Box(room, end + 1, "".join(parts))


def _bar_width(room: float) -> float:
    if room >= _ROOM_FOR_WIDE_BAR:
        return _WIDE_BAR
    return _MIDDLE_BAR if room >= _ROOM_FOR_MIDDLE_BAR else _NARROW_BAR


def _draw_links(links: Sequence[tuple[int, int]], tops: Sequence[float], end: float, x: float) -> Iterator[str]:
    """Curves between blocks of one bar with the same memory."""
    bounds = [*tops, end]
    for first, second in links[:MOST_LABELS]:
        above, below = ((bounds[index] + bounds[index + 1]) / 2 for index in (first, second))
        yield curve((x - 1, above), (x - 1, below), x - _LINKS + 2, "f")
        yield from (dot(x - 2, y, "u", 2.5) for y in (above, below))


MOST_LABELS = 12
_LEADER = 24.0  # width of the lines between a bar and its labels
_LETTER = 22.0
_LABEL_HEAD, _LABEL_LINE, _LABEL_GAP = 18.0, 16.0, 10.0


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
        return _LABEL_HEAD + _LABEL_LINE * (len(self.lines) - 1) + _LABEL_GAP


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
    labels: Sequence[Label], tops: Sequence[float], end: float, x: float, context: DrawingContext, *, start: float
) -> Iterator[str]:
    """Labels with lines from the edge of a bar at `x`, between `start` and `end`; `tops` are those of all blocks."""
    middles = [(tops[label.block] + [*tops, end][label.block + 1]) / 2 for label in labels]
    label_tops = separated(
        [max(0.0, middle - _LABEL_HEAD / 2 - start) for middle in middles],
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
        return Label(index, "", tuple(packed(["hole", *block.words], room + _LETTER, BODY)))
    name = fitting(block.name, room, NAME)
    return Label(index, block.mark, (name, *packed(list(block.words), room, BODY)))


def _draw_label(label: Label, middle: float, top: float, x: float, context: DrawingContext) -> Iterator[str]:
    level, right = top + _LABEL_HEAD / 2, x + _LEADER
    if not label.between:
        yield curve((x + 2, middle), (right - 3, level), x + _LEADER / 2, "l")
        yield dot(x + 2, middle, "d", 2)
    if label.mark:
        yield from badge(context.letter(label.mark), right + 8, level)
    first, *more = label.lines
    indent = right + (_LETTER if label.mark else 0)
    yield text_at(indent, level + 4.5, first, "n" if label.mark else "w")
    for index, line in enumerate(more):
        yield text_at(indent, level + 4.5 + _LABEL_LINE * (index + 1) + 1, line, "w")
