"""Memory pools of PyTorch: their life, the threads that allocate in them, and their registration with NCCL.

Peers keep memory that is registered with NCCL: they would not see what a heap has after it wakes up.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import distributed

from memtopo.api.errors import Unsuitable


def new_pool(device: int, functions: tuple[int, int] | None = None) -> torch.cuda.MemPool:
    """Return a pool of a GPU, whose segments are allocated and freed by C functions, or by PyTorch itself.

    It is to be released by `retire_pool`.
    """
    allocator = None
    if functions:
        allocator = torch._C._cuda_customAllocator(*functions)  # noqa: SLF001 as CUDAPluggableAllocator
    with torch.cuda.device(device):  # PyTorch makes a pool for the GPU that is current
        made = torch.cuda.MemPool(allocator)
    # Their destructors never run. That of a pool aborts the process while another one is in use on its GPU, by any
    # thread, and after a capture that failed; at the end of the interpreter, it calls an allocator that may have ended.
    for each in (made, allocator):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    return made


def retire_pool(mem_pool: torch.cuda.MemPool, device: int) -> None:
    """Let go of a pool. `torch.cuda.empty_cache()` frees its segments, each once no tensor is in it.

    The pool stays as long as it is used, or a graph that was captured with it exists.
    """
    torch._C._cuda_releasePool(device, mem_pool.id)  # noqa: SLF001 as the destructor of a pool


class Regions:
    """Threads that allocate in pools now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: Counter[int] = Counter()

    @property
    def entered(self) -> bool:
        """True if the current thread allocates in a pool."""
        return threading.get_ident() in self._active

    @contextmanager
    def using(self, mem_pool: torch.cuda.MemPool, device: int, *, every_thread: bool = False) -> Iterator[None]:
        """Allocate in a pool for the duration of a `with`, of which the inner one counts.

        It is for the current thread, or for every thread, if no other one allocates in a pool of its own: PyTorch would
        take the pool that was entered last.
        """
        native: Any = torch._C  # noqa: SLF001 as torch.cuda.use_mem_pool, which has no pool for every thread
        begin = native._cuda_beginAllocateCurrentThreadToPool  # noqa: SLF001
        if every_thread:
            begin = native._cuda_beginAllocateToPool  # noqa: SLF001
        own = threading.get_ident()
        with self._lock:
            if every_thread and self._active.keys() - {own}:
                message = "another thread allocates in a pool at present, so one cannot be for every thread"
                raise Unsuitable(message, hint="begin once the other thread has left its region")
            self._active[own] += 1
        try:
            begin(device, mem_pool.id)
            try:
                yield
            finally:
                native._cuda_endAllocateToPool(device, mem_pool.id)  # noqa: SLF001
                native._cuda_releasePool(device, mem_pool.id)  # noqa: SLF001
        finally:
            with self._lock:
                self._active[own] -= 1
                self._active += Counter()  # without zeros


REGIONS = Regions()
"""Those of this process."""


_VARIABLES = "NCCL_GRAPH_REGISTER", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
"""Variables by which NCCL registers memory of captured collectives, as by default, and PyTorch all memory."""


def switch_off_registration() -> None:
    """Let NCCL register no memory by itself. Raises `Unsuitable` if a variable of the user requests it.

    NCCL reads its variable when the first graph with a collective is captured.
    """
    for variable in _VARIABLES:
        value = os.environ.setdefault(variable, "0")
        if value.strip().lower() not in {"0", "false", "no", "n"}:
            message = f"{variable}={value} registers memory of heaps with NCCL, whose peers lose it when a heap sleeps"
            raise Unsuitable(message, hint=f"unset {variable}, or set it to 0")


def require_not_registered(heap: str, mem_pool: torch.cuda.MemPool, device: int) -> None:
    """Raise `Unsuitable` if a pool is registered with a process group, after its registration was ended."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for group in [*distributed.distributed_c10d._world.pg_map]:  # noqa: SLF001 there is no public list
        with suppress(RuntimeError):  # the group has no backend for GPUs, or the pool is not registered with it
            backend = group._get_backend(torch.device("cuda", device))  # noqa: SLF001
            if hasattr(backend, "deregister_mem_pool"):
                backend.deregister_mem_pool(mem_pool)
                message = f"the pool of heap {heap!r} was registered with NCCL, in process group {group.group_name!r}"
                hint = "it is not any more: try again once all ranks have, and graphs captured with it were deleted"
                raise Unsuitable(f"{message}, whose peers would lose the memory", hint=hint)
