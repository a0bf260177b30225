"""Access is granted to whole mappings, and to devices that can reach the memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.driver.types import Grant, Location, LocationKind
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.granting import Asked, Segment, from_offset, segments
from memtopo.geometry.model import Part
from memtopo.machine import Machine, Trial


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
    apart = _Apart(machine)
    for where, placements in geometry.placements.items():
        if ("access", where[0]) in geometry.unsure:
            continue
        for segment in segments(asked.of(*where)):
            for owner, place, placement in _out_of_reach(segment, placements, apart):
                part = segment.given[place]
                if (part.path, place, owner) not in told:
                    told.add((part.path, place, owner))
                    yield _reach(part, place, owner, placement, _tried(place, owner, machine))


class _Apart:
    """Who is granted access and cannot reach, by the owner of the memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[Grant, ...], dict[Location, list[Location]]] = {}

    def of(self, grants: tuple[Grant, ...]) -> dict[Location, list[Location]]:
        """Of each owner that somebody cannot reach, who that is."""
        if grants not in self._known:
            self._known[grants] = {owner: few for owner in self._machine.locations if (few := self._few(grants, owner))}
        return self._known[grants]

    def _few(self, grants: tuple[Grant, ...], owner: Location) -> list[Location]:
        return [grant.location for grant in grants if not _reaches(grant.location, owner, self._machine)]


def _out_of_reach(
    segment: Segment, placements: Sequence[Placement], apart: _Apart
) -> Iterator[tuple[Location, Location, Placement]]:
    """Each owner of memory in a segment, with who is granted it and cannot reach it."""
    if not (unreached := apart.of(segment.grants)):
        return
    for placement in from_offset(placements, segment.start):
        if placement.offset >= segment.end:
            return
        if unreached.keys() & placement.chunk.places:
            for owner in sorted(unreached.keys() & _owners(placement, segment)):
                for place in unreached[owner]:
                    yield owner, place, placement


def _owners(placement: Placement, segment: Segment) -> set[Location]:
    """Where those chunks of a placement are that lie in a segment."""
    chunk = placement.chunk
    first = (max(segment.start, placement.offset) - placement.offset) // chunk.size
    stop = -(-(min(segment.end, placement.end) - placement.offset) // chunk.size)
    if stop - first >= len(chunk.properties):
        return set(chunk.places)
    return {chunk.place_of(placement.first + index) for index in range(first, stop)}


def _reached(geometry: Geometry) -> Iterator[tuple[Part, int, Sequence[Placement]]]:
    asked = Asked(geometry.parts)
    for (name, instance), placements in geometry.placements.items():
        for part in asked.of(name, instance):
            yield part, instance, placements


def _reaches(place: Location, owner: Location, machine: Machine) -> bool:
    trial = _tried(place, owner, machine)
    if owner.kind is not LocationKind.GPU:
        return trial is None or trial.works is not False
    access = place.kind is LocationKind.GPU and machine.can_access(place.id, owner.id)
    return access and (trial is None or trial.works is not False)


def _tried(place: Location, owner: Location, machine: Machine) -> Trial | None:
    """What a trial showed of somebody's use of a memory: of a peer's, by a store; of host memory, by either end."""
    if owner.kind is not LocationKind.GPU:
        return machine.trial(owner, "gpu" if place.kind is LocationKind.GPU else "cpu")
    peer = machine.peers[place.id][owner.id] if place.kind is LocationKind.GPU else None
    return peer.store if peer else None


def _at(placements: Sequence[Placement], bound: int) -> Placement | None:
    """The placement that has `bound` in its inside."""
    index = bisect_right(placements, bound, key=lambda placement: placement.offset) - 1
    found = placements[index] if index >= 0 else None
    return found if found and found.offset < bound < found.end else None


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


def _reach(part: Part, place: Location, owner: Location, placement: Placement, trial: Trial | None) -> Diagnostic:
    label = Label(f"{placement.chunk.name!r} is on {owner}", placement.chunk.path, "key")
    if trial and trial.works is False:
        told = f"{place} cannot use the memory of {owner} of this machine, where {placement.chunk.name!r} is"
        shown = f"was answered with {trial.error}" if trial.error else "was lost on its way, and nobody was told"
        advertised = "it is advertised, but " if trial.advertised else ""
        note = f"{advertised}a store in a trial {shown}"
        code = "MT403" if owner.kind is LocationKind.GPU else "MT406"
        help = "'memtopo probe' tells the likely cause"
        return Diagnostic(code, told, part.path, labels=(label,), notes=(note,), help=help)
    if place.kind is LocationKind.GPU:
        told = f"{place} has no peer access to the memory of {owner}, where {placement.chunk.name!r} is"
        return Diagnostic(
            "MT403", told, part.path, labels=(label,), help=f"grant it to {owner} alone, or move the chunk"
        )
    told = f"{place} cannot be granted access to {placement.chunk.name!r}, which is memory of {owner}"
    note = "the driver answers NOT_SUPPORTED; the host can be granted host memory only"
    return Diagnostic("MT406", told, part.path, labels=(label,), notes=(note,))
