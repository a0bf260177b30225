"""Use of GPU memory by processes, as the system reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Work = Literal["compute", "graphics"]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one GPU in bytes; `index` is NVML's, as `nvidia-smi` prints it, and differs from CUDA's ordinals.

    `reserved` is what driver and firmware keep for themselves. Each is None if NVML does not report it.
    """

    index: int
    name: str | None
    uuid: str | None
    total: int | None
    used: int | None
    reserved: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process on one GPU; `bytes` is None if NVML does not report it.

    `gpu` is the index of the GPU, `instance` the number of the MIG instance, None without MIG. `pid` is NVML's, which
    may be of another pid namespace.
    """

    gpu: int
    pid: int
    work: tuple[Work, ...]
    bytes: int | None
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Memory of all GPUs and of the processes on them; `unknown` are sentences about what could not be read."""

    gpus: tuple[GpuMemory, ...] = ()
    processes: tuple[ProcessMemory, ...] = ()
    unknown: tuple[str, ...] = ()
