"""vLLM's sleep mode in heaps: the allocator of its memory pools.

It does what vLLM's own `CuMemAllocator` does, with one heap for each tag and GPU. vLLM gets it by a plugin
(`memtopo.torch.vllm_plugin`), if `MEMTOPO_VLLM=1` is in the environment of its processes.
"""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count

import torch
from vllm.device_allocator import DEFERRABLE_TAGS, AllocationData
from vllm.device_allocator.alloc_conf import non_expandable_allocations
from vllm.logger import init_logger

from memtopo.api.errors import NotMapped, OutOfMemory
from memtopo.api.heaps import Heap
from memtopo.common.units import rounded
from memtopo.torch import HeapPool
from memtopo.torch.engine import ENGINE, HeapKey

_log = init_logger(__name__)
_OWNER = "vllm"


class Allocator:
    """Allocator of vLLM's memory pools, with the interface of its `CuMemAllocator`.

    A driver error is raised as `RuntimeError`, as vLLM's own is: the heap that it concerns is as before, those that had
    their turn are done, and the same call goes on with the others.
    """

    default_tag = "default"

    def __init__(self) -> None:
        self.retain_host_copies = False
        """True if host memory that kept bytes is retained after a wake, for the next sleep."""

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Allocate in the heap of a tag; what was allocated and freed meanwhile is given back at the end."""
        if tag is None:
            tag = self.default_tag
        assert isinstance(tag, str)
        with non_expandable_allocations():
            pool = self._pool(tag)
            with pool.allocating():
                yield
            pool.free_unused()

    @contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """Give the identifier of the pool that CUDA graphs are captured in, whose memory has the tag `cudagraph`."""
        yield self._pool("cudagraph").mem_pool.id

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Give all memory back; the bytes of some tags, by default of the default tag, are kept in host memory."""
        if offload_tags is None:
            offload_tags = (self.default_tag,)
        elif isinstance(offload_tags, str):
            offload_tags = (offload_tags,)
        assert isinstance(offload_tags, tuple)
        self._sleep({key: key.tag in offload_tags for key, _ in _heaps()})
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Sequence[str] | str) -> None:
        """Give the memory of some tags back, without their bytes."""
        if isinstance(tags, str):
            tags = (tags,)
        self._sleep({key: False for key, _ in _heaps() if key.tag in tags})

    def _sleep(self, chosen: dict[HeapKey, bool]) -> None:
        """Give the memory of some heaps back; their bytes are kept in host memory where the value is true."""
        freed = Counter[bool]()
        conflict = False
        for key, heap in _heaps():
            if key not in chosen:
                continue
            keep = chosen[key]
            if heap.asleep:
                conflict |= keep != any(heap.backup(each.address) is not None for each in heap.allocations)
                continue
            with _driver_errors():
                heap.sleep("page-locked" if keep else None)
            freed[keep] += heap.used
        _log.info("memtopo: %s discarded, %s moved to host memory", rounded(freed[False]), rounded(freed[True]))
        if conflict:
            _log.warning("memtopo: tags that were asleep already stay as they were, with or without their bytes")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Give memory back to some tags, by default to all, with the bytes that were kept.

        A wake of any tag is one of all tags but `weights` and `kv_cache`.
        """
        gc.collect()
        torch.cuda.empty_cache()
        for key, heap in _heaps():
            if heap.asleep and (tags is None or key.tag in tags or key.tag not in DEFERRABLE_TAGS):
                with _driver_errors():
                    heap.wake()
                    if not self.retain_host_copies:
                        heap.drop_backup()

    def release_pools(self) -> None:
        """Free all memory without a tensor, as a worker ends; the next one in this process starts with none."""
        heaps = ENGINE.heaps(_OWNER)
        if heaps:
            gc.collect()
        for key, _ in heaps:
            ENGINE.pool(*key).trim()

    close = release_pools

    def get_current_usage(self) -> int:
        """Return the number of bytes that are allocated, also while they have no memory."""
        return sum(heap.used for _, heap in _heaps())

    @property
    def pointer_to_data(self) -> dict[int, AllocationData]:
        """Allocations by address, as vLLM describes them; a copy."""
        return {
            each.address: AllocationData(
                (key.device, each.size, each.address, 0), key.tag, _backup(heap, each.address, each.size), heap.asleep
            )
            for key, heap in _heaps()
            for each in heap.allocations
        }

    def _pool(self, tag: str) -> HeapPool:
        """Return a pool of a tag on the current GPU whose heap is awake: another one while the first is asleep."""
        device = torch.cuda.current_device()
        for variant in chain([""], map(str, count(2))):
            pool = ENGINE.pool(_OWNER, tag, device, variant)
            if pool.heap.asleep and not pool.heap.used:  # of a worker that ended asleep
                pool.heap.wake()
            if not pool.heap.asleep:
                return pool
        raise AssertionError


ALLOCATOR = Allocator()
"""The allocator of this process."""


def _heaps() -> list[tuple[HeapKey, Heap]]:
    """Heaps of vLLM in which something is allocated."""
    return [(key, heap) for key, heap in ENGINE.heaps(_OWNER) if heap.used]


@contextmanager
def _driver_errors() -> Iterator[None]:
    try:
        yield
    except (NotMapped, OutOfMemory) as error:
        raise RuntimeError(f"CUDA Error: {error}") from error


def _backup(heap: Heap, address: int, size: int) -> torch.Tensor | None:
    """Return the bytes of an allocation in host memory, if its heap is asleep and has kept them."""
    place = heap.backup(address)
    if place is None or not heap.asleep:
        return None
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(place), dtype=torch.uint8)
