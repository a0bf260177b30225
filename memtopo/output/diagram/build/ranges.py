"""Ranges of a process, equal neighbours of one entry together, and the spans of mappings and holes in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from memtopo.driver.types import Grant
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.access import AccessParts, access_spans
from memtopo.geometry.diagram import DeviceAccess, MappingSpan, RangeDiagram
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Part
from memtopo.output.diagram.build.mappings import MappingCounts, Mappings, mappings
from memtopo.output.diagram.build.names import Marks, is_regular, location_names, source

MOST_SINGLE = 6
"""Adjacent mappings of single chunks that each have a span of their own; more of them are one span."""


class _Process(NamedTuple):
    """A process by its label, the numbers of mappings of its chunks, and the marks of the layout."""

    label: str
    counts: MappingCounts
    marks: Marks


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

    def extended(self, placements: Sequence[Placement], shape: tuple[object, ...]) -> _Reservations | None:
        """These reservations and the next one, or None if that one differs."""
        if shape != self.shape:
            return None
        firsts = [placement.first for placement in placements]
        steps = [first - before for first, before in zip(firsts, self.firsts, strict=True)]
        if self.number > 1 and steps != self.steps:
            return None
        return self._replace(number=self.number + 1, firsts=firsts, steps=steps)


def ranges(geometry: Geometry, process: str, marks: Marks) -> Iterator[RangeDiagram]:
    """All ranges of a process in order; entries that one span covers are joined in `marks`."""
    context = _Process(process, MappingCounts(geometry), marks)
    requested = AccessParts(geometry.parts)
    for group in geometry.of(RangeGroup).values():
        for reservations in _equal_neighbours(geometry, group, requested, context.counts):
            yield _range(reservations, context)


def _equal_neighbours(
    geometry: Geometry, group: RangeGroup, requested: AccessParts, counts: MappingCounts
) -> Iterator[_Reservations]:
    last: _Reservations | None = None
    for instance in range(group.count):
        placements, parts = geometry.placements.get((group.name, instance), ()), requested.of(group.name, instance)
        shape = _shape(placements, parts, counts) if group.count > 1 else ()
        if last and (extended := last.extended(placements, shape)):
            last = extended
            continue
        if last:
            yield last
        firsts = [placement.first for placement in placements]
        last = _Reservations(group, instance, 1, placements, parts, shape, firsts, [0] * len(firsts))
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
    found = mappings(placements, access_spans(placements, reservations.parts), reservations.steps)
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
        elastic_access=tuple(dict.fromkeys(_access(part.grants) for part in reservations.parts)) if backing else (),
    )


def _spans(found: Iterable[Mappings], size: int, process: _Process) -> Iterator[MappingSpan]:
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


def _grouped(found: Iterable[Mappings]) -> Iterator[list[Mappings]]:
    """Many similar single chunks together if their locations repeat a cycle, otherwise those of one location."""
    for _, group in groupby(enumerate(found), key=_similarity):
        similar = [each for _, each in group]
        if len(similar) == 1 or is_regular([each.location for each in similar]):
            yield from _single_if_few(similar)
        else:
            for _, same in groupby(similar, key=lambda each: each.location):
                yield from _single_if_few(list(same))


def _single_if_few(group: list[Mappings]) -> Iterator[list[Mappings]]:
    if len(group) > MOST_SINGLE:
        yield group
    else:
        yield from ([each] for each in group)


def _similarity(numbered: tuple[int, Mappings]) -> tuple[object, ...]:
    """A key that is equal for adjacent single chunks with the same properties, and for no other neighbours."""
    number, each = numbered
    if each.length > 1:
        return (number,)
    chunk, start = each.chunk, each.offset - number * each.chunk.size
    return chunk.size, start, chunk.handles, each.grants, each.step, chunk.origin and chunk.origin.holders, chunk.parts


def _span(group: Sequence[Mappings], process: _Process) -> MappingSpan:
    first, last = group[0], group[-1]
    locations = first.locations if len(group) == 1 else [each.location for each in group]
    count = sum(each.length for each in group)
    return MappingSpan(
        offset=first.offset,
        size=count * first.chunk.size,
        chunk=process.marks.join(process.label, [each.chunk for each in group]),
        first=first.chunk.label(first.first),
        last=last.chunk.label(last.last),
        index=first.first,
        count=count,
        bytes_each=first.chunk.size,
        step=first.step,
        elsewhere=sum(process.counts.elsewhere(each.chunk, each.first, each.length, each.interval) for each in group),
        locations=location_names(locations),
        handles=first.chunk.handles.words,
        access=_access(first.grants),
        path=first.path,
        origin=" … ".join(dict.fromkeys(source(each.chunk.origin) for each in (first, last))),
        interval=first.interval,
        parts=first.chunk.parts,
        mixed=first.mixed,
    )


def _access(grants: tuple[Grant, ...]) -> tuple[DeviceAccess, ...]:
    return tuple(DeviceAccess(str(grant.location), grant.access.word) for grant in grants)
