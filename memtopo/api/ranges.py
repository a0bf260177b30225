"""Mapped ranges of a geometry: the chunks in each range, and the access of devices to them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct

from memtopo.common.text import numbered
from memtopo.common.units import NamedPart
from memtopo.driver.types import Access, Grant, Location, LocationKind
from memtopo.geometry import AccessSpan, Geometry, Placement
from memtopo.geometry.access import Granted, from_offset, granted, mappings
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Instance
from memtopo.kinds.elastic import ElasticContent


class MappedRange(Struct, frozen=True):
    """One reservation: its mapped chunks and the access to them, both in order of offset, in bytes."""

    label: str
    size: int
    placements: Sequence[Placement]
    access_spans: Sequence[AccessSpan]

    def gap(self, start: int, end: int) -> tuple[int, int] | None:
        """Return start and end of the first bytes between two offsets that are not mapped."""
        at = start
        for placement in from_offset(self.placements, start):
            if placement.offset > at or at >= end:
                break
            at = max(at, placement.end)
        if at >= end:
            return None
        following = next((each.offset for each in from_offset(self.placements, at) if each.offset > at), self.size)
        return at, min(following, end)

    def without_memory(self, start: int, end: int) -> str | None:
        """Return the name of an object between two offsets that has no memory of its own; None if there is none."""
        placed = (each for each in from_offset(self.placements, start) if each.offset < end)
        return next((each.chunk.name for each in placed if not each.chunk.memory), None)

    def access(self, start: int, end: int, location: Location) -> Access:
        """Return the access of a location to all bytes between two offsets, which must be mapped throughout."""
        at, found = start, Access.RW
        for span in self._from(start):
            if span.offset > at or at >= end:
                break
            found &= access_at(span.grants, location)
            at = span.offset + span.size
        return found if at >= end else Access.NONE

    def locations(self, start: int, end: int) -> list[Location]:
        """Return the locations with some access between two offsets."""
        found: dict[Location, None] = {}
        for span in self._from(start):
            if span.offset >= end:
                break
            found |= dict.fromkeys(grant.location for grant in span.grants if grant.access)
        return sorted(found)

    def home(self, start: int) -> Location:
        """Return the location of the chunk that is mapped at an offset."""
        placement = next(from_offset(self.placements, start))
        nth = (start - placement.offset) // placement.chunk.size
        return placement.chunk.location_of(placement.index(nth))

    def _from(self, start: int) -> Iterator[AccessSpan]:
        first = max(0, bisect_right(self.access_spans, start, key=lambda each: each.offset) - 1)
        return (each for each in self.access_spans[first:] if each.offset + each.size > start)


class MappedRanges:
    """All reservations of a geometry by their labels."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry

    def find(self, label: str) -> MappedRange | None:
        """Return the reservation with a label; None if there is none."""
        instance = self._instances.get(label)
        if instance is None:
            return None
        placements, access_spans = self._geometry.placements.get(instance, ()), self._granted.get(instance, [])
        return MappedRange(label, self._geometry.of(RangeGroup)[instance[0]].size, placements, access_spans)

    def elastic(self, content: ElasticContent, start: int, end: int) -> MappedRange:
        """Return an elastic reservation with what is mapped between two offsets, fixed mappings among it."""
        name, instance = self._instances[content.label]
        group = self._geometry.of(RangeGroup)[name]
        groups = {each.name: each for each in self._geometry.instances_of(ChunkGroup)}
        placements = list(self._geometry.placements.get((name, instance), ()))
        spans = list(self._granted.get((name, instance), []))
        for offset, chunk in content.present(start, end):
            kind = groups[chunk.pool or chunk.label]
            units = chunk.size // kind.size  # chunks of a heap are counted in granules
            placements.append(Placement(group, instance, offset, kind, max(chunk.number, 0), units, kind.path))
            piece = next(content.access(offset, offset + chunk.size))
            grants = piece.zero_grants if chunk is content.zero else piece.grants
            if grants:
                spans.append(AccessSpan(group, instance, offset, chunk.size, grants, kind.path))
        placements.sort(key=_offset_of)
        return MappedRange(content.label, content.size, placements, sorted(spans, key=_offset_of))

    def mapped(self, label: str) -> Iterator[tuple[int, int, tuple[Grant, ...]]]:
        """Offset, size and access of each mapping of a reservation."""
        placements = self._geometry.placements.get(self._instances[label], ())
        if placements:
            for placement, _, offset, access in mappings(placements, self._granted):
                yield offset, placement.chunk.size, access

    def of_chunk(self, label: str) -> Iterator[tuple[str, int, int]]:
        """Yield label of the reservation, offset and size of each mapping of a chunk, or of a part: `heap.0.signal`."""
        group, index = self.chunk(label)
        part: NamedPart | None = None
        if group is None:
            whole, _, name = label.rpartition(".")
            group, index = self.chunk(whole)
            part = next((each for each in group.parts if each.name == name), None) if group else None
        if group is None or (part is None and group.label(index) != label):
            return
        start, size = (part.offset, part.size) if part else (0, group.size)
        for reservation, instance in self._instances.items():
            for placement in self._geometry.placements.get(instance, ()):
                if placement.chunk.name == group.name:
                    for nth in placement.mapped(index):
                        yield reservation, placement.offset + nth * group.size + start, size

    @property
    def chunks(self) -> list[str]:
        """Labels of chunks and of their parts, of the first one of counted chunks."""
        groups = self._geometry.of(ChunkGroup).values()
        labels = [(group.label(0), group) for group in groups]
        return [each for label, group in labels for each in (label, *(f"{label}.{part.name}" for part in group.parts))]

    def chunk(self, label: str) -> tuple[ChunkGroup | None, int]:
        """Return the group of the chunk with a label, mapped or not, and its index; no group if there is none."""
        groups = self._geometry.of(ChunkGroup)
        name, number = numbered(label)
        group = groups.get(label) or groups.get(name)
        index = number or 0 if group and group.counted else 0
        if group is None or index >= (group.limit or group.count) or group.label(index) != label:
            return None, 0
        return group, index

    def numbered_entry(self, label: str) -> ChunkGroup | None:
        """Return the group of a counted entry that a label begins with, if it has no chunk of the number in it."""
        name, *words = label.split(".")
        group = self._geometry.of(ChunkGroup).get(name)
        has_chunk = bool(words) and self.chunk(f"{name}.{words[0]}")[0] is not None
        return group if group and group.counted and not has_chunk else None

    @property
    def labels(self) -> list[str]:
        """Labels of all reservations."""
        return list(self._instances)

    @cached_property
    def _instances(self) -> dict[str, Instance]:
        every = self._geometry.of(RangeGroup).values()
        return {group.label(i): (group.name, i) for group in every for i in range(group.count)}

    @cached_property
    def _granted(self) -> Granted:
        return granted(self._geometry)


def _offset_of(each: Placement | AccessSpan) -> int:
    return each.offset


def access_at(grants: Sequence[Grant], location: Location) -> Access:
    """Return the access of a location among grants; the host and its NUMA nodes share one (fact 21)."""
    on_gpu = _is_gpu(location)
    found = [each.access for each in grants if (each.location == location if on_gpu else not _is_gpu(each.location))]
    return found[-1] if found else Access.NONE


def _is_gpu(location: Location) -> bool:
    return location.kind is LocationKind.GPU
