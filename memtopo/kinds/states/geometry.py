"""Geometry of a layout in one of its states: what exists then, for drawings and budgets."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from memtopo.common.units import by_key
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Geometry, Instance, Placement
from memtopo.kinds.heaps import HeapGroup
from memtopo.kinds.states.groups import StateGroup
from memtopo.language.names import AWAKE

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
    group = geometry.of(StateGroup).get(state)
    found = by_key((each.group.name, (each.first, each.stop)) for each in (group.absent if group else ()))
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
    for _, run in groupby(enumerate(indices), key=lambda each: each[1] - each[0]):
        adjacent = [index for _, index in run]
        yield adjacent[0], adjacent[-1] + 1


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
    heaps = {name: _present_heap(each, emptied, geometry) for name, each in geometry.of(HeapGroup).items()}
    groups: dict[type[Group], Mapping[str, Group]] = {
        **geometry.groups,
        ChunkGroup: chunks,
        RangeGroup: ranges,
        HeapGroup: heaps,
    }
    return replace(geometry, groups=groups, placements=placements)


def _present_heap(heap: HeapGroup, emptied: Container[str], geometry: Geometry) -> Group:
    """Return the heap without memory if nothing is allocated in it, nor in those that share its limit."""
    sharing = [each.name for each in geometry.of(HeapGroup).values() if heap.name in (each.name, each.budget)]
    return replace(heap, gone=((0, 0),)) if all(name in emptied for name in sharing) else heap


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
