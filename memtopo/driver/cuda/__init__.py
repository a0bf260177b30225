"""The CUDA driver behind the boundary; `cuda.bindings` is imported when `CudaDriver` is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtopo.driver.cuda.host import closed_devices, free_memory, kernel_release, numa_nodes
from memtopo.driver.cuda.links import links
from memtopo.driver.cuda.opening import open_cuda

if TYPE_CHECKING:
    from memtopo.driver.cuda.calls import CudaDriver
    from memtopo.driver.cuda.extras import CudaExtras
    from memtopo.driver.cuda.meter import CudaMeter

__all__ = [
    "CudaDriver",
    "CudaExtras",
    "CudaMeter",
    "closed_devices",
    "free_memory",
    "kernel_release",
    "links",
    "numa_nodes",
    "open_cuda",
]


def __getattr__(name: str) -> object:
    if name == "CudaDriver":
        # Not above: where the bindings are missing, open_cuda must still be there to say so.
        from memtopo.driver.cuda.calls import CudaDriver  # noqa: PLC0415

        return CudaDriver
    if name == "CudaExtras":
        from memtopo.driver.cuda.extras import CudaExtras  # noqa: PLC0415

        return CudaExtras
    if name == "CudaMeter":
        from memtopo.driver.cuda.meter import CudaMeter  # noqa: PLC0415

        return CudaMeter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
