"""Memory that is registered with NCCL, whose peers keep it: they would not see what a heap has after it wakes up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import distributed

from memtopo.api.errors import Unsuitable

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
    for group, backend in _backends(device):
        with suppress(RuntimeError):  # it is not registered
            backend.deregister_mem_pool(mem_pool)
            message = f"the pool of heap {heap!r} was registered with NCCL, in process group {group.group_name!r}"
            hint = "it is not any more: try again once all ranks have, and graphs captured with it were deleted"
            raise Unsuitable(f"{message}, whose peers would lose the memory", hint=hint)


def _backends(device: int) -> Iterator[tuple[Any, Any]]:
    """Process groups of NCCL with a communicator on a GPU, and their backends."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for group in [*distributed.distributed_c10d._world.pg_map]:  # noqa: SLF001 there is no public list
        with suppress(RuntimeError):  # it has no backend for GPUs
            backend = group._get_backend(torch.device("cuda", device))  # noqa: SLF001
            if hasattr(backend, "deregister_mem_pool"):
                yield group, backend
