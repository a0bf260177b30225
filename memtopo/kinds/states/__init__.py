"""States: physical memory that a layout gives back for a while, under addresses that stay."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.types import Access, Location, LocationKind, Properties
from memtopo.geometry.access import granted, mappings
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.geometry.sizing import granule, rounded_to_multiple
from memtopo.kinds.kind import Difference, Kind, Rule, Scope, Stage
from memtopo.kinds.resolution import Resolution, indices, refuses_growing
from memtopo.language.entries import Entry
from memtopo.language.fields import ChunkReference, DeviceName, one_or_more
from memtopo.language.names import AWAKE, NamedDevice, Reference
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.step import Step


class State(Entry):
    """State in which some physical memory is gone; its addresses stay reserved."""

    drop: Annotated[
        list[ChunkReference],
        BeforeValidator(one_or_more, json_schema_input_type=ChunkReference | list[ChunkReference]),
    ] = Field(default=[], description="Ranges or chunks whose memory goes, and comes back with undefined bytes.")
    offload: dict[ChunkReference, DeviceName] = Field(
        default={},
        description="Ranges or chunks whose memory goes, with what keeps their bytes: host, host:0, a GPU, or pinned.",
    )


PINNED = "pinned"
"""Name of page-locked host memory among the locations of offloaded bytes, unless a device has that name."""


class _Keeper(NamedTuple):
    """Location that keeps offloaded bytes, in page-locked memory or in a chunk."""

    location: Location
    pinned: bool = False


class Absent(NamedTuple):
    """Chunks of a group, from index `first` to `stop`, that have no memory in a state.

    `area` is the label of the area that keeps their bytes, in order; None if they are dropped.
    """

    group: ChunkGroup
    first: int
    stop: int
    area: str | None
    path: Path

    @property
    def at(self) -> At:
        """Part of the entry at `path` that names them: offloaded chunks are keys."""
        return "value" if self.area is None else "key"


@dataclass(frozen=True, slots=True)
class StateGroup(Group):
    """One state and the chunks that are absent in it."""

    noun = "layout state"

    name: str
    path: Path
    absent: tuple[Absent, ...]
    emptied: tuple[str, ...] = ()
    """Labels of the elastic ranges in which nothing is mapped."""
    count: int = 1
    counted: bool = False
    size: int = 0
    origin: None = None

    @property
    def locations(self) -> Sequence[Location]:
        """None: a state has no memory of its own."""
        return ()


@dataclass(frozen=True, slots=True)
class OffloadArea(Group):
    """Memory that keeps the bytes of offloaded chunks. It exists in all states, so that no switch has to create it."""

    noun = "offload area"
    memory = True

    name: str
    path: Path
    size: int
    location: Location
    pinned: int | None
    """GPU in whose context page-locked memory is allocated; None for a chunk."""
    count: int = 1
    counted: bool = False
    origin: None = None

    def location_of(self, index: int) -> Location:
        """Location of the memory."""
        del index
        return self.location

    @property
    def contexts(self) -> frozenset[int]:
        """The GPU of page-locked memory, which ends with its context."""
        return frozenset() if self.pinned is None else frozenset({self.pinned})

    @property
    def memory_label(self) -> str:
        """Name in a drawing: `offloaded weights`."""
        return f"offloaded {self.name.partition('@')[0]}"

    def shares(self) -> Mapping[Location, int]:
        """One object at its location."""
        return {self.location: 1}


class States(Kind):
    """Section `states`."""

    section = "states"
    description = "States without some of the memory: asleep: {offload: {weights: host:0}, drop: [kv]}."
    plural = "absent chunks of states"
    article = "a state"
    entry = model = State
    group = StateGroup
    unique = False
    stage = Stage.STATES

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        yield from super().resolve(scope)
        absent = (each for state in scope.of(StateGroup).values() for each in state.absent)
        total = sum(each.stop - each.first for each in absent)
        if (yield from scope.too_many({self.section: total})):
            scope.leave_out(self)

    def resolve_entry(self, scope: Scope, entry: State, path: Path) -> Resolution[StateGroup | None]:
        name = str(path[-1])
        if name == AWAKE:
            message = f"{AWAKE!r} is the name of the layout as it is written"
            yield Diagnostic("MT801", message, path, "key", help="choose another name")
            return None
        absent: list[Absent] = []
        complete = True
        dropped = [(reference, (*path, "drop", index)) for index, reference in enumerate(entry.drop)]
        for reference, where in dropped:
            found = yield from _chunks(scope, reference, where, "value")
            complete &= found is not None
            absent += (Absent(*each, None, where) for each in found or ())
        emptied = {label: where for reference, where in dropped for label in _elastic_ranges(scope, reference)}
        absent += _released(scope, emptied, {each.group.name for each in absent})
        for reference, device in entry.offload.items():
            where = (*path, "offload", str(reference))
            found = yield from _chunks(scope, reference, where, "key")
            keeper = yield from _keeper(scope, device, where)
            complete &= found is not None and keeper is not None
            if found and keeper:
                for each in found:
                    absent.append((yield from self._offloaded(scope, *each, keeper, where)))
        if not complete or (yield from _contradicting(absent)):
            return None
        return StateGroup(name, path, tuple(absent), tuple(emptied))

    def _offloaded(
        self, scope: Scope, group: ChunkGroup, first: int, stop: int, keeper: _Keeper, path: Path
    ) -> Resolution[Absent]:
        """Absent chunks with their area, which states that offload the same chunks to the same memory share."""
        whole = (first, stop) == (0, group.count)
        location, pinned = keeper
        label = f"{group.name if whole else Reference(group.name, first, stop)}@{PINNED if pinned else location}"
        if label not in scope.of(OffloadArea):
            unit = 1 if pinned else granule(scope.machine, Properties(location))
            size = rounded_to_multiple((stop - first) * group.size, unit, rounding=True)
            assert size
            device = next(iter(scope.geometry().gpus), 0) if pinned else None
            yield from scope.add(self, label, OffloadArea(label, path, size, location, device))
        return Absent(group, first, stop, label, path)

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        from memtopo.kinds.states.steps import area_steps

        for area in geometry.of(OffloadArea).values():
            yield from area_steps(area, area.pinned, geometry, machine)

    def variants(self, geometry: Geometry, steps: Sequence[Step]) -> Iterator[tuple[str, list[Step]]]:
        from memtopo.kinds.states.steps import Offloaded, Place
        from memtopo.kinds.step import remaining

        reached = copying_mappings(geometry)
        for state in geometry.of(StateGroup).values():
            gone: set[Hashable] = {("elastic range", label) for label in state.emptied}
            gone |= {("elastic chunks", each.group.name) for each in state.absent if each.group.growing}
            kept: list[Step] = []
            for each in state.absent:
                for number, index in enumerate(range(each.first, each.stop)):
                    label = each.group.label(index)
                    gone.add(("chunk", label))
                    if each.area is not None:
                        where, offset, device = reached[label]
                        area = Place(each.area, number * each.group.size)
                        kept.append(Offloaded(each.path, label, each.group.size, area, Place(where, offset), device))
            yield state.name, [*remaining(steps, gone), *kept]

    def changes(self, difference: Difference) -> Iterator[Step]:
        from memtopo.kinds.states.steps import copies

        return copies(difference)

    def rules(self) -> tuple[Rule, ...]:
        return offloading, offloaded_in_place


def offloading(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT802 for offloaded chunks that no copy of the driver can reach, or that another process owns."""
    del machine
    if not any(each.area for state in geometry.of(StateGroup).values() for each in state.absent):
        return
    reached = copying_mappings(geometry)
    for state in geometry.of(StateGroup).values():
        for each in state.absent:
            if each.area is None:
                continue
            label = Label("declared here", each.group.path, "key")
            if each.group.origin:
                message = f"{each.group.name!r} is imported, so its bytes belong to another process"
                yield Diagnostic("MT802", message, each.path, "key", labels=(label,), help="drop it instead")
                continue
            labels = (each.group.label(index) for index in range(each.first, each.stop))
            if chunk := next((name for name in labels if name not in reached), None):
                message = f"{chunk!r} cannot be offloaded: no GPU has write access to it"
                help = "grant a GPU rw access to a range that it is mapped in, or drop it"
                yield Diagnostic("MT802", message, each.path, "key", labels=(label,), help=help)


def offloaded_in_place(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT809 for bytes that are offloaded to the memory in which they are."""
    del machine
    areas = geometry.of(OffloadArea)
    for state in geometry.of(StateGroup).values():
        for each in state.absent:
            if each.area is None:
                continue
            area, indices = areas[each.area], range(each.first, each.stop)[: len(each.group.locations)]
            own = [index for index in indices if _same(each.group.location_of(index), area.location)]
            if own:
                yield _in_place(each, own[0], area)


def _same(chunk: Location, keeper: Location) -> bool:
    """Return whether memory that keeps bytes is, or may be, that of their chunk: `host` may be any node."""
    if chunk == keeper or LocationKind.GPU in (chunk.kind, keeper.kind):
        return chunk == keeper
    return LocationKind.HOST in (chunk.kind, keeper.kind)


def _in_place(absent: Absent, index: int, area: OffloadArea) -> Diagnostic:
    """Return MT809 for a chunk that is offloaded to its own memory."""
    chunk, location = absent.group.label(index), absent.group.location_of(index)
    to = "pinned host memory" if area.pinned is not None else str(area.location)
    message = f"{chunk!r} is on {location}, and is offloaded to {to}, which frees nothing there"
    labels = (Label("declared here", absent.group.path, "key"),)
    host = location.kind is not LocationKind.GPU
    help = "leave it out, or drop it" if host else "offload it to 'host:0', to 'pinned' memory or to another GPU"
    return Diagnostic("MT809", message, absent.path, labels=labels, help=help)


def copying_mappings(geometry: Geometry) -> dict[str, tuple[str, int, int]]:
    """Range, offset and GPU by which each chunk can be copied: a GPU with write access, its own if possible."""
    access_of = granted(geometry)
    found: dict[str, tuple[str, int, int]] = {}
    for placements in geometry.placements.values():
        where = placements[0].range.label(placements[0].instance)
        for placement, index, offset, access in mappings(placements, access_of):
            gpus = [at.id for at, right in access if at.kind is LocationKind.GPU and right is Access.RW]
            if not gpus:
                continue
            own = placement.chunk.location_of(index)
            label = placement.chunk.label(index)
            if own.kind is LocationKind.GPU and own.id in gpus:
                found[label] = where, offset, own.id
            else:
                found.setdefault(label, (where, offset, gpus[0]))
    return found


def _chunks(
    scope: Scope, reference: Reference, path: Path, at: At
) -> Resolution[list[tuple[ChunkGroup, int, int]] | None]:
    """Chunks of a reference as group, first index and end: of a chunk's entry, or all that is mapped in ranges."""
    if group := scope.of(ChunkGroup).get(reference.name):
        partly = at == "key" or reference.first is not None
        if partly and (yield from refuses_growing(group, "states can only drop all of them", path, at=at)):
            return None
        span = yield from indices(reference, group, path, at=at)
        return None if span is None else [(group, *span)]
    if ranges := scope.of(RangeGroup).get(reference.name):
        span = yield from indices(reference, ranges, path, at=at)
        if span is None:
            return None
        if at == "key" and ranges.elastic:
            yield _elastic_bytes(ranges, path)
            return None
        placed = (each for i in range(*span) for each in scope.placements.get((ranges.name, i), ()))
        return list(dict.fromkeys((each.chunk, *span) for each in placed for span in each.spans))
    if not any(scope.spec.may_have(section, reference.name) for section in ("chunks", "ranges", "imports")):
        known = dict.fromkeys([*scope.spec.section("ranges"), *scope.spec.section("chunks")])
        yield scope.errors.undeclared("range or chunk", reference.name, path, known, at)
    return None


def _elastic_ranges(scope: Scope, reference: Reference) -> Iterator[str]:
    """Labels of the elastic ranges that a reference names."""
    group = scope.of(RangeGroup).get(reference.name)
    if group and group.elastic:
        first, stop = (0, group.count) if reference.first is None else (reference.first, reference.stop or 0)
        yield from (group.label(index) for index in range(first, stop))


def _released(scope: Scope, emptied: Mapping[str, Path], absent: set[str]) -> Iterator[Absent]:
    """Elastic chunks that go with the ranges at some paths, since no other elastic range has them."""
    users: dict[str, set[str]] = {}
    for group in scope.of(RangeGroup).values():
        for chunk in group.elastic.chunks if group.elastic else ():
            users.setdefault(chunk.name, set()).update(group.label(index) for index in range(group.count))
    for name, labels in users.items():
        if name not in absent and labels <= emptied.keys():
            chunks = scope.of(ChunkGroup)[name]
            yield Absent(chunks, 0, chunks.count, None, emptied[min(labels)])


def _elastic_bytes(group: RangeGroup, path: Path) -> Diagnostic:
    message = f"{group.name!r} is elastic, so that a state can only drop what a program has mapped in it"
    label = Label("declared here", (*group.path, "elastic"))
    return Diagnostic("MT804", message, path, "key", labels=(label,), help="list it under 'drop'")


def _keeper(scope: Scope, device: NamedDevice, path: Path) -> Resolution[_Keeper | None]:
    """Location that a spec names for offloaded bytes."""
    if device == PINNED and not scope.spec.may_have("devices", device):
        return _Keeper(Location(LocationKind.HOST), pinned=True)
    location = yield from scope.devices.resolve(device, path, also=(PINNED,))
    return _Keeper(location) if location else None


def _contradicting(absent: Sequence[Absent]) -> Resolution[bool]:
    """Yield MT204 and return true if a chunk is listed twice in one state."""
    by_group: dict[str, list[Absent]] = {}
    for each in absent:
        by_group.setdefault(each.group.name, []).append(each)
    for several in by_group.values():
        several.sort(key=lambda each: each.first)
        for one, other in pairwise(several):
            if other.first < one.stop:
                message = f"{other.group.label(other.first)!r} is listed twice in this state"
                labels = (Label("first listed here", one.path, one.at),)
                yield Diagnostic("MT204", message, other.path, other.at, labels=labels, help="keep one of them")
                return True
    return False


STATES = States()
