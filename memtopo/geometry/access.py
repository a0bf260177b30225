"""Access of mappings: the parts of a spec laid over the placements of each reservation."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry.model import AccessSpan, Geometry, Instance, Part, Placement

Granted = dict[Instance, list[AccessSpan]]
"""Access of each reservation."""


def granted(geometry: Geometry) -> Granted:
    """The access of each reservation, as it will be."""
    asked = AccessParts(geometry.parts)
    return {where: list(access_spans(placed, asked.of(*where))) for where, placed in geometry.placements.items()}


def mappings(
    placements: Sequence[Placement], access_of: Granted
) -> Iterator[tuple[Placement, int, int, tuple[Grant, ...]]]:
    """Each mapping of one reservation: its placement, the chunk's index, the offset, and the access it shall have."""
    waiting = iter(access_of[placements[0].where])
    span = next(waiting, None)
    for placement in placements:
        size = placement.chunk.size
        for turn in range(placement.count):
            offset = placement.offset + turn * size
            while span and span.offset + span.size <= offset:
                span = next(waiting, None)
            covered = span is not None and span.offset <= offset
            yield placement, placement.first + turn, offset, span.grants if span and covered else ()


class AccessParts:
    """Which parts hold for a reservation: those of one key, since no two keys of `access` name the same one."""

    def __init__(self, parts: Mapping[str, Sequence[Part]]) -> None:
        self._keys = {name: self._by_key(asked) for name, asked in parts.items()}

    def of(self, name: str, instance: int) -> Sequence[Part]:
        """The parts of one reservation, in the spec's order."""
        starts, keys = self._keys.get(name, ([], []))
        index = bisect_right(starts, instance) - 1
        return keys[index] if index >= 0 and instance < keys[index][0].instances[1] else ()

    @staticmethod
    def _by_key(asked: Sequence[Part]) -> tuple[list[int], list[tuple[Part, ...]]]:
        keys = [tuple(found) for _, found in groupby(asked, key=lambda part: part.instances)]
        keys.sort(key=lambda found: found[0].instances)
        return [found[0].instances[0] for found in keys], keys


class Segment(NamedTuple):
    """Part of a reservation over which access is the same; `given` has the part that each location's access is from."""

    start: int
    end: int
    grants: tuple[Grant, ...]
    given: Mapping[Location, Part]
    path: Path


def access_spans(placements: Sequence[Placement], asked: Sequence[Part]) -> Iterator[AccessSpan]:
    """Adjacent mappings of one reservation with the same access, in order of offset, without the holes.

    `placements` are sorted and do not overlap; a part that splits a mapping was refused before. Later parts win,
    each for the locations that it names.
    """
    low = high = 0
    last: Segment | None = None
    for segment in segments(asked):
        for start, end in _covered(placements, segment.start, segment.end):
            if last is None or start > high or segment.grants != last.grants:
                if last:
                    yield _stretch(placements[0], low, high, last)
                low, last = start, segment
            high = end
    if last:
        yield _stretch(placements[0], low, high, last)


def _stretch(first: Placement, low: int, high: int, segment: Segment) -> AccessSpan:
    return AccessSpan(first.range, first.instance, low, high - low, segment.grants, segment.path)


def from_offset(placements: Sequence[Placement], start: int) -> Iterator[Placement]:
    """The placements that end after `start`; they are sorted, and none overlaps another."""
    for index in range(bisect_right(placements, start, key=_end), len(placements)):
        yield placements[index]


def _end(placement: Placement) -> int:
    return placement.end


def segments(asked: Sequence[Part]) -> Iterator[Segment]:
    """Sweep over the parts: between two boundaries, each location has the access of the latest part over it.

    Segments that nobody is granted are left out.
    """
    if len(asked) == 1:
        part = asked[0]
        if granted := tuple(grant for grant in part.grants if grant.access):
            given = {grant.location: part for grant in granted}
            yield Segment(part.offset, part.end, granted, given, part.path)
        return
    starts = sorted(range(len(asked)), key=lambda index: asked[index].offset)
    bounds = sorted({bound for part in asked for bound in (part.offset, part.end)})
    waiting = iter([*starts, -1])
    upcoming = next(waiting)
    latest: dict[Location, list[tuple[int, int, Access]]] = {}
    for low, high in pairwise(bounds):
        while upcoming >= 0 and asked[upcoming].offset == low:
            for place, access in asked[upcoming].grants:
                heapq.heappush(latest.setdefault(place, []), (-upcoming, asked[upcoming].end, access))
            upcoming = next(waiting)
        effective = _latest(latest, low)
        if granted := tuple(Grant(place, access) for place, (access, _) in sorted(effective.items()) if access):
            given = {place: asked[index] for place, (_, index) in effective.items()}
            newest = max(index for _, index in effective.values())
            yield Segment(low, high, granted, given, asked[newest].path)


def _latest(latest: dict[Location, list[tuple[int, int, Access]]], low: int) -> dict[Location, tuple[Access, int]]:
    """The access of each location at an offset, and which of the parts it is from."""
    effective: dict[Location, tuple[Access, int]] = {}
    for place, heap in latest.items():
        while heap and heap[0][1] <= low:
            heapq.heappop(heap)
        if heap:
            effective[place] = heap[0][2], -heap[0][0]
    return effective


def _covered(placements: Sequence[Placement], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where `[start, end)` is mapped, adjacent placements joined."""
    low = high = start
    for placement in from_offset(placements, start):
        if placement.offset >= end:
            break
        begin = max(placement.offset, start)
        if begin > high:
            if high > low:
                yield low, high
            low = begin
        elif high == low:
            low = begin
        high = min(placement.end, end)
    if high > low:
        yield low, high
