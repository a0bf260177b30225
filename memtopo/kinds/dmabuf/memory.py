"""Memory behind dma-bufs: the addresses of exported objects, and the chunks that are mapped there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memtopo.driver.types import DmaBufFlags, Location
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Placement

if TYPE_CHECKING:
    from memtopo.kinds.layout import Layout

PAGE = 4 << 10
"""Bytes of the host's pages, of which a dma-buf consists (fact 83)."""


class Span(NamedTuple):
    """Bytes of a range or of an object with an address of its own, which has the `label`."""

    label: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DmaBufMemory:
    """Memory behind the dma-bufs of the objects of a group: `size` bytes from `offset` of each.

    `placements` are the first one of each chunk, by which it has the same dma-buf in any order of entries, or those in
    ranges.
    """

    group: Group
    offset: int
    size: int
    flags: DmaBufFlags
    placements: tuple[Placement, ...] = ()

    @property
    def bytes(self) -> tuple[int, int, DmaBufFlags]:
        """Part of each object, and the mapping of it."""
        return self.offset, self.size, self.flags

    def span(self, index: int) -> Span:
        """Addresses of one object; raises `KeyError` for a chunk that is mapped nowhere."""
        if not isinstance(self.group, ChunkGroup):
            return Span(self.group.label(index), self.offset, self.size)
        for placement in self.placements:
            for nth in placement.mapped(index):
                label = placement.range.label(placement.instance)
                return Span(label, placement.offset + nth * self.group.size + self.offset, self.size)
        raise KeyError(self.group.label(index))

    def content(self, index: int) -> Iterator[tuple[int, str]]:
        """Offset in the range and label of each chunk behind one object; none for memory that is no chunk's."""
        if isinstance(self.group, ChunkGroup):
            yield self.span(index).offset - self.offset, self.group.label(index)
        for placement in self.inside(index):
            for nth in range(placement.count):
                offset = placement.offset + nth * placement.chunk.size
                yield offset, placement.chunk.label(placement.index(nth))

    def inside(self, index: int) -> Iterator[Placement]:
        """Placements in one range."""
        if isinstance(self.group, RangeGroup):
            yield from (each for each in self.placements if each.instance == index)

    def location(self, index: int) -> Location:
        """Location of the memory of one object."""
        for placement in self.inside(index):
            return placement.chunk.location_of(placement.first)
        return self.group.location_of(index)

    def resources(self, index: int) -> Iterator[Hashable]:
        """Resources whose memory one dma-buf is of."""
        chunks = [("chunk", label) for _, label in self.content(index)]
        yield from chunks or [(self.group.noun, self.group.label(index))]

    def address(self, layout: Layout, index: int) -> int:
        """Address of one object in a layout; raises `KeyError` if it has no memory in its present state."""
        span = self.span(index)
        base = layout.address(span.label)
        for offset, chunk in self.content(index):
            if layout.mappings.get(base + offset) != chunk:
                raise KeyError(chunk)
        return base + span.offset
