"""`memtopo.driver.managed.ManagedMemory` by `cuda.bindings.driver`, and the CPU's own loads and stores."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver as cuda

from memtopo.driver.cuda.calling import call, named
from memtopo.driver.cuda.structs import mem_location
from memtopo.driver.types import Advice, Location, MemAttach, RangeAttribute

# Bindings for CUDA 12 have both; only the second takes a location.
_advise = getattr(cuda, "cuMemAdvise_v2", cuda.cuMemAdvise)
_prefetch = getattr(cuda, "cuMemPrefetchAsync_v2", cuda.cuMemPrefetchAsync)
_ONE = 4  # bytes of an attribute
_EVERY = 4 * 64  # of the one that lists GPUs and the host: more than a computer has
_NOWHERE = -2


class CudaManaged:
    """What the real driver does with managed memory."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return int(call(cuda.cuMemAllocManaged, size, int(flags))[1])

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        call(_advise, address, size, named(cuda.CUmem_advise, advice, _advise), mem_location(location))

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        call(_prefetch, address, size, mem_location(location), 0, stream)

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        function = cuda.cuMemRangeGetAttribute
        room = _EVERY if attribute == RangeAttribute.ACCESSED_BY else _ONE
        told = call(function, room, named(cuda.CUmem_range_attribute, attribute, function), address, size)[1]
        every = told if isinstance(told, list) else [told]
        return tuple(int(each) for each in every if each != _NOWHERE)

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        call(cuda.cuStreamAttachMemAsync, stream, address, 0, int(flags))  # 0 bytes are the whole allocation

    def pointer_is_managed(self, address: int) -> bool:
        attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
        return bool(call(cuda.cuPointerGetAttribute, attribute, address)[1])

    def host_write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def host_read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(address, count)
