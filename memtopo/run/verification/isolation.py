"""Isolation of ranges, by queries: holes are unmapped, and the last mapping of a range ends where it is declared to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.access import granted
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import Finding

MAX_HOLE_QUERIES = 1 << 13
"""Number of granules of holes that are queried beside the ends of each hole, at 4 microseconds each."""

_UNMAPPED = "CUDA_ERROR_INVALID_VALUE"
_EQUAL = Finding.equal("hole")


class Hole(NamedTuple):
    """Offsets `low` to `high` of a range without a mapping."""

    label: str
    low: int
    high: int
    path: Path


class Holes(NamedTuple):
    """All holes of a layout. A mapping in one would fill at least one granule of `unit` bytes."""

    holes: Sequence[Hole]
    unit: int

    @property
    def stride(self) -> int:
        """Bytes between two queries of a hole: one granule, or more if there are too many granules."""
        granules = sum((hole.high - hole.low) // self.unit for hole in self.holes)
        return self.unit * max(1, -(-granules // MAX_HOLE_QUERIES))

    @property
    def unqueried(self) -> int:
        """Number of granules that are not queried."""
        stride = self.stride
        if stride == self.unit:
            return 0
        return sum(
            (hole.high - hole.low) // self.unit - len({(at - hole.low) // self.unit for at in _queries(hole, stride)})
            for hole in self.holes
        )


def holes(geometry: Geometry) -> Holes:
    """Holes of all ranges but those that a zero chunk fills, and the smallest granule that may be mapped there."""
    found = [
        Hole(group.label(instance), low, high, group.path)
        for group in geometry.of(RangeGroup).values()
        if not (group.elastic and group.elastic.zero)
        for instance in range(group.count)
        for low, high in _holes(group.size, geometry.placements.get((group.name, instance), ()))
    ]
    granules = [group.granule for group in geometry.of(ChunkGroup).values()]
    granules += [group.granule for group in geometry.of(RangeGroup).values()]
    return Holes(found, min(granules, default=1))


def isolation(geometry: Geometry, unmapped: Holes, driver: Driver, layout: Layout) -> Iterator[Finding]:
    """Check by queries that holes are unmapped, and where the last mapping of a range ends. Raises `DriverError`."""
    location = gpu(geometry.gpus[0]) if geometry.gpus else Location(LocationKind.HOST_NUMA, 0)
    stride = unmapped.stride
    for hole in unmapped.holes:
        base, content = layout.address(hole.label), layout.elastic.get(hole.label)
        for at in _queries(hole, stride):
            if content and content.taken(at, at + 1, frozenset()):
                continue  # a program has mapped something there
            observed = _query_unmapped(driver, base + at, location)
            if observed == _UNMAPPED:
                yield _EQUAL
            else:
                yield Finding("hole", f"{hole.label} at {at:#x}", "nothing mapped", observed, hole.path)
    access_of = granted(geometry)
    for placements in geometry.placements.values():
        last = placements[-1]
        offset = last.end - last.chunk.size
        grants = next((span.grants for span in access_of[last.where] if span.offset <= offset < span.end), ())
        yield from _range_end(driver, layout, last, last.range.label(last.instance), offset, grants)


def _queries(hole: Hole, stride: int) -> Iterator[int]:
    """Offsets to query in a hole; it may be smaller than the granule of the chunks beside it."""
    yield from range(hole.low, hole.high, stride)
    yield hole.high - 1


def _holes(size: int, placements: Sequence[Placement]) -> Iterator[tuple[int, int]]:
    at = 0
    for placement in sorted(placements, key=lambda each: each.offset):
        if placement.offset > at:
            yield at, placement.offset
        at = max(at, placement.end)
    if at < size:
        yield at, size


def _query_unmapped(driver: Driver, address: int, location: Location) -> str:
    try:
        return f"something mapped, access {driver.mem_get_access(address, location)}"
    except DriverError as error:
        if error.name != _UNMAPPED:
            raise
        return _UNMAPPED


def _range_end(
    driver: Driver, layout: Layout, placement: Placement, label: str, offset: int, grants: tuple[Grant, ...]
) -> Iterator[Finding]:
    """Check the extent of the last mapping of a range: the driver lets a mapping exceed its range (fact 15)."""
    readers = [grant.location.id for grant in grants if grant.location.kind is LocationKind.GPU and grant.access]
    if not readers or any(location.kind is not LocationKind.GPU for location in placement.chunk.distinct_locations):
        return  # for host memory the driver has reported more than the one mapping
    base = layout.address(label)
    try:
        with current(driver, layout.contexts[readers[0]]):
            start, length = driver.mem_get_address_range(base + offset)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_FOUND":
            raise
        return  # missing access hides the mapping (fact 22); the check of access reports that
    observed = f"from {start - base:#x} to {start + length - base:#x}"
    expected = f"from {offset:#x} to {offset + placement.chunk.size:#x}"
    yield Finding("end of range", f"the last mapping in {label}", expected, observed, placement.path)
