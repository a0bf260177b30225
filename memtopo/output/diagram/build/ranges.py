"""Ranges, with neighbours of one entry that look alike told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtopo.geometry import Geometry, Placement, RangeGroup
from memtopo.geometry.granting import Asked, stretches
from memtopo.geometry.model import Part
from memtopo.output.diagram.build.cuts import cuts
from memtopo.output.diagram.build.elsewhere import Elsewhere
from memtopo.output.diagram.build.marks import Marks
from memtopo.output.diagram.build.pieces import Drawn, pieces
from memtopo.output.diagram.model import RangeDiagram


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
