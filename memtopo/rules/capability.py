"""What a location's memory can be asked for: handle types and properties, as advertised and as a trial showed."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics import Diagnostic, Path
from memtopo.driver.types import HandleType, Location, LocationKind
from memtopo.geometry import ChunkRun, Geometry
from memtopo.machine import Device, Machine, Trial

_PROPERTIES = {
    "rdma": "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "compressible": "GENERIC_COMPRESSION_SUPPORTED",
}


def handle_types(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT404. A handle type that a trial refused will be refused again; attributes alone prove nothing (fact 4)."""
    for run in geometry.chunks.values():
        for place in run.places:
            if fault := _handles(run, place, machine):
                yield fault
                break


def properties(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT405. The device can map memory at all, and knows the properties asked for."""
    for run in geometry.chunks.values():
        for place in run.places:
            if fault := _vmm(run, place, machine) or _asked(run, place, machine):
                yield fault
                break


def _handles(run: ChunkRun, place: Location, machine: Machine) -> Diagnostic | None:
    words = run.handles.words
    path = (*run.path, "handles")
    if words and place.kind is LocationKind.HOST:
        told = f"chunk {run.name!r}: memory of 'host' takes no handle types"
        return Diagnostic("MT404", told, path, help="name a NUMA node: location: host:0")
    trials = machine.locations[place].trials
    for word in (*words, *(["fd+fabric"] if HandleType.FD | HandleType.FABRIC in run.handles else [])):
        if (trial := trials.get(word)) and _refused(trial):
            return _told("MT404", run, f"handle type {word!r}", place, trial, path)
    return None


def _vmm(run: ChunkRun, place: Location, machine: Machine) -> Diagnostic | None:
    device = _device(place, machine)
    if device is None or device.attributes.get("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 1):
        return None
    told = f"chunk {run.name!r}: {place} ({device.name}) does not support virtual memory management"
    return Diagnostic("MT405", told, (*run.path, "location"))


def _asked(run: ChunkRun, place: Location, machine: Machine) -> Diagnostic | None:
    first = run.properties[0]
    if first.rdma and first.compressible and place.kind is LocationKind.GPU:
        told = f"chunk {run.name!r} cannot be rdma and compressible at once"
        note = "the driver creates it, and silently leaves the compression out"
        return Diagnostic("MT405", told, (*run.path, "compressible"), notes=(note,), help="choose one of the two")
    for word, asked in (("rdma", first.rdma), ("compressible", first.compressible)):
        if not asked:
            continue
        path = (*run.path, word)
        device = _device(place, machine)
        if device is None:
            return Diagnostic("MT405", f"chunk {run.name!r}: host memory cannot be {word}", path)
        trial = machine.locations[place].trials.get(word) or Trial()
        advertised = device.attributes.get(_PROPERTIES[word], 1) != 0
        if _refused(trial) or not advertised:
            return _told("MT405", run, f"{word!r}", place, trial, path)
    return None


def _refused(trial: Trial) -> bool:
    return trial.works is False or (trial.works is None and trial.advertised is False)


def _told(code: str, run: ChunkRun, what: str, place: Location, trial: Trial, path: Path) -> Diagnostic:
    told = f"chunk {run.name!r}: {what} does not work on {place} of this machine"
    notes = []
    if trial.error:
        advertised = "it is advertised, but " if trial.advertised else ""
        notes.append(f"{advertised}a trial of one granule was answered with {trial.error}")
    else:
        notes.append("the device does not advertise it")
    help = None
    if "fabric" in what:
        help = "fabric handles need an IMEX channel (/dev/nvidia-caps-imex-channels) in this machine or container"
    return Diagnostic(code, told, path, notes=tuple(notes), help=help)


def _device(place: Location, machine: Machine) -> Device | None:
    return machine.devices[place.id] if place.kind is LocationKind.GPU else None
