"""Isolation of ranges: holes are unmapped, ranges end as declared, and access is what was granted.

Queries find mappings in holes and behind the last mapping. Access is tried by calls of the driver on the real memory
(fact 23): a fill or copy without access is refused with INVALID_VALUE, and the context lives on. Host memory is tried
by fills alone, which a GPU makes: a copy that the CPU makes without access would end the process (fact 40). Memory that
this run did not create is left out, since a fill that is not refused is a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, gpu
from memtopo.geometry import Geometry, Placement
from memtopo.geometry.access import granted
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.elastic import content_of
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.reports import FindingTally
from memtopo.run.verification.verifier import VerificationContext

MAX_HOLE_QUERIES = 1 << 13
"""Number of granules of holes that are queried beside the ends of each hole, at 4 microseconds each."""

_UNMAPPED = "CUDA_ERROR_INVALID_VALUE"
_UNMAPPED_HOLE = Finding.equal("hole")


class Hole(Struct, frozen=True):
    """Offsets `low` to `high` of a range without a mapping."""

    label: str
    low: int
    high: int
    path: Path


class Holes(Struct, frozen=True):
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
    """Holes of all ranges without a zero page, and the smallest granule that may be mapped there."""
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


def check_isolation(findings: FindingTally, geometry: Geometry, driver: Driver, layout: Layout) -> None:
    """Check holes and ends of ranges by queries, and count what is not queried. Raises `DriverError`."""
    unmapped = holes(geometry)
    findings.add(isolation(geometry, unmapped, driver, layout))
    if unmapped.unqueried:
        why = f"of the granules of holes at most {MAX_HOLE_QUERIES:,} are queried, evenly spaced"
        findings.not_checked("hole", unmapped.unqueried, why)


def isolation(geometry: Geometry, unmapped: Holes, driver: Driver, layout: Layout) -> Iterator[Finding]:
    """Check by queries that holes are unmapped, and where the last mapping of a range ends. Raises `DriverError`."""
    location = gpu(geometry.gpus[0]) if geometry.gpus else Location(LocationKind.HOST_NUMA, 0)
    stride = unmapped.stride
    for hole in unmapped.holes:
        base, content = layout.address(hole.label), content_of(layout, hole.label)
        for at in _queries(hole, stride):
            if content and content.taken(at, at + 1, frozenset()):
                continue  # a program has mapped something there
            observed = _query_unmapped(driver, base + at, location)
            if observed == _UNMAPPED:
                yield _UNMAPPED_HOLE
            elif (now := content_of(layout, hole.label)) and now.taken(at, at + 1, frozenset()):
                continue  # another thread has allocated it meanwhile
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


PERMITTED = "permitted"
"""Aspect of the tries of granted access."""

_ACCEPTED, _REFUSED = "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"


class CopyFailed(DriverError):
    """Error of a copy to or from memory that a GPU was granted access to, with a finding if it was refused."""

    def __init__(self, subject: str, path: Path, error: DriverError) -> None:
        super().__init__(error.call, error.name, error.reason)
        self.refusal = [Finding(PERMITTED, subject, _ACCEPTED, error.name, path)] if error.name == _REFUSED else []


class _View(Struct, frozen=True):
    """Memory that this run created, at one of its addresses, and the access of one GPU to it."""

    device: int
    address: int
    size: int
    text: str
    on_host: bool
    access: Access
    path: Path


def permissions(context: VerificationContext, *, host_only: bool) -> Iterator[Finding]:
    """Check that the driver accepts fills, or copies from what a GPU may only read, before anything is written.

    The last byte is tried, so that memory which is too small is found as well. With `host_only` only host memory that
    is mapped is tried, where a copy without access would end the process. Raises what `raise_if_stopped` raises.
    """
    memory = context.own_memory if context.on_host or not host_only else ()
    if host_only:
        memory = [each for each in memory if each.location.kind is not LocationKind.GPU and not each.addressed]
    for view in _views(context, memory):
        last = view.address + view.size - 1
        if view.access is Access.RW:
            yield _tried(context, view, PERMITTED, "fill of", partial(context.driver.memset_d8, last, 0, 1))
        elif view.access and not view.on_host:
            yield _tried(context, view, PERMITTED, "copy from", partial(context.driver.memcpy_dtoh, last, 1))


def refusals(context: VerificationContext) -> Iterator[Finding]:
    """Check that the driver refuses fills and copies by GPUs without access. Raises what `raise_if_stopped` raises."""
    for view in _views(context, context.own_memory, mapped=True):
        if view.access is not Access.RW:
            yield _tried(context, view, "refused", "fill of", partial(context.driver.memset_d8, view.address, 0, 1))
        if not view.access and not view.on_host:
            yield _tried(context, view, "refused", "copy from", partial(context.driver.memcpy_dtoh, view.address, 8))


def _views(context: VerificationContext, memory: Sequence[MappedMemory], *, mapped: bool = False) -> Iterator[_View]:
    """Memory at each of its addresses, for each GPU; with `mapped`, in ranges alone."""
    for device, chunk in product(context.layout.contexts, memory):
        on_host = chunk.location.kind is not LocationKind.GPU
        for label, offset, grants in chunk.views if chunk.ours else ():
            if not mapped or label in context.layout.ranges:
                address = context.layout.address(label) + offset
                access = dict(grants).get(gpu(device), Access.NONE)
                text = f"{chunk.name} in {label} at {offset:#x} by gpu{device}"
                yield _View(device, address, chunk.size, text, on_host, access, chunk.path)


def _tried(context: VerificationContext, view: _View, aspect: str, verb: str, call: Callable[[], object]) -> Finding:
    """Finding for a call that the driver accepts or refuses."""
    context.raise_if_stopped()
    observed = _ACCEPTED
    with current(context.driver, context.layout.contexts[view.device]):
        try:
            call()
        except DriverError as error:
            observed = error.name
    expected = _ACCEPTED if aspect == PERMITTED else _REFUSED
    return Finding(aspect, f"{verb} {view.text}", expected, observed, view.path)
