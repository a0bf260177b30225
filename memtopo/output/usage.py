"""Processes that use GPU memory: the output of `who`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.driver.usage import GpuMemory, ProcessMemory
from memtopo.output import humanize
from memtopo.output.console import Column, Rows, cell, heading, notes, stacked
from memtopo.usage.report import LayoutUse, ProcessUsage, Usage

_GPUS = (
    Column("GPU", "right"), Column("name"), Column("total", "right"), Column("used", "right"), Column("free", "right"),
    Column("by processes", "right"),
)  # fmt: skip
_PROCESSES = (
    Column("process", "right"), Column("uid", "right"), Column("command"), Column("for", "right"), Column("memory"),
    Column("open"), Column("layout"),
)  # fmt: skip
_UNKNOWN = "?"


def page(usage: Usage, now: float) -> RenderableType:
    """GPUs and processes, and what could not be read; `now` is the time in seconds since the epoch."""
    parts: list[RenderableType] = []
    if usage.gpus:
        rows = [_gpu(each, usage) for each in usage.gpus]
        parts += [heading("GPUs, numbered as by nvidia-smi"), Rows(_GPUS, rows), Text()]
    if usage.processes:
        rows_of_processes = [_process(each, now) for each in usage.processes]
        parts += [heading("processes"), Rows(_PROCESSES, rows_of_processes)]
    else:
        parts.append(cell("no process was found that uses GPU memory"))
    if usage.unknown:
        parts += [Text(), notes(f"not known: {each}" for each in usage.unknown)]
    return Group(*parts)


def _gpu(gpu: GpuMemory, usage: Usage) -> tuple[str, ...]:
    sizes = [memory.bytes for each in usage.processes for memory in each.memory if memory.gpu == gpu.index]
    listed = sum(size for size in sizes if size is not None)
    by_processes = rounded(listed) if None not in sizes else f"{rounded(listed)} and {_UNKNOWN}"
    return str(gpu.index), gpu.name or _UNKNOWN, *map(_size, (gpu.total, gpu.used, gpu.free)), by_processes


def _process(process: ProcessUsage, now: float) -> tuple[str | Text, ...]:
    return (
        _number(process.pid),
        _number(process.uid),
        _UNKNOWN if process.command is None else process.command,
        _UNKNOWN if process.since is None else humanize.age(now - process.since),
        stacked(map(_memory, process.memory)),
        stacked(_open(process)),
        stacked(map(_layout, process.layouts)),
    )


def _memory(memory: ProcessMemory) -> str:
    instance = "" if memory.instance is None else f".{memory.instance}"
    return f"GPU {memory.gpu}{instance}: {_size(memory.bytes)}"


def _open(process: ProcessUsage) -> Iterator[str]:
    if process.devices is None:
        yield _UNKNOWN
    for device in process.devices or ():
        yield f"{device.file.removeprefix('/dev/')} × {device.descriptors:,}"
    for buffer in process.dma_buffers or ():
        exporter = f" of {buffer.exporter}" if buffer.exporter else ""
        yield f"dma-buf{exporter}: {_size(buffer.bytes)}"


def _layout(use: LayoutUse) -> str:
    of = use.layout + (" (simulated)" if use.simulated else "")
    size = "" if use.bytes is None else f": {rounded(use.bytes)}"
    if use.role == "holder":
        return f"holds {of}{size}"
    if use.role == "child":
        return f"child of the holder of {of}"
    holder = f"process {use.holder}" if use.holder else "another pid namespace"
    if use.role == "orphan":
        return f"imported from {of}, whose holder {holder} has ended"
    return f"imports from {of} of {holder}{size}"


def _number(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else rounded(size)
