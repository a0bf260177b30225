"""Views of a layout: its memory with every address that it is accessible at, and its geometry in one of its states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.units import by_key
from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location, LocationKind
from memtopo.geometry.access import granted, mapping_runs
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup, from_outside
from memtopo.geometry.model import Geometry, Instance, Placement
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.heaps import HeapGroup
from memtopo.kinds.ipc import EventGroup
from memtopo.kinds.pools.allocations import AllocationGroup
from memtopo.kinds.states.groups import StateGroup
from memtopo.language.names import AWAKE
from memtopo.machine import Machine

T = TypeVar("T")

View = tuple[str, int, tuple[Grant, ...]]
"""Name of a range or of the memory itself, offset in it, and access at that offset."""


class Identity(Struct, frozen=True):
    """Identity of an object in a run: its owner, and its label there.

    The owner is the label of the creating process, empty in a single-process layout, or a holder outside of the spec.
    """

    owner: str
    label: str


class MappedMemory(Struct, frozen=True):
    """One chunk, buffer, managed or pinned allocation with all its views.

    `ours` is true if a process of this run created it; only then may it be written.
    """

    identity: Identity
    name: str
    size: int
    location: Location
    path: Path
    views: tuple[View, ...]
    ours: bool = True
    addressed: bool = False
    """True if it has an address of its own, so that VMM access does not apply to it."""
    by_kernels: bool = False
    """True if GPUs access it by kernels alone, and the CPU may always."""


class Member(Struct, frozen=True):
    """Process of a layout: its geometry, its label, and the geometries of all processes by label."""

    geometry: Geometry
    label: str = ""
    siblings: Mapping[str, Geometry] | None = None

    def identity(self, group: Group, index: int, label: str) -> Identity:
        """Identity of one object of a group, which has a label in this process."""
        if group.origin is None:
            return Identity(self.label, label)
        holder, number = group.origin.of(index)
        if group.origin.siblings and self.siblings:
            return Identity(holder, self.siblings[holder].of(ExportGroup)[group.origin.export].label(number))
        # An outside holder may have the name of a process; no process has a name with a slash.
        return Identity(f"{holder}/", f"{group.origin.export}.{number}")


class ViewRun(Struct, frozen=True):
    """Consecutive views of objects of a group in one range or object, with equal access; all on GPUs, or none.

    The objects, by their `indices`, lie `size` bytes apart in `label`, from `offset` on.
    """

    label: str
    offset: int
    size: int
    indices: Sequence[int]
    grants: tuple[Grant, ...]

    @property
    def once(self) -> ViewRun:
        """Views without further ones of the same object, which is then mapped again and again."""
        return self if isinstance(self.indices, range) else replace(self, indices=self.indices[:1])

    def places(self) -> Iterator[Place]:
        """Index of the object and offset of each view."""
        return zip(self.indices, range(self.offset, sys.maxsize, self.size), repeat(self))

    def divided(self, key: Callable[[int], T]) -> Iterator[tuple[T, ViewRun]]:
        """Parts of the run that have equal keys, which are made of the indices."""
        start = 0
        for value, some in groupby(map(key, self.indices)):
            stop = start + sum(1 for _ in some)
            yield value, replace(self, indices=self.indices[start:stop], offset=self.offset + start * self.size)
            start = stop


Place = tuple[int, int, ViewRun]
"""Index of an object and offset of a view of it, which is one of a run."""


def in_order(runs: Iterable[ViewRun]) -> Iterator[Place]:
    """Views of some runs, in the order of the objects; those of one object in the order of the runs."""
    return merge(*(run.places() for run in runs), key=itemgetter(0))


class MemoryGroup(Struct, frozen=True):
    """Memory of the objects of one group in a process. Iteration makes it object by object."""

    group: Group
    member: Member
    runs: tuple[ViewRun, ...]

    @property
    def ours(self) -> bool:
        """True if a process of this run created it; only then may it be written."""
        return not from_outside(self.group)

    @property
    def by_kernels(self) -> bool:
        """True if GPUs access it by kernels alone, and the CPU may always."""
        return isinstance(self.group, AllocationGroup) and self.group.by_kernels

    def identity(self, index: int) -> Identity:
        """Identity of one object."""
        return self.member.identity(self.group, index, self.group.label(index))

    def on_host(self, run: ViewRun) -> bool:
        """Return true for views of memory that is not on GPUs."""
        return _on_host(self.group, run.indices[0])

    def only(self, kept: Callable[[Hashable], bool]) -> MemoryGroup:
        """Memory with the views of the objects alone whose resource is kept."""
        noun, label = self.group.noun, self.group.label
        parts = (part for run in self.runs for part in run.divided(lambda index: kept((noun, label(index)))))
        return replace(self, runs=tuple(run for is_kept, run in parts if is_kept))

    def __iter__(self) -> Iterator[MappedMemory]:
        group, ours, by_kernels = self.group, self.ours, self.by_kernels
        views: dict[int, list[View]] = {}
        for index, offset, run in in_order(self.runs):
            views.setdefault(index, []).append((run.label, offset, run.grants))
        for index in range(group.count):
            label, location, seen = group.label(index), group.location_of(index), tuple(views.get(index, ()))
            about = label, group.declared_size, location, group.path, seen
            yield MappedMemory(self.identity(index), *about, ours, group.addressed, by_kernels)


def mapped_memory(member: Member, machine: Machine | None = None) -> list[MemoryGroup]:
    """Memory that a process creates or imports, in the order of creation, without memory of other programs."""
    runs: dict[str, list[ViewRun]] = {}
    access_of = granted(member.geometry)
    for placements in member.geometry.placements.values():
        label = placements[0].range.label(placements[0].instance)
        for placement, numbers, grants in mapping_runs(placements, access_of):
            group, offset = placement.chunk, placement.offset + numbers.start * placement.chunk.size
            run = ViewRun(label, offset, group.size, placement.chunks(numbers), grants)
            runs.setdefault(group.name, []).extend(part for _, part in run.divided(partial(_on_host, group)))
    groups = (group for group in member.geometry.every if group.memory and not group.produced)
    return [
        MemoryGroup(group, member, tuple(runs.get(group.name, ()) or _own_views(group, machine))) for group in groups
    ]


def _on_host(group: Group, index: int) -> bool:
    return group.location_of(index).kind is not LocationKind.GPU


def _own_views(group: Group, machine: Machine | None) -> Iterator[ViewRun]:
    for index in range(group.count):
        if grants := group.own_access(index, machine):
            yield ViewRun(group.label(index), 0, group.declared_size, (index,), grants)


def all_mapped_memory(geometry: Geometry) -> dict[str, list[MappedMemory]]:
    """Memory of each process by label; the label of a single process is empty."""
    siblings = geometry.processes or None
    members = (Member(each, label, siblings) for label, each in geometry.members.items())
    return {member.label: list(chain.from_iterable(mapped_memory(member))) for member in members}


class RecordedEvent(Struct, frozen=True):
    """Event that a run may record: its identity, its name in this process, and its GPU."""

    identity: Identity
    event: str
    device: int
    path: Path


def recorded_events(member: Member) -> Iterator[RecordedEvent]:
    """Events of a process: created by it, or opened from processes of the same spec."""
    for group in member.geometry.every:
        if isinstance(group, EventGroup) and not from_outside(group):
            for index, event in enumerate(map(group.label, range(group.count))):
                yield RecordedEvent(
                    member.identity(group, index, event), event, group.location_of(index).id, group.path
                )


_Spans = tuple[tuple[int, int], ...]
"""Half-open spans of indices, ascending and apart."""

_Gone = Mapping[str, _Spans]
"""Chunks without memory, by the name of their group."""


def in_state(geometry: Geometry, state: str) -> Geometry:
    """Return the geometry of what exists in a state, for a drawing.

    Chunks without memory are neither in the memory of their location nor mapped; their ranges and exports stay. What is
    imported from another process goes with it. A process without such a state, and one of which nothing goes, has the
    geometry of the layout as it is written.
    """
    own: dict[str, _Gone] = {}
    for label, member in geometry.members.items():
        absent = member.of(StateGroup)[state].absent if state in member.of(StateGroup) else ()
        named = by_key((each.group.name, (each.first, each.stop)) for each in absent)
        own[label] = {name: tuple(sorted(spans)) for name, spans in named.items()}
    made: dict[tuple[int, frozenset[tuple[str, _Spans]]], Geometry] = {}
    members: dict[str, Geometry] = {}
    for label, member in geometry.members.items():
        gone = {**own[label], **_imported(member, own)}
        key = id(member), frozenset(gone.items())
        if key not in made:
            made[key] = _without(member, gone, state)
        members[label] = made[key]
    return replace(geometry, processes=members) if geometry.processes else members[""]


def state_names(geometry: Geometry) -> Sequence[str]:
    """Return the names of the states of a layout, that of the layout as it is written first."""
    named = (name for member in geometry.members.values() for name in member.of(StateGroup))
    return list(dict.fromkeys((AWAKE, *named)))


def _imported(geometry: Geometry, gone: Mapping[str, _Gone]) -> _Gone:
    """Imported chunks whose memory goes in the process that created it."""
    found: dict[str, _Spans] = {}
    for group in geometry.of(ChunkGroup).values():
        origin = group.origin
        if origin is None or not origin.siblings or not any(gone[holder] for holder in origin.holders):
            continue
        assert origin.exported
        lost: list[int] = []
        for index in range(group.count):
            holder, number = origin.of(index)
            spans = gone[holder].get(origin.exported.name, ())
            if any(first <= origin.first + number < stop for first, stop in spans):
                lost.append(index)
        if lost:
            # Adjacent indices have the same distance to their place in the list.
            several = [list(run) for _, run in groupby(enumerate(lost), key=lambda each: each[1] - each[0])]
            found[group.name] = tuple((run[0][1], run[-1][1] + 1) for run in several)
    return found


def _without(geometry: Geometry, gone: _Gone, state: str) -> Geometry:
    group = geometry.of(StateGroup).get(state)
    emptied = frozenset(group.emptied) if group else frozenset[str]()
    if not gone and not emptied:
        return geometry
    chunks: dict[str, Group] = {
        name: replace(each, gone=gone[name]) if name in gone else each for name, each in geometry.of(ChunkGroup).items()
    }
    ranges: dict[str, Group] = {
        name: replace(each, elastic=None) if emptied.issuperset(map(each.label, range(each.count))) else each
        for name, each in geometry.of(RangeGroup).items()
    }
    placements: dict[Instance, tuple[Placement, ...]] = {
        where: tuple(part for each in placed for part in _present(each, gone.get(each.chunk.name, ()), chunks))
        for where, placed in geometry.placements.items()
    }
    heaps: dict[str, Group] = {}
    for heap in geometry.of(HeapGroup).values():
        # It is without memory if nothing is allocated in it, nor in those that share its limit.
        sharing = [each.name for each in geometry.of(HeapGroup).values() if heap.name in (each.name, each.budget)]
        heaps[heap.name] = replace(heap, gone=((0, 0),)) if emptied.issuperset(sharing) else heap
    groups: dict[type[Group], Mapping[str, Group]] = {
        **geometry.groups,
        ChunkGroup: chunks,
        RangeGroup: ranges,
        HeapGroup: heaps,
    }
    return replace(geometry, groups=groups, placements=placements)


def _present(placement: Placement, gone: _Spans, chunks: Mapping[str, Group]) -> Iterator[Placement]:
    """Yield the parts of a placement whose chunks have memory."""
    chunk = chunks.get(placement.chunk.name, placement.chunk)
    assert isinstance(chunk, ChunkGroup)

    def reached(index: int) -> int:
        """Return the number of mappings before the first one of a chunk with at least an index."""
        if not placement.step:
            return placement.count if index > placement.first else 0
        return min(max(-((placement.first - index) // placement.step), 0), placement.count)

    start = 0
    for first, stop in gone:
        if reached(first) > start:
            yield _part(placement, chunk, start, reached(first))
        start = max(start, reached(stop))
    if placement.count > start:
        yield _part(placement, chunk, start, placement.count)


def _part(placement: Placement, chunk: ChunkGroup, start: int, stop: int) -> Placement:
    """Mappings of a placement from number `start` to before `stop`."""
    offset = placement.offset + start * chunk.size
    return replace(placement, chunk=chunk, offset=offset, first=placement.index(start), count=stop - start)
