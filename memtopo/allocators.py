"""Allocators of other libraries in heaps of a layout: RMM, CuPy and cuda.core. Each imports its library alone.

They call Python for each allocation: let the library's own pool stand before them.
"""

from __future__ import annotations

from typing import Any

from memtopo.api.live import Live


def rmm(layout: Live, heap: str) -> Any:
    """Return a memory resource of RMM: `rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(…))`."""
    import rmm as library  # noqa: PLC0415 one of several libraries

    found = layout.heap(heap)
    return library.mr.CallbackMemoryResource(
        lambda size, _stream: found.allocate(size), lambda address, _size, _stream: found.free(address)
    )


def cupy(layout: Live, heap: str) -> Any:
    """Return an allocator of CuPy: `cupy.cuda.set_allocator(cupy.cuda.MemoryPool(allocator.malloc).malloc)`."""
    import cupy as library  # noqa: PLC0415

    found = layout.heap(heap)
    return library.cuda.PythonFunctionAllocator(
        lambda size, _device: found.allocate(size), lambda address, _device: found.free(address)
    )


def cuda_core(layout: Live, heap: str) -> Any:
    """Return a memory resource of cuda.core, whose `allocate(size, stream=…)` returns a buffer."""
    from cuda.core import Buffer, MemoryResource  # noqa: PLC0415

    found, device = layout.heap(heap), layout.heap_device(heap)

    class HeapResource(MemoryResource):  # type: ignore[misc]
        is_device_accessible, is_host_accessible, device_id = True, False, device

        def allocate(self, size: int, stream: object = None) -> Any:
            del stream
            return Buffer.from_handle(found.allocate(size), size, mr=self)

        def deallocate(self, ptr: int, size: int, stream: object = None) -> None:
            del size, stream
            found.free(int(ptr))

    return HeapResource()
