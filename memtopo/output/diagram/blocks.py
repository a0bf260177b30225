"""Blocks: what a bar shows, already in words, and no more of them than can be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from memtopo.output.diagram.model import DeviceAccess, MappingSpan


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
