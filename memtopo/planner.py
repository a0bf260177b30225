"""From a geometry to the steps that build it, in order. Pure: no driver, no clock, no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from memtopo.common.collector import collector_paused
from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement, Stretch
from memtopo.geometry.granting import from_offset
from memtopo.kinds import importing, migrating
from memtopo.kinds.steps import (
    AllocateBuffer,
    CreateChunk,
    CreateEvent,
    CreateStream,
    LoadKernels,
    MapChunk,
    Phase,
    ReserveRange,
    RetainContext,
    SetAccess,
    Step,
    Synchronize,
    TryExportBuffer,
    TryExportChunk,
    TryExportEvent,
)
from memtopo.machine import Machine
from memtopo.output.diagram.model import Diagram
from memtopo.plans import folding
from memtopo.plans.notes import remarks
from memtopo.plans.report import PlanSummary, ProcessPlan, Row
from memtopo.run.contents import Granted, granted, mappings

LONGEST_GRANT = 1000
"""Mappings that one call grants access to: it takes 24 µs for each, and nothing can interrupt it."""


@dataclass(frozen=True)
class Plan:
    """The steps of a layout in the order of building; teardown is the reverse. Deterministic to the byte.

    A layout of several processes has a plan for each of them, by label, and no steps of its own.
    """

    name: str
    steps: tuple[Step, ...]
    memory: dict[str, int]
    notes: tuple[str, ...]
    processes: Mapping[str, Plan] = field(default_factory=dict)

    @cached_property
    def phases(self) -> tuple[tuple[Phase, tuple[Step, ...]], ...]:
        """The steps by phase, in order."""
        return tuple((phase, tuple(steps)) for phase, steps in groupby(self.steps, key=lambda step: step.phase))

    def summary(self, picture: Diagram | None = None, warnings: tuple[str, ...] = ()) -> PlanSummary:
        """The plan folded by like steps, with the picture of its layout and the spec's warnings where there are any."""
        with collector_paused():
            rows = tuple(folding.rows(self.steps))
        members = tuple(_processes(self.processes))
        return PlanSummary(
            name=self.name,
            rows=rows,
            memory=self.memory,
            reserved=_reserved(rows) + sum(_reserved(each.rows) * each.count for each in members),
            calls=len(self.steps) + sum(len(plan.steps) for plan in self.processes.values()),
            teardown_calls=sum(1 for plan in (self, *self.processes.values()) for step in plan.steps if step.undo_call),
            notes=self.notes,
            warnings=warnings,
            picture=picture,
            processes=members,
        )


def plan(geometry: Geometry, machine: Machine) -> Plan:
    """The steps that build a geometry which has passed the rules of this machine."""
    with collector_paused():
        if not geometry.processes:
            return _plan(geometry, machine)
        alike = {id(member): _plan(member, machine) for member in geometry.processes.values()}
        plans = {label: alike[id(member)] for label, member in geometry.processes.items()}
        return Plan(geometry.name, (), _memory(*geometry.processes.values()), (), plans)


def with_kernels(plan: Plan, gpus: Sequence[int]) -> Plan:
    """A plan that loads, beside all else, the kernels that prove every byte."""
    opened = sum(1 for step in plan.steps if step.phase is Phase.OPEN)
    loads = (LoadKernels((), device) for device in gpus)
    return replace(plan, steps=(*plan.steps[:opened], *loads, *plan.steps[opened:]))


def _plan(geometry: Geometry, machine: Machine) -> Plan:
    access = granted(geometry)
    steps: list[Step] = [RetainContext((), device) for device in geometry.gpus]
    steps += _reserve(geometry)
    steps += _create(geometry)
    steps += _export(geometry)
    steps += importing.imports(geometry)
    steps += _map(geometry, access, _everyone(machine, geometry))
    steps += importing.mapped(geometry)
    steps += _grant(geometry, access)
    steps += migrating.moved(geometry)
    steps += [Synchronize((), device) for device in geometry.gpus]
    steps += importing.awaited(geometry, tuple(steps))
    return Plan(geometry.name, tuple(steps), _memory(geometry), tuple(remarks(geometry, access)))


def _processes(plans: Mapping[str, Plan]) -> Iterator[ProcessPlan]:
    """The plans of processes, neighbours of one counted process that are alike told once."""
    last: ProcessPlan | None = None
    for label, plan in plans.items():
        summary = plan.summary()
        new = ProcessPlan(label, label, 1, summary.rows, summary.memory, summary.notes)
        if last and label.partition(".")[0] == last.first.partition(".")[0] and _alike(last, new):
            last = replace(last, last=label, count=last.count + 1)
        else:
            if last:
                yield last
            last = new
    if last:
        yield last


def _alike(one: ProcessPlan, other: ProcessPlan) -> bool:
    return (one.rows, one.memory, one.notes) == (other.rows, other.memory, other.notes)


def _reserved(rows: Sequence[Row]) -> int:
    return sum(row.bytes_each * row.calls for row in rows if row.phase == Phase.RESERVE)


def _everyone(machine: Machine, geometry: Geometry) -> tuple[tuple[Location, Location], ...]:
    """Who is asked about each mapping, and whose grant answers it: every GPU, and the host where it is named.

    The host is asked as one of its NUMA nodes: asked as HOST, it answers a GPU's access where it has none (fact 42).
    """
    asked = {grant.location for parts in geometry.parts.values() for part in parts for grant in part.grants}
    host = sorted(place for place in asked if place.kind is not LocationKind.GPU)
    seen = geometry.visible or [gpu(ordinal) for ordinal in range(len(machine.devices))]
    gpus = [(place, place) for place in seen]
    return (*gpus, *((Location(LocationKind.HOST_NUMA, 0), place) for place in host))


def _reserve(geometry: Geometry) -> Iterator[Step]:
    for run in geometry.ranges.values():
        for instance in range(run.count):
            yield ReserveRange(run.path, run.label(instance), run.size, run.align, run.wish(instance), run.fixed)


def _create(geometry: Geometry) -> Iterator[Step]:
    for run in geometry.chunks.values():
        if not run.origin:
            for index in range(run.count):
                yield CreateChunk(run.path, run.label(index), run.size, run.properties_of(index))
    for buffer in geometry.buffers.values():
        if not buffer.origin:
            for index in range(buffer.count):
                yield AllocateBuffer(buffer.path, buffer.label(index), buffer.size, buffer.place_of(index).id)
    shared = {export.run.name for export in geometry.exports.values() if export.kind == "event"}
    for event in geometry.events.values():
        if not event.origin:
            yield CreateEvent(event.path, event.name, event.place_of(0).id, event.name in shared)
    single = [run for run in geometry.managed.values() if run.attach == "single"]
    owners = [(run.home, run.path) for run in single]
    owners += [(run.place.id, run.path) for run in geometry.semaphores.values()]
    for device, path in sorted(dict(reversed(owners)).items()):
        yield CreateStream(path, device)
    yield from migrating.created(geometry)


def _export(geometry: Geometry) -> Iterator[Step]:
    """One trial for each export: its things are alike, and what the driver answers for one it answers for all."""
    for export in geometry.exports.values():
        thing, device = export.label(0), export.place(0).id
        match export.kind:
            case "chunk":
                yield TryExportChunk(export.path, export.name, thing, HandleType[export.via.upper()], export.count)
            case "buffer":
                yield TryExportBuffer(export.path, export.name, thing, device, export.count)
            case "event":
                yield TryExportEvent(export.path, export.name, thing, device)


def _map(geometry: Geometry, access_of: Granted, everyone: tuple[tuple[Location, Location], ...]) -> Iterator[Step]:
    expected: dict[tuple[Grant, ...], tuple[Grant, ...]] = {}
    for placements in geometry.placements.values():
        label = placements[0].range.label(placements[0].instance)
        for placement, index, offset, access in mappings(placements, access_of):
            if access not in expected:
                by_place = dict(access)
                expected[access] = tuple(Grant(who, by_place.get(place, Access.NONE)) for who, place in everyone)
            chunk = placement.chunk
            yield MapChunk(placement.path, label, offset, chunk.label(index), chunk.size, expected[access])


def _grant(geometry: Geometry, access_of: Granted) -> Iterator[Step]:
    for where, placements in geometry.placements.items():
        for stretch in access_of[where]:
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


def _memory(*members: Geometry) -> dict[str, int]:
    """What is created, by location: what is imported is another's. Managed memory counts where it is allocated."""
    total: dict[Location, int] = {}
    for run in (run for member in members for run in member.created):
        for place, count in run.shares().items():
            total[place] = total.get(place, 0) + count * run.size
    for managed in (run for member in members for run in member.managed.values()):
        total[gpu(managed.home)] = total.get(gpu(managed.home), 0) + managed.size
    return {str(place): total[place] for place in sorted(total)}
