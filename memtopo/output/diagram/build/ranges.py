"""Ranges, with neighbours of one entry that look alike told once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from memtopo.driver.types import Grant
from memtopo.geometry import Geometry, Placement, RangeGroup
from memtopo.geometry.granting import Asked, stretches
from memtopo.geometry.model import Part
from memtopo.output.diagram.build.mappings import Cut, Elsewhere, cuts
from memtopo.output.diagram.build.names import Marks, repeated, source, turn
from memtopo.output.diagram.model import DeviceAccess, MappingSpan, RangeDiagram


def ranges(geometry: Geometry, process: str, marks: Marks) -> Iterator[RangeDiagram]:
    """Every range of one process in its order; `marks` learns which entries share a mark."""
    drawn = Drawn(process, Elsewhere(geometry), marks)
    asked = Asked(geometry.parts)
    for run in geometry.ranges.values():
        for alike in _groups(geometry, run, asked, drawn.elsewhere):
            yield alike.picture(drawn)


@dataclass(slots=True)
class _Alike:
    """Neighbouring reservations of one run that differ in nothing but the numbers of their chunks.

    `firsts` are the first chunks of the latest one's placements, `steps` what they are ahead of those before.
    """

    run: RangeGroup
    instance: int
    count: int
    placements: Sequence[Placement]
    asked: Sequence[Part]
    look: tuple[object, ...]
    firsts: list[int]
    steps: list[int]

    def takes(self, placements: Sequence[Placement], look: tuple[object, ...]) -> bool:
        """Whether the next reservation looks alike; it is counted in if so."""
        if look != self.look:
            return False
        firsts = [placement.first for placement in placements]
        steps = [first - before for first, before in zip(firsts, self.firsts, strict=True)]
        if self.count > 1 and steps != self.steps:
            return False
        self.count, self.firsts, self.steps = self.count + 1, firsts, steps
        return True

    def picture(self, drawn: Drawn) -> RangeDiagram:
        """The first of them with its pieces, for all of them."""
        found = cuts(self.placements, stretches(self.placements, self.asked), self.steps)
        shown = tuple(pieces(found, self.run.size, drawn))
        return RangeDiagram(
            first=self.run.label(self.instance),
            last=self.run.label(self.instance + self.count - 1),
            count=self.count,
            size=self.run.size,
            mapped=sum(piece.size for piece in shown if piece.chunk),
            pieces=shown,
            path=self.run.path,
        )


def _groups(geometry: Geometry, run: RangeGroup, asked: Asked, elsewhere: Elsewhere) -> Iterator[_Alike]:
    group: _Alike | None = None
    for instance in range(run.count):
        placements, parts = geometry.placements.get((run.name, instance), ()), asked.of(run.name, instance)
        look = _look(placements, parts, elsewhere) if run.count > 1 else ()
        if group and group.takes(placements, look):
            continue
        if group:
            yield group
        firsts = [placement.first for placement in placements]
        group = _Alike(run, instance, 1, placements, parts, look, firsts, [0] * len(firsts))
    if group:
        yield group


def _look(placements: Sequence[Placement], parts: Sequence[Part], elsewhere: Elsewhere) -> tuple[object, ...]:
    shape = tuple(
        (
            each.offset,
            each.chunk.name,
            each.count,
            each.first % len(each.chunk.properties),
            elsewhere.count(each.chunk, each.first, each.count),
        )
        for each in placements
    )
    return shape, tuple((part.offset, part.size, part.grants) for part in parts)


HANDFUL = 6
"""Neighbouring single chunks that each stay a piece of their own; more of them are folded into one."""


class Drawn(NamedTuple):
    """What the pieces of one process depend on: its label, how often its chunks are mapped, and the layout's marks."""

    process: str
    elsewhere: Elsewhere
    marks: Marks


def pieces(found: Iterable[Cut], size: int, drawn: Drawn) -> Iterator[MappingSpan]:
    """What one range of `size` bytes has, without a byte left out; the marks learn which entries share one."""
    at = 0
    for group in _folded(found):
        offset = group[0].offset
        if offset > at:
            yield MappingSpan(at, offset - at)
        piece = _piece(group, drawn)
        yield piece
        at = offset + piece.size
    if at < size:
        yield MappingSpan(at, size - at)


def _folded(found: Iterable[Cut]) -> Iterator[list[Cut]]:
    for _, alike in groupby(enumerate(found), key=_likeness):
        group = [cut for _, cut in alike]
        if len(group) == 1 or repeated([cut.location for cut in group]):
            yield from _unless_few(group)
        else:
            for _, together in groupby(group, key=lambda cut: cut.location):
                yield from _unless_few(list(together))


def _unless_few(group: list[Cut]) -> Iterator[list[Cut]]:
    if len(group) > HANDFUL:
        yield group
    else:
        yield from ([cut] for cut in group)


def _likeness(numbered: tuple[int, Cut]) -> tuple[object, ...]:
    """Equal for single chunks that lie one behind another; nothing else has it in common with a neighbour."""
    number, cut = numbered
    if cut.length > 1:
        return (number,)
    begin = cut.offset - number * cut.chunk.size
    return cut.chunk.size, begin, cut.chunk.handles, cut.grants, cut.step, cut.chunk.origin and cut.chunk.origin.holders


def _piece(group: Sequence[Cut], drawn: Drawn) -> MappingSpan:
    head, tail = group[0], group[-1]
    places = head.locations if len(group) == 1 else [cut.location for cut in group]
    count = sum(cut.length for cut in group)
    return MappingSpan(
        offset=head.offset,
        size=count * head.chunk.size,
        chunk=drawn.marks.join(drawn.process, [cut.chunk for cut in group]),
        first=head.chunk.label(head.first),
        last=tail.chunk.label(tail.first + tail.length - 1),
        index=head.first,
        count=count,
        bytes_each=head.chunk.size,
        step=head.step,
        elsewhere=sum(drawn.elsewhere.count(cut.chunk, cut.first, cut.length) for cut in group),
        locations=turn(places),
        handles=head.chunk.handles.words,
        access=_granted(head.grants),
        path=head.path,
        origin=" … ".join(dict.fromkeys(source(cut.chunk.origin) for cut in (head, tail))),
    )


def _granted(grants: tuple[Grant, ...]) -> tuple[DeviceAccess, ...]:
    return tuple(DeviceAccess(str(grant.location), grant.access.word) for grant in grants)
