"""What lies beside the mappings: holes with nothing in them, and ends that nothing runs past. Queries alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement
from memtopo.kinds.layout import Layout, current
from memtopo.plans.report import Finding
from memtopo.run.contents import granted, mappings

_UNMAPPED = "CUDA_ERROR_INVALID_VALUE"
_WELL = Finding("hole", "", "", "")


def isolation(geometry: Geometry, driver: Driver, layout: Layout) -> Iterator[Finding]:
    """Both ends of every hole, and the last mapping of every range that a GPU may read. Raises `DriverError`."""
    asked = gpu(geometry.gpus[0]) if geometry.gpus else Location(LocationKind.HOST_NUMA, 0)
    access_of = granted(geometry)
    for run in geometry.ranges.values():
        for instance in range(run.count):
            label = run.label(instance)
            placements = geometry.placements.get((run.name, instance), ())
            for low, high in _holes(run.size, placements):
                for at in (low, high - 1):  # a hole may be smaller than the granule of the chunks beside it
                    seen = _answer(driver, layout.address(label) + at, asked)
                    subject = f"{label} at {at:#x}"
                    yield _WELL if seen == _UNMAPPED else Finding("hole", subject, "nothing mapped", seen, run.path)
            if placements:
                *_, (placement, _, offset, grants) = mappings(placements, access_of)
                yield from _end(driver, layout, placement, label, offset, grants)


def _holes(size: int, placements: Sequence[Placement]) -> Iterator[tuple[int, int]]:
    at = 0
    for placement in sorted(placements, key=lambda each: each.offset):
        if placement.offset > at:
            yield at, placement.offset
        at = max(at, placement.end)
    if at < size:
        yield at, size


def _answer(driver: Driver, address: int, asked: Location) -> str:
    try:
        return f"something mapped, access {driver.mem_get_access(address, asked)}"
    except DriverError as error:
        if error.name != _UNMAPPED:
            raise
        return _UNMAPPED


def _end(
    driver: Driver, layout: Layout, placement: Placement, label: str, offset: int, grants: tuple[Grant, ...]
) -> Iterator[Finding]:
    """Where the last mapping of a range ends: fact 15 has it that the driver lets one run past the range's own end."""
    able = [grant.location.id for grant in grants if grant.location.kind is LocationKind.GPU and grant.access]
    if not able or any(place.kind is not LocationKind.GPU for place in placement.chunk.places):
        return  # of host memory the driver was seen to tell more than the one mapping
    base = layout.address(label)
    address = base + offset
    try:
        with current(driver, layout.contexts[able[0]]):
            start, length = driver.mem_get_address_range(address)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_FOUND":
            raise
        return  # access that is missing hides it (fact 22), and is told elsewhere
    seen = f"from {start - base:#x} to {start + length - base:#x}"
    wanted = f"from {offset:#x} to {offset + placement.chunk.size:#x}"
    yield Finding("end of range", f"the last mapping in {label}", wanted, seen, placement.path)
