"""Memory shared between processes, and with devices by dma-bufs (facts 83, 84).

Chunks are shared by shareable handles (facts 25 to 29, 43, 44), allocations by legacy IPC (facts 31 and 46), pools and
their allocations by both (fact 82).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from memtopo.common.errors import on_failure
from memtopo.common.files import closing_fd
from memtopo.driver.types import DmaBufFlags, HandleType, Location, LocationKind, PoolProperties, Properties, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.address_space import PAGE, RESERVED
from memtopo.drivers.sim.allocations import SimAllocation, SimAllocations
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.chunks import Creation, Mapping, SimChunk, SimChunks, SimMappings
from memtopo.drivers.sim.devices import INVISIBLE_GPU
from memtopo.drivers.sim.multicast import KIND, SimMulticast
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.pools import SimPool, SimPools
from memtopo.drivers.sim.process import SimProcess
from memtopo.drivers.sim.shared_files import Tag, dma_buf, nonce, pack_handle

LAZY_PEER_ACCESS = 1
_SHARED = (HandleType.FD, HandleType.FABRIC)
_EXPORTER_GONE = "CUDA_ERROR_INVALID_HANDLE"


class AllocationSharing:
    """Exports allocations of one process by IPC handles, and opens those of others."""

    def __init__(self, sim: SimProcess, allocations: SimAllocations) -> None:
        self._sim, self.allocations = sim, allocations

    def ipc_get_mem_handle(self, address: int) -> bytes:
        """IPC handle of the allocation around an address; the same for each address in it."""
        refuse_if(not address, "the address is 0")
        self._sim.contexts.current()
        allocation = self.allocations.find(address)
        if allocation is None or allocation.kind != "own":
            raise invalid("the address is in no allocation of this process's device memory")
        tag = self.own_file(allocation)
        return pack_handle(self._sim.files, allocation.physical.fd, tag)

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        """Open another process's allocation at an address for the current context; openings are counted (fact 46)."""
        refuse_if(flags != LAZY_PEER_ACCESS, "flags must be 1, which enables peer access")
        device = self._sim.contexts.current()
        shared_handle = shared_files.unpack_handle(handle)
        if shared_handle.is_of(self._sim.files):
            raise RefusedCall("CUDA_ERROR_INVALID_CONTEXT", "memory cannot be opened in the process that allocated it")
        openings = self.allocations.openings(shared_handle.nonce) if shared_handle.is_alive else []
        own = (each for each in openings if each.device == device)
        allocation = next(own, None)
        if allocation is None:
            fd, tag = shared_files.open_handle(
                shared_handle, self._sim.files, "allocation", exporter_gone=_EXPORTER_GONE
            )
            with on_failure(self._sim.files.close, fd):
                self._check_owner(self._sim.devices.locate(tag.location), device)
            allocation = self.allocations.map(self._sim.arena.adopt(fd, tag), device, "opened")
        allocation.opens += 1
        return allocation.start

    def _check_owner(self, owner: Location, device: int) -> None:
        # Neither was ever tried on hardware.
        refuse_if(owner == INVISIBLE_GPU, "the memory belongs to a gpu that is not visible here")
        if owner != gpu(device) and not self._sim.devices.device_can_access_peer(device, owner.id):
            raise RefusedCall("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", f"gpu{device} cannot access the memory of {owner}")

    def own_file(self, allocation: SimAllocation) -> Tag:
        """Move the memory into a file of its own, unless it is in one; returns its tag."""
        return self._sim.arena.share(
            allocation.physical, "allocation", 1, self._sim.devices.location_name(gpu(allocation.device))
        )


def _opened(sim: SimProcess, creation: Creation, shared: int | bytes, kind: HandleType, *kinds: str) -> tuple[int, Tag]:
    """Open the file of a chunk or a pool behind a descriptor, which stays the caller's, or a fabric handle.

    Returns a new descriptor and the tag, of one of the `kinds`.
    """
    if kind == HandleType.FABRIC:
        handle = shared_files.check_handle_size(shared)
        creation.check_fabric()
        # Its errors were never measured: no machine had fabric that works.
        return shared_files.open_handle(shared_files.unpack_handle(handle), sim.files, *kinds)
    if not isinstance(shared, int) or not 0 <= shared < 1 << 31:
        raise invalid("not a file descriptor")
    found = sim.files.adopt_descriptor(shared, *kinds, "chunk", "pool")
    if found is None:
        raise RefusedCall("CUDA_ERROR_UNKNOWN", f"the file descriptor is not a {kinds[0]}")
    if found[1].kind not in kinds:
        sim.files.close(found[0])
        raise unsupported(f"the file descriptor is a {found[1].kind}'s (fact 82)")
    return found


class ChunkSharing:
    """Exports chunks of one process by shareable handles, and imports those of others."""

    def __init__(self, sim: SimProcess, creation: Creation, chunks: SimChunks, multicast: SimMulticast) -> None:
        self._sim, self._creation, self._chunks, self._multicast = sim, creation, chunks, multicast

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """New file descriptor or fabric handle of a chunk (facts 26, 44)."""
        refuse_if(flags, "flags must be 0")
        _check_kind(kind)
        chunk = self._chunks.get(handle)
        refuse_if(chunk.imported, "an imported chunk cannot be exported again")
        refuse_if(kind not in chunk.properties.handles, f"the chunk was not created with handle type {kind.words[0]}")
        tag = self.own_file(chunk)
        fd = chunk.physical.fd
        return os.dup(fd) if kind == HandleType.FD else pack_handle(self._sim.files, fd, tag)

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """Import a shared chunk; returns a new handle each time (facts 27, 43)."""
        _check_kind(kind)
        fd, tag = _opened(self._sim, self._creation, shared, kind, "chunk", "memory", KIND)
        if tag.kind == KIND:
            return self._multicast.adopt(fd, tag)
        if tag.size % tag.granule:  # external memory (fact 59), never tried
            self._sim.files.close(fd)
            raise RefusedCall("CUDA_ERROR_UNKNOWN", "the memory's size is not a multiple of the granularity")
        location = self._sim.devices.locate(tag.location)
        flags = [flag for flag in tag.flags if flag != "rdma"]  # which an import does not read as (fact 64)
        properties = Properties.with_flags(location, HandleType.NONE, flags)
        return self._chunks.adopt(properties, tag.granule, self._sim.arena.adopt(fd, tag))

    def own_file(self, chunk: SimChunk) -> Tag:
        """Move the memory into a file of its own, unless it is in one; returns its tag."""
        name = self._sim.devices.location_name(chunk.properties.location)
        return self._sim.arena.share(chunk.physical, "chunk", chunk.granule, name, chunk.properties.flags)


def _check_kind(kind: HandleType) -> None:
    refuse_if(kind not in _SHARED, "a chunk is shared as fd or as fabric, one at a time")


_POINTER = Struct("=8sQQ8s32x")  # magic, offset and size in the pool's file, and the file's nonce
_MAGIC = b"memtopo\1"


class SharedPools(SimPools):
    """Pools of one process, which it exports with their allocations, and imported ones of others (fact 82)."""

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """New descriptor or fabric handle of a pool that was created for it."""
        own = self.own(pool)
        if flags or own.tag is None or kind not in _SHARED or kind not in own.properties.handles:
            raise invalid("flags must be 0, and the pool created with the handle type")
        if self.exceeds(own.location, own.properties.max_size):
            raise RefusedCall("CUDA_ERROR_UNKNOWN", "the maximum size of the pool is more than there is (fact 82)")
        own.exported = True
        if kind == HandleType.FABRIC:
            self._creation.check_permitted(Properties(own.location, HandleType.FABRIC))
            return pack_handle(self._sim.files, own.fd, own.tag)
        return os.dup(own.fd)

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType, flags: int = 0) -> int:
        """Import a pool, with the access of its own location alone; a second import gives the same number."""
        refuse_if(flags or kind not in _SHARED, "flags must be 0, and a pool is shared as fd or as fabric")
        fd, tag = _opened(self._sim, self._creation, shared, kind, "pool")
        for number, pool in self._open.items():
            if pool.imports and pool.tag == tag:
                self._sim.files.close(fd)
                pool.imports += 1
                return number
        location = self._sim.devices.locate(tag.location)
        return self.open(SimPool(PoolProperties(location), {location.processor}, fd, tag, imports=1))

    def mem_pool_export_pointer(self, address: int) -> bytes:
        """Return the 64 bytes of the allocation that begins at an address, of a pool that was exported (fact 82)."""
        part = self._parts.get(address)
        if part is None or part.pool.imports or part.pool.tag is None or part.pool.destroyed:
            raise invalid("no allocation of an own pool that can be shared begins at the address")
        refuse_if(not part.pool.exported, "the pool was not exported before")
        physical, file = part.allocation.physical, bytes.fromhex(part.pool.tag.nonce)
        return _POINTER.pack(_MAGIC, physical.offset, physical.size, file)

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        """Import one allocation of an imported pool, also one that was freed.

        A second import has the address of the first; of memory of the host it is refused.
        """
        found = self._open[pool]
        magic, offset, size, of = _POINTER.unpack(shared_files.check_handle_size(data))
        if not found.imports or found.tag is None or magic != _MAGIC or of.hex() != found.tag.nonce:
            raise invalid("the bytes name no allocation of this imported pool")
        if offset in found.pointers:
            if found.location.kind != LocationKind.GPU:
                raise RefusedCall("CUDA_ERROR_ALREADY_MAPPED", "this process has imported the allocation")
            return found.pointers[offset]
        address = found.pointers[offset] = self._sim.blocks.take_addresses(size)
        self.add(found, address, Physical(found.fd, offset, size, tag=found.tag))
        return address


_UNTRIED = "it did not work in a trial on this machine, or was not tried there"
_NOWHERE = "gpu 0"  # no call imports it


class _Piece(NamedTuple):
    """Bytes of one mapping or allocation that a range of addresses covers; `memory` is None between allocations."""

    memory: Mapping | SimAllocation | None
    size: int
    properties: Properties

    @property
    def whole(self) -> bool:
        """True for all of it."""
        return self.memory is not None and self.size == self.memory.end - self.memory.start


class SimDmaBufs:
    """Dma-bufs of the memory of one process.

    A dma-buf of a whole chunk or allocation is of its file, and has the same bytes; so is one of several that have not
    been shared otherwise, which are moved into one file. Any other, and one of a pool's memory, has the size alone,
    since a file has one dma-buf.
    """

    def __init__(self, sim: SimProcess, mappings: SimMappings, chunks: ChunkSharing, shared: AllocationSharing) -> None:
        self._sim, self._mappings, self._chunks, self._shared = sim, mappings, chunks, shared
        self._allocations = shared.allocations

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        """Return a new descriptor of the memory at these addresses, which are whole pages."""
        refuse_if(flags and not flags & DmaBufFlags.PCIE, "an unknown flag")
        if not address or size <= 0 or size % PAGE or address % PAGE:
            raise invalid("the address or the size is not a multiple of the host's pages")
        self._sim.contexts.current()
        try:
            pieces = list(self._pieces(address, address + size))
        except RefusedCall:
            self._check_end(address + size, flags)
            raise
        self._check_memory(pieces, flags)
        first = pieces[0].memory
        if isinstance(first, SimAllocation) and first.pool and (address - first.pool.origin) % RESERVED:
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
                raise invalid(f"there is no memory that supports dma-bufs at {address:#x}")
            yield _Piece(memory, min(stop, end) - address, properties)
            address = stop

    def _check_memory(self, pieces: Sequence[_Piece], flags: int) -> None:
        """Refuse flags and memory that the driver does not support."""
        places = {each.properties.location for each in pieces}
        if any(place.kind != LocationKind.GPU for place in places):
            if flags & DmaBufFlags.PCIE and all(isinstance(each.memory, Mapping) for each in pieces):
                raise unsupported(_UNTRIED)
            raise invalid("a part of it is memory of the host")
        refuse_if(len(places) > 1, "it is memory of several devices")
        refuse_if(not all(self._works(place, flags) for place in places), _UNTRIED, "CUDA_ERROR_NOT_SUPPORTED")
        if any(each.properties.compressible for each in pieces):
            raise RefusedCall("CUDA_ERROR_UNKNOWN", "a part of it is compressible")

    def _works(self, location: Location, flags: int) -> bool:
        if flags & DmaBufFlags.PCIE:
            return self._sim.machine.trial(location, "dmabuf-pcie").works is True
        return not self._sim.machine.trial(location, "dmabuf").refused

    def _descriptor(self, pieces: Sequence[_Piece], size: int) -> int:
        if any(isinstance(piece.memory, SimAllocation) and piece.memory.pool for piece in pieces):
            return _of_size(size)
        first = pieces[0].memory
        if first and len(pieces) == 1 and pieces[0].whole and not first.physical.is_beside:
            if isinstance(first, Mapping):
                self._chunks.own_file(first.chunk)
            else:
                self._shared.own_file(first)
            return dma_buf(first.physical.fd)
        each = [piece.memory.physical for piece in pieces if piece.memory]
        if len(each) == len(pieces) and _is_one_file(each, size):
            return dma_buf(each[0].fd)
        tag = Tag("dmabuf", size, 1, _NOWHERE, nonce())
        are_own = not any(physical.tag for physical in each) and len(set(map(id, each))) == len(each)
        if are_own and all(piece.whole for piece in pieces):
            self._sim.arena.gather(each, tag)
            return dma_buf(each[0].fd)
        return _of_size(size)


def _of_size(size: int) -> int:
    """Descriptor of a new file that has the size alone."""
    with closing_fd(shared_files.make(Tag("dmabuf", size, 1, _NOWHERE, nonce()))) as fd:
        return dma_buf(fd)


def _is_one_file(each: Sequence[Physical], size: int) -> bool:
    """Return whether memories are all of one file, in order."""
    tag = each[0].tag
    if tag is None or tag.size != size or any(physical.tag != tag for physical in each):
        return False
    return not each[0].offset and all(one.offset + one.size == other.offset for one, other in pairwise(each))
