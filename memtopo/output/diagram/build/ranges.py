"""Ranges of a process, equal neighbours of one entry together, and the spans of mappings and holes in them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import attrgetter, mul
from typing import NamedTuple, TypeVar

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry import AccessSpan, Geometry, Placement
from memtopo.geometry.access import AccessParts, access_spans
from memtopo.geometry.diagram import DeviceAccess, MappingSpan, RangeDiagram
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Part, mapped_once
from memtopo.output.diagram.build.memory import Marks, Owner, is_regular, regular_lengths, source

MOST_SINGLE = 6
"""Adjacent mappings of single chunks that each have a span of their own; more of them are one span."""

MOST_PARTS = 64
"""Parts of the mappings of one entry, with an order of locations each."""

MOST_LOCATIONS = 1 << 16
"""Locations that are looked at."""


T = TypeVar("T")


def _joined(found: Iterable[T], join: Callable[[T, T], T | None]) -> Iterator[T]:
    """Join neighbours: each with the one before it, unless `join` of the two is None."""
    last: T | None = None
    for each in found:
        both = None if last is None else join(last, each)
        if last is not None and both is None:
            yield last
        last = each if both is None else both
    if last is not None:
        yield last


class _Process(Struct, frozen=True):
    """A process with the numbers of mappings of its chunks, and the marks of the layout."""

    owner: Owner
    counts: MappingCounts
    marks: Marks

    def access(self, grants: Iterable[Grant]) -> tuple[DeviceAccess, ...]:
        return tuple(DeviceAccess(self.owner.name(each.location), each.access.word) for each in grants)


class _Reservations(NamedTuple):
    """`number` neighbouring reservations of one group, `instance` on, that differ only in the indices of their chunks.

    `shape` is their content without these indices. `last` are the placements of the last one, whose first chunks are
    `steps` after those of the one before.
    """

    group: RangeGroup
    instance: int
    number: int
    placements: Sequence[Placement]
    parts: Sequence[Part]
    shape: tuple[object, ...]
    last: Sequence[Placement]
    steps: list[int]

    def joined(self, more: _Reservations) -> _Reservations | None:
        """These reservations and the next one, or several that are all empty; None if they differ."""
        if more.shape != self.shape:
            return None
        steps = [each.first - before.first for each, before in zip(more.placements, self.last, strict=True)]
        if self.number > 1 and steps != self.steps:
            return None
        return self._replace(number=self.number + more.number, last=more.placements, steps=steps)


def ranges(owner: Owner, marks: Marks) -> Iterator[RangeDiagram]:
    """All ranges of a process in order; entries that one span covers are joined in `marks`."""
    geometry = owner.geometry
    process = _Process(owner, MappingCounts(geometry), marks)
    requested = AccessParts(geometry.parts)
    filled: dict[str, list[int]] = {}
    for name, instance in geometry.placements:
        filled.setdefault(name, []).extend((instance, instance + 1))
    for group in geometry.of(RangeGroup).values():
        # Instances at which the content may change: one with placements, and the one after it, among them.
        changes = chain.from_iterable(part.instances for part in geometry.parts.get(group.name, ()))
        bounds = sorted({0, group.count, *filled.get(group.name, ()), *changes})
        each = (_reservations(group, *pair, process, requested) for pair in pairwise(bounds))
        yield from (_range(found, process) for found in _joined(each, _Reservations.joined))


def _reservations(group: RangeGroup, instance: int, stop: int, process: _Process, access: AccessParts) -> _Reservations:
    placements = process.owner.geometry.placements.get((group.name, instance), ())
    parts, shape = access.of(group.name, instance), tuple[object, ...]()
    if group.count > 1:
        content: list[tuple[object, ...]] = []
        for each in placements:
            turn = each.first % len(each.chunk.properties)
            elsewhere = process.counts.elsewhere(each.chunk, each.first, each.count, each.step)
            content.append((each.offset, each.chunk.name, each.count, turn, each.step, elsewhere))
        shape = tuple(content), tuple((part.offset, part.size, part.grants) for part in parts)
    return _Reservations(group, instance, stop - instance, placements, parts, shape, placements, [0] * len(placements))


def _range(reservations: _Reservations, process: _Process) -> RangeDiagram:
    group, placements, backing = reservations.group, reservations.placements, reservations.group.elastic
    fixed = mappings(placements, access_spans(placements, reservations.parts), reservations.steps)
    zeros = list(_zeros(group, reservations.instance, placements))
    backed = mappings(zeros, access_spans(zeros, reservations.parts), [0] * len(zeros))
    found = merge(fixed, (each.read_only for each in backed), key=attrgetter("offset"))
    spans = tuple(_spans(found, group.size, process))
    grants = [process.access(part.grants) for part in reservations.parts] if backing else []
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
        elastic_access=tuple(dict.fromkeys(grants)),
    )


def _zeros(group: RangeGroup, instance: int, placements: Iterable[Placement]) -> Iterator[Placement]:
    """Placements of the zero page of a range, if it has one, wherever the layout maps nothing else."""
    zero, path = group.elastic.zero if group.elastic else None, (*group.path, "elastic", "zero")
    start = 0
    for stop, end in [*((each.offset, each.end) for each in placements), (group.size, group.size)]:
        if zero and stop > start:
            yield Placement(group, instance, start, zero, 0, (stop - start) // zero.size, path, 0)
        start = end


def _spans(found: Iterable[DrawnMappings], size: int, process: _Process) -> Iterator[MappingSpan]:
    """The spans of a range of `size` bytes, holes included, without gaps."""
    end = 0
    for group in _grouped(found):
        span = _span(group, process)
        if span.offset > end:
            yield MappingSpan(end, span.offset - end)
        yield span
        end = span.offset + span.size
    if end < size:
        yield MappingSpan(end, size - end)


def _grouped(found: Iterable[DrawnMappings]) -> Iterator[list[DrawnMappings]]:
    """Many similar single chunks together if their locations repeat a cycle, otherwise those of one location."""
    for _, group in groupby(enumerate(found), key=_similarity):
        similar = [each for _, each in group]
        parts: Iterable[list[DrawnMappings]] = [similar]
        if len(similar) > 1 and not is_regular([each.location for each in similar]):
            parts = (list(same) for _, same in groupby(similar, key=lambda each: each.location))
        for part in parts:
            yield from [part] if len(part) > MOST_SINGLE else ([each] for each in part)


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

    @property
    def read_only(self) -> DrawnMappings:
        """These mappings with access to read alone."""
        return self._replace(grants=tuple(Grant(each.location, Access.R) for each in self.grants))

    def continued(self, more: DrawnMappings) -> DrawnMappings | None:
        """These mappings with the next ones, if those continue with the next chunks of the same group."""
        if more.chunk is not self.chunk:
            return None
        offset, first = self.offset + self.length * self.chunk.size, self.last + self.interval
        next_ = self._replace(offset=offset, first=first, length=more.length, path=more.path)
        return self._replace(length=self.length + more.length) if more == next_ else None

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
    for each in _joined(_divided(placements, iter(access_spans), steps), DrawnMappings.continued):
        yield from each.regular()


def _divided(
    placements: Sequence[Placement], access_spans: Iterator[AccessSpan], steps: Sequence[int]
) -> Iterator[DrawnMappings]:
    span = next(access_spans, None)
    for placement, step in zip(placements, steps, strict=True):
        start, group = placement.offset, placement.chunk
        while start < placement.end:
            while span and span.offset + span.size <= start:
                span = next(access_spans, None)
            stop, grants = placement.end, tuple[Grant, ...]()
            if span and span.offset > start:
                stop = min(stop, span.offset)
            elif span:
                stop, grants = min(stop, span.offset + span.size), span.grants
            first = placement.index((start - placement.offset) // group.size)
            length = (stop - start) // group.size
            interval = placement.step if length > 1 else 1
            yield DrawnMappings(start, group, first, length, grants, step, placement.path, interval)
            start = stop


class MappingCounts:
    """Numbers of mappings of the chunks of a geometry: a ring maps them twice, or several ranges share memory."""

    def __init__(self, geometry: Geometry) -> None:
        # First index, index after the last one, mappings of each chunk.
        spans: dict[str, list[tuple[int, int, int]]] = {}
        mapped: Counter[str] = Counter()
        placed: dict[str, list[Placement]] = {}
        for (name, _), placements in geometry.placements.items():
            for placement in placements:
                mapped[name] += placement.end - placement.offset
                placed.setdefault(placement.chunk.name, []).append(placement)
        elastic = [group for group in geometry.of(RangeGroup).values() if group.elastic]
        zeros = {group.elastic.zero.name for group in elastic if group.elastic and group.elastic.zero}
        for name, several in placed.items():
            if name in zeros or not mapped_once(several):
                numbers = ((placement, 1 if placement.step else placement.count) for placement in several)
                spans[name] = [(*span, number) for placement, number in numbers for span in placement.spans]
        for group in elastic:
            if group.elastic and (zero := group.elastic.zero):
                times = (group.count * group.size - mapped[group.name]) // zero.size
                spans.setdefault(zero.name, []).append((0, 1, times))
        self._sums = {name: _MappingSum(found) for name, found in spans.items() if len(found) > 1 or found[0][2] > 1}

    def elsewhere(self, group: ChunkGroup, first: int, count: int, step: int = 1) -> int:
        """Other mappings of the chunks of `count` mappings, from index `first` on, each `step` after the one before."""
        if not (found := self._sums.get(group.name)):
            return 0
        if step == 1:
            return found.below(first + count) - found.below(first) - count
        chunks = range(first, first + (count - 1) * step + 1, step) if step else (first,)
        return sum(found.below(index + 1) - found.below(index) for index in chunks) - count


class _MappingSum:
    """The number of mappings of all chunks below an index: linear between the ends of placements."""

    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None:
        changes: Counter[int] = Counter()
        for first, stop, times in spans:
            changes[first] += times
            changes[stop] -= times
        self._bounds = sorted(changes)
        self._slopes = [*accumulate(changes[bound] for bound in self._bounds)]
        lengths = (stop - start for start, stop in pairwise(self._bounds))
        self._sums = [*accumulate(map(mul, self._slopes, lengths), initial=0)]

    def below(self, index: int) -> int:
        last = bisect_right(self._bounds, index) - 1
        return self._sums[last] + self._slopes[last] * (index - self._bounds[last]) if last >= 0 else 0
