"""Ranges of a process, equal neighbours of one entry together, and the spans of mappings and holes in them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import attrgetter
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry import AccessSpan, Geometry, Placement
from memtopo.geometry.access import AccessParts, access_spans
from memtopo.geometry.diagram import DeviceAccess, MappingSpan, RangeDiagram
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Part
from memtopo.output.diagram.build.memory import Marks, Owner, is_regular, regular_lengths, source

MOST_SINGLE = 6
"""Adjacent mappings of single chunks that each have a span of their own; more of them are one span."""

MOST_PARTS = 64
"""Parts of the mappings of one entry, with an order of locations each."""

MOST_LOCATIONS = 1 << 16
"""Locations that are looked at."""


class _Process(NamedTuple):
    """A process with the numbers of mappings of its chunks, and the marks of the layout."""

    owner: Owner
    counts: MappingCounts
    marks: Marks

    def access(self, grants: Iterable[Grant]) -> tuple[DeviceAccess, ...]:
        return tuple(DeviceAccess(self.owner.name(each.location), each.access.word) for each in grants)


class _Reservations(NamedTuple):
    """`number` neighbouring reservations of one group, `instance` on, that differ only in the indices of their chunks.

    `firsts` are the first chunks of the last one's placements, `steps` their distances to those of the one before.
    """

    group: RangeGroup
    instance: int
    number: int
    placements: Sequence[Placement]
    parts: Sequence[Part]
    shape: tuple[object, ...]
    firsts: list[int]
    steps: list[int]

    def extended(self, placements: Sequence[Placement], shape: tuple[object, ...], more: int) -> _Reservations | None:
        """These reservations and the next one, or as many `more` that are all empty; None if they differ."""
        if shape != self.shape:
            return None
        firsts = [placement.first for placement in placements]
        steps = [first - before for first, before in zip(firsts, self.firsts, strict=True)]
        if self.number > 1 and steps != self.steps:
            return None
        return self._replace(number=self.number + more, firsts=firsts, steps=steps)


def ranges(owner: Owner, marks: Marks) -> Iterator[RangeDiagram]:
    """All ranges of a process in order; entries that one span covers are joined in `marks`."""
    geometry = owner.geometry
    context = _Process(owner, MappingCounts(geometry), marks)
    requested = AccessParts(geometry.parts)
    filled: dict[str, list[int]] = {}
    for name, instance in geometry.placements:
        filled.setdefault(name, []).append(instance)
    for group in geometry.of(RangeGroup).values():
        bounds = _bounds(group, filled.get(group.name, ()), geometry.parts.get(group.name, ()))
        for reservations in _equal_neighbours(geometry, group, bounds, requested, context.counts):
            yield _range(reservations, context)


def _bounds(group: RangeGroup, filled: Iterable[int], parts: Iterable[Part]) -> list[int]:
    """Instances at which the content of a group may change: one with placements, and the one after it, among them."""
    changes = chain.from_iterable((instance, instance + 1) for instance in filled)
    return sorted({0, group.count, *changes, *chain.from_iterable(part.instances for part in parts)})


def _equal_neighbours(
    geometry: Geometry, group: RangeGroup, bounds: Sequence[int], requested: AccessParts, counts: MappingCounts
) -> Iterator[_Reservations]:
    last: _Reservations | None = None
    for instance, stop in pairwise(bounds):
        placements, parts = geometry.placements.get((group.name, instance), ()), requested.of(group.name, instance)
        shape = _shape(placements, parts, counts) if group.count > 1 else ()
        if last and (extended := last.extended(placements, shape, stop - instance)):
            last = extended
            continue
        if last:
            yield last
        firsts = [placement.first for placement in placements]
        last = _Reservations(group, instance, stop - instance, placements, parts, shape, firsts, [0] * len(firsts))
    if last:
        yield last


def _shape(placements: Sequence[Placement], parts: Sequence[Part], counts: MappingCounts) -> tuple[object, ...]:
    """The content of a reservation without the indices of its chunks."""
    content = tuple(
        (
            each.offset,
            each.chunk.name,
            each.count,
            each.first % len(each.chunk.properties),
            each.step,
            counts.elsewhere(each.chunk, each.first, each.count, each.step),
        )
        for each in placements
    )
    return content, tuple((part.offset, part.size, part.grants) for part in parts)


def _range(reservations: _Reservations, process: _Process) -> RangeDiagram:
    group, placements, backing = reservations.group, reservations.placements, reservations.group.elastic
    fixed = mappings(placements, access_spans(placements, reservations.parts), reservations.steps)
    zeros = list(_zeros(group, reservations.instance, placements))
    backed = mappings(zeros, access_spans(zeros, reservations.parts), [0] * len(zeros))
    found = merge(fixed, map(_read_only, backed), key=attrgetter("offset"))
    spans = tuple(_spans(found, group.size, process))
    return RangeDiagram(
        first=group.label(reservations.instance),
        last=group.label(reservations.instance + reservations.number - 1),
        count=reservations.number,
        size=group.size,
        mapped=sum(span.size for span in spans if span.chunk),
        pieces=spans,
        path=group.path,
        elastic=tuple(chunk.name for chunk in backing.chunks) if backing else (),
        zero=backing.zero.name if backing and backing.zero else "",
        same_address=group.same_address,
        elastic_access=tuple(dict.fromkeys(process.access(part.grants) for part in reservations.parts))
        if backing
        else (),
    )


def _zeros(group: RangeGroup, instance: int, placements: Iterable[Placement]) -> Iterator[Placement]:
    """Placements of the zero chunk of a range, if it has one, wherever the layout maps nothing else."""
    zero, path = group.elastic.zero if group.elastic else None, (*group.path, "elastic", "zero")
    start = 0
    for stop, end in [*((each.offset, each.end) for each in placements), (group.size, group.size)]:
        if zero and stop > start:
            yield Placement(group, instance, start, zero, 0, (stop - start) // zero.size, path, 0)
        start = end


def _read_only(given: DrawnMappings) -> DrawnMappings:
    return given._replace(grants=tuple(Grant(each.location, Access.R) for each in given.grants))


def _spans(found: Iterable[DrawnMappings], size: int, process: _Process) -> Iterator[MappingSpan]:
    """The spans of a range of `size` bytes, holes included, without gaps."""
    end = 0
    for group in _grouped(found):
        offset = group[0].offset
        if offset > end:
            yield MappingSpan(end, offset - end)
        span = _span(group, process)
        yield span
        end = offset + span.size
    if end < size:
        yield MappingSpan(end, size - end)


def _grouped(found: Iterable[DrawnMappings]) -> Iterator[list[DrawnMappings]]:
    """Many similar single chunks together if their locations repeat a cycle, otherwise those of one location."""
    for _, group in groupby(enumerate(found), key=_similarity):
        similar = [each for _, each in group]
        if len(similar) == 1 or is_regular([each.location for each in similar]):
            yield from _single_if_few(similar)
        else:
            for _, same in groupby(similar, key=lambda each: each.location):
                yield from _single_if_few(list(same))


def _single_if_few(group: list[DrawnMappings]) -> Iterator[list[DrawnMappings]]:
    if len(group) > MOST_SINGLE:
        yield group
    else:
        yield from ([each] for each in group)


def _similarity(numbered: tuple[int, DrawnMappings]) -> tuple[object, ...]:
    """A key that is equal for adjacent single chunks with the same properties, and for no other neighbours."""
    number, each = numbered
    if each.length > 1:
        return (number,)
    chunk, start = each.chunk, each.offset - number * each.chunk.size
    return chunk.size, start, chunk.handles, each.grants, each.step, chunk.origin and chunk.origin.holders, chunk.parts


def _span(group: Sequence[DrawnMappings], process: _Process) -> MappingSpan:
    first, last = group[0], group[-1]
    locations = first.locations if len(group) == 1 else [each.location for each in group]
    count = sum(each.length for each in group)
    return MappingSpan(
        offset=first.offset,
        size=count * first.chunk.size,
        chunk=process.marks.join(process.owner.process, [each.chunk for each in group]),
        first=first.chunk.label(first.first),
        last=last.chunk.label(last.last),
        index=first.first,
        count=count,
        bytes_each=first.chunk.size,
        step=first.step,
        elsewhere=sum(process.counts.elsewhere(each.chunk, each.first, each.length, each.interval) for each in group),
        locations=process.owner.names(locations),
        handles=first.chunk.handles.words,
        access=process.access(first.grants),
        path=first.path,
        origin=" … ".join(dict.fromkeys(source(each.chunk.origin) for each in (first, last))),
        interval=first.interval,
        parts=first.chunk.parts,
        mixed=first.mixed,
    )


_Span = tuple[int, int, int]
"""First index, index after the last one, and the number of mappings of each chunk."""


class DrawnMappings(NamedTuple):
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

    def regular(self) -> Iterator[DrawnMappings]:
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
) -> Iterator[DrawnMappings]:
    """The mappings of one reservation, in order; `steps` are those of the placements.

    Placements are divided where access or the order of locations changes, and joined where one continues with the next
    chunk of the same group.
    """
    last: DrawnMappings | None = None
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
) -> Iterator[DrawnMappings]:
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
            yield DrawnMappings(start, group, first, length, grants, step, placement.path, interval)
            start = stop


def _same_access(span: AccessSpan | None, start: int, end: int) -> tuple[int, tuple[Grant, ...]]:
    """The end of the mappings with the same access as at an offset, and that access."""
    if span is None or span.offset >= end:
        return end, ()
    if span.offset > start:
        return span.offset, ()
    return min(end, span.offset + span.size), span.grants


def _continues(last: DrawnMappings, each: DrawnMappings) -> bool:
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
        mapped: Counter[str] = Counter()
        for (name, _), placements in geometry.placements.items():
            for placement in placements:
                mapped[name] += placement.end - placement.offset
                times = 1 if placement.step else placement.count
                found = ((*span, times) for span in placement.spans)
                spans.setdefault(placement.chunk.name, []).extend(found)
        for group in geometry.of(RangeGroup).values():
            if group.elastic and (zero := group.elastic.zero):
                times = (group.count * group.size - mapped[group.name]) // zero.size
                spans.setdefault(zero.name, []).append((0, 1, times))
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
