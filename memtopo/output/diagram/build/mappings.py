"""Mappings with the same access, and the number of other mappings of the same chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location
from memtopo.geometry import AccessSpan, Geometry, Placement
from memtopo.geometry.groups import ChunkGroup
from memtopo.output.diagram.build.names import is_regular, regular_lengths

MOST_PARTS = 64
"""Parts of the mappings of one entry, with an order of locations each."""

MOST_LOCATIONS = 1 << 16
"""Locations that are looked at."""

_Span = tuple[int, int, int]
"""First index, index after the last one, and the number of mappings of each chunk."""


class Mappings(NamedTuple):
    """`length` adjacent mappings of the chunks of one group, `first` on, with the same access.

    The n-th of equal ranges has the chunks `n * step` further on. The index increases by `interval` from one mapping to
    the next. The order of `mixed` locations is not known from them.
    """

    offset: int
    chunk: ChunkGroup
    first: int
    length: int
    grants: tuple[Grant, ...]
    step: int
    path: Path
    interval: int = 1
    mixed: bool = False

    @property
    def last(self) -> int:
        """Index of the last chunk."""
        return self.first + (self.length - 1) * self.interval

    @property
    def size(self) -> int:
        """Bytes of the range that are mapped."""
        return self.length * self.chunk.size

    @property
    def location(self) -> Location:
        """Location of the first chunk."""
        return self.chunk.location_of(self.first)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations of the chunks in order, from the first chunk on; of many, twice the order of their entry."""
        order = self.chunk.locations
        if not self.chunk.memory:
            return tuple(order)  # of the memory of every GPU of a team
        return self._first_locations(min(self.length, 2 * len(order)) if self.interval else 1)

    def regular(self) -> Iterator[Mappings]:
        """These mappings in parts whose locations repeat a cycle each; whole, as `mixed`, if there are too many."""
        if is_regular(self.locations):
            yield self
            return
        order = self._first_locations(min(self.length, MOST_LOCATIONS + 1))
        lengths = list(islice(regular_lengths(order), MOST_PARTS + 1)) if len(order) <= MOST_LOCATIONS else []
        if not 0 < len(lengths) <= MOST_PARTS:
            yield self._replace(mixed=True)
            return
        for done, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
            offset, first = self.offset + done * self.chunk.size, self.first + done * self.interval
            yield self._replace(offset=offset, first=first, length=length)

    def _first_locations(self, number: int) -> tuple[Location, ...]:
        order = self.chunk.locations
        return tuple(order[(self.first + nth * self.interval) % len(order)] for nth in range(number))


def mappings(
    placements: Sequence[Placement], access_spans: Iterable[AccessSpan], steps: Sequence[int]
) -> Iterator[Mappings]:
    """The mappings of one reservation, in order; `steps` are those of the placements.

    Placements are divided where access or the order of locations changes, and joined where one continues with the next
    chunk of the same group.
    """
    last: Mappings | None = None
    for each in _divided(placements, iter(access_spans), steps):
        if last and _continues(last, each):
            last = last._replace(length=last.length + each.length)
            continue
        if last:
            yield from last.regular()
        last = each
    if last:
        yield from last.regular()


def _divided(
    placements: Sequence[Placement], access_spans: Iterator[AccessSpan], steps: Sequence[int]
) -> Iterator[Mappings]:
    span = next(access_spans, None)
    for placement, step in zip(placements, steps, strict=True):
        start, group = placement.offset, placement.chunk
        while start < placement.end:
            while span and span.offset + span.size <= start:
                span = next(access_spans, None)
            stop, grants = _same_access(span, start, placement.end)
            first = placement.index((start - placement.offset) // group.size)
            length = (stop - start) // group.size
            interval = placement.step if length > 1 else 1
            yield Mappings(start, group, first, length, grants, step, placement.path, interval)
            start = stop


def _same_access(span: AccessSpan | None, start: int, end: int) -> tuple[int, tuple[Grant, ...]]:
    """The end of the mappings with the same access as at an offset, and that access."""
    if span is None or span.offset >= end:
        return end, ()
    if span.offset > start:
        return span.offset, ()
    return min(end, span.offset + span.size), span.grants


def _continues(last: Mappings, each: Mappings) -> bool:
    return (
        last.chunk is each.chunk
        and last.interval == each.interval
        and last.last + last.interval == each.first
        and last.offset + last.size == each.offset
        and last.grants == each.grants
        and last.step == each.step
    )


class MappingCounts:
    """Numbers of mappings of the chunks of a geometry: a ring maps them twice, or several ranges share memory."""

    def __init__(self, geometry: Geometry) -> None:
        spans: dict[str, list[_Span]] = {}
        for placements in geometry.placements.values():
            for placement in placements:
                times = 1 if placement.step else placement.count
                found = ((*span, times) for span in placement.spans)
                spans.setdefault(placement.chunk.name, []).extend(found)
        self._sums: Mapping[str, _MappingSum] = {
            name: _MappingSum(found) for name, found in spans.items() if _overlap(found)
        }

    def elsewhere(self, group: ChunkGroup, first: int, count: int, step: int = 1) -> int:
        """Other mappings of the chunks of `count` mappings, from index `first` on, each `step` after the one before."""
        if not (found := self._sums.get(group.name)):
            return 0
        if step == 1:
            return found.of(first, first + count) - count
        chunks = range(first, first + (count - 1) * step + 1, step) if step else (first,)
        return sum(found.of(index, index + 1) for index in chunks) - count


class _MappingSum:
    """The number of mappings of all chunks below an index: linear between the ends of placements."""

    def __init__(self, spans: list[_Span]) -> None:
        changes: dict[int, int] = {}
        for first, stop, times in spans:
            changes[first] = changes.get(first, 0) + times
            changes[stop] = changes.get(stop, 0) - times
        self._bounds = sorted(changes)
        self._slopes: list[int] = []
        self._sums: list[int] = []
        slope = total = before = 0
        for bound in self._bounds:
            total += slope * (bound - before)
            slope, before = slope + changes[bound], bound
            self._sums.append(total)
            self._slopes.append(slope)

    def of(self, first: int, stop: int) -> int:
        return self._below(stop) - self._below(first)

    def _below(self, index: int) -> int:
        last = bisect_right(self._bounds, index) - 1
        return self._sums[last] + self._slopes[last] * (index - self._bounds[last]) if last >= 0 else 0


def _overlap(spans: list[_Span]) -> bool:
    highest = 0
    for first, stop, times in sorted(spans):
        if first < highest or times > 1:
            return True
        highest = max(highest, stop)
    return False
