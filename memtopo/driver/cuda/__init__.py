"""The CUDA driver behind the boundary; `cuda.bindings` is imported when `CudaDriver` is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtopo.driver.cuda.host import free_memory, kernel_release, numa_nodes
from memtopo.driver.cuda.opening import open_cuda

if TYPE_CHECKING:
    from memtopo.driver.cuda.calls import CudaDriver

__all__ = ["CudaDriver", "free_memory", "kernel_release", "numa_nodes", "open_cuda"]


def __getattr__(name: str) -> object:
    if name == "CudaDriver":
        # Not above: where the bindings are missing, open_cuda must still be there to say so.
        from memtopo.driver.cuda.calls import CudaDriver  # noqa: PLC0415

        return CudaDriver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
