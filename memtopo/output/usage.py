"""Processes that use GPU memory: the output of `who`."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.driver.types import GpuMemory, ProcessMemory
from memtopo.output import humanize
from memtopo.output.blocks import Cell, Page, Section, Stacked, Table, columns, notes
from memtopo.usage.survey import LayoutUse, ProcessUsage, Usage

_GPUS = columns(">GPU", "name", ">total", ">used", ">free", ">by processes")
_PROCESSES = columns(">process", ">uid", "command", ">for", "memory", "open", "layout")
_UNKNOWN = "?"


def page(usage: Usage, now: float) -> Page:
    """GPUs and processes, and what could not be read; `now` is the time in seconds since the epoch."""
    gpus = Section("GPUs, numbered as by nvidia-smi", [Table(_GPUS, [_gpu(each, usage) for each in usage.gpus])])
    processes = Section("processes", [Table(_PROCESSES, [_process(each, now) for each in usage.processes])])
    found = [
        *([gpus] if usage.gpus else []),
        processes if usage.processes else Section("", ["no process was found that uses GPU memory"]),
        *notes(f"not known: {each}" for each in usage.unknown),
    ]
    return Page("who", "", sections=found)


def _gpu(gpu: GpuMemory, usage: Usage) -> tuple[str, ...]:
    sizes = [memory.bytes for each in usage.processes for memory in each.memory if memory.gpu == gpu.index]
    listed = sum(size for size in sizes if size is not None)
    by_processes = rounded(listed) if None not in sizes else f"{rounded(listed)} and {_UNKNOWN}"
    return str(gpu.index), gpu.name or _UNKNOWN, *map(_size, (gpu.total, gpu.used, gpu.free)), by_processes


def _process(process: ProcessUsage, now: float) -> tuple[Cell, ...]:
    return (
        _number(process.pid),
        _number(process.uid),
        _UNKNOWN if process.command is None else process.command,
        _UNKNOWN if process.since is None else humanize.age(now - process.since),
        Stacked([*map(_memory, process.memory)]),
        Stacked([*_open(process)]),
        Stacked([*map(_layout, process.layouts)]),
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
