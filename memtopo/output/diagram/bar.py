"""Bars to scale, with lanes that show the access of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from memtopo.geometry.diagram import DeviceAccess
from memtopo.output.diagram.markup import (
    BODY,
    NAME,
    SMALL,
    Box,
    beside,
    curve,
    dot,
    element,
    fitting,
    hovered,
    number,
    packed,
    path,
    placed,
    rect,
    stacked,
    text_at,
    width,
)
from memtopo.output.diagram.notation import DrawingContext, first_and_last

SHORTEST_BLOCK = 5.0
MOST_LANES = 6
LANES_HEAD = 20.0
"""Height above a bar for the names of lanes."""

_LETTER_HEIGHT = 20.0  # of a block with a letter
_CHUNK_HEIGHT = 3.0  # of a stripe for one chunk
_BAND_HEIGHT = 5.0  # of a stripe for many chunks
_WIDE_LANE, _NARROW_LANE = 34.0, 21.0
_MOST_WIDE_LANES = 3
_WORD_HEIGHT = 16.0  # of a lane with `r` or `rw`


@dataclass(frozen=True, slots=True)
class BarBlock:
    """A part of a bar: `count` chunks on `devices` round-robin, or a hole, which has no mark.

    If there are more devices than chunks, the memory of all of them is at the same addresses. `name` and `words` are
    its label, `tooltip` all that is known of it. `twin` is the index of an earlier block of the same bar with the same
    memory.
    """

    size: int
    mark: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    access: tuple[DeviceAccess, ...] = ()
    name: str = ""
    words: tuple[str, ...] = ()
    tooltip: str = ""
    twin: int | None = None


class BarArea(NamedTuple):
    """The rectangle of a block."""

    x: float
    top: float
    width: float
    height: float


def lengths(sizes: Sequence[int], room: float, least: float) -> list[float]:
    """Pixels for sizes in a row, `room` in all: to scale, but none shorter than `least`.

    Where the least lengths would take more than half of the room, all are to scale.
    """
    total = sum(sizes) or 1
    if len(sizes) * least * 2 > room:
        return [size * room / total for size in sizes]
    small: set[int] = set()
    while True:
        rest = sum(size for index, size in enumerate(sizes) if index not in small) or 1
        scale = (room - least * len(small)) / rest
        under = {index for index, size in enumerate(sizes) if index not in small and size * scale < least}
        if not under:
            return [least if index in small else size * scale for index, size in enumerate(sizes)]
        small |= under


def draw_bar(
    blocks: Sequence[BarBlock], tops: Sequence[float], end: float, x: float, wide: float, context: DrawingContext
) -> Iterator[str]:
    """A bar of `wide` pixels from `x` on; each block ends at the top of the next, the last one at `end`."""
    for block, top, bottom in zip(blocks, tops, [*tops[1:], end], strict=True):
        yield hovered(block.tooltip, _block(block, BarArea(x, top, wide, bottom - top), context))


def _block(block: BarBlock, area: BarArea, context: DrawingContext) -> Iterator[str]:
    if not block.mark:
        yield rect(*area, "o i")
        return
    yield from _stripes(block, area, context)
    yield rect(*area, "e")
    if area.height >= _LETTER_HEIGHT:
        yield from badge(context.letter(block.mark), area.x + area.width / 2, area.top + area.height / 2)


def badge(letter: str, x: float, y: float) -> Iterator[str]:
    """The letter of a mark on a background without texture."""
    yield rect(x - 8, y - 8, 16, 16, "b", 4)
    yield text_at(x, y + 4, letter, "n s", middle=True)


def _stripes(block: BarBlock, area: BarArea, context: DrawingContext) -> Iterator[str]:
    if len(block.devices) > block.count > 0:
        yield from _columns(block, area, context)
        return
    count = _stripe_count(block, area.height)
    height = area.height / count
    hues = [context.hue(device) for device in block.devices] or [0]
    for first, hue in enumerate(hues):
        if stripes := [_stripe(area, height, index) for index in range(first, count, len(hues))]:
            yield element("path", {"d": "".join(stripes), **context.fill(hue)})
    if count > 1:
        borders = (f"M{number(area.x)} {number(area.top + height * index)}h{number(area.width)}"
                   for index in range(1, count))  # fmt: skip
        yield path(borders, "l z")


def _columns(block: BarBlock, area: BarArea, context: DrawingContext) -> Iterator[str]:
    """Memory of several devices at the same addresses, side by side."""
    wide = area.width / len(block.devices)
    for index, device in enumerate(block.devices):
        column = BarArea(area.x + index * wide, area.top, wide, area.height)
        yield element("path", {"d": _stripe(column, area.height, 0), **context.fill(context.hue(device))})


def _stripe_count(block: BarBlock, height: float) -> int:
    """A stripe for each chunk if that is visible, otherwise as many as the height has room for."""
    if height / max(block.count, 1) >= _CHUNK_HEIGHT:
        return max(block.count, 1)
    return max(1, min(block.count, int(height / _BAND_HEIGHT)))


def _stripe(area: BarArea, height: float, index: int) -> str:
    wide = number(area.width)
    return f"M{number(area.x)} {number(area.top + height * index)}h{wide}v{number(height)}h-{wide}z"


def lane_devices(blocks: Sequence[BarBlock]) -> list[str]:
    """The devices with access to any block."""
    return sorted(dict.fromkeys(each.device for block in blocks for each in block.access), key=_device_order)


def lanes_width(devices: Sequence[str], *, tight: bool) -> float:
    """Width of the lanes of some devices and of the gap to the bar."""
    return _lane_width(devices, tight=tight) * len(devices) + 6 if devices else 0


def draw_lanes(
    blocks: Sequence[BarBlock], tops: Sequence[float], end: float, devices: Sequence[str], *, tight: bool
) -> Iterator[str]:
    """A lane for each device, under its name, from the left edge on."""
    bounds = list(zip(tops, [*tops[1:], end], strict=True))
    granted = [{each.device: each.access for each in block.access} for block in blocks]
    width = _lane_width(devices, tight=tight)
    for index, device in enumerate(devices):
        middle = (index + 0.5) * width
        yield text_at(middle, tops[0] - 7, device if width == _WIDE_LANE else _short(device), "s w", middle=True)
        found = [(access.get(device, ""), top, bottom) for access, (top, bottom) in zip(granted, bounds, strict=True)]
        for word, group in groupby(found, key=itemgetter(0)):
            same = list(group)
            if word:
                yield from _lane_part(word, middle, same[0][1], same[-1][2])


def _short(device: str) -> str:
    """A device in few characters: `0`, `h`, `h0`."""
    return device.removeprefix("gpu").replace("host:", "h").replace("host", "h")


def _lane_part(word: str, middle: float, top: float, bottom: float) -> Iterator[str]:
    height = bottom - top - 2
    filled = word == "rw"
    yield rect(middle - 8, top + 1, 16, height, "w" if filled else "o", min(4, height / 2))
    if height >= _WORD_HEIGHT:
        yield text_at(middle, (top + bottom) / 2 + 4, word, "s v" if filled else "s", middle=True)


def _lane_width(devices: Sequence[str], *, tight: bool) -> float:
    few = len(devices) <= (1 if tight else _MOST_WIDE_LANES)
    wide = few and all(width(device, SMALL) <= _WIDE_LANE for device in devices)
    return _WIDE_LANE if wide else _NARROW_LANE


def _device_order(device: str) -> tuple[int, int, str]:
    number = device.removeprefix("gpu")
    return (0, int(number), "") if number != device and number.isdecimal() else (1, 0, device)


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


def labelled_bar(
    blocks: Sequence[BarBlock],
    room: float,
    tall: float,
    context: DrawingContext,
    *,
    lowest: float = _LOWEST_BAR,
    beside: tuple[float, Callable[[float, float], Iterable[str]]] = (0, lambda _top, _end: ()),
) -> Box:
    """A bar to scale with lanes of access on its left and labels on its right.

    `beside` is a shape on the left: its width, and what draws it between the top and the end of the bar.
    """
    granted = lane_devices(blocks)
    devices = granted if len(granted) <= MOST_LANES else []
    links = [(block.twin, index) for index, block in enumerate(blocks) if block.twin is not None]
    wide, tight = _bar_width(room), room < _ROOM_FOR_WIDE_LANES
    left = beside[0] + lanes_width(devices, tight=tight) + (_LINKS if links else 0)
    labels = bar_labels(blocks, room - left - wide)
    start = LANES_HEAD if devices else 4
    natural = min(_HIGHEST_BAR, len(blocks) * SHORTEST_BLOCK * 2)
    height = max(lowest, labels_height(labels), natural, tall - start - 1)
    *tops, end = accumulate(lengths([block.size for block in blocks], height, SHORTEST_BLOCK), initial=start)
    parts = [
        *beside[1](start, end),
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
class BarLabel:
    """The lines of a label, and the index of its block; a label `between` blocks counts those without one."""

    block: int
    mark: str
    lines: tuple[str, ...]
    between: bool = False

    @property
    def height(self) -> float:
        """Height with the gap below."""
        return _LABEL_HEAD + _LABEL_LINE * (len(self.lines) - 1) + _LABEL_GAP


def bar_labels(blocks: Sequence[BarBlock], room: float) -> list[BarLabel]:
    """A label for each block, or for the first ones and the last one."""
    indices = first_and_last(len(blocks), MOST_LABELS)
    made = [_label(index, blocks[index], room - _LEADER - _LETTER) for index in indices]
    if more := len(blocks) - len(made):
        made.insert(-1, BarLabel(made[-2].block + 1, "", (f"… {more:,} more",), between=True))
    return made


def labels_height(labels: Sequence[BarLabel]) -> float:
    """Height of labels below one another."""
    return sum(label.height for label in labels)


def draw_labels(
    labels: Sequence[BarLabel], tops: Sequence[float], end: float, x: float, context: DrawingContext, *, start: float
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


def _label(index: int, block: BarBlock, room: float) -> BarLabel:
    if not block.mark:
        return BarLabel(index, "", tuple(packed(["hole", *block.words], room + _LETTER, BODY)))
    name = fitting(block.name, room, NAME)
    return BarLabel(index, block.mark, (name, *packed(list(block.words), room, BODY)))


def _draw_label(label: BarLabel, middle: float, top: float, x: float, context: DrawingContext) -> Iterator[str]:
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
