"""vLLM's sleep mode in heaps: a sleep-mode backend named `memtopo`, and the allocator of weights and KV cache.

vLLM loads `register` as a plugin (`vllm.general_plugins`). With `MEMTOPO_VLLM=1`, the memory of its pools is allocated
in heaps, one for each tag; choose the backend by `sleep_mode_backend="memtopo"`. Without the variable, nothing changes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import vllm.device_allocator
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

from memtopo.torch.engine import ENGINE

_DEFAULT = "default"


class Allocator:
    """Allocator of vLLM's memory pools, with the interface of its `CuMemAllocator`."""

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Allocate in the heap of a tag; what was allocated and freed meanwhile is given back at the end."""
        pool = ENGINE.pool(tag or _DEFAULT, torch.cuda.current_device())
        with pool.allocating():
            yield
        pool.trim()

    def sleep(self, offload_tags: Sequence[str] | str | None = None) -> None:
        """Give all memory back; the bytes of some tags, by default of the default tag, are kept in host memory."""
        kept = (_DEFAULT,) if offload_tags is None else _several(offload_tags)
        for each, heap in ENGINE.with_tag():
            if not heap.asleep:
                heap.sleep("page-locked" if each.tag in kept else None)
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Sequence[str] | str) -> None:
        """Give the memory of some tags back, without their bytes."""
        for _, heap in ENGINE.with_tag(*_several(tags)):
            if not heap.asleep:
                heap.sleep(None)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Give memory back to some tags, by default to all, with the bytes that were kept."""
        for _, heap in ENGINE.with_tag(*(tags or ())):
            if heap.asleep:
                heap.wake()

    def release_host_memory(self) -> None:
        """Free the host memory of heaps that are awake."""
        for _, heap in ENGINE.with_tag():
            if not heap.asleep:
                heap.drop_backup()

    def get_current_usage(self) -> int:
        """Return the number of bytes that are allocated, also while they have no memory."""
        return sum(heap.used for _, heap in ENGINE.with_tag())


ALLOCATOR = Allocator()
"""The allocator of this process."""


class MemtopoBackend(SleepModeBackend):  # type: ignore[misc]
    """Sleep-mode backend whose memory is in heaps; communicators and captured graphs stay, since addresses do."""

    def suspend(self, level: int = 1) -> None:
        """Give the memory back: level 1 keeps the weights in host memory, level 2 keeps nothing."""
        ALLOCATOR.sleep(("weights",) if level == 1 else ())
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Give memory back to some tags, by default to all."""
        self._state = "RESUMING"
        ALLOCATOR.wake_up(tags)
        if os.environ.get("VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY", "0") == "1":
            ALLOCATOR.release_host_memory()
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """Give the memory of some tags back, without their bytes."""
        ALLOCATOR.discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        """Return whether vLLM's pools are in heaps, by `MEMTOPO_VLLM=1`."""
        return _requested()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Return true: communicators are not touched."""
        return True


def register() -> None:
    """Register the backend, and replace vLLM's allocator if `MEMTOPO_VLLM=1` requests that."""
    SleepModeBackendFactory.register_backend("memtopo", __name__, MemtopoBackend.__name__)
    if _requested():
        vllm.device_allocator.get_mem_allocator_instance = lambda: ALLOCATOR


def _requested() -> bool:
    return os.environ.get("MEMTOPO_VLLM") == "1"


def _several(tags: Any) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
