"""Bars to scale, with lanes that show the access of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

from msgspec import Struct

from memtopo.geometry.diagram import DeviceAccess
from memtopo.output.diagram import markup
from memtopo.output.diagram.markup import BODY, NAME, Box, fitting, number, packed, rect, stacked, text_at, width
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


class BarBlock(Struct, frozen=True):
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


def _block(block: BarBlock, x: float, top: float, wide: float, tall: float, context: DrawingContext) -> Iterator[str]:
    if not block.mark:
        yield rect(x, top, wide, tall, "o i")
        return
    if len(block.devices) > block.count > 0:  # memory of several devices at the same addresses, side by side
        part = wide / len(block.devices)
        for index, device in enumerate(block.devices):
            yield filled([stripe(x + index * part, top, part, tall)], device, context)
    else:
        yield from _stripes(block, x, top, wide, tall, context)
    yield rect(x, top, wide, tall, "e")
    if tall >= _LETTER_HEIGHT:
        yield from badge(context.letter(block.mark), x + wide / 2, top + tall / 2)


def badge(letter: str, x: float, y: float) -> Iterator[str]:
    """The letter of a mark on a background without texture."""
    yield rect(x - 8, y - 8, 16, 16, "b", 4)
    yield text_at(x, y + 4, letter, "n s", anchor="middle")


def _stripes(block: BarBlock, x: float, top: float, wide: float, tall: float, context: DrawingContext) -> Iterator[str]:
    """A stripe for each chunk if that is visible, otherwise as many as the height has room for."""
    visible = tall / max(block.count, 1) >= _CHUNK_HEIGHT
    count = max(1, block.count if visible else min(block.count, int(tall / _BAND_HEIGHT)))
    height = tall / count
    devices = block.devices or ("",)
    for first, device in enumerate(devices):
        if stripes := [stripe(x, top + height * index, wide, height) for index in range(first, count, len(devices))]:
            yield filled(stripes, device, context)
    if count > 1:
        yield markup.path((f"M{number(x)} {number(top + height * n)}h{number(wide)}" for n in range(1, count)), "l z")


def filled(shapes: Sequence[str], device: str, context: DrawingContext) -> str:
    """Shapes in the hue and texture of a device."""
    return markup.element("path", {"d": "".join(shapes), **context.fill(device)})


def stripe(x: float, top: float, wide: float, tall: float) -> str:
    """A rectangle as a shape of a path."""
    return f"M{number(x)} {number(top)}h{number(wide)}v{number(tall)}h-{number(wide)}z"


def lane_devices(blocks: Sequence[BarBlock]) -> list[str]:
    """The devices with access to any block, GPUs by their numbers first."""
    found = {each.device for block in blocks for each in block.access}
    return sorted(found, key=lambda name: (0, len(name), name) if name.startswith("gpu") else (1, 0, name))


def _lanes(blocks: Sequence[BarBlock], bounds: Sequence[float], devices: Sequence[str], wide: float) -> Iterator[str]:
    """A lane for each device, under its name, from the left edge on."""
    granted = [{each.device: each.access for each in block.access} for block in blocks]
    for index, device in enumerate(devices):
        middle = (index + 0.5) * wide
        short = device.removeprefix("gpu").replace("host:", "h").replace("host", "h")
        yield text_at(middle, bounds[0] - 7, device if wide == _WIDE_LANE else short, "s w", anchor="middle")
        words = [access.get(device, "") for access in granted]
        for word, group in groupby(zip(words, pairwise(bounds), strict=True), key=itemgetter(0)):
            same = [each for _, each in group]
            if not word:
                continue
            top, bottom = same[0][0], same[-1][1]
            height = bottom - top - 2
            yield rect(middle - 8, top + 1, 16, height, "w" if word == "rw" else "o", min(4, height / 2))
            if height >= _WORD_HEIGHT:
                style = "s v" if word == "rw" else "s"
                yield text_at(middle, (top + bottom) / 2 + 4, word, style, anchor="middle")


_NARROW_CARD = 284.0
_WIDE_BAR, _MIDDLE_BAR, _NARROW_BAR = 84.0, 44.0, 36.0
_ROOM_FOR_WIDE_BAR, _ROOM_FOR_MIDDLE_BAR = 440.0, 240.0
_ROOM_FOR_WIDE_LANES = 330.0
_LOWEST_BAR, _HIGHEST_BAR = 132.0, 420.0
_GAP = 10.0
_LINKS = 20.0  # width of the curves between blocks of one bar


def padding(wide: float) -> float:
    """Space between the edges of a card or a frame and its content."""
    return 16.0 if wide >= _NARROW_CARD else 10.0


class Card(Struct, frozen=True):
    """The kind of an object, its name, size and notes, above a content, which `draw` draws in a width and least height.

    Edges behind the card show that it stands for several `copies`.
    """

    kind: str
    name: str
    size: str
    notes: Sequence[str]
    draw: Callable[[float, float], Box]
    copies: int = 1

    def box(self, wide: float, tall: float = 0) -> Box:
        """The card in a width and a least height."""
        behind = 8.0 if self.copies > 1 else 0.0
        edge = padding(wide)
        room = wide - 2 * edge - behind
        name = fitting(self.name, room - width(self.size, BODY) - 12, NAME + 1.5)
        parts = [text_at(0, 10, self.kind, "c w"), text_at(0, 30, name, "n a")]
        parts.append(text_at(room, 30, self.size, anchor="end"))
        lines = packed(self.notes, room, BODY)
        parts += [text_at(0, 48 + 16 * index, line, "w") for index, line in enumerate(lines)]
        head = Box(room, 36 + 16 * len(lines), "".join(parts))
        content = stacked([head, self.draw(room, tall - behind - 2 * edge - head.height - _GAP)], _GAP)
        height = max(content.height + 2 * edge, tall - behind)
        edges = [rect(4 * index, 4 * index, wide - 8, height, "k", 8) for index in (2, 1)] if behind else []
        front = rect(0, 0, wide - behind, height, "k", 8)
        return Box(wide, height + behind, "".join([*edges, front, markup.placed(content, edge, edge)]))


def grid(cards: Sequence[Card], columns: int, wide: float, gap: float, tall: float = 0) -> Box:
    """Cards in rows of `columns`, all of a row as high as its highest; a single row is at least `tall`."""
    rows = [cards[start : start + columns] for start in range(0, len(cards), columns)]
    least = tall if len(rows) == 1 else 0
    heights = [max([least, *(card.box(wide).height for card in row)]) for row in rows]
    boxes = [[card.box(wide, height) for card in row] for row, height in zip(rows, heights, strict=True)]
    return stacked([markup.beside(row, gap) for row in boxes], gap)


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
    few = len(devices) <= (_MOST_WIDE_LANES if room >= _ROOM_FOR_WIDE_LANES else 1)
    lane = _WIDE_LANE if few and all(width(each, markup.SMALL) <= _WIDE_LANE for each in devices) else _NARROW_LANE
    links = [(block.twin, index) for index, block in enumerate(blocks) if block.twin is not None]
    left = beside[0] + (lane * len(devices) + 6 if devices else 0) + (_LINKS if links else 0)
    wide = _MIDDLE_BAR if room >= _ROOM_FOR_MIDDLE_BAR else _NARROW_BAR
    wide = _WIDE_BAR if room >= _ROOM_FOR_WIDE_BAR else wide
    labels = _bar_labels(blocks, room - left - wide)
    start = LANES_HEAD if devices else 4
    natural = min(_HIGHEST_BAR, len(blocks) * SHORTEST_BLOCK * 2)
    height = max(lowest, sum(label.height for label in labels), natural, tall - start - 1)
    bounds = [*accumulate(lengths([block.size for block in blocks], height, SHORTEST_BLOCK), initial=start)]
    parts = [*beside[1](start, bounds[-1]), *_lanes(blocks, bounds, devices, lane)]
    for link in links[:MOST_LABELS]:  # between blocks with the same memory
        above, below = ((bounds[index] + bounds[index + 1]) / 2 for index in link)
        parts.append(markup.curve((left - 1, above), (left - 1, below), left - _LINKS + 2, "f"))
        parts += [markup.dot(left - 2, y, "u", 2.5) for y in (above, below)]
    for block, (top, bottom) in zip(blocks, pairwise(bounds), strict=True):
        parts.append(markup.hovered(block.tooltip, _block(block, left, top, wide, bottom - top, context)))
    parts += _labels(labels, bounds, left + wide, context)
    return Box(room, bounds[-1] + 1, "".join(parts))


MOST_LABELS = 12
_LEADER = 24.0  # width of the lines between a bar and its labels
_LETTER = 22.0
_LABEL_HEAD, _LABEL_LINE, _LABEL_GAP = 18.0, 16.0, 10.0


class _Label(Struct, frozen=True):
    """The lines of a label, and the index of its block; a label `between` blocks counts those without one."""

    block: int
    mark: str
    lines: Sequence[str]
    between: bool = False

    @property
    def height(self) -> float:
        """Height with the gap below."""
        return _LABEL_HEAD + _LABEL_LINE * (len(self.lines) - 1) + _LABEL_GAP


def _bar_labels(blocks: Sequence[BarBlock], room: float) -> list[_Label]:
    """A label for each block, or for the first ones and the last one."""
    made: list[_Label] = []
    for index in first_and_last(len(blocks), MOST_LABELS):
        block, free = blocks[index], room - _LEADER - _LETTER
        if block.mark:
            lines = [fitting(block.name, free, NAME), *packed(block.words, free, BODY)]
        else:
            lines = packed(["hole", *block.words], free + _LETTER, BODY)
        made.append(_Label(index, block.mark, lines))
    if more := len(blocks) - len(made):
        made.insert(-1, _Label(made[-2].block + 1, "", [f"… {more:,} more"], between=True))
    return made


def _labels(labels: Sequence[_Label], bounds: Sequence[float], x: float, context: DrawingContext) -> Iterator[str]:
    """Labels with lines from the edge of a bar at `x`; `bounds` are those of all blocks."""
    middles = [(bounds[label.block] + bounds[label.block + 1]) / 2 for label in labels]
    preferred = [max(0.0, middle - _LABEL_HEAD / 2 - bounds[0]) for middle in middles]
    tops = separated(preferred, [label.height for label in labels], bounds[-1] - bounds[0])
    for label, middle, top in zip(labels, middles, tops, strict=True):
        level, right = bounds[0] + top + _LABEL_HEAD / 2, x + _LEADER
        if not label.between:
            yield markup.curve((x + 2, middle), (right - 3, level), x + _LEADER / 2, "l")
            yield markup.dot(x + 2, middle, "d", 2)
        if label.mark:
            yield from badge(context.letter(label.mark), right + 8, level)
        indent = right + (_LETTER if label.mark else 0)
        for index, line in enumerate(label.lines):
            height = level + 4.5 + (_LABEL_LINE * index + 1 if index else 0)
            yield text_at(indent, height, line, "w" if index or not label.mark else "n")


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
