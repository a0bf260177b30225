"""Allocators of other libraries in heaps of a layout: RMM, CuPy, cuda.core, Numba and Warp.

Each imports its library alone. They call Python for each allocation: let the library's own pool stand before them. A
heap serves arrays of its GPU alone. `Heap.free` awaits the work of the GPU, so no memory is reused while a stream needs
it. Without room they raise `OutOfMemory`, a MemoryError; CuPy gets the error after which its pool frees unused blocks
and tries again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from memtopo.api.errors import OutOfMemory, Unsuitable
from memtopo.api.heaps import Heap
from memtopo.api.live import Live

_CUDA_ERROR_MEMORY_ALLOCATION = 2


def rmm(layout: Live, heap: str) -> Any:
    """Return a memory resource of RMM: `rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(…))`."""
    import rmm as library  # noqa: PLC0415 one of several libraries

    found = layout.heap(heap)
    return library.mr.CallbackMemoryResource(
        lambda size, _stream: found.allocate(size), lambda address, _size, _stream: _free(found, address)
    )


def cupy(layout: Live, heap: str) -> Any:
    """Return an allocator of CuPy: `cupy.cuda.set_allocator(cupy.cuda.MemoryPool(allocator.malloc).malloc)`."""
    from cupy import cuda as library  # noqa: PLC0415

    found, owner = layout.heap(heap), layout.heap_device(heap)

    def allocate(size: int, device: int) -> int:
        _require_device(heap, owner, device)
        if size == 0:
            return 0
        try:
            return found.allocate(size)
        except OutOfMemory as error:
            raise library.runtime.CUDARuntimeError(_CUDA_ERROR_MEMORY_ALLOCATION) from error

    return library.PythonFunctionAllocator(allocate, lambda address, _device: _free(found, address))


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
            _free(found, int(ptr))

    return HeapResource()


def numba(layout: Live, heap: str) -> Any:
    """Return a memory manager of Numba: `numba.cuda.set_memory_manager(manager)`, before the first use of the GPU."""
    from cuda.bindings.driver import CUdeviceptr  # noqa: PLC0415
    from numba import cuda as library  # noqa: PLC0415

    found, owner = layout.heap(heap), layout.heap_device(heap)

    class HeapManager(library.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        interface_version = 1

        def initialize(self) -> None:
            """Do nothing: the heap is ready."""

        def memalloc(self, size: int) -> Any:
            _require_device(heap, owner, self.context.device.id)
            address = found.allocate(size)
            pointer = CUdeviceptr(address)
            return library.MemoryPointer(self.context, pointer, size, finalizer=lambda: _free(found, address))

        def get_ipc_handle(self, memory: object) -> Any:
            del memory
            raise NotImplementedError("memory of a heap has no legacy IPC handle: use Heap.export")

        def get_memory_info(self) -> Any:
            total = found.size if found.limit is None else found.limit
            return library.MemoryInfo(free=max(total - found.used, 0), total=total)

    return HeapManager


def warp(layout: Live, heap: str) -> Any:
    """Return an allocator of Warp: `warp.set_device_allocator(device, allocator)`."""
    found = layout.heap(heap)
    return SimpleNamespace(allocate=found.allocate, deallocate=lambda address, _size: _free(found, address))


def _require_device(heap: str, owner: int, device: int) -> None:
    if device != owner:
        message = f"heap {heap!r} has memory of GPU {owner}, and an array for GPU {device} was requested"
        raise Unsuitable(message, hint="use the allocator while the heap's GPU is the current one")


def _free(heap: Heap, address: int) -> None:
    """Free an allocation; of a heap that was taken down with its layout, there is none any more."""
    if heap.exists:
        heap.free(address)
