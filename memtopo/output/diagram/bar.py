"""A bar to scale: each block in the colours and textures of its devices, with its letter where there is room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from memtopo.output.diagram import typography
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.markup import element, hovered, number, path, rect, words
from memtopo.output.diagram.model import DeviceAccess, MappingSpan
from memtopo.output.diagram.typography import SMALL

LEAST = 5.0
_ROOM = 20.0  # pixels that a letter needs
_STRIPE = 3.0  # pixels that a chunk needs to be drawn by itself
_BAND = 5.0  # pixels of a stripe that stands for many


class Place(NamedTuple):
    """Where a block is drawn."""

    x: float
    top: float
    width: float
    height: float


def draw_bar(
    blocks: Sequence[Block], tops: Sequence[float], end: float, x: float, wide: float, pen: Pen
) -> Iterator[str]:
    """Blocks from their tops to the next one's, `wide` from `x` on."""
    for block, top, bottom in zip(blocks, tops, [*tops[1:], end], strict=True):
        yield hovered(block.hover, _block(block, Place(x, top, wide, bottom - top), pen))


def _block(block: Block, at: Place, pen: Pen) -> Iterator[str]:
    if not block.mark:
        yield rect(*at, "o i")
        return
    yield from _stripes(block, at, pen)
    yield rect(*at, "e")
    if at.height >= _ROOM:
        yield from badge(pen.letter(block.mark), at.x + at.width / 2, at.top + at.height / 2)


def badge(letter: str, x: float, y: float) -> Iterator[str]:
    """The letter of a kind of chunk, on a ground of its own so that no texture runs through it."""
    yield rect(x - 8, y - 8, 16, 16, "b", 4)
    yield words(x, y + 4, letter, "n s", middle=True)


def _stripes(block: Block, at: Place, pen: Pen) -> Iterator[str]:
    count = _count(block, at.height)
    each = at.height / count
    hues = [pen.hue(device) for device in block.devices] or [0]
    for turn, hue in enumerate(hues):
        if found := [_stripe(at, each, stripe) for stripe in range(turn, count, len(hues))]:
            yield element("path", {"d": "".join(found), **pen.ink(hue)})
    if count > 1:
        between = (f"M{number(at.x)} {number(at.top + each * stripe)}h{number(at.width)}" for stripe in range(1, count))
        yield path(between, "l z")


def _count(block: Block, height: float) -> int:
    """Stripes: one for each chunk where it can be seen, else as many as show that there are many."""
    if height / max(block.count, 1) >= _STRIPE:
        return max(block.count, 1)
    return max(1, min(block.count, int(height / _BAND)))


def _stripe(at: Place, height: float, turn: int) -> str:
    wide = number(at.width)
    return f"M{number(at.x)} {number(at.top + height * turn)}h{wide}v{number(height)}h-{wide}z"


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a bar: `count` chunks on `devices` in turn; without a mark it is a hole.

    `name` and `words` are its label, `hover` what is told of it in full. `twin` is the turn of an earlier block of the
    same bar that shows the same memory.
    """

    size: int
    mark: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    access: tuple[DeviceAccess, ...] = ()
    name: str = ""
    words: tuple[str, ...] = ()
    hover: str = ""
    twin: int | None = None


def close(pieces: Sequence[MappingSpan], size: int, most: int) -> Iterator[list[MappingSpan]]:
    """Pieces one by one, or, where there are more than that, those together that begin in the same part of a range."""
    if len(pieces) <= most:
        yield from ([piece] for piece in pieces)
        return
    for _, group in groupby(pieces, key=lambda piece: piece.offset * most // size):
        yield list(group)


MOST_LANES = 6
_FEW = 3
_WIDE, _NARROW = 34.0, 21.0
LANES_HEAD = 20.0
_LEAST_WORD = 16.0  # pixels in which a word stands


def lane_devices(blocks: Sequence[Block]) -> list[str]:
    """The devices that may do anything in a bar."""
    return sorted(dict.fromkeys(each.device for block in blocks for each in block.access), key=_order)


def lanes_width(shown: Sequence[str], *, tight: bool) -> float:
    """What lanes need, with the space behind them."""
    return _each(shown, tight=tight) * len(shown) + 6 if shown else 0


def draw_lanes(
    blocks: Sequence[Block], tops: Sequence[float], end: float, shown: Sequence[str], *, tight: bool
) -> Iterator[str]:
    """A lane for each of the devices, from the left edge on, under its name, or a short one where it is `tight`."""
    bounds = list(zip(tops, [*tops[1:], end], strict=True))
    granted, each = [_words(block) for block in blocks], _each(shown, tight=tight)
    for turn, device in enumerate(shown):
        middle = (turn + 0.5) * each
        yield words(middle, tops[0] - 7, device if each == _WIDE else short(device), "s w", middle=True)
        found = [(words_.get(device, ""), top, bottom) for words_, (top, bottom) in zip(granted, bounds, strict=True)]
        for word, group in groupby(found, key=itemgetter(0)):
            stretch = list(group)
            if word:
                yield from _stretch(word, middle, stretch[0][1], stretch[-1][2])


def short(device: str) -> str:
    """A device in as few characters as a lane has room for: `0`, `h`, `h0`."""
    return device.removeprefix("gpu").replace("host:", "h").replace("host", "h")


def _stretch(word: str, middle: float, top: float, bottom: float) -> Iterator[str]:
    height = bottom - top - 2
    filled = word == "rw"
    yield rect(middle - 8, top + 1, 16, height, "w" if filled else "o", min(4, height / 2))
    if height >= _LEAST_WORD:
        yield words(middle, (top + bottom) / 2 + 4, word, "s v" if filled else "s", middle=True)


def _each(shown: Sequence[str], *, tight: bool) -> float:
    few = len(shown) <= (1 if tight else _FEW) and all(typography.width(device, SMALL) <= _WIDE for device in shown)
    return _WIDE if few else _NARROW


def _words(block: Block) -> Mapping[str, str]:
    return {each.device: each.access for each in block.access}


def _order(device: str) -> tuple[int, int, str]:
    number = device.removeprefix("gpu")
    return (0, int(number), "") if number != device and number.isdecimal() else (1, 0, device)


def lengths(sizes: Sequence[int], room: float, least: float) -> list[float]:
    """Pixels for sizes that lie one behind another: to scale, but none under `least`, while that leaves half to scale.

    Their sum is `room`.
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
