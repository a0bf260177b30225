"""PyTorch in a layout: tensors whose memory is allocated in heaps.

Imported only where PyTorch is: `import memtopo.torch`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from memtopo.api.errors import Unsuitable
from memtopo.api.heaps import Heap
from memtopo.api.live import Live
from memtopo.common.units import rounded
from memtopo.torch.pools import REGIONS, new_pool, require_not_registered, retire_pool, switch_off_registration

__all__ = ["HeapPool", "OutsideHeaps", "PoolStatistics", "allocating", "pool"]


class OutsideHeaps(UserWarning):
    """Tensors on the GPU of a layout that changes, whose memory is in no heap and stays."""


class PoolStatistics(NamedTuple):
    """Memory of a pool in bytes: of its segments, of the tensors in them, and of segments without a tensor."""

    segments: int
    segment_bytes: int
    tensor_bytes: int
    unused_bytes: int


class HeapPool:
    """Pools of PyTorch's caching allocator whose segments are allocations of one heap.

    One thread at a time allocates in them. The tensors end before the layout does.
    """

    def __init__(self, heap: Heap, device: int) -> None:
        """Raises `Unsuitable` if PyTorch's allocator, or NCCL, cannot use the heap as it is configured."""
        variables = "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF"
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            message = f"PyTorch allocates by its backend {backend!r}, which has no pools"
            raise Unsuitable(message, hint=f"remove 'backend:{backend}' from {variables}")
        settings = ",".join(os.environ.get(each, "") for each in variables.split(" and "))
        if torch.__version__ < (2, 11) and "expandable_segments:true" in settings.lower().replace(" ", ""):
            message = "PyTorch before 2.11 allocates expandable segments itself"
            raise Unsuitable(message, hint=f"remove 'expandable_segments:True' from {variables}")
        switch_off_registration()
        self.heap: Heap = heap
        """Heap in which the segments are allocated."""
        self.device = device
        """Ordinal of the GPU, which is PyTorch's index of the device, too."""
        self.addresses = range(heap.address, heap.address + heap.size)
        """Addresses of the heap."""
        self.warns = True
        """True if a change of the layout warns of tensors that are in no heap."""
        self._functions = heap.functions
        self._owner: int | None = None
        self._depth = 0
        self._lock = threading.RLock()
        self._by_depth: dict[int, torch.cuda.MemPool] = {}
        self._of_graphs: torch.cuda.MemPool | None = None
        self._given: list[torch.cuda.MemPool] = []
        _ALL.add(self)

    @property
    def mem_pool(self) -> torch.cuda.MemPool:
        """Pool for `torch.cuda.graph(…, pool=pool.mem_pool.id)` and the like; another one after `trim`.

        No tensor of `allocating` is in it, since a graph writes to all memory that was allocated while it was captured.
        """
        with self._lock:
            self.heap.address  # noqa: B018 raises `Unsuitable` after the end of the layout
            if self._of_graphs is None:
                self._of_graphs = self.new_pool()
            return self._of_graphs

    def new_pool(self) -> torch.cuda.MemPool:
        """Return another pool of PyTorch whose segments are in the heap, for graphs, as `mem_pool`."""
        made = new_pool(self.device, self._functions)
        self._given.append(made)
        return made

    @contextmanager
    def allocating(self, *, every_thread: bool = False) -> Iterator[HeapPool]:
        """Allocate the tensors of this thread in the heap for the duration of a `with`, which may be nested.

        With `every_thread`, those of all threads of the process. Autograd allocates gradients in this thread. Raises
        PyTorch's `OutOfMemoryError` where the heap has no room, with the reason as a note.
        """
        failures = self.heap.failures
        try:
            with self._entered(every_thread=every_thread), torch.autograd.set_multithreading_enabled(False):
                yield self
        except torch.OutOfMemoryError as error:
            if self.heap.exists and self.heap.failures > failures and "Tried to allocate" in str(error):
                note = f"memtopo: {self.heap.explanation}"
                if unused := self.statistics.unused_bytes:
                    note += f"; {rounded(unused)} are of tensors that were deleted: trim() of the pool frees them"
                if note not in getattr(error, "__notes__", ()):  # a region inside this one has added it
                    error.add_note(note)
            raise

    @contextmanager
    def _entered(self, *, every_thread: bool) -> Iterator[None]:
        """Allocate in a pool that is not in use: PyTorch refuses one that a thread, also this one, uses already."""
        own = threading.get_ident()
        with ExitStack() as region:
            with self._lock:
                if self._owner not in {None, own}:
                    message = f"another thread allocates in heap {self.heap.name!r}"
                    raise Unsuitable(message, hint="allocate in it by one thread at a time, or declare a heap for each")
                left = self.heap.left  # what the limit leaves: segments without a tensor may have more than that
                if left is not None and left <= self.heap.used and self.statistics.unused_bytes >= max(left, 1):
                    self._retire_unused()
                if self._depth not in self._by_depth:
                    self._by_depth[self._depth] = new_pool(self.device, self._functions)
                mem_pool = self._by_depth[self._depth]
                region.enter_context(REGIONS.using(mem_pool, self.device, every_thread=every_thread))
                self._owner, self._depth = own, self._depth + 1
            try:
                yield
            finally:
                with self._lock:
                    region.close()
                    self._depth -= 1
                    self._owner = own if self._depth else None

    def trim(self) -> None:
        """Free the segments in which no tensor is, and let a graph that is captured from now on have new ones.

        Graphs that exist keep those that they were captured with. The others stay until their tensors end and
        `torch.cuda.empty_cache()` is called, or until the next `trim`. During a capture, or while any thread
        allocates in a pool, it takes effect later.
        """
        with self._lock:
            if self._of_graphs:
                retire_pool(self._of_graphs, self.device)
            self._of_graphs = None
            self._retire_unused()

    def free_unused(self) -> None:
        """Free the segments in which no tensor is, but no pool for graphs; does nothing during a capture."""
        if not torch.cuda.is_current_stream_capturing():
            self._free_unused(_segments(self.device))

    def _free_unused(self, segments: list[dict[str, Any]]) -> None:
        with self._lock:
            if self._statistics(segments).unused_bytes:
                self._retire_unused()

    def _retire_unused(self) -> None:
        for each in self._by_depth.values():
            retire_pool(each, self.device)
        self._by_depth.clear()
        if not torch.cuda.is_current_stream_capturing():  # a free invalidates the capture (fact 90)
            torch.cuda.empty_cache()

    def before_change(self) -> None:
        """Free segments without a tensor, so that their bytes are neither kept nor created again.

        Raises `Unsuitable` during a capture, and once if NCCL has registered a pool.
        """
        if torch.cuda.is_current_stream_capturing():
            message = f"heap {self.heap.name!r} cannot lose or get memory while a graph is captured"
            raise Unsuitable(message, hint="switch the layout once the capture has ended")
        segments = _segments(self.device)
        used = {each["segment_pool_id"] for each in segments}
        for mem_pool in self._given:  # the others cannot be registered, since nobody else has them
            if mem_pool.id in used:
                require_not_registered(self.heap.name, mem_pool, self.device)
        self._free_unused(segments)
        if self.warns:
            _warn_of_outside(self.device, segments)

    def end(self) -> bool:
        """Let go of all segments: the heap ends. Return true if tensors are in some of them.

        PyTorch finds a tensor by its address, so no other one may get that: the process would be aborted.
        """
        with suppress(RuntimeError):  # as after an error of a kernel, which ends the use of the GPU
            self.trim()
        return self.statistics.segments > 0

    @property
    def statistics(self) -> PoolStatistics:
        """Segments of the heap, and the tensors in them."""
        return self._statistics(_segments(self.device))

    def _statistics(self, segments: list[dict[str, Any]]) -> PoolStatistics:
        own = [each for each in segments if each["address"] in self.addresses]
        return PoolStatistics(
            len(own),
            sum(each["total_size"] for each in own),
            sum(each["allocated_size"] for each in own),
            sum(each["total_size"] for each in own if not each["active_size"]),
        )


_ALL: WeakSet[HeapPool] = WeakSet()
_told: dict[int, int] = {}
_NOTABLE = 64 << 20
"""Bytes outside of heaps that are told at least, if they are half of those inside: cuBLAS's workspaces are less."""


def _segments(device: int) -> list[dict[str, Any]]:
    return [each for each in torch.cuda.memory_snapshot() if each["device"] == device]


def _warn_of_outside(device: int, segments: list[dict[str, Any]]) -> None:
    """Warn of tensors that are in no heap, when there are notably more of them than at the last time."""
    heaps = [each.addresses for each in [*_ALL] if each.heap.exists]
    tensors = Counter[bool]()
    for segment in segments:
        tensors[any(segment["address"] in addresses for addresses in heaps)] += segment["allocated_size"]
    outside = tensors[False]
    if outside >= max(_told.get(device, 0) + _NOTABLE, tensors[True] / 2):
        _told[device] = outside
        message = (
            f"tensors of {rounded(outside)} on gpu{device} are outside of heaps, and keep their memory in every state: "
            "other threads make them, as loaders of models do, or they are made outside of 'allocating'; "
            "allocating(…, every_thread=True) takes those of all threads"
        )
        warnings.warn(message, OutsideHeaps, stacklevel=2)


def pool(layout: Live, heap: str) -> HeapPool:
    """Return the pool of a heap, which is made when it is first needed.

    Raises `Unsuitable` without a GPU, and if PyTorch cannot use the heap.
    """
    if layout.machine.simulated:
        raise Unsuitable("PyTorch cannot use simulated memory", hint="build the layout with machine='local'")
    found = layout.heap(heap)
    return found.user(lambda: HeapPool(found, layout.heap_device(heap)))


@contextmanager
def allocating(layout: Live, heap: str, *, every_thread: bool = False) -> Iterator[HeapPool]:
    """Allocate the tensors of this thread, or of every thread, in a heap for the duration of a `with`.

    `with memtopo.torch.allocating(layout, "weights"): model = Model().cuda()`
    """
    with pool(layout, heap).allocating(every_thread=every_thread) as found:
        yield found
