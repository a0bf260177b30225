"""Access is granted to whole mappings, and to devices that can reach the memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from memtopo.diagnostics import Diagnostic, Label
from memtopo.driver.types import Grant, Location, LocationKind
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.model import Part
from memtopo.machine import Machine
from memtopo.units import exact


def splits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT308. Access to part of a mapping is refused (fact 20)."""
    del machine
    for part, instance, placements in _reached(geometry):
        for bound in (part.offset, part.end):
            split = _at(placements, bound)
            # What runs past the end of its range is another rule's fault.
            if split and split.end <= part.range.size and (bound - split.offset) % split.chunk.size:
                yield _split(part, instance, bound, split)
                break


def past_the_end(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT309. A part lies within its range."""
    del machine
    for parts in geometry.parts.values():
        for part in parts:
            if part.end > part.range.size:
                run = part.range
                told = f"this part ends at {exact(part.end)} of {run.name!r}, which ends at {exact(run.size)}"
                label = Label(f"{exact(run.size)} declared here", (*run.path, "size"))
                yield Diagnostic("MT309", told, (*part.path, "size"), labels=(label,))


def reaches(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT403, MT406. A GPU needs peer access to another's memory; the host cannot be granted GPU memory (fact 20)."""
    told: set[tuple[object, ...]] = set()
    for part, _instance, placements in _reached(geometry):
        for placement in _between(placements, part.offset, part.end):
            for grant in part.grants:
                for owner in placement.chunk.locations:
                    key = (part.path, grant.location, owner)
                    if grant.access and key not in told and (fault := _reach(part, grant, owner, placement, machine)):
                        told.add(key)
                        yield fault


def _reached(geometry: Geometry) -> Iterator[tuple[Part, int, Sequence[Placement]]]:
    for (name, instance), placements in geometry.placements.items():
        for part in geometry.parts.get(name, ()):
            if part.instances[0] <= instance < part.instances[1]:
                yield part, instance, placements


def _at(placements: Sequence[Placement], bound: int) -> Placement | None:
    """The placement that has `bound` in its inside."""
    index = bisect_right(placements, bound, key=lambda placement: placement.offset) - 1
    found = placements[index] if index >= 0 else None
    return found if found and found.offset < bound < found.end else None


def _between(placements: Sequence[Placement], start: int, end: int) -> Iterator[Placement]:
    index = max(0, bisect_right(placements, start, key=lambda placement: placement.offset) - 1)
    for placement in placements[index:]:
        if placement.offset >= end:
            return
        if placement.end > start:
            yield placement


def _split(part: Part, instance: int, bound: int, split: Placement) -> Diagnostic:
    size = split.chunk.size
    index = (bound - split.offset) // size
    low = split.offset + index * size
    chunk = split.chunk.label(split.first + index)
    told = f"this part would split {chunk!r} at {exact(bound)} of {part.range.label(instance)!r}"
    label = Label(f"{chunk!r} is mapped from {exact(low)} to {exact(low + size)}", split.path)
    field = "offset" if bound == part.offset else "size"
    base = 0 if field == "offset" else part.offset
    near = [exact(amount - base) for amount in (low, low + size) if amount > base or field == "offset"]
    help = f"write 'offset: {near[0]}' or 'offset: {near[-1]}'" if field == "offset" else f"write 'size: {near[-1]}'"
    notes = ("the driver grants access to whole mappings only",)
    return Diagnostic("MT308", told, (*part.path, field), labels=(label,), notes=notes, help=help)


def _reach(part: Part, grant: Grant, owner: Location, placement: Placement, machine: Machine) -> Diagnostic | None:
    place = grant.location
    label = Label(f"{placement.chunk.name!r} is on {owner}", placement.chunk.path, "key")
    if owner.kind is LocationKind.GPU and place.kind is LocationKind.GPU and not machine.can_access(place.id, owner.id):
        told = f"{place} has no peer access to the memory of {owner}, where {placement.chunk.name!r} is"
        return Diagnostic(
            "MT403", told, part.path, labels=(label,), help=f"grant it to {owner} alone, or move the chunk"
        )
    if owner.kind is LocationKind.GPU and place.kind is not LocationKind.GPU:
        told = f"{place} cannot be granted access to {placement.chunk.name!r}, which is memory of {owner}"
        note = "the driver answers NOT_SUPPORTED; the host can be granted host memory only"
        return Diagnostic("MT406", told, part.path, labels=(label,), notes=(note,))
    return None
