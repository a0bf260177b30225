"""Pools and their allocations shared between processes (fact 82)."""

from __future__ import annotations

import os
from struct import Struct

from memtopo.driver.types import HandleType, LocationKind, PoolProperties, Properties
from memtopo.drivers.sim.calls import Refused, invalid, unsupported
from memtopo.drivers.sim.chunks import Creation
from memtopo.drivers.sim.devices import Devices
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.pools import Pool, Pools, processor
from memtopo.drivers.sim.shared_files import (
    Files,
    HandleErrors,
    Tag,
    check_handle_size,
    open_handle,
    pack_handle,
    unpack_handle,
)
from memtopo.machine import Machine

_SHARED = (HandleType.FD, HandleType.FABRIC)
_INVALID = "CUDA_ERROR_INVALID_VALUE"
_FABRIC = HandleErrors(_INVALID, _INVALID, _INVALID)  # never measured: no machine had fabric that works
_POINTER = Struct("=8sQQ8s32x")  # magic, offset and size in the pool's file, and the file's nonce
_MAGIC = b"memtopo\1"


class PoolSharing:
    """Exports the pools of one process with their allocations, and imports those of others."""

    def __init__(self, machine: Machine, devices: Devices, pools: Pools, files: Files) -> None:
        self._devices, self._pools, self._files = devices, pools, files
        self._creation = Creation(machine)

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """New descriptor or fabric handle of a pool that was created for it."""
        own = self._pools.own(pool)
        if flags or own.tag is None or kind not in _SHARED or kind not in own.properties.handles:
            raise invalid("flags must be 0, and the pool created with the handle type")
        if self._pools.exceeds(own.location, own.properties.max_size):
            raise Refused("CUDA_ERROR_UNKNOWN", "the maximum size of the pool is more than there is (fact 82)")
        own.exported = True
        if kind == HandleType.FABRIC:
            self._creation.check_permitted(Properties(own.location, HandleType.FABRIC))
            return pack_handle(own.fd, own.tag)
        return os.dup(own.fd)

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType, flags: int = 0) -> int:
        """Import a pool, with the access of its own location alone; a second import gives the same number."""
        if flags or kind not in _SHARED:
            raise invalid("flags must be 0, and a pool is shared as fd or as fabric")
        fd, tag = self._opened(shared, kind)
        if found := self._pools.imported(tag):
            self._files.close(fd)
            number, pool = found
            pool.imports += 1
            return number
        location = self._devices.locate(tag.location)
        return self._pools.open(Pool(PoolProperties(location), {processor(location)}, fd, tag, imports=1))

    def _opened(self, shared: int | bytes, kind: HandleType) -> tuple[int, Tag]:
        """Open the file of a shared pool; returns a new descriptor and the tag."""
        if kind == HandleType.FABRIC:
            self._creation.check_fabric()
            return open_handle(unpack_handle(check_handle_size(shared), _FABRIC), "pool", self._files, _FABRIC)
        if not isinstance(shared, int) or not 0 <= shared < 1 << 31:
            raise invalid("that is no file descriptor")
        found = self._files.adopt_descriptor(shared, "pool", "chunk")
        if found is None:
            raise Refused("CUDA_ERROR_UNKNOWN", "the file descriptor is no pool's")
        if found[1].kind == "chunk":
            self._files.close(found[0])
            raise unsupported("the file descriptor is a chunk's")
        return found

    def mem_pool_export_pointer(self, address: int) -> bytes:
        """Return the 64 bytes of the allocation that begins at an address, of a pool that was exported (fact 82)."""
        found = self._pools.starting(address)
        if found is None or found[0].imports or found[0].tag is None or found[0].destroyed:
            raise invalid("no allocation of an own pool that can be shared begins at the address")
        pool, allocation = found
        if not pool.exported:
            raise invalid("the pool was not exported before")
        assert pool.tag
        return _POINTER.pack(_MAGIC, allocation.physical.offset, allocation.size, bytes.fromhex(pool.tag.nonce))

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        """Import one allocation of an imported pool, also one that was freed.

        A second import has the address of the first; of memory of the host it is refused.
        """
        found = self._pools.get(pool)
        magic, offset, size, of = _POINTER.unpack(check_handle_size(data))
        if not found.imports or found.tag is None or magic != _MAGIC or of.hex() != found.tag.nonce:
            raise invalid("the bytes name no allocation of this imported pool")
        if offset in found.pointers:
            if found.location.kind != LocationKind.GPU:
                raise Refused("CUDA_ERROR_ALREADY_MAPPED", "this process has imported the allocation")
            return found.pointers[offset]
        address = found.pointers[offset] = self._pools.take_addresses(size)
        self._pools.add(found, address, Physical(found.fd, offset, size, tag=found.tag))
        return address
