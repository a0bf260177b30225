"""Bars to scale, with lanes that show the access of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from memtopo.geometry.diagram import DeviceAccess
from memtopo.output.diagram import typography
from memtopo.output.diagram.context import DrawingContext
from memtopo.output.diagram.markup import element, hovered, number, path, rect, text_at
from memtopo.output.diagram.typography import SMALL

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
class Block:
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


class Area(NamedTuple):
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
    blocks: Sequence[Block], tops: Sequence[float], end: float, x: float, wide: float, context: DrawingContext
) -> Iterator[str]:
    """A bar of `wide` pixels from `x` on; each block ends at the top of the next, the last one at `end`."""
    for block, top, bottom in zip(blocks, tops, [*tops[1:], end], strict=True):
        yield hovered(block.tooltip, _block(block, Area(x, top, wide, bottom - top), context))


def _block(block: Block, area: Area, context: DrawingContext) -> Iterator[str]:
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


def _stripes(block: Block, area: Area, context: DrawingContext) -> Iterator[str]:
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


def _columns(block: Block, area: Area, context: DrawingContext) -> Iterator[str]:
    """Memory of several devices at the same addresses, side by side."""
    wide = area.width / len(block.devices)
    for index, device in enumerate(block.devices):
        column = Area(area.x + index * wide, area.top, wide, area.height)
        yield element("path", {"d": _stripe(column, area.height, 0), **context.fill(context.hue(device))})


def _stripe_count(block: Block, height: float) -> int:
    """A stripe for each chunk if that is visible, otherwise as many as the height has room for."""
    if height / max(block.count, 1) >= _CHUNK_HEIGHT:
        return max(block.count, 1)
    return max(1, min(block.count, int(height / _BAND_HEIGHT)))


def _stripe(area: Area, height: float, index: int) -> str:
    wide = number(area.width)
    return f"M{number(area.x)} {number(area.top + height * index)}h{wide}v{number(height)}h-{wide}z"


def lane_devices(blocks: Sequence[Block]) -> list[str]:
    """The devices with access to any block."""
    return sorted(dict.fromkeys(each.device for block in blocks for each in block.access), key=_device_order)


def lanes_width(devices: Sequence[str], *, tight: bool) -> float:
    """Width of the lanes of some devices and of the gap to the bar."""
    return _lane_width(devices, tight=tight) * len(devices) + 6 if devices else 0


def draw_lanes(
    blocks: Sequence[Block], tops: Sequence[float], end: float, devices: Sequence[str], *, tight: bool
) -> Iterator[str]:
    """A lane for each device, under its name, from the left edge on."""
    bounds = list(zip(tops, [*tops[1:], end], strict=True))
    granted, width = [_access_by_device(block) for block in blocks], _lane_width(devices, tight=tight)
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
    wide = few and all(typography.width(device, SMALL) <= _WIDE_LANE for device in devices)
    return _WIDE_LANE if wide else _NARROW_LANE


def _access_by_device(block: Block) -> Mapping[str, str]:
    return {each.device: each.access for each in block.access}


def _device_order(device: str) -> tuple[int, int, str]:
    number = device.removeprefix("gpu")
    return (0, int(number), "") if number != device and number.isdecimal() else (1, 0, device)
