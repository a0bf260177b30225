"""What is mapped where in each range, and who may use it, as the geometry has it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from memtopo.driver.types import Access, Grant, Location, LocationKind
from memtopo.geometry import Geometry, Placement, Stretch
from memtopo.geometry.granting import from_offset
from memtopo.geometry.model import Instance
from memtopo.run.contents import Granted, granted, mappings


@dataclass(frozen=True, slots=True)
class Region:
    """One reservation: the chunks that are mapped in it and the access to them, both in order of offset, in bytes."""

    label: str
    size: int
    placements: Sequence[Placement]
    stretches: Sequence[Stretch]

    def hole(self, start: int, end: int) -> tuple[int, int] | None:
        """The first stretch of bytes between two offsets that nothing is mapped at."""
        at = start
        for placement in from_offset(self.placements, start):
            if placement.offset > at or at >= end:
                break
            at = max(at, placement.end)
        if at >= end:
            return None
        following = next((each.offset for each in from_offset(self.placements, at) if each.offset > at), self.size)
        return at, min(following, end)

    def access(self, start: int, end: int, place: Location) -> Access:
        """What a place may do with all bytes between two offsets, which are mapped throughout."""
        at, found = start, Access.RW
        for stretch in self._from(start):
            if stretch.offset > at or at >= end:
                break
            found &= access_of(stretch.grants, place)
            at = stretch.offset + stretch.size
        return found if at >= end else Access.NONE

    def places(self, start: int, end: int) -> list[Location]:
        """Who has some access between two offsets, each place once."""
        found: dict[Location, None] = {}
        for stretch in self._from(start):
            if stretch.offset >= end:
                break
            found |= dict.fromkeys(grant.location for grant in stretch.grants if grant.access)
        return sorted(found)

    def home(self, start: int) -> Location:
        """Where the chunk is that is mapped at an offset."""
        placement = next(from_offset(self.placements, start))
        index = placement.first + (start - placement.offset) // placement.chunk.size
        return placement.chunk.place_of(index)

    def _from(self, start: int) -> Iterator[Stretch]:
        first = max(0, bisect_right(self.stretches, start, key=lambda each: each.offset) - 1)
        return (each for each in self.stretches[first:] if each.offset + each.size > start)


class Regions:
    """Every reservation of a geometry by its label."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry

    def of(self, label: str) -> Region | None:
        """The reservation of a label; None where there is none."""
        where = self._where.get(label)
        if where is None:
            return None
        placements, stretches = self._geometry.placements.get(where, ()), self._granted.get(where, [])
        return Region(label, self._geometry.ranges[where[0]].size, placements, stretches)

    def mapped(self, label: str) -> Iterator[tuple[int, int, tuple[Grant, ...]]]:
        """Offset, size and access of each mapping of a reservation."""
        for placement, _, offset, access in self._mappings(label):
            yield offset, placement.chunk.size, access

    def of_chunk(self, label: str) -> Iterator[tuple[str, int, int]]:
        """Every place where a chunk is mapped: the reservation's label, the offset and the size."""
        name, _, number = label.rpartition(".")
        run = self._geometry.chunks.get(label) or self._geometry.chunks.get(name)
        index = int(number) if run and run.counted and number.isdecimal() else 0
        if run is None or run.label(index) != label:
            return
        for reservation, where in self._where.items():
            for placement in self._geometry.placements.get(where, ()):
                turn = index - placement.first
                if placement.chunk.name == run.name and 0 <= turn < placement.count:
                    yield reservation, placement.offset + turn * run.size, run.size

    @property
    def labels(self) -> list[str]:
        """The labels of all reservations."""
        return list(self._where)

    def _mappings(self, label: str) -> Iterator[tuple[Placement, int, int, tuple[Grant, ...]]]:
        placements = self._geometry.placements.get(self._where[label], ())
        return mappings(placements, self._granted) if placements else iter(())

    @cached_property
    def _where(self) -> dict[str, Instance]:
        return {run.label(i): (run.name, i) for run in self._geometry.ranges.values() for i in range(run.count)}

    @cached_property
    def _granted(self) -> Granted:
        return granted(self._geometry)


def access_of(grants: Sequence[Grant], place: Location) -> Access:
    """A place's access among grants; the host and its NUMA nodes have one in common (fact 21)."""
    gpu = place.kind is LocationKind.GPU
    mine = [grant.access for grant in grants if (grant.location == place if gpu else not _is_gpu(grant.location))]
    return mine[-1] if mine else Access.NONE


def _is_gpu(place: Location) -> bool:
    return place.kind is LocationKind.GPU
