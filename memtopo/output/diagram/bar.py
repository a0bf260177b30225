"""A bar to scale: each block in the colours and textures of its devices, with its letter where there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.output.diagram.blocks import Block
from memtopo.output.diagram.box import hovered, path, rect, words
from memtopo.output.diagram.markup import element, number
from memtopo.output.diagram.pen import Pen

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


def bar(blocks: Sequence[Block], tops: Sequence[float], end: float, x: float, wide: float, pen: Pen) -> Iterator[str]:
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
