"""PyTorch in a layout: tensors whose memory is allocated in heaps.

Imported only where PyTorch is: `import memtopo.torch`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from memtopo.api.errors import Unsuitable
from memtopo.api.heaps import Heap
from memtopo.api.live import Live

__all__ = ["HeapPool", "PoolStatistics", "allocating", "pool"]


class PoolStatistics(NamedTuple):
    """Memory of a pool in bytes: of its segments, and of the tensors in them."""

    segments: int
    segment_bytes: int
    tensor_bytes: int


class _Regions:
    """Threads that allocate in pools now, and pools to be ended when none does.

    PyTorch aborts the process if a pool ends while another one is in use on its GPU, by whichever thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._retired: list[torch.cuda.MemPool] = []

    @contextmanager
    def using(self, mem_pool: torch.cuda.MemPool, device: int | None = None) -> Iterator[None]:
        """Allocate in a pool of PyTorch for the duration of a `with`."""
        with ExitStack() as stack:
            with self._lock:
                stack.enter_context(torch.cuda.use_mem_pool(mem_pool, device))
                self._active += 1
            try:
                yield
            finally:
                with self._lock:
                    stack.close()
                    self._active -= 1
                    self._end_retired()

    def retire(self, mem_pool: torch.cuda.MemPool) -> None:
        """End a pool, of which the caller has the only reference, as soon as no other one is in use."""
        with self._lock:
            self._retired.append(mem_pool)
            del mem_pool
            self._end_retired()

    def _end_retired(self) -> None:
        if not self._active:
            self._retired.clear()


REGIONS = _Regions()
"""Those of this process."""


class HeapPool:
    """Pool of PyTorch's caching allocator whose segments are allocations of one heap.

    One thread at a time allocates in it. Its tensors end before the layout does.
    """

    def __init__(self, layout: Live, heap: str) -> None:
        """Raises `Unsuitable` without a GPU, or with expandable segments, which take no allocator of others."""
        if layout.machine.simulated:
            raise Unsuitable("PyTorch cannot use simulated memory", hint="build the layout with machine='local'")
        _require_fixed_segments()
        self._layout = layout
        self.heap: Heap = layout.heap(heap)
        """Heap in which the segments are allocated."""
        self.device = layout.heap_device(heap)
        """Ordinal of the GPU, which is PyTorch's index of the device, too."""
        self._allocator = torch._C._cuda_customAllocator(*self.heap.functions)  # noqa: SLF001 as CUDAPluggableAllocator does
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.mem_pool: torch.cuda.MemPool = self.new_pool()
        """Pool for `torch.cuda.graph(…, pool=pool.mem_pool.id)` and the like; another one after `trim`."""

    @contextmanager
    def allocating(self) -> Iterator[HeapPool]:
        """Allocate the tensors of this thread in the heap for the duration of a `with`, which may be nested.

        Raises PyTorch's `OutOfMemoryError` where the heap has no room, with the reason as a note.
        """
        if self._owner == threading.get_ident():
            yield self
            return
        if not self._lock.acquire(blocking=False):
            message = f"another thread allocates in heap {self.heap.name!r}"
            raise Unsuitable(message, hint="allocate in it by one thread at a time, or declare a heap for each")
        self._owner = threading.get_ident()
        self.heap.explanation  # noqa: B018 raises `Unsuitable` after the end of the layout
        try:
            with REGIONS.using(self.mem_pool, self.device):
                yield self
        except torch.OutOfMemoryError as error:
            if explanation := self.heap.explanation:
                error.add_note(f"memtopo: {explanation}")
            raise
        finally:
            self._owner = None
            self._lock.release()

    def trim(self) -> None:
        """Free the segments in which no tensor is. Graphs captured with these cannot be replayed any more.

        The others stay until their tensors end and `torch.cuda.empty_cache()` is called, or until the next `trim`. It
        takes effect once no thread allocates in any heap. Do not call it while a graph is captured.
        """
        old, self.mem_pool = self.mem_pool, self.new_pool()
        retired = [old]
        del old
        REGIONS.retire(retired.pop())  # it frees its unused segments as it ends
        torch.cuda.empty_cache()

    @property
    def statistics(self) -> PoolStatistics:
        """Segments of the pool, and the tensors in them."""
        segments = self.mem_pool.snapshot()
        return PoolStatistics(
            len(segments),
            sum(each["total_size"] for each in segments),
            sum(each["allocated_size"] for each in segments),
        )

    def new_pool(self) -> torch.cuda.MemPool:
        """Return another pool of PyTorch whose segments are in the heap."""
        return torch.cuda.MemPool(self._allocator)


_pools: WeakKeyDictionary[Live, dict[str, HeapPool]] = WeakKeyDictionary()


def pool(layout: Live, heap: str) -> HeapPool:
    """Return the pool of a heap, which is made when it is first needed."""
    pools = _pools.setdefault(layout, {})
    if heap not in pools:
        pools[heap] = HeapPool(layout, heap)
    return pools[heap]


@contextmanager
def allocating(layout: Live, heap: str) -> Iterator[HeapPool]:
    """Allocate the tensors of this thread in a heap of a layout for the duration of a `with`.

    `with memtopo.torch.allocating(layout, "weights"): model = Model().cuda()`
    """
    with pool(layout, heap).allocating() as found:
        yield found


def _require_fixed_segments() -> None:
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(variable, "").lower().replace(" ", ""):
            message = f"{variable} requests expandable segments, which PyTorch allocates itself"
            raise Unsuitable(message, hint="remove expandable_segments:True from it")
