"""Isolation: holes and ends of ranges by queries, and accesses that the driver refuses on the real mappings (fact 23).

Refusals leave host memory out: a copy by the CPU without access there would end the process (fact 40). Memory that this
run did not create is left out too, since a refusal that does not come is a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.access import granted, mappings
from memtopo.geometry.groups import RangeGroup
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import Finding
from memtopo.run.verification.verifier import VerificationContext

_UNMAPPED = "CUDA_ERROR_INVALID_VALUE"
_REFUSED = "CUDA_ERROR_INVALID_VALUE"
_EQUAL = Finding("hole", "", "", "")


def isolation(geometry: Geometry, driver: Driver, layout: Layout) -> Iterator[Finding]:
    """Check by queries that holes are unmapped, and where the last mapping of a range ends. Raises `DriverError`."""
    location = gpu(geometry.gpus[0]) if geometry.gpus else Location(LocationKind.HOST_NUMA, 0)
    access_of = granted(geometry)
    for group in geometry.of(RangeGroup).values():
        for instance in range(group.count):
            label = group.label(instance)
            placements = geometry.placements.get((group.name, instance), ())
            for low, high in _holes(group.size, placements):
                for at in (low, high - 1):  # a hole may be smaller than the granule of the chunks beside it
                    observed = _query_unmapped(driver, layout.address(label) + at, location)
                    subject = f"{label} at {at:#x}"
                    equal = observed == _UNMAPPED
                    yield _EQUAL if equal else Finding("hole", subject, "nothing mapped", observed, group.path)
            if placements:
                *_, (placement, _, offset, grants) = mappings(placements, access_of)
                yield from _range_end(driver, layout, placement, label, offset, grants)


def refusals(context: VerificationContext) -> Iterator[Finding]:
    """Check that the driver refuses fills and copies by GPUs without access. Raises what `raise_if_stopped` raises."""
    for device, device_context in context.layout.contexts.items():
        for subject, call, path in _forbidden_calls(context, device):
            context.raise_if_stopped()
            with current(context.driver, device_context):
                observed = _error_name(call)
            yield Finding("refused", f"{subject} by gpu{device}", _REFUSED, observed, path)


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
    if not readers or any(location.kind is not LocationKind.GPU for location in placement.chunk.places):
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


def _forbidden_calls(context: VerificationContext, device: int) -> Iterator[tuple[str, Callable[[], object], Path]]:
    driver = context.driver
    for chunk in context.own_memory:
        if not chunk.ours or chunk.location.kind is not LocationKind.GPU:
            continue
        for label, offset, grants in chunk.views:
            if label not in context.layout.ranges:
                continue
            access = dict(grants).get(gpu(device), Access.NONE)
            address = context.layout.address(label) + offset
            mapping = f"{chunk.name} in {label} at {offset:#x}"
            if access != Access.RW:
                yield f"fill of {mapping}", partial(driver.memset_d8, address, 0, 1), chunk.path
            if not access:
                yield f"copy from {mapping}", partial(driver.memcpy_dtoh, address, 8), chunk.path


def _error_name(call: Callable[[], object]) -> str:
    try:
        call()
    except DriverError as error:
        return error.name
    return "CUDA_SUCCESS"
