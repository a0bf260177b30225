"""Dma-bufs of address ranges (facts 83, 84)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from memtopo.driver.types import DmaBufFlags, Location, LocationKind, Properties, gpu
from memtopo.drivers.sim.allocations import Allocation, Allocations
from memtopo.drivers.sim.calls import Refused, invalid, unsupported
from memtopo.drivers.sim.chunks import Mapping, Mappings
from memtopo.drivers.sim.devices import Contexts
from memtopo.drivers.sim.ipc import AllocationSharing, ChunkSharing
from memtopo.drivers.sim.physical import Arena, Physical
from memtopo.drivers.sim.pools import RESERVED
from memtopo.drivers.sim.shared_files import Tag, dma_buf, make, nonce
from memtopo.machine import Machine

PAGE = 4 << 10
_UNTRIED = "it did not work in a trial on this machine, or was not tried there"
_NOWHERE = "gpu 0"  # no call imports it


class _Piece(NamedTuple):
    """Bytes of one mapping or allocation that a range of addresses covers; `memory` is None between allocations."""

    memory: Mapping | Allocation | None
    size: int
    properties: Properties

    @property
    def whole(self) -> bool:
        """True for all of it."""
        return self.memory is not None and self.size == self.memory.end - self.memory.start


class DmaBufs:
    """Dma-bufs of the memory of one process.

    A dma-buf of a whole chunk or allocation is of its file, and has the same bytes; so is one of several that have not
    been shared otherwise, which are moved into one file. Any other, and one of a pool's memory, has the size alone,
    since a file has one dma-buf.
    """

    def __init__(
        self,
        machine: Machine,
        contexts: Contexts,
        mappings: Mappings,
        allocations: Allocations,
        chunks: ChunkSharing,
        shared: AllocationSharing,
        arena: Arena,
    ) -> None:
        self._machine, self._contexts, self._mappings, self._allocations = machine, contexts, mappings, allocations
        self._chunks, self._shared, self._arena = chunks, shared, arena

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        """Return a new descriptor of the memory at these addresses, which are whole pages."""
        if flags and not flags & DmaBufFlags.PCIE:
            raise invalid("an unknown flag")
        if not address or size <= 0 or size % PAGE or address % PAGE:
            raise invalid("the address or the size is no multiple of the host's pages")
        self._contexts.current()
        try:
            pieces = list(self._pieces(address, address + size))
        except Refused:
            self._check_end(address + size, flags)
            raise
        self._check_memory(pieces, flags)
        first = pieces[0].memory
        if isinstance(first, Allocation) and first.pool and (address - first.pool.origin) % RESERVED:
            raise invalid("it begins inside of a unit of the memory of a pool")
        return self._descriptor(pieces, size)

    def _check_end(self, end: int, flags: int) -> None:
        """Refuse a mapping through PCIe of memory with a hole as unsupported, if some memory ends where it does."""
        last = next(self._pieces(end - PAGE, end))
        ends = last.memory is not None and last.memory.end == end
        if flags & DmaBufFlags.PCIE and ends and not self._works(last.properties.location, flags):
            raise unsupported(_UNTRIED)

    def _pieces(self, address: int, end: int) -> Iterator[_Piece]:
        """Memory behind addresses; refuses a hole, and what is neither mapped nor allocated by `cuMemAlloc`."""
        while address < end:
            memory = self._mappings.find(address) or self._allocations.find(address)
            stop, properties = address, None
            if isinstance(memory, Mapping):
                stop, properties = memory.end, memory.chunk.properties
            elif memory is None:
                stop, device = self._allocations.unused(address)
                properties = None if device is None else Properties(gpu(device))
            elif memory.kind == "own":
                stop, properties = memory.end, Properties(gpu(memory.device))
            elif memory.pool:
                stop, properties = memory.end, Properties(memory.pool.location)
            if properties is None:
                raise invalid(f"nothing that a dma-buf can be of is at {address:#x}")
            yield _Piece(memory, min(stop, end) - address, properties)
            address = stop

    def _check_memory(self, pieces: Sequence[_Piece], flags: int) -> None:
        """Refuse flags and memory that the driver does not support."""
        places = {each.properties.location for each in pieces}
        if any(place.kind != LocationKind.GPU for place in places):
            if flags & DmaBufFlags.PCIE and all(isinstance(each.memory, Mapping) for each in pieces):
                raise unsupported(_UNTRIED)
            raise invalid("a part of it is memory of the host")
        if len(places) > 1:
            raise invalid("it is memory of several devices")
        if not all(self._works(place, flags) for place in places):
            raise unsupported(_UNTRIED)
        if any(each.properties.compressible for each in pieces):
            raise Refused("CUDA_ERROR_UNKNOWN", "a part of it is compressible")

    def _works(self, location: Location, flags: int) -> bool:
        if flags & DmaBufFlags.PCIE:
            return self._machine.trial(location, "dmabuf-pcie").works is True
        return not self._machine.trial(location, "dmabuf").refused

    def _descriptor(self, pieces: Sequence[_Piece], size: int) -> int:
        if any(isinstance(piece.memory, Allocation) and piece.memory.pool for piece in pieces):
            return _of_size(size)
        first = pieces[0].memory
        if first and len(pieces) == 1 and pieces[0].whole and not first.physical.is_beside:
            self._chunks.own_file(first.chunk) if isinstance(first, Mapping) else self._shared.own_file(first)
            return dma_buf(first.physical.fd)
        each = [piece.memory.physical for piece in pieces if piece.memory]
        if len(each) == len(pieces) and _is_one_file(each, size):
            return dma_buf(each[0].fd)
        tag = Tag("dmabuf", size, 1, _NOWHERE, nonce())
        if all(piece.whole for piece in pieces) and _can_move(each):
            self._arena.gather(each, tag)
            return dma_buf(each[0].fd)
        return _of_size(size)


def _of_size(size: int) -> int:
    """Descriptor of a new file that has the size alone."""
    fd = make(Tag("dmabuf", size, 1, _NOWHERE, nonce()))
    try:
        return dma_buf(fd)
    finally:
        os.close(fd)


def _is_one_file(each: Sequence[Physical], size: int) -> bool:
    """Return whether memories are all of one file, in order."""
    tag = each[0].tag
    if tag is None or tag.size != size or any(physical.tag != tag for physical in each):
        return False
    return not each[0].offset and all(one.offset + one.size == other.offset for one, other in pairwise(each))


def _can_move(each: Sequence[Physical]) -> bool:
    """Return whether memories are not shared, and none of them is twice among them."""
    return not any(physical.tag for physical in each) and len({id(physical) for physical in each}) == len(each)
