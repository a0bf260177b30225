"""Bars to scale: blocks of bytes as cells of one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from memtopo.output.inks import Inks


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a bar: `count` chunks of one kind, on `devices` in turn; without one it is a hole or `taken`."""

    offset: int
    chunk: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    taken: bool = False


def starts(blocks: Sequence[Block], size: int, width: int) -> list[int]:
    """The first cell of each block, where `size` bytes are `width` cells.

    As long as two thirds of the cells are enough, each block has one of its own, however small it is. Of more blocks
    several begin in one cell, so that the scale is kept.
    """
    cells = [min(block.offset * width // size, width - 1) for block in blocks]
    if len(cells) * 3 > width * 2:
        return cells
    for index in range(1, len(cells)):
        cells[index] = max(cells[index], cells[index - 1] + 1)
    for index in range(len(cells) - 1, -1, -1):
        cells[index] = min(cells[index], width - len(cells) + index)
    return cells


def bar(blocks: Sequence[Block], cells: Sequence[int], width: int, inks: Inks) -> Text:
    """Each block as its letter and the fills of its devices; `cells` is what `starts` gave for this width."""
    drawn = [(inks.hole, "dim")] * width
    taken = 0
    for block, first, end in zip(blocks, cells, [*cells[1:], width], strict=True):
        # Where many blocks share a cell, it is the first chunk's: memory is shown rather than a hole.
        if (block.chunk or block.taken) and (start := max(first, taken)) < max(end, first + 1):
            taken = max(end, first + 1)
            drawn[start:taken] = _cells(block, taken - start, inks)
    line = Text(no_wrap=True, overflow="crop", end="")
    for style, cells_ in groupby(drawn, key=lambda cell: cell[1]):
        line.append("".join(char for char, _ in cells_), style)
    return line


def _cells(block: Block, length: int, inks: Inks) -> list[tuple[str, str]]:
    if block.taken:
        return [(inks.taken, "dim")] * length
    devices = [_device(block, cell, length) for cell in range(length)]
    head = (inks.letter(block.chunk), inks.swatch(devices[0]))
    return [head, *((inks.fill(device), inks.colour(device)) for device in devices[1:])]


def _device(block: Block, cell: int, length: int) -> str:
    """Whose memory a cell shows: to scale where chunks have cells, else the devices in turn, as the chunks are."""
    chunk = cell * block.count // length if block.count <= length else cell
    return block.devices[chunk % len(block.devices)]
