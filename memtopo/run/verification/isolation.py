"""Isolation: holes and ends of ranges by queries, and accesses that the driver refuses on the real mappings (fact 23).

Refusals leave host memory out: a copy by the CPU without access there would end the process (fact 40). Memory that this
run did not create is left out too, since a refusal that does not come is a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement
from memtopo.kinds.layout import Layout, current
from memtopo.plans.report import Finding
from memtopo.run.contents import granted, mappings
from memtopo.run.verification.verifier import Scene

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


_REFUSED = "CUDA_ERROR_INVALID_VALUE"


def refusals(scene: Scene) -> Iterator[Finding]:
    """What each GPU of the layout is refused, of what it may not do. Raises what `stop` raises."""
    for device, context in scene.layout.contexts.items():
        for subject, call, path in _forbidden(scene, device):
            scene.stop()
            with current(scene.driver, context):
                seen = _result(call)
            yield Finding("refused", f"{subject} by gpu{device}", _REFUSED, seen, path)


def _forbidden(scene: Scene, device: int) -> Iterator[tuple[str, Callable[[], object], tuple[str | int, ...]]]:
    driver = scene.driver
    for chunk in scene.mine:
        if not chunk.ours or chunk.location.kind is not LocationKind.GPU:
            continue
        for label, offset, grants in chunk.seen_at:
            if label not in scene.layout.ranges:
                continue
            access = dict(grants).get(gpu(device), Access.NONE)
            address = scene.layout.address(label) + offset
            where = f"{chunk.chunk} in {label} at {offset:#x}"
            if access != Access.RW:
                yield f"fill of {where}", partial(driver.memset_d8, address, 0, 1), chunk.path
            if not access:
                yield f"copy from {where}", partial(driver.memcpy_dtoh, address, 8), chunk.path


def _result(call: Callable[[], object]) -> str:
    try:
        call()
    except DriverError as error:
        return error.name
    return "CUDA_SUCCESS"
