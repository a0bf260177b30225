"""`memtopo.driver.trying.Extras` by `cuda.bindings.driver`."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver as cuda

from memtopo.driver.cuda.calling import call
from memtopo.driver.cuda.structs import SHARED_BYTES, mem_location, shared_bytes
from memtopo.driver.cuda.trial_kernels import Kernels
from memtopo.driver.trying import WORD
from memtopo.driver.types import DriverError, HandleType, Location

_FOUND = (1).to_bytes(WORD, "little")


class CudaExtras:
    """What trials ask of the real driver."""

    def __init__(self) -> None:
        self._kernels = Kernels()

    def store(self, address: int, value: int) -> None:
        self._kernels.launch("store", address, value)
        call(cuda.cuCtxSynchronize)

    def meet(self, address: int, value: int) -> bool:
        ctypes.memset(address, 0, 2 * WORD)
        self._kernels.launch("meet", address, value)
        ctypes.memmove(address, _FOUND, WORD)
        call(cuda.cuCtxSynchronize)
        return ctypes.string_at(address + WORD, WORD) == value.to_bytes(WORD, "little")

    def mem_pool_create(self, location: Location, handles: HandleType) -> int:
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = cuda.CUmemAllocationHandleType(int(handles))
        properties.location = mem_location(location)
        return int(call(cuda.cuMemPoolCreate, properties)[1])

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType) -> int | bytes:
        named = cuda.CUmemAllocationHandleType(int(kind))
        shared = call(cuda.cuMemPoolExportToShareableHandle, pool, named, 0)[1]
        return int(shared) if kind == HandleType.FD else shared_bytes(shared)

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        function, named = cuda.cuMemPoolImportFromShareableHandle, cuda.CUmemAllocationHandleType(int(kind))
        if isinstance(shared, int):
            return int(call(function, shared, named, 0)[1])
        if len(shared) != SHARED_BYTES:
            raise DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", "a shared handle has 64 bytes")
        return int(call(function, bytearray(shared), named, 0)[1])

    def mem_pool_destroy(self, pool: int) -> None:
        call(cuda.cuMemPoolDestroy, pool)
