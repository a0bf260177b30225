"""torch_memory_saver's interface, by heaps: `sys.modules["torch_memory_saver"] = memtopo.torch.saver`.

It is that of its mode `torch`, with CUDA graphs as in its mode `preload`: nothing is preloaded. Its documentation
holds, but only regions are paused, not all memory of a process, and backups on disk are in a folder for each tag. What
is paused or resumed twice stays as it is, and without room to resume `torch.OutOfMemoryError` is raised, where
torch_memory_saver ends the process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from memtopo.api.errors import OutOfMemory, Unsuitable
from memtopo.api.heaps import Heap
from memtopo.run.heaps import Keep
from memtopo.torch import HeapPool
from memtopo.torch.engine import ENGINE, HeapKey
from memtopo.torch.pools import REGIONS, new_pool, retire_pool
from memtopo.torch.saver.utils import change_env

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

Backend = Literal["mmap", "pinned"]
_DEFAULT = "default"
_KEPT: dict[str, Keep] = {"pinned": "page-locked", "mmap": "pageable"}
_OWNER = "saver"
_ON_DISK = "disk"

STAND_IN = str(Path(__file__).parents[1] / "stand_in")
"""Folder with a module `torch_memory_saver` that is this one."""


class _GraphPool:
    """Pool of PyTorch for graphs, each of which keeps it: it ends after the last of them is deleted."""

    def __init__(self, pool: HeapPool) -> None:
        mem_pool = pool.new_pool()
        self.id = mem_pool.id
        weakref.finalize(self, retire_pool, mem_pool, pool.device)


class TorchMemorySaver:
    """Regions of tagged memory that are paused and resumed at the same addresses."""

    _impl = None
    """Private state of torch_memory_saver, in which programs find that nothing is preloaded."""

    def __init__(self) -> None:
        self._pool_of_graph: weakref.WeakKeyDictionary[torch.cuda.CUDAGraph, _GraphPool] = weakref.WeakKeyDictionary()
        self._graph_pools: weakref.WeakValueDictionary[Any, _GraphPool] = weakref.WeakValueDictionary()
        self._margin = 0
        self._disk = os.environ.get("TMS_DISK_BACKUP_DIR") or "/tmp"  # noqa: S108 the default there
        self._folders: dict[tuple[str, str], TemporaryDirectory[str]] = {}
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
        """Allocate the tensors of this thread so that they can be paused; of nested regions, the inner one counts.

        Memory without a tensor is given back at its end.
        """
        backend = _backend(cpu_backup_backend, backup=enable_cpu_backup, on_disk=enable_disk_backup)
        pool = self._pool(tag, backend)
        with pool.allocating():
            yield
        pool.free_unused()

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
        """Capture a graph whose intermediate tensors can be paused.

        Graphs with the same `pool` share memory: that of a pool of their own in the heap of the tag, not of `pool`.
        """
        backend = _backend(cpu_backup_backend, backup=enable_cpu_backup)
        found = self._pool(tag, backend)
        heap = found.heap.name
        own = self._graph_pools.get((heap, pool)) or _GraphPool(found)
        for number in filter(None, (own.id, pool)):
            self._graph_pools[heap, number] = own
        self._pool_of_graph[cuda_graph] = own
        with torch.cuda.graph(cuda_graph, pool=own.id, stream=stream, capture_error_mode=capture_error_mode):
            yield

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
        """Allocate outside of the region that this is within."""
        self._ensure_initialized()
        assert dispose_mem_pool_after_use, "only dispose_mem_pool_after_use=True is supported"
        assert REGIONS.entered, "disable() can be used only inside a region of this thread"
        device = torch.cuda.current_device()
        plain = new_pool(device)
        try:
            with REGIONS.using(plain, device):
                yield
        finally:
            retire_pool(plain, device)

    def pause(self, tag: str | None = None) -> None:
        """Give the memory of a tag, or of all tags, back to the GPU."""
        self._ensure_initialized()
        for key, heap in _tagged(tag):
            if not heap.asleep:
                if key.variant != _ON_DISK:
                    heap.sleep(_KEPT.get(key.variant))
                    continue
                if (heap.name, self._disk) not in self._folders:
                    self._folders[heap.name, self._disk] = TemporaryDirectory(prefix="memtopo-", dir=self._disk)
                heap.sleep(folder=self._folders[heap.name, self._disk].name)

    def resume(self, tag: str | None = None) -> None:
        """Give the tensors of a tag, or of all tags, memory again, with their bytes if these were backed up.

        Raises `torch.OutOfMemoryError` if the GPU has no room for the memory of a tag and device: this stays paused,
        with its backup, until another call.
        """
        for _, heap in _tagged(tag):
            if heap.asleep:
                _wake(heap)
                if not self.retain_cpu_backup:
                    heap.drop_backup()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:  # noqa: FBT001, FBT002
        """Return the backup of a tensor on the CPU; None if there is none, as after `resume` without retention."""
        assert x.is_cuda, f"{x.device=}"
        assert x.is_contiguous(), f"{x.shape=} {x.stride()=} {x.dtype=}"
        address = x.data_ptr()
        for key, heap in _tagged(None):
            if key.device != x.device.index or not heap.address <= address < heap.address + heap.size:
                continue
            kept = heap.backup(address)
            if kept is None:
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

    def set_disk_backup_dir(self, path: str) -> None:
        """Set the folder for backups on disk, which is made if it is missing; by default TMS_DISK_BACKUP_DIR or /tmp.

        Each tag and GPU has a folder in it, which is removed at the end of the process. What is paused resumes from the
        folder that it was paused to.
        """
        self._ensure_initialized()
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 as it is written
        self._disk = path

    def _ensure_initialized(self) -> None:
        """Raise `Unsuitable` if the whole process is to be a region, of which only a part would be paused."""
        if os.environ.get("TMS_INIT_ENABLE", "").lower() in {"1", "true", "yes"}:
            message = "TMS_INIT_ENABLE requests that all memory of the process can be paused"
            hint = "unset it and use region(), or preload the library of torch_memory_saver and import that"
            raise Unsuitable(message, hint=hint)

    def _pool(self, tag: str, backend: str) -> HeapPool:
        """Pool of a tag on the current GPU, which keeps the margin."""
        self._ensure_initialized()
        found = ENGINE.pool(_OWNER, tag, torch.cuda.current_device(), backend)
        found.heap.keep_free(self._margin)
        return found


def _backend(backend: str | None, *, backup: bool, on_disk: bool = False) -> str:
    """Variant of the heap for a region: where its bytes are kept; empty if they are not."""
    assert not (on_disk and backup), "enable_cpu_backup and enable_disk_backup are mutually exclusive"
    if on_disk:
        return _ON_DISK
    if backend is not None and not backup:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    chosen = backend or os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned"
    if chosen not in _KEPT:
        raise ValueError(f"cpu_backup_backend is 'mmap' or 'pinned', not {chosen!r}")
    return chosen if backup else ""


def _tagged(tag: str | None) -> list[tuple[HeapKey, Heap]]:
    """Heaps of regions and graphs with a tag, or with any."""
    return [(key, heap) for key, heap in ENGINE.heaps(_OWNER) if not tag or key.tag == tag]


def _wake(heap: Heap) -> None:
    """Wake a heap, without PyTorch's cached memory if the GPU has no room, or raise PyTorch's error."""
    try:
        heap.wake()
    except OutOfMemory:
        torch.cuda.empty_cache()
        try:
            heap.wake()
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from error


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Start processes within it that import this module as `torch_memory_saver`, whether that is installed or not.

    It changes the module path of processes that `multiprocessing` spawns, and `PYTHONPATH` for others.
    """
    path = os.pathsep.join(filter(None, (STAND_IN, os.environ.get("PYTHONPATH"))))
    sys.path.insert(0, STAND_IN)
    try:
        with change_env("PYTHONPATH", path):
            yield
    finally:
        sys.path.remove(STAND_IN)


torch_memory_saver = TorchMemorySaver()
"""The saver of this process."""
