"""torch_memory_saver's interface, by heaps: `sys.modules["torch_memory_saver"] = memtopo.torch.saver`.

It is that of its mode `torch`, with CUDA graphs as in its mode `preload`: nothing is preloaded. Its documentation
holds, but there is no backup on disk, and what is paused or resumed twice stays as it is, where torch_memory_saver ends
the process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from memtopo.api.heaps import Heap
from memtopo.run.heaps import Keep
from memtopo.torch import REGIONS, HeapPool
from memtopo.torch.engine import ENGINE, Tagged

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

Backend = Literal["mmap", "pinned"]
_DEFAULT = "default"
_KEPT: dict[str, Keep] = {"pinned": "page-locked", "mmap": "pageable"}


class TorchMemorySaver:
    """Regions of tagged memory that are paused and resumed at the same addresses."""

    def __init__(self) -> None:
        self._regions: list[Any] = []
        self._margin = 0
        self.retain_cpu_backup: bool = os.environ.get("TMS_RETAIN_CPU_BACKUP") == "1"
        """True if backups stay after `resume`, where `get_cpu_backup` reads them, for the next `pause`."""
        self.hook_mode: str = "torch"
        """Mode of torch_memory_saver, which has no effect: there is one here."""

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @contextmanager
    def region(
        self,
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,  # noqa: FBT001, FBT002 the interface of torch_memory_saver, as below
        enable_disk_backup: bool = False,  # noqa: FBT001, FBT002
        cpu_backup_backend: Backend | None = None,
    ) -> Iterator[None]:
        """Allocate the tensors of this thread so that they can be paused; of nested regions, the inner one counts."""
        backend = _backend(cpu_backup_backend, backup=enable_cpu_backup, on_disk=enable_disk_backup)
        pool = self._pool(tag, backend)
        with pool.allocating():
            self._regions.append(pool)
            try:
                yield
            finally:
                self._regions.pop()

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,  # noqa: FBT001, FBT002
        cpu_backup_backend: Backend | None = None,
    ) -> Iterator[None]:
        """Capture a graph whose intermediate tensors can be paused; with a `pool`, they are allocated there."""
        backend = _backend(cpu_backup_backend, backup=enable_cpu_backup)
        own = self._pool(tag, backend).mem_pool.id
        with torch.cuda.graph(
            cuda_graph, pool=own if pool is None else pool, stream=stream, capture_error_mode=capture_error_mode
        ):
            yield

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
        """Allocate outside of the region that this is within."""
        assert dispose_mem_pool_after_use, "only dispose_mem_pool_after_use=True is supported"
        assert self._regions, "disable() can be used only inside a region"
        plain = [torch.cuda.MemPool()]
        try:
            with REGIONS.using(plain[0]):
                yield
        finally:
            REGIONS.retire(plain.pop())

    def pause(self, tag: str | None = None) -> None:
        """Give the memory of a tag, or of all tags, back to the GPU."""
        for each, heap in _tagged(tag):
            if not heap.asleep:
                heap.sleep(_KEPT.get(each.variant))

    def resume(self, tag: str | None = None) -> None:
        """Give the tensors of a tag, or of all tags, memory again, with their bytes if these were backed up."""
        for _, heap in _tagged(tag):
            if heap.asleep:
                heap.wake()
                if not self.retain_cpu_backup:
                    heap.drop_backup()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:  # noqa: FBT001, FBT002
        """Return the backup of a tensor on the CPU; None if there is none, as after `resume` without retention."""
        assert x.is_cuda, f"{x.device=}"
        assert x.is_contiguous(), f"{x.shape=} {x.stride()=} {x.dtype=}"
        address = x.data_ptr()
        for each, heap in _tagged(None):
            if each.device == x.device.index and heap.address <= address < heap.address + heap.size:
                if (kept := heap.backup(address)) is None:
                    assert not heap.asleep, "a paused tensor without backup: set enable_cpu_backup for its region"
                    return None
                memory = (ctypes.c_ubyte * x.nbytes).from_address(kept)
                found = torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype).view(x.shape)
                return found if zero_copy else found.clone()
        raise ValueError("this tensor does not belong to a region")

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes of each GPU that allocations in regions leave free."""
        return self._margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._margin = int(value)
        for _, heap in _tagged(None):
            heap.keep_free(self._margin)

    def _pool(self, tag: str, backend: str) -> HeapPool:
        """Pool of a tag on the current GPU, which keeps the margin."""
        found = ENGINE.pool(tag, torch.cuda.current_device(), backend)
        found.heap.keep_free(self._margin)
        return found


def _backend(backend: str | None, *, backup: bool, on_disk: bool = False) -> str:
    """Variant of the heap for a region: where its bytes are kept; empty if they are not."""
    if on_disk:
        raise NotImplementedError("backup on disk is not supported: use enable_cpu_backup=True")
    if backend is not None and not backup:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    found = backend or os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned"
    if found not in _KEPT:
        raise ValueError(f"cpu_backup_backend is 'mmap' or 'pinned', not {found!r}")
    return found if backup else ""


def _tagged(tag: str | None) -> list[tuple[Tagged, Heap]]:
    return ENGINE.with_tag(*([tag] if tag else []))


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Start processes within it, as torch_memory_saver's mode `preload` requires; nothing has to be configured."""
    yield


torch_memory_saver = TorchMemorySaver()
"""The saver of this process."""
