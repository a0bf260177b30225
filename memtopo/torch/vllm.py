"""vLLM's sleep mode in heaps: the allocator of its memory pools, and a sleep-mode backend named `memtopo`.

They do what vLLM's own `CuMemAllocator` and `CuMemBackend` do, with one heap for each tag and GPU. vLLM gets them by a
plugin (`memtopo.torch.vllm_plugin`), if `MEMTOPO_VLLM=1` is in the environment of its processes.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from vllm.device_allocator import DEFERRABLE_TAGS, AllocationData
from vllm.device_allocator.alloc_conf import non_expandable_allocations
from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.logger import init_logger

from memtopo.api.errors import NotMapped, OutOfMemory
from memtopo.api.heaps import Heap
from memtopo.common.units import rounded
from memtopo.torch import HeapPool
from memtopo.torch.engine import ENGINE

_log = init_logger(__name__)


class Allocator:
    """Allocator of vLLM's memory pools, with the interface of its `CuMemAllocator`.

    A driver error is raised as `RuntimeError`, as vLLM's own is: the heap that it concerns is as before, those that had
    their turn are done, and the same call goes on with the others.
    """

    default_tag = "default"

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int, str], HeapPool] = {}

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Allocate in the heap of a tag; what was allocated and freed meanwhile is given back at the end."""
        tag = self.default_tag if tag is None else tag
        assert isinstance(tag, str)
        with non_expandable_allocations():
            pool = self._pool(tag)
            with pool.allocating():
                yield
            pool.trim()

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
        freed = kept = 0
        conflict = False
        for tag, heap in self._heaps():
            offload = tag in offload_tags
            if heap.asleep:
                conflict |= offload != _offloaded(heap)
                continue
            with _driver_errors():
                heap.sleep("page-locked" if offload else None)
            freed += heap.used
            kept += heap.used if offload else 0
        _log.info("memtopo: sleep freed %s, of which %s are kept in host memory", rounded(freed), rounded(kept))
        _warn_of(conflict=conflict, call="sleep")
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Sequence[str] | str) -> None:
        """Give the memory of some tags back, without their bytes."""
        chosen = (tags,) if isinstance(tags, str) else tags
        discarded = 0
        conflict = False
        for tag, heap in self._heaps():
            if tag not in chosen:
                continue
            if heap.asleep:
                conflict |= _offloaded(heap)
                continue
            with _driver_errors():
                heap.sleep(None)
            discarded += heap.used
        _log.info("memtopo: discarded %s of tags %s", rounded(discarded), chosen)
        _warn_of(conflict=conflict, call="discard")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Give memory back to some tags, by default to all, with the bytes that were kept.

        A wake of any tag is one of all tags but `weights` and `kv_cache`. Host memory is freed afterwards, unless
        `MEMTOPO_RETAIN_HOST_COPIES=1` asks to retain it for the next sleep.
        """
        gc.collect()
        torch.cuda.empty_cache()
        for tag, heap in self._heaps():
            if heap.asleep and (tags is None or tag in tags or tag not in DEFERRABLE_TAGS):
                with _driver_errors():
                    heap.wake()
                    if os.environ.get("MEMTOPO_RETAIN_HOST_COPIES") != "1":
                        heap.drop_backup()

    def release_pools(self) -> None:
        """Free all memory without a tensor, as a worker ends; the next one in this process starts with none."""
        if self._pools:
            gc.collect()
        for pool in self._pools.values():
            pool.trim()

    close = release_pools

    def get_current_usage(self) -> int:
        """Return the number of bytes that are allocated, also while they have no memory."""
        return sum(heap.used for _, heap in self._heaps())

    @property
    def pointer_to_data(self) -> dict[int, AllocationData]:
        """Allocations by address, as vLLM describes them; a copy."""
        return {
            each.address: AllocationData(
                (device, each.size, each.address, 0), tag, _backup(pool.heap, each.address, each.size), pool.heap.asleep
            )
            for (tag, device, _), pool in self._pools.items()
            for each in pool.heap.allocations
        }

    def _heaps(self) -> list[tuple[str, Heap]]:
        """Heaps in which something is allocated, by tag."""
        return [(tag, pool.heap) for (tag, _, _), pool in self._pools.items() if pool.heap.used]

    def _pool(self, tag: str) -> HeapPool:
        """Return a pool of a tag on the current GPU whose heap is awake: another one while the first is asleep."""
        device = torch.cuda.current_device()
        for number in count(1):
            key = tag, device, str(number) if number > 1 else ""
            if key not in self._pools:
                if key in ENGINE.heaps:  # of torch_memory_saver's interface in the same process
                    continue
                self._pools[key] = ENGINE.pool(*key)
            heap = self._pools[key].heap
            if heap.asleep and not heap.used:  # of a worker that ended asleep
                heap.wake()
            if not heap.asleep:
                return self._pools[key]
        raise AssertionError


ALLOCATOR = Allocator()
"""The allocator of this process."""


class MemtopoBackend(CuMemBackend):  # type: ignore[misc]
    """Sleep-mode backend that requires memory in heaps; its levels, tags and states are those of vLLM's `cumem`."""

    @classmethod
    def is_supported(cls) -> bool:
        """Return whether vLLM's pools are in heaps, by `MEMTOPO_VLLM=1`."""
        return os.environ.get("MEMTOPO_VLLM") == "1"


@contextmanager
def _driver_errors() -> Iterator[None]:
    try:
        yield
    except (NotMapped, OutOfMemory) as error:
        raise RuntimeError(f"CUDA Error: {error}") from error


def _warn_of(*, conflict: bool, call: str) -> None:
    if conflict:
        _log.warning("memtopo: %s has left tags that were asleep as they were: with their bytes, or without", call)


def _offloaded(heap: Heap) -> bool:
    """Return true if a heap that is asleep has its bytes in host memory."""
    return any(heap.backup(each.address) is not None for each in heap.allocations)


def _backup(heap: Heap, address: int, size: int) -> torch.Tensor | None:
    place = heap.backup(address) if heap.asleep else None
    return None if place is None else torch.frombuffer((ctypes.c_ubyte * size).from_address(place), dtype=torch.uint8)
