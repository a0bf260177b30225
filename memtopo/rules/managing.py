"""Managed memory is there, and takes advice, where the GPUs say so and no trial said otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry import Geometry, ManagedAllocation
from memtopo.machine import Machine, Trial

_ADVICE = "advice and prefetching need access from the CPU while a GPU works"


def managed(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT701. Every GPU that may come to hold it can, and those that are named take advice (fact 60)."""
    for run in geometry.managed.values():
        if fault := _memory(run, machine) or _advice(run, machine):
            yield fault


def _memory(run: ManagedAllocation, machine: Machine) -> Diagnostic | None:
    for ordinal in sorted(run.gpus):
        if (trial := machine.trial(gpu(ordinal), "managed")).refused:
            told = f"managed memory {run.name!r} does not work on gpu{ordinal} of this machine"
            return Diagnostic("MT701", told, run.path, "key", notes=(_reason(trial),), help="declare a chunk")
    return None


def _advice(run: ManagedAllocation, machine: Machine) -> Diagnostic | None:
    for path, place in _asked(run):
        if (trial := machine.trial(place, "concurrent")).refused:
            told = f"managed memory {run.name!r}: {place} of this machine takes no {str(path[-1])!r}"
            notes = (_ADVICE, _reason(trial))
            return Diagnostic("MT701", told, path, notes=notes, help=f"leave {str(path[-1])!r} out")
    return None


def _asked(run: ManagedAllocation) -> Iterator[tuple[Path, Location]]:
    """The advice and the GPU that each is for; what is prefetched to the host leaves by the home's stream."""
    if run.prefer and run.prefer.kind is LocationKind.GPU:
        yield (*run.path, "prefer"), run.prefer
    for place in run.accessed_by:
        if place.kind is LocationKind.GPU:
            yield (*run.path, "accessed_by"), place
    if run.prefetch:
        yield (*run.path, "prefetch"), run.prefetch if run.prefetch.kind is LocationKind.GPU else gpu(run.home)


def _reason(trial: Trial) -> str:
    if trial.works is not False:
        return "the device does not advertise it"
    advertised = "it is advertised, but " if trial.advertised else ""
    return f"{advertised}a trial {f'was answered with {trial.error}' if trial.error else 'read other bytes'}"
