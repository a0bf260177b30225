"""The CUDA driver behind the boundary; `cuda.bindings` is imported when `CudaDriver` is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtopo.driver.cuda.opening import open_cuda
from memtopo.driver.cuda.system import closed_devices, free_memory, kernel_release, links, numa_nodes

if TYPE_CHECKING:
    from memtopo.driver.cuda.driver import CudaDriver
    from memtopo.driver.cuda.meter import CudaMeter
    from memtopo.driver.cuda.trials import CudaExtras

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
        from memtopo.driver.cuda.driver import CudaDriver  # noqa: PLC0415

        return CudaDriver
    if name == "CudaExtras":
        from memtopo.driver.cuda.trials import CudaExtras  # noqa: PLC0415

        return CudaExtras
    if name == "CudaMeter":
        from memtopo.driver.cuda.meter import CudaMeter  # noqa: PLC0415

        return CudaMeter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
