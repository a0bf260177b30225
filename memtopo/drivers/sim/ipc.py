"""Memory shared between processes.

Chunks are shared by shareable handles (facts 25 to 29, 43, 44), allocations by legacy IPC (facts 31 and 46).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from memtopo.driver.types import HandleType, Location, Properties, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.allocations import Allocation, Allocations
from memtopo.drivers.sim.calls import Refused, invalid, unsupported
from memtopo.drivers.sim.chunks import Chunk, Chunks, Creation
from memtopo.drivers.sim.devices import INVISIBLE_GPU, Contexts, Devices
from memtopo.drivers.sim.multicast import KIND
from memtopo.drivers.sim.physical import Arena
from memtopo.drivers.sim.shared_files import Files, SharedHandle, Tag, nonce

LAZY_PEER_ACCESS = 1
_ERRORS = shared_files.HandleErrors("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_VALUE")


class AllocationSharing:
    """Exports allocations of one process by IPC handles, and opens those of others."""

    def __init__(
        self, devices: Devices, contexts: Contexts, allocations: Allocations, arena: Arena, files: Files
    ) -> None:
        self._devices, self._contexts, self._allocations = devices, contexts, allocations
        self._arena, self._files = arena, files

    def ipc_get_mem_handle(self, address: int) -> bytes:
        """IPC handle of the allocation around an address; the same for each address in it."""
        self._contexts.current()
        allocation = self._allocations.find(address)
        if allocation is None or allocation.kind != "own":
            raise invalid("the address is in no allocation of this process's device memory")
        tag = self.own_file(allocation)
        return shared_files.pack_handle(allocation.physical.fd, tag)

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        """Open another process's allocation at an address for the current context; openings are counted (fact 46)."""
        if flags != LAZY_PEER_ACCESS:
            raise invalid("flags must be 1, which enables peer access")
        device = self._contexts.current()
        shared_handle = shared_files.unpack_handle(handle, _ERRORS)
        if shared_handle.is_own:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "memory cannot be opened in the process that allocated it")
        openings = self._allocations.openings(shared_handle.nonce) if shared_handle.is_alive else []
        own = (each for each in openings if each.device == device)
        allocation = next(own, None) or self._open_first(shared_handle, device)
        allocation.opens += 1
        return allocation.start

    def _open_first(self, shared_handle: SharedHandle, device: int) -> Allocation:
        fd, tag = shared_files.open_handle(shared_handle, "allocation", self._files, _ERRORS)
        try:
            self._check_owner(self._devices.locate(tag.location), device)
        except Refused:
            self._files.close(fd)
            raise
        return self._allocations.open(self._arena.adopt(fd, tag), device)

    def _check_owner(self, owner: Location, device: int) -> None:
        # Neither was ever tried on hardware.
        if owner == INVISIBLE_GPU:
            raise invalid("the memory is of a gpu that is not visible here")
        if owner != gpu(device) and not self._devices.device_can_access_peer(device, owner.id):
            raise Refused("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", f"gpu{device} cannot access the memory of {owner}")

    def own_file(self, allocation: Allocation) -> Tag:
        """Move the memory into a file of its own, unless it is in one; returns its tag."""
        if allocation.physical.is_alone:
            assert allocation.physical.tag
            return allocation.physical.tag
        location = self._devices.location_name(gpu(allocation.device))
        tag = Tag("allocation", allocation.size, 1, location, nonce())
        self._arena.share(allocation.physical, tag)
        return tag


_INVALID = "CUDA_ERROR_INVALID_VALUE"
_FABRIC = shared_files.HandleErrors(_INVALID, _INVALID, _INVALID)  # never measured: no machine had fabric that works


class ChunkSharing:
    """Exports chunks of one process by shareable handles, and imports those of others."""

    def __init__(
        self,
        devices: Devices,
        creation: Creation,
        chunks: Chunks,
        arena: Arena,
        files: Files,
        adopt_multicast: Callable[[int, Tag], int],
    ) -> None:
        self._devices, self._creation, self._chunks = devices, creation, chunks
        self._arena, self._files, self._adopt_multicast = arena, files, adopt_multicast

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """New file descriptor or fabric handle of a chunk (facts 26, 44)."""
        if flags:
            raise invalid("flags must be 0")
        _check_kind(kind)
        chunk = self._chunks.get(handle)
        if chunk.imported:
            raise invalid("an imported chunk cannot be exported again")
        if kind not in chunk.properties.handles:
            raise invalid(f"the chunk was not created with handle type {kind.words[0]}")
        tag = self.own_file(chunk)
        return os.dup(chunk.physical.fd) if kind == HandleType.FD else shared_files.pack_handle(chunk.physical.fd, tag)

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """Import a shared chunk; returns a new handle each time (facts 27, 43)."""
        _check_kind(kind)
        if kind == HandleType.FD:
            fd, tag = self._described(shared)
        else:
            handle = shared_files.check_handle_size(shared)
            self._creation.check_fabric()
            shared_handle = shared_files.unpack_handle(handle, _FABRIC)
            fd, tag = shared_files.open_handle(shared_handle, "chunk", self._files, _FABRIC, KIND)
        if tag.kind == KIND:
            return self._adopt_multicast(fd, tag)
        location = self._devices.locate(tag.location)
        properties = Properties(location, HandleType.NONE, compressible=tag.compressible)
        return self._chunks.adopt(properties, tag.granule, self._arena.adopt(fd, tag))

    def _described(self, fd: int | bytes) -> tuple[int, Tag]:
        """Open the file of a descriptor, which stays the caller's; returns a new descriptor and the tag."""
        if not isinstance(fd, int) or not 0 <= fd < 1 << 31:
            raise invalid("that is no file descriptor")
        found = self._files.adopt_descriptor(fd, "chunk", "memory", "pool", KIND)
        if found is None:
            raise Refused("CUDA_ERROR_UNKNOWN", "the file descriptor is no chunk's")
        if found[1].kind == "pool":
            self._files.close(found[0])
            raise unsupported("the file descriptor is a pool's (fact 82)")
        if found[1].kind != KIND and found[1].size % found[1].granule:  # external memory (fact 59), never tried
            self._files.close(found[0])
            raise Refused("CUDA_ERROR_UNKNOWN", "the memory's size is not a multiple of the granularity")
        return found

    def own_file(self, chunk: Chunk) -> Tag:
        """Move the memory into a file of its own, unless it is in one; returns its tag."""
        if chunk.physical.is_alone:
            assert chunk.physical.tag
            return chunk.physical.tag
        location = self._devices.location_name(chunk.properties.location)
        _, _, rdma, compressible, _ = chunk.properties
        tag = Tag("chunk", chunk.size, chunk.granule, location, nonce(), rdma, compressible)
        self._arena.share(chunk.physical, tag)
        return tag


def _check_kind(kind: HandleType) -> None:
    if kind not in {HandleType.FD, HandleType.FABRIC}:
        raise invalid("a chunk is shared as fd or as fabric, one at a time")
