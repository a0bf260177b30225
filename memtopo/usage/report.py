"""Report of `memtopo who`: GPUs, processes that use their memory, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.driver.types import GpuMemory, ProcessMemory


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """Descriptors of one device file; an exported chunk is one of /dev/nvidiactl, without size (fact 26)."""

    file: str
    descriptors: int


@dataclass(frozen=True, slots=True)
class DmaBuffer:
    """One dma-buf, of `descriptors` in a process; `inode` is the same in every process that has it.

    `bytes` and `exporter` (a kernel module) are None if the kernel does not show them.
    """

    inode: int | None
    descriptors: int
    bytes: int | None
    exporter: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class LayoutUse:
    """Part of a process in a held layout: it holds it, is a child of the holder, or imports from it.

    `holder` is the process that holds it, None if that is of another pid namespace. `bytes` are those of all exports
    for a holder, and those of received handles for an importer; None if they are not known. Times are in seconds of
    the epoch. The holder of an `orphan` has ended: the importer may keep memory that no process exports any more.
    """

    layout: str
    role: Literal["holder", "child", "importer", "orphan"]
    holder: int | None
    since: float | None
    bytes: int | None
    simulated: bool | None
    socket: str | None


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A process that uses GPU memory, or may.

    `pid` is None for an importer of another pid namespace. A process that is not in /proc has neither `uid`,
    `command` nor `since`, the time of its start. `devices` and `dma_buffers` are None if its descriptors could not be
    read.
    """

    pid: int | None
    uid: int | None
    command: str | None
    since: float | None
    memory: tuple[ProcessMemory, ...]
    devices: tuple[OpenDevice, ...] | None
    dma_buffers: tuple[DmaBuffer, ...] | None
    layouts: tuple[LayoutUse, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """All processes that were found, by ascending pid; `unknown` are sentences about what could not be read."""

    gpus: tuple[GpuMemory, ...]
    processes: tuple[ProcessUsage, ...]
    unknown: tuple[str, ...]
