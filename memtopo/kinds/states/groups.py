"""Groups of states: absent chunks, the memory that keeps their bytes, and the geometry of a layout in a state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memtopo.diagnostics.model import At, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Geometry, Instance, Placement
from memtopo.kinds.pinned import PinnedGroup
from memtopo.language.names import AWAKE


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
    """Memory that keeps the bytes of offloaded chunks. It exists in all states, so that no switch has to create it.

    It is memory of its own, or a part of the pinned memory `inside` of which it is.
    """

    noun = "offload area"
    memory = True

    name: str
    path: Path
    size: int
    location: Location
    pinned: int | None
    """GPU in whose context page-locked memory is allocated; None for a chunk or a part."""
    inside: PinnedGroup | None = None
    count: int = 1
    counted: bool = False
    origin: None = None

    def location_of(self, index: int) -> Location:
        """Location of the memory."""
        return self.location

    @property
    def contexts(self) -> frozenset[int]:
        """The GPU of page-locked memory, which ends with its context."""
        return frozenset() if self.pinned is None else frozenset({self.pinned})

    @property
    def keeper(self) -> Hashable:
        """Resource of the memory."""
        if self.inside:
            return (self.inside.noun, self.inside.name)
        return ("chunk" if self.pinned is None else PinnedGroup.noun, self.name)

    def shares(self) -> Mapping[Location, int]:
        """One object at its location; a part is counted with its entry."""
        return {} if self.inside else {self.location: 1}


def kept_at(areas: Iterable[OffloadArea]) -> dict[str, tuple[str, int]]:
    """Label of the memory of each area, and its offset there, by the name of the area.

    Each area in pinned memory has a part for itself, so that no switch replaces what another state keeps.
    """
    taken: dict[str, int] = {}
    found: dict[str, tuple[str, int]] = {}
    for area in areas:
        memory = area.inside.name if area.inside else area.name
        found[area.name] = memory, taken.get(memory, 0)
        taken[memory] = taken.get(memory, 0) + area.size
    return found


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
    own = {label: _own(member, state) for label, member in geometry.members.items()}
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


def _own(geometry: Geometry, state: str) -> _Gone:
    """Chunks that a process names in a state, or that go with what it names."""
    found: dict[str, list[tuple[int, int]]] = {}
    if group := geometry.of(StateGroup).get(state):
        for each in group.absent:
            found.setdefault(each.group.name, []).append((each.first, each.stop))
    return {name: tuple(sorted(spans)) for name, spans in found.items()}


def _imported(geometry: Geometry, gone: Mapping[str, _Gone]) -> _Gone:
    """Imported chunks whose memory goes in the process that created it."""
    found: dict[str, _Spans] = {}
    for group in geometry.of(ChunkGroup).values():
        origin = group.origin
        if origin is None or not origin.siblings or not any(gone[holder] for holder in origin.holders):
            continue
        lost = (index for index in range(group.count) if _is_gone(group, index, gone))
        if spans := tuple(_spans(lost)):
            found[group.name] = spans
    return found


def _is_gone(group: ChunkGroup, index: int, gone: Mapping[str, _Gone]) -> bool:
    """Return whether the memory of an imported chunk is gone in its process."""
    assert group.origin
    assert group.origin.exported
    holder, number = group.origin.of(index)
    at = group.origin.first + number
    return any(first <= at < stop for first, stop in gone[holder].get(group.origin.exported.name, ()))


def _spans(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Spans of ascending indices."""
    first = stop = None
    for index in indices:
        if first is None or stop != index:
            if first is not None and stop is not None:
                yield first, stop
            first = index
        stop = index + 1
    if first is not None and stop is not None:
        yield first, stop


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
    return replace(geometry, groups={**geometry.groups, ChunkGroup: chunks, RangeGroup: ranges}, placements=placements)


def _present(placement: Placement, gone: _Spans, chunks: Mapping[str, Group]) -> Iterator[Placement]:
    """Yield the parts of a placement whose chunks have memory."""
    chunk = chunks.get(placement.chunk.name, placement.chunk)
    assert isinstance(chunk, ChunkGroup)
    ends = [(_reached(placement, first), _reached(placement, stop)) for first, stop in gone]
    start = 0
    for end, after in (*ends, (placement.count, placement.count)):
        if end > start:
            offset, index = placement.offset + start * chunk.size, placement.index(start)
            yield replace(placement, chunk=chunk, offset=offset, first=index, count=end - start)
        start = max(start, after)


def _reached(placement: Placement, index: int) -> int:
    """Return the number of mappings before the first one of a chunk with at least an index."""
    if not placement.step:
        return placement.count if index > placement.first else 0
    return min(max(-((placement.first - index) // placement.step), 0), placement.count)
