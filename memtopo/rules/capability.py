"""What a location's memory can be asked for: handle types and properties, as advertised and as a trial showed."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import HandleType, Location, LocationKind
from memtopo.geometry import ChunkGroup, Geometry
from memtopo.machine import Machine, Trial

_WINDOWS = ("win32", "win32_kmt")


def handle_types(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT404. A handle type that a trial refused will be refused again; a yes of an attribute is no proof (fact 4)."""
    for run in geometry.chunks.values():
        for place in run.places:
            if fault := _handles(run, place, machine) or _received(run, place, machine):
                yield fault
                break


def properties(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT405. The device can map memory at all, and knows the properties asked for."""
    for run in geometry.chunks.values():
        if run.origin and run.origin.siblings:
            continue
        for place in run.places:
            if fault := _vmm(run, place, machine) or _asked(run, place, machine):
                yield fault
                break


def transports(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT404. What a trial across two processes refused is refused again: legacy IPC of buffers and of events."""
    for export in geometry.exports.values():
        if export.via != "ipc":
            continue
        what = "ipc-event" if export.kind == "event" else "ipc"
        for place in sorted({export.place(index) for index in range(export.count)}):
            if (trial := machine.trial(place, what)).works is False:
                told = f"export {export.name!r}: legacy IPC of {export.kind}s does not work on {place} of this machine"
                note = f"a trial across two processes was answered with {trial.error or 'other bytes'}"
                yield Diagnostic(
                    "MT404", told, export.path, notes=(note,), help="'memtopo probe' tells the likely cause"
                )
                break


def _handles(run: ChunkGroup, place: Location, machine: Machine) -> Diagnostic | None:
    words = run.handles.words
    path = (*run.path, "handles")
    received = run.origin is not None and not run.origin.siblings
    if (words or received) and place.kind is LocationKind.HOST:
        told = f"{_kind(run)} {run.name!r}: memory of 'host' takes no handle types"
        where = (*run.path, "location") if received else path
        return Diagnostic("MT404", told, where, help="name a NUMA node: location: host:0")
    for word in (*words, *(["fd+fabric"] if HandleType.FD | HandleType.FABRIC in run.handles else [])):
        trial = machine.trial(place, word)
        if trial.refused or (word in _WINDOWS and not trial.works):
            return _told("MT404", run, f"handle type {word!r}", place, trial, path)
    return None


def _received(run: ChunkGroup, place: Location, machine: Machine) -> Diagnostic | None:
    """An import from outside of this file; of a sibling's, the chunk itself is judged where it is created."""
    if not run.origin or run.origin.siblings or not (trial := machine.trial(place, run.origin.via)).refused:
        return None
    return _told("MT404", run, f"handle type {run.origin.via!r}", place, trial, (*run.path, "via"))


def _vmm(run: ChunkGroup, place: Location, machine: Machine) -> Diagnostic | None:
    trial = machine.trial(place, "vmm")
    if not trial.refused:
        return None
    return _told("MT405", run, "virtual memory management", place, trial, (*run.path, "location"))


def _asked(run: ChunkGroup, place: Location, machine: Machine) -> Diagnostic | None:
    first = run.properties[0]
    if first.rdma and first.compressible and place.kind is LocationKind.GPU:
        told = f"chunk {run.name!r} cannot be rdma and compressible at once"
        note = "the driver creates it, and silently leaves the compression out"
        return Diagnostic("MT405", told, (*run.path, "compressible"), notes=(note,), help="choose one of the two")
    for word, asked in (("rdma", first.rdma), ("compressible", first.compressible)):
        if not asked:
            continue
        path = (*run.path, word)
        if place.kind is not LocationKind.GPU:
            return Diagnostic("MT405", f"chunk {run.name!r}: host memory cannot be {word}", path)
        if (trial := machine.trial(place, word)).refused:
            return _told("MT405", run, f"{word!r}", place, trial, path)
    return None


def _told(code: str, run: ChunkGroup, what: str, place: Location, trial: Trial, path: Path) -> Diagnostic:
    told = f"{_kind(run)} {run.name!r}: {what} does not work on {place} of this machine"
    help = None
    if "fabric" in what:
        help = "fabric handles need an IMEX channel (/dev/nvidia-caps-imex-channels) in this machine or container"
    if "win32" in what:
        help = "they are for Windows; on Linux, use fd"
    return Diagnostic(code, told, path, notes=(_reason(what, trial),), help=help)


def _kind(run: ChunkGroup) -> str:
    return "import" if run.origin else "chunk"


def _reason(what: str, trial: Trial) -> str:
    if trial.works is False:
        advertised = "it is advertised, but " if trial.advertised else ""
        seen = f"was answered with {trial.error}" if trial.error else "came back without it"
        return f"{advertised}a trial of one granule {seen}"
    if "win32" in what:
        return "the driver answers INVALID_VALUE on Linux"
    return "no GPU advertises it" if what == "virtual memory management" else "the device does not advertise it"
