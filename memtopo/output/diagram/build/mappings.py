"""Placements cut where access changes, and joined where one goes on with the chunk after the other's last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location
from memtopo.geometry import ChunkGroup, Geometry, Placement, Stretch


class Cut(NamedTuple):
    """`length` mappings of chunks of one run, `first` on, with one access.

    `step` leads to the chunks of the next equal range.
    """

    offset: int
    chunk: ChunkGroup
    first: int
    length: int
    grants: tuple[Grant, ...]
    step: int
    path: Path

    @property
    def size(self) -> int:
        """Bytes of the range that are covered."""
        return self.length * self.chunk.size

    @property
    def location(self) -> Location:
        """Where the first chunk is."""
        return self.chunk.place_of(self.first)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where the chunks are, in turn from the first on."""
        dealt = self.chunk.locations
        return tuple(dealt[(self.first + turn) % len(dealt)] for turn in range(min(self.length, len(dealt))))


def cuts(placements: Sequence[Placement], stretches: Iterable[Stretch], steps: Sequence[int]) -> Iterator[Cut]:
    """What one reservation has mapped, in order; `steps` go with the placements."""
    last: Cut | None = None
    for cut in _cut(placements, iter(stretches), steps):
        if last and _goes_on(last, cut):
            last = last._replace(length=last.length + cut.length)
            continue
        if last:
            yield last
        last = cut
    if last:
        yield last


def _cut(placements: Sequence[Placement], stretches: Iterator[Stretch], steps: Sequence[int]) -> Iterator[Cut]:
    stretch = next(stretches, None)
    for placement, step in zip(placements, steps, strict=True):
        at, end, run = placement.offset, placement.end, placement.chunk
        while at < end:
            while stretch and stretch.offset + stretch.size <= at:
                stretch = next(stretches, None)
            stop, grants = _same_access(stretch, at, end)
            first = placement.first + (at - placement.offset) // run.size
            yield Cut(at, run, first, (stop - at) // run.size, grants, step, placement.path)
            at = stop


def _same_access(stretch: Stretch | None, at: int, end: int) -> tuple[int, tuple[Grant, ...]]:
    """How far the access at an offset goes, and what it is."""
    if stretch is None or stretch.offset >= end:
        return end, ()
    if stretch.offset > at:
        return stretch.offset, ()
    return min(end, stretch.offset + stretch.size), stretch.grants


def _goes_on(last: Cut, cut: Cut) -> bool:
    return (
        last.chunk is cut.chunk
        and last.first + last.length == cut.first
        and last.offset + last.size == cut.offset
        and last.grants == cut.grants
        and last.step == cut.step
    )


_Span = tuple[int, int]


class Elsewhere:
    """Answers how many other mappings the chunks of one mapping run have."""

    def __init__(self, geometry: Geometry) -> None:
        spans: dict[str, list[_Span]] = {}
        for placements in geometry.placements.values():
            for placement in placements:
                spans.setdefault(placement.chunk.name, []).append((placement.first, placement.first + placement.count))
        self._curves: Mapping[str, _Curve] = {
            name: _Curve(found) for name, found in spans.items() if len(found) > 1 and _meet(found)
        }

    def count(self, run: ChunkGroup, first: int, count: int) -> int:
        """Mappings of the chunks `first` on, `count` of them, beside one of each."""
        curve = self._curves.get(run.name)
        return curve.below(first + count) - curve.below(first) - count if curve else 0


class _Curve:
    """How many mappings there are of the chunks below an index; straight between two bounds of mapping runs."""

    def __init__(self, spans: list[_Span]) -> None:
        turns: dict[int, int] = {}
        for first, stop in spans:
            turns[first] = turns.get(first, 0) + 1
            turns[stop] = turns.get(stop, 0) - 1
        self._bounds = sorted(turns)
        self._depths: list[int] = []
        self._heights: list[int] = []
        depth = height = before = 0
        for bound in self._bounds:
            height += depth * (bound - before)
            depth, before = depth + turns[bound], bound
            self._heights.append(height)
            self._depths.append(depth)

    def below(self, index: int) -> int:
        at = bisect_right(self._bounds, index) - 1
        return self._heights[at] + self._depths[at] * (index - self._bounds[at]) if at >= 0 else 0


def _meet(spans: list[_Span]) -> bool:
    highest = 0
    for first, stop in sorted(spans):
        if first < highest:
            return True
        highest = max(highest, stop)
    return False
