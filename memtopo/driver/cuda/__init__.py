"""The CUDA driver; `cuda.bindings` is imported when `CudaDriver` is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtopo.driver.cuda.opening import open_cuda
from memtopo.driver.cuda.system import free_memory, inaccessible_devices, kernel_release, links, numa_nodes

if TYPE_CHECKING:
    from memtopo.driver.cuda.driver import CudaDriver
    from memtopo.driver.cuda.meter import CudaMeter
    from memtopo.driver.cuda.trials import CudaTrialCalls

__all__ = [
    "CudaDriver",
    "CudaMeter",
    "CudaTrialCalls",
    "free_memory",
    "inaccessible_devices",
    "kernel_release",
    "links",
    "numa_nodes",
    "open_cuda",
]


def __getattr__(name: str) -> object:
    if name == "CudaDriver":
        # Not above: without the bindings, open_cuda must still be importable to report that.
        from memtopo.driver.cuda.driver import CudaDriver  # noqa: PLC0415

        return CudaDriver
    if name == "CudaTrialCalls":
        from memtopo.driver.cuda.trials import CudaTrialCalls  # noqa: PLC0415

        return CudaTrialCalls
    if name == "CudaMeter":
        from memtopo.driver.cuda.meter import CudaMeter  # noqa: PLC0415

        return CudaMeter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
