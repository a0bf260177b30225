"""From a geometry to the steps that build it, in order. Pure: no driver, no clock, no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from memtopo.diagnostics import Path
from memtopo.driver.types import Access, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement, Stretch
from memtopo.geometry.granting import Asked, from_offset, stretches
from memtopo.machine import Machine
from memtopo.pause import collector_paused
from memtopo.picture import Picture
from memtopo.remarks import remarks
from memtopo.report import PlanSummary, Row
from memtopo.steps import (
    CreateChunk,
    Drain,
    MapChunk,
    Phase,
    Reading,
    ReserveRange,
    RetainContext,
    SetAccess,
    Step,
)

LONGEST_GRANT = 1000
"""Mappings that one call grants access to: it takes 24 µs for each, and nothing can interrupt it."""


@dataclass(frozen=True)
class Plan:
    """The steps of a layout in the order of building; teardown is the reverse. Deterministic to the byte."""

    name: str
    steps: tuple[Step, ...]
    memory: dict[str, int]
    notes: tuple[str, ...]

    @cached_property
    def phases(self) -> tuple[tuple[Phase, tuple[Step, ...]], ...]:
        """The steps by phase, in order."""
        return tuple((phase, tuple(steps)) for phase, steps in groupby(self.steps, key=lambda step: step.phase))

    def summary(self, picture: Picture | None = None, warnings: tuple[str, ...] = ()) -> PlanSummary:
        """The plan folded by like steps, with the picture of its layout and the spec's warnings where there are any."""
        with collector_paused():
            rows = tuple(_fold(self.steps))
        return PlanSummary(
            name=self.name,
            rows=rows,
            memory=self.memory,
            reserved=sum(row.bytes_each * row.calls for row in rows if row.phase == Phase.RESERVE),
            calls=len(self.steps),
            teardown_calls=sum(1 for step in self.steps if step.undo_call),
            notes=self.notes,
            warnings=warnings,
            picture=picture,
        )


@dataclass(frozen=True, slots=True)
class Contents:
    """One chunk and everywhere that it can be seen: (range, offset, access of each location)."""

    chunk: str
    size: int
    location: Location
    path: Path
    seen_at: tuple[tuple[str, int, tuple[Grant, ...]], ...]


def plan(geometry: Geometry, machine: Machine) -> Plan:
    """The steps that build a geometry which has passed the rules of this machine."""
    with collector_paused():
        granted = _granted(geometry)
        steps: list[Step] = [RetainContext((), device) for device in _devices(geometry)]
        steps += _reserve(geometry)
        steps += _create(geometry)
        steps += _map(geometry, granted, _everyone(machine, geometry))
        steps += _grant(geometry, granted)
        steps += [Drain((), device) for device in _devices(geometry)]
        return Plan(geometry.name, tuple(steps), _memory(geometry), tuple(remarks(geometry, granted)))


def contents(geometry: Geometry) -> list[Contents]:
    """Every chunk with its mappings, for whoever looks at bytes; in the order of creation."""
    found: dict[str, list[tuple[str, int, tuple[Grant, ...]]]] = {}
    granted = _granted(geometry)
    for placements in geometry.placements.values():
        for placement, index, offset, access in _mappings(placements, granted):
            label = placement.chunk.label(index)
            found.setdefault(label, []).append((placement.range.label(placement.instance), offset, access))
    return [
        Contents(label, run.size, run.properties_of(index).location, run.path, tuple(found.get(label, ())))
        for run in geometry.chunks.values()
        for index, label in enumerate(map(run.label, range(run.count)))
    ]


_Granted = dict[tuple[str, int], list[Stretch]]


def _granted(geometry: Geometry) -> _Granted:
    asked = Asked(geometry.parts)
    return {where: list(stretches(placed, asked.of(*where))) for where, placed in geometry.placements.items()}


def _devices(geometry: Geometry) -> list[int]:
    """The GPUs that hold memory or are granted some: the ones whose contexts are needed."""
    places = {place for run in geometry.chunks.values() for place in run.places}
    every = (grant for parts in geometry.parts.values() for part in parts for grant in part.grants)
    places |= {grant.location for grant in every if grant.access}
    return sorted(place.id for place in places if place.kind is LocationKind.GPU)


def _everyone(machine: Machine, geometry: Geometry) -> tuple[tuple[Location, Location], ...]:
    """Who is asked about each mapping, and whose grant answers it: every GPU, and the host where it is named.

    The host is asked as one of its NUMA nodes: asked as HOST, it answers a GPU's access where it has none (fact 42).
    """
    asked = {grant.location for parts in geometry.parts.values() for part in parts for grant in part.grants}
    host = sorted(place for place in asked if place.kind is not LocationKind.GPU)
    gpus = [(gpu(ordinal), gpu(ordinal)) for ordinal in range(len(machine.devices))]
    return (*gpus, *((Location(LocationKind.HOST_NUMA, 0), place) for place in host))


def _reserve(geometry: Geometry) -> Iterator[Step]:
    for run in geometry.ranges.values():
        for instance in range(run.count):
            yield ReserveRange(run.path, run.label(instance), run.size, run.align, run.wish(instance), run.fixed)


def _create(geometry: Geometry) -> Iterator[Step]:
    for run in geometry.chunks.values():
        for index in range(run.count):
            yield CreateChunk(run.path, run.label(index), run.size, run.properties_of(index))


def _map(geometry: Geometry, granted: _Granted, everyone: tuple[tuple[Location, Location], ...]) -> Iterator[Step]:
    expected: dict[tuple[Grant, ...], tuple[Grant, ...]] = {}
    for placements in geometry.placements.values():
        label = placements[0].range.label(placements[0].instance)
        for placement, index, offset, access in _mappings(placements, granted):
            if access not in expected:
                by_place = dict(access)
                expected[access] = tuple(Grant(who, by_place.get(place, Access.NONE)) for who, place in everyone)
            chunk = placement.chunk
            yield MapChunk(placement.path, label, offset, chunk.label(index), chunk.size, expected[access])


def _mappings(
    placements: Sequence[Placement], granted: _Granted
) -> Iterator[tuple[Placement, int, int, tuple[Grant, ...]]]:
    """Each mapping of one reservation: its placement, the chunk's index, the offset, and the access it shall have."""
    waiting = iter(granted[placements[0].where])
    stretch = next(waiting, None)
    for placement in placements:
        size = placement.chunk.size
        for turn in range(placement.count):
            offset = placement.offset + turn * size
            while stretch and stretch.offset + stretch.size <= offset:
                stretch = next(waiting, None)
            covered = stretch is not None and stretch.offset <= offset
            yield placement, placement.first + turn, offset, stretch.grants if stretch and covered else ()


def _grant(geometry: Geometry, granted: _Granted) -> Iterator[Step]:
    for where, placements in geometry.placements.items():
        for stretch in granted[where]:
            label = stretch.range.label(stretch.instance)
            for low, high in _bites(placements, stretch):
                yield SetAccess(stretch.path, label, low, high - low, stretch.grants)


def _bites(placements: Sequence[Placement], stretch: Stretch) -> Iterator[tuple[int, int]]:
    """A stretch in pieces of at most `LONGEST_GRANT` whole mappings."""
    start, end, mapped = stretch.offset, stretch.offset + stretch.size, 0
    for placement in from_offset(placements, stretch.offset):
        if placement.offset >= end:
            break
        at, stop, size = max(placement.offset, stretch.offset), min(placement.end, end), placement.chunk.size
        while at < stop:
            took = min(LONGEST_GRANT - mapped, (stop - at) // size)
            at, mapped = at + took * size, mapped + took
            if mapped == LONGEST_GRANT:
                yield start, at
                start, mapped = at, 0
    if start < end:
        yield start, end


def _memory(geometry: Geometry) -> dict[str, int]:
    total: dict[Location, int] = {}
    for run in geometry.chunks.values():
        for place, count in run.shares().items():
            total[place] = total.get(place, 0) + count * run.size
    return {str(place): total[place] for place in sorted(total)}


def _fold(steps: Sequence[Step]) -> Iterator[Row]:
    for _, group in groupby(((step, step.reading()) for step in steps), key=_likeness):
        yield _row(list(group))


def _likeness(item: tuple[Step, Reading]) -> tuple[object, ...]:
    step, reading = item
    return step.call, reading.like, reading.bytes_each, reading.note


def _row(like: list[tuple[Step, Reading]]) -> Row:
    step, first = like[0]
    return Row(
        phase=step.phase,
        verb=step.verb,
        call=step.call,
        first=first.subject,
        last=like[-1][1].subject,
        calls=len(like),
        bytes_each=first.bytes_each,
        where=tuple(dict.fromkeys(reading.where for _, reading in like if reading.where)),
        path=step.path,
        note=first.note,
    )
