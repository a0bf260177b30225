"""The CUDA driver. Modules are imported when one of their names is first used; some need `cuda.bindings`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memtopo.drivers.cuda.driver import CudaDriver
    from memtopo.drivers.cuda.kernels import CudaTrialCalls
    from memtopo.drivers.cuda.local import (
        host_memory,
        inaccessible_devices,
        kernel_release,
        numa_bytes,
        numa_nodes,
        open_cuda,
        start_cuda,
    )
    from memtopo.drivers.cuda.meter import CudaMeter
    from memtopo.drivers.cuda.nvml import gpu_usage, links, readings

__all__ = [
    "CudaDriver",
    "CudaMeter",
    "CudaTrialCalls",
    "gpu_usage",
    "host_memory",
    "inaccessible_devices",
    "kernel_release",
    "links",
    "numa_bytes",
    "numa_nodes",
    "open_cuda",
    "readings",
    "start_cuda",
]

_MODULES = {
    "driver": ("CudaDriver",),
    "kernels": ("CudaTrialCalls",),
    "local": (
        "host_memory",
        "inaccessible_devices",
        "kernel_release",
        "numa_bytes",
        "numa_nodes",
        "open_cuda",
        "start_cuda",
    ),
    "meter": ("CudaMeter",),
    "nvml": ("gpu_usage", "links", "readings"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
