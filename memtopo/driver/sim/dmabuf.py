"""Dma-bufs of address ranges (facts 83, 84)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from memtopo.driver.sim.allocations import Allocation, Allocations
from memtopo.driver.sim.calls import invalid, unsupported
from memtopo.driver.sim.ipc import AllocationSharing, ChunkSharing
from memtopo.driver.sim.mappings import Mapping, Mappings
from memtopo.driver.sim.physical import Arena, Physical
from memtopo.driver.sim.shared_files import Tag, dma_buf, make, nonce
from memtopo.driver.types import DmaBufFlags, Location, LocationKind, gpu
from memtopo.machine import Machine

PAGE = 4 << 10
_NOWHERE = "gpu 0"  # no call imports it


class _Piece(NamedTuple):
    """Part of one mapping or allocation from its byte `first` to before `end`."""

    memory: Mapping | Allocation
    first: int
    end: int

    @property
    def whole(self) -> bool:
        """True for all of it."""
        return self.end - self.first == self.memory.end - self.memory.start

    @property
    def physical(self) -> Physical:
        """Bytes of the mapping or allocation."""
        return self.memory.physical

    @property
    def location(self) -> Location:
        """GPU or NUMA node that has the memory."""
        memory = self.memory
        return memory.chunk.properties.location if isinstance(memory, Mapping) else gpu(memory.device)


class DmaBufs:
    """Dma-bufs of the memory of one process.

    A dma-buf of a whole chunk or allocation is of its file, and has the same bytes; so is one of several that have not
    been shared otherwise, which are moved into one file. Any other has the size alone.
    """

    def __init__(
        self,
        machine: Machine,
        mappings: Mappings,
        allocations: Allocations,
        chunks: ChunkSharing,
        shared: AllocationSharing,
        arena: Arena,
    ) -> None:
        self._machine, self._mappings, self._allocations = machine, mappings, allocations
        self._chunks, self._shared, self._arena = chunks, shared, arena

    def export(self, address: int, size: int, flags: int) -> int:
        """Return a new descriptor of the memory at these addresses."""
        if flags & ~DmaBufFlags.PCIE:
            raise invalid("an unknown flag")
        if size <= 0 or size % PAGE or address % PAGE:
            raise invalid("the address or the size is no multiple of the host's pages")
        pieces = list(self._pieces(address, address + size))
        self._check(pieces)
        return self._descriptor(pieces, size)

    def _pieces(self, address: int, end: int) -> Iterator[_Piece]:
        """Memory behind addresses; refuses a hole."""
        while address < end:
            found = self._mappings.find(address) or self._allocations.find(address)
            if found is None:
                raise invalid(f"nothing is mapped or allocated at {address:#x}")
            yield _Piece(found, address - found.start, min(end, found.end) - found.start)
            address = found.end

    def _check(self, pieces: Sequence[_Piece]) -> None:
        """Refuse memory that is not of one GPU, and of one kind."""
        for each in pieces:
            if isinstance(each.memory, Allocation) and each.memory.kind != "own":
                raise invalid(f"the memory is {each.memory.kind}")
        if any(each.location.kind != LocationKind.GPU for each in pieces):
            raise unsupported("it is memory of the host")
        if any(one.location != other.location for one, other in pairwise(pieces)):
            raise invalid("the memory is of several devices")

    def _descriptor(self, pieces: Sequence[_Piece], size: int) -> int:
        one = pieces[0].memory
        if len(pieces) == 1 and pieces[0].whole:
            self._chunks.own_file(one.chunk) if isinstance(one, Mapping) else self._shared.own_file(one)
            return dma_buf(one.physical.fd)
        tag = Tag("dmabuf", size, 1, _NOWHERE, nonce())
        each = [piece.physical for piece in pieces]
        if _is_one_file(each, size):
            return dma_buf(each[0].fd)
        if all(piece.whole for piece in pieces) and not any(physical.tag for physical in each) and _distinct(each):
            self._arena.gather(each, tag)
            return dma_buf(each[0].fd)
        fd = make(tag)
        try:
            return dma_buf(fd)
        finally:
            os.close(fd)


def _is_one_file(each: Sequence[Physical], size: int) -> bool:
    """Return whether memories are all of one file, in order."""
    tag = each[0].tag
    if tag is None or tag.size != size or any(physical.tag != tag for physical in each):
        return False
    adjacent = all(one.offset + one.size == other.offset for one, other in pairwise(each))
    return not each[0].offset and adjacent


def _distinct(each: Sequence[Physical]) -> bool:
    return len({id(physical) for physical in each}) == len(each)
