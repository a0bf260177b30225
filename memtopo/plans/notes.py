"""What a plan says beside its steps: what was rounded, and memory that one device sees with two accesses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from memtopo.common.units import exact
from memtopo.driver.types import Access, Location
from memtopo.geometry import ChunkGroup, Geometry, Placement, RangeGroup, Stretch
from memtopo.geometry.model import Instance


def remarks(geometry: Geometry, granted: Mapping[Instance, Sequence[Stretch]]) -> Iterator[str]:
    """One sentence each, in the order of the spec; `granted` is the access of each reservation, as it will be."""
    yield from _rounded(geometry)
    for name, sights in _sights(geometry, granted).items():
        if two := _unequal(sorted(sights)):
            more, less = sorted(two, key=lambda sight: -sight.access)
            yield (
                f"chunk {name}: {more.location} has {more.access.word} in {more.range} and {less.access.word} in "
                f"{less.range}; what is stored through one is seen through the other"
            )


class _Sight(NamedTuple):
    """Chunks of one run, as one location sees them in one range."""

    first: int
    stop: int
    location: Location
    access: Access
    range: str


def _rounded(geometry: Geometry) -> Iterator[str]:
    runs: list[tuple[str, ChunkGroup | RangeGroup]] = [("chunk", run) for run in geometry.chunks.values()]
    runs += [("range", run) for run in geometry.ranges.values()]
    for kind, run in runs:
        if run.size != run.declared:
            yield f"{kind} {run.name}: {exact(run.declared)} rounded up to {exact(run.size)}"
    for buffer in geometry.buffers.values():
        if buffer.size != buffer.declared and not buffer.origin:
            told = f"{exact(buffer.declared)} rounded up to {exact(buffer.size)}"
            yield f"buffer {buffer.name}: {told}, since legacy IPC shares whole blocks of 2MiB"


def _sights(geometry: Geometry, granted: Mapping[Instance, Sequence[Stretch]]) -> dict[str, list[_Sight]]:
    """Where the chunks are seen that are mapped by more than one entry."""
    placed: dict[str, list[Placement]] = {}
    for placements in geometry.placements.values():
        for placement in placements:
            placed.setdefault(placement.chunk.name, []).append(placement)
    return {
        name: [sight for placement in several for sight in _seen(granted[placement.where], placement)]
        for name, several in placed.items()
        if len(several) > 1
    }


def _seen(stretches: Sequence[Stretch], placement: Placement) -> Iterator[_Sight]:
    start = bisect_right(stretches, placement.offset, key=lambda stretch: stretch.offset + stretch.size)
    for stretch in islice(stretches, start, None):
        if stretch.offset >= placement.end:
            return
        low, high = max(stretch.offset, placement.offset), min(stretch.offset + stretch.size, placement.end)
        first = placement.first + (low - placement.offset) // placement.chunk.size
        stop = placement.first + (high - placement.offset) // placement.chunk.size
        for place, access in stretch.grants:
            yield _Sight(first, stop, place, access, placement.range.label(placement.instance))


def _unequal(sights: list[_Sight]) -> tuple[_Sight, _Sight] | None:
    """Two sights of one chunk by one location, in different ranges and with different access."""
    latest: dict[tuple[Location, Access], _Sight] = {}
    for sight in sights:
        for access in (Access.R, Access.RW):
            other = latest.get((sight.location, access))
            if other and access != sight.access and sight.first < other.stop and other.range != sight.range:
                return other, sight
        known = latest.get((sight.location, sight.access))
        if known is None or sight.stop > known.stop:
            latest[sight.location, sight.access] = sight
    return None
