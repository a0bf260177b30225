"""Access is granted to whole mappings, and to devices that can reach the memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from memtopo.diagnostics import Diagnostic, Label
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.granting import Asked
from memtopo.geometry.model import Part
from memtopo.machine import Machine
from memtopo.units import exact


def splits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT308. Access to part of a mapping is refused (fact 20)."""
    del machine
    for part, instance, placements in _reached(geometry):
        if part.offset == 0 and part.end == part.range.size:
            continue
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
    asked = Asked(geometry.parts)
    for where, placements in geometry.placements.items():
        parts = asked.of(*where)
        for place, owner in _apart(parts, placements, machine):
            owned = [placement for placement in placements if owner in placement.chunk.places]
            for part in parts:
                access = dict(part.grants).get(place)
                placement = next(_between(owned, part.offset, part.end), None)
                if access and placement and (part.path, place, owner) not in told:
                    told.add((part.path, place, owner))
                    yield _reach(part, place, owner, placement)


def _reached(geometry: Geometry) -> Iterator[tuple[Part, int, Sequence[Placement]]]:
    asked = Asked(geometry.parts)
    for (name, instance), placements in geometry.placements.items():
        for part in asked.of(name, instance):
            yield part, instance, placements


def _apart(parts: Sequence[Part], placements: Sequence[Placement], machine: Machine) -> list[tuple[Location, Location]]:
    """Each pair of who is granted access in one reservation, and who owns memory there that it cannot reach."""
    granted = {grant.location for part in parts for grant in part.grants if grant.access}
    owners = {owner for placement in placements for owner in placement.chunk.places}
    return sorted((place, owner) for place in granted for owner in owners if not _reaches(place, owner, machine))


def _reaches(place: Location, owner: Location, machine: Machine) -> bool:
    if owner.kind is not LocationKind.GPU:
        return True
    return place.kind is LocationKind.GPU and machine.can_access(place.id, owner.id)


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


def _reach(part: Part, place: Location, owner: Location, placement: Placement) -> Diagnostic:
    label = Label(f"{placement.chunk.name!r} is on {owner}", placement.chunk.path, "key")
    if place.kind is LocationKind.GPU:
        told = f"{place} has no peer access to the memory of {owner}, where {placement.chunk.name!r} is"
        return Diagnostic(
            "MT403", told, part.path, labels=(label,), help=f"grant it to {owner} alone, or move the chunk"
        )
    told = f"{place} cannot be granted access to {placement.chunk.name!r}, which is memory of {owner}"
    note = "the driver answers NOT_SUPPORTED; the host can be granted host memory only"
    return Diagnostic("MT406", told, part.path, labels=(label,), notes=(note,))
