"""Access of mappings: the parts of access in a spec, applied to the placements of each reservation."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from operator import attrgetter

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry.model import AccessSpan, Geometry, Instance, Part, Placement

LONGEST_GRANT = 1000
"""Maximum number of mappings of one cuMemSetAccess call, which takes 24 µs for each and cannot be interrupted."""

Granted = dict[Instance, list[AccessSpan]]
"""Spans of access of each reservation."""


def granted(geometry: Geometry) -> Granted:
    """Access of each reservation after building."""
    parts = AccessParts(geometry.parts)
    return {where: list(access_spans(placed, parts.of(*where))) for where, placed in geometry.placements.items()}


def mappings(
    placements: Sequence[Placement], access_of: Granted
) -> Iterator[tuple[Placement, int, int, tuple[Grant, ...]]]:
    """Mappings of one reservation: placement, index of the chunk, offset, and the access that is granted."""
    for placement, numbers, grants in mapping_runs(placements, access_of):
        size, step = placement.chunk.size, placement.step
        index, offset = placement.index(numbers.start), placement.offset + numbers.start * size
        for _ in numbers:
            yield placement, index, offset, grants
            index, offset = index + step, offset + size


def mapping_runs(
    placements: Sequence[Placement], access_of: Granted
) -> Iterator[tuple[Placement, range, tuple[Grant, ...]]]:
    """Mappings of one reservation with equal access: placement, their numbers in it, and the access that is granted."""
    remaining = ((span.offset, span.end, span.grants) for span in access_of[placements[0].where])
    last = sys.maxsize, sys.maxsize, ()
    start, end, grants = next(remaining, last)
    for placement in placements:
        number = 0
        while number < placement.count:
            offset = placement.offset + number * placement.chunk.size
            while end <= offset:
                start, end, grants = next(remaining, last)
            change = end if start <= offset else start
            stop = min(placement.count, -((placement.offset - change) // placement.chunk.size))
            yield placement, range(number, stop), grants if start <= offset else ()
            number = stop


class AccessParts:
    """Parts of access by reservation. All parts of a reservation have the same key, since keys do not overlap."""

    def __init__(self, parts: Mapping[str, Sequence[Part]]) -> None:
        self._keys: dict[str, tuple[list[int], list[tuple[Part, ...]]]] = {}
        for name, each in parts.items():
            keys = [tuple(found) for _, found in groupby(each, key=lambda part: part.instances)]
            keys.sort(key=lambda found: found[0].instances)
            self._keys[name] = [found[0].instances[0] for found in keys], keys

    def of(self, name: str, instance: int) -> Sequence[Part]:
        """Parts of one reservation, in the order of the spec."""
        starts, keys = self._keys.get(name, ([], []))
        index = bisect_right(starts, instance) - 1
        return keys[index] if index >= 0 and instance < keys[index][0].instances[1] else ()


class Segment(Struct, frozen=True):
    """Interval of a reservation with constant access; `given` has the deciding part for each location."""

    start: int
    end: int
    grants: tuple[Grant, ...]
    given: Mapping[Location, Part]
    path: Path


def access_spans(placements: Sequence[Placement], parts: Sequence[Part]) -> Iterator[AccessSpan]:
    """Spans of adjacent mappings of one reservation with equal access, in order of offset, without holes.

    `placements` are sorted and do not overlap, and no part splits a mapping. Later parts override earlier ones for the
    locations that they name.
    """
    low = high = 0
    last: Segment | None = None
    for segment in segments(parts):
        for start, end in _covered(placements, segment.start, segment.end):
            if last is None or start > high or segment.grants != last.grants:
                if last:
                    yield _access_span(placements[0], low, high, last)
                low, last = start, segment
            high = end
    if last:
        yield _access_span(placements[0], low, high, last)


def _access_span(first: Placement, low: int, high: int, segment: Segment) -> AccessSpan:
    return AccessSpan(first.range, first.instance, low, high - low, segment.grants, segment.path)


def from_offset(placements: Sequence[Placement], start: int) -> Iterator[Placement]:
    """Placements that end after `start`; `placements` are sorted and do not overlap."""
    first = bisect_right(placements, start, key=attrgetter("end")) if start else 0
    return islice(placements, first, None)


def segments(parts: Sequence[Part]) -> Iterator[Segment]:
    """Intervals between the boundaries of parts; each location has the access of the last part that covers it.

    Segments without access are left out.
    """
    if len(parts) == 1:
        part = parts[0]
        if granted := tuple(grant for grant in part.grants if grant.access):
            given = {grant.location: part for grant in granted}
            yield Segment(part.offset, part.end, granted, given, part.path)
        return
    starts = sorted(range(len(parts)), key=lambda index: parts[index].offset)
    bounds = sorted({bound for part in parts for bound in (part.offset, part.end)})
    remaining = iter([*starts, -1])
    upcoming = next(remaining)
    latest = _LatestParts()
    for low, high in pairwise(bounds):
        while upcoming >= 0 and parts[upcoming].offset == low:
            latest.add(upcoming, parts[upcoming])
            upcoming = next(remaining)
        effective = latest.effective(low)
        if granted := tuple(Grant(location, access) for location, (access, _) in sorted(effective.items()) if access):
            given = {location: parts[index] for location, (_, index) in effective.items()}
            newest = max(index for _, index in effective.values())
            yield Segment(low, high, granted, given, parts[newest].path)


class _LatestParts:
    """Parts of access by location, for offsets that only increase."""

    def __init__(self) -> None:
        self._latest: dict[Location, list[tuple[int, int, Access]]] = {}
        """For each location a heap of the negative index of a part, its end, and its access."""

    def add(self, index: int, part: Part) -> None:
        """Add the part with an index, which begins at the next offset."""
        for location, access in part.grants:
            heapq.heappush(self._latest.setdefault(location, []), (-index, part.end, access))

    def effective(self, offset: int) -> dict[Location, tuple[Access, int]]:
        """Access of each location at an offset, and the index of the part that determines it."""
        found: dict[Location, tuple[Access, int]] = {}
        for location, heap in self._latest.items():
            while heap and heap[0][1] <= offset:
                heapq.heappop(heap)
            if heap:
                found[location] = heap[0][2], -heap[0][0]
        return found


def _covered(placements: Sequence[Placement], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Mapped intervals within `[start, end)`, with adjacent placements joined."""
    low = high = start
    for placement in from_offset(placements, start):
        begin = placement.offset
        if begin >= end:
            break
        if begin > high:
            if high > low:
                yield low, high
            low = begin
        high = placement.end
    high = min(high, end)
    if high > low:
        yield low, high
