"""Calls of the CUDA driver for memory pools and their allocations."""

from __future__ import annotations

import os
from collections.abc import Callable

from cuda.bindings import driver as cuda

from memtopo.driver.types import DriverError, Grant, HandleType, Location, PoolAttribute, PoolProperties
from memtopo.drivers.cuda.bindings import (
    SHARED_BYTES,
    access_descriptors,
    call,
    fitting,
    mem_location,
    named,
    pool_pointer,
    pool_props,
    shared_bytes,
)

_BYTES = frozenset(each for each in PoolAttribute if each >= PoolAttribute.RELEASE_THRESHOLD)
"""Attributes that the bindings take as objects of 64 bits, also those that the driver does not set."""


class CudaPools:
    """Memory pools of the CUDA driver."""

    def mem_pool_create(self, properties: PoolProperties) -> int:
        with fitting(cuda.cuMemPoolCreate):
            props = pool_props(properties)
        return int(call(cuda.cuMemPoolCreate, props)[1])

    def mem_pool_destroy(self, pool: int) -> None:
        call(cuda.cuMemPoolDestroy, pool)

    def mem_pool_set_attribute(self, pool: int, attribute: PoolAttribute, value: int) -> None:
        function = cuda.cuMemPoolSetAttribute
        with fitting(function):
            given = cuda.cuuint64_t(value) if attribute in _BYTES else value
        call(function, pool, named(cuda.CUmemPool_attribute, attribute, function), given)

    def mem_pool_get_attribute(self, pool: int, attribute: PoolAttribute) -> int:
        function = cuda.cuMemPoolGetAttribute
        return int(call(function, pool, named(cuda.CUmemPool_attribute, attribute, function))[1])

    def mem_pool_set_access(self, pool: int, grants: tuple[Grant, ...]) -> None:
        call(cuda.cuMemPoolSetAccess, pool, access_descriptors(grants), len(grants))

    def mem_pool_get_access(self, pool: int, location: Location) -> int:
        return int(call(cuda.cuMemPoolGetAccess, pool, mem_location(location))[1])

    def mem_alloc_from_pool_async(self, size: int, pool: int, stream: int = 0) -> int:
        return int(call(cuda.cuMemAllocFromPoolAsync, size, pool, stream)[1])

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        call(cuda.cuMemFreeAsync, address, stream)

    def mem_pool_trim_to(self, pool: int, keep: int) -> None:
        call(cuda.cuMemPoolTrimTo, pool, keep)

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType, flags: int = 0) -> int | bytes:
        function = cuda.cuMemPoolExportToShareableHandle
        shared = call(function, pool, named(cuda.CUmemAllocationHandleType, kind, function), flags)[1]
        if kind == HandleType.FABRIC:
            return shared_bytes(shared)
        os.set_inheritable(int(shared), False)  # noqa: FBT003  # nor is that of a chunk (facts 44, 82)
        return int(shared)

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType, flags: int = 0) -> int:
        function = cuda.cuMemPoolImportFromShareableHandle
        numbered = named(cuda.CUmemAllocationHandleType, kind, function)
        if kind == HandleType.FABRIC:
            return int(call(function, bytearray(_sized(shared, function)), numbered, flags)[1])
        if not isinstance(shared, int) or not 0 <= shared < 1 << 31:
            raise DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", "that is no file descriptor")
        return int(call(function, shared, numbered, flags)[1])

    def mem_pool_export_pointer(self, address: int) -> bytes:
        return shared_bytes(call(cuda.cuMemPoolExportPointer, address)[1])

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        function = cuda.cuMemPoolImportPointer
        return int(call(function, pool, pool_pointer(_sized(data, function)))[1])


def _sized(data: object, function: Callable[..., object]) -> bytes:
    """Return the bytes of a shared object after a check, since the bindings would accept fewer."""
    if not isinstance(data, bytes) or len(data) != SHARED_BYTES:
        raise DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", f"a shared handle has {SHARED_BYTES} bytes")
    return data
