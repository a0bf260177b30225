"""Steps of mappings, and of the access to them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from typing import ClassVar, TypeVar

from msgspec.structs import replace

from memtopo.common.errors import InternalError
from memtopo.common.signals import deferred
from memtopo.common.text import numbered
from memtopo.driver.protocol import Driver
from memtopo.driver.types import WHOLE_HOST, Access, DriverError, Grant, LocationKind
from memtopo.driver.wrappers import call_each
from memtopo.geometry.model import Placement
from memtopo.kinds.chunks.steps import RETAINED
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.runs import Progressed, StepRun
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    PROBE_ADVICE,
    ErrorHint,
    Finding,
    Phase,
    Readable,
    Step,
    StepDescription,
    Undoing,
    first_difference,
)

T = TypeVar("T")

LONGEST_RUN = 128 << 20
"""Maximum bytes of one call that copies or unmaps adjacent chunks: memory is released while the next copy runs."""

_UNMAPPED = "CUDA_ERROR_INVALID_VALUE"

_MAPPED, _EQUAL = Finding.equal("mapped chunk"), Finding.equal("access")
"""Findings without a difference: there is one for each mapping, and one for each GPU of it. Differences have a text."""


class MapChunk(Step, frozen=True):
    """Map `chunk` at `offset` of `range`. `access` is the access of each location of the machine after all grants."""

    range: str
    offset: int
    chunk: str
    size: int
    access: tuple[Grant, ...]

    phase = Phase.MAP
    verb = "map"
    call = "cuMemMap"
    undoing = Undoing("cuMemUnmap", "unmap")
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "only a whole chunk can be mapped: an imported one is not of the size that was declared (facts 13, 28)",
            "declare the size that the exporter created it with",
        ),
        "INVALID_VALUE": ErrorHint(
            "something is mapped there already, perhaps past the end of the range before it (facts 14, 15)",
            "check whether other code in this process maps memory",
        ),
    }
    required: ClassVar = {"range": "range", "chunk": "chunk"}

    @property
    def effect(self) -> Hashable:
        """Mapping without its access, which can change while the mapping stays."""
        return self.verb, self.range, self.offset, self.chunk, self.size

    @property
    def readable(self) -> Readable:
        gpus = {at.id: access for at, access in self.access if at.kind is LocationKind.GPU and access & Access.R}
        read_only = tuple(each for each, access in gpus.items() if access is not Access.RW)
        return Readable(("chunk", self.chunk), self.range, self.offset, self.size, tuple(gpus), read_only)

    @property
    def position(self) -> tuple[str, int]:
        return self.range, self.offset

    def do(self, driver: Driver, layout: Layout) -> None:
        base, available = layout.ranges[self.range]
        offset, size, chunk = self.offset, self.size, self.chunk
        if offset + size > available:
            # The driver would map it into the next reservation (fact 15).
            raise InternalError(f"{chunk} at {offset:#x} runs past the end of {self.range}")
        address = base + offset
        driver.mem_map(address, size, layout.chunks[chunk])
        layout.mappings[address] = chunk

    def undo(self, driver: Driver, layout: Layout) -> None:
        reservation = layout.ranges.get(self.range)
        if reservation and (address := reservation.address + self.offset) in layout.mappings:
            driver.mem_unmap(address, self.size)
            del layout.mappings[address]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.ranges[self.range].address + self.offset
        handle, expected = self._mapped_handle(driver, layout, address), layout.chunks[self.chunk]
        if handle == expected:
            yield _MAPPED
        else:
            yield Finding("mapped chunk", self._subject, expected, handle or "nothing mapped", self.path)
        if not handle:
            return
        for location, access in self.access:
            observed = driver.mem_get_access(address, location)
            if observed == access:
                yield _EQUAL
            else:
                subject = f"{self._subject} for {location}"
                yield Finding("access", subject, access.word, Access(observed).word, self.path)

    @property
    def _subject(self) -> str:
        return f"{self.chunk} in {self.range} at {self.offset:#x}"

    def _mapped_handle(self, driver: Driver, layout: Layout, address: int) -> int | None:
        """Handle of the chunk mapped at an address; None if nothing is mapped there."""
        if self.chunk in layout.of(RETAINED):  # by a check whose release failed
            self._release_retained(driver, layout)
        try:
            handle = layout.of(RETAINED)[self.chunk] = driver.mem_retain_allocation_handle(address)
        except DriverError as error:
            if error.name != _UNMAPPED:
                raise
            return None
        self._release_retained(driver, layout)
        return handle

    def _release_retained(self, driver: Driver, layout: Layout) -> None:
        driver.mem_release(layout.of(RETAINED)[self.chunk])
        del layout.of(RETAINED)[self.chunk]

    def describe(self) -> StepDescription:
        group, _ = numbered(self.range)
        return StepDescription(self.chunk, group, self.size, group)

    def leak_name(self) -> str:
        return f"mapping of {self._subject}"

    def blocks(self) -> tuple[str, ...]:
        return (ReserveRange.leak(self.range),)


class MapChunks(StepRun, frozen=True):
    """Mappings of one placement. `access` is that of each chunk of the group in turn, or of all."""

    step_class: type[MapChunk]
    placement: Placement
    access: tuple[tuple[Grant, ...], ...]

    @property
    def _range(self) -> str:
        return self.placement.range.label(self.placement.instance)

    @property
    def _chunks(self) -> list[str]:
        return self.placement.chunk.labels(self.placement.chunks(self.indices))

    def step(self, index: int) -> MapChunk:
        placement, size = self.placement, self.placement.chunk.size
        number, offset = placement.index(index), placement.offset + index * size
        access = self.access[number % len(self.access)]
        return self.step_class(placement.path, self._range, offset, placement.chunk.label(number), size, access)

    def _addresses(self, base: int) -> list[int]:
        first, size = base + self.placement.offset, self.placement.chunk.size
        return [first + number * size for number in self.indices]

    def do(self, driver: Driver, layout: Layout) -> Progressed:
        base, available = layout.ranges[self._range]
        chunks, size = self._chunks, self.placement.chunk.size
        addresses = self._addresses(base)
        if max(addresses) + size > base + available:
            return super().do(driver, layout)
        handles = [layout.chunks[chunk] for chunk in chunks]
        with deferred():
            made, error = call_each(driver, "mem_map", [*zip(addresses, repeat(size), handles)])
            layout.mappings.update(zip(addresses[: len(made)], chunks, strict=False))
        return Progressed(len(made), error)

    def undo(self, driver: Driver, layout: Layout) -> Progressed:
        reservation, mapped = layout.ranges.get(self._range), layout.mappings
        addresses = self._addresses(reservation.address) if reservation else []
        if not addresses or not mapped.keys() >= set(addresses):
            return super().undo(driver, layout)
        with deferred():
            unmapped, error = call_each(driver, "mem_unmap", [*zip(addresses, repeat(self.placement.chunk.size))])
            for address in addresses[: len(unmapped)]:
                del mapped[address]
        return Progressed(len(unmapped), error)

    def check(self, driver: Driver, layout: Layout) -> Progressed:
        chunks = self._chunks
        if not self.placement.step or not layout.of(RETAINED).keys().isdisjoint(chunks):  # a chunk is retained once
            return Progressed(0)
        addresses = self._addresses(layout.address(self._range))
        number, error = _as_mapped(chunks, addresses, driver, layout)
        indices = self.placement.chunks(self.indices[:number])
        access_of = [self.access[index % len(self.access)] for index in indices]
        queried = [(at, grant.location) for at, grants in zip(addresses, access_of, strict=False) for grant in grants]
        seen, refused = call_each(driver, "mem_get_access", queried)
        expected = [grant.access for grants in access_of for grant in grants]
        access = first_difference(expected, seen)
        if access < len(expected):
            error = refused if access == len(seen) else None
            number = bisect_right(list(accumulate(map(len, access_of))), access)
            access = sum(map(len, access_of[:number]))
        counts = {"mapped chunk": number, "access": access}
        return Progressed(number, error, [Finding.equal(aspect, count) for aspect, count in counts.items() if count])


def _as_mapped(
    chunks: Sequence[str], addresses: Sequence[int], driver: Driver, layout: Layout
) -> tuple[int, Exception | None]:
    """Number of the first mappings that are of their chunks, and the error of the next, if it is no finding."""
    retained = layout.of(RETAINED)
    with deferred():
        handles, unknown = call_each(driver, "mem_retain_allocation_handle", [*zip(addresses)])
        retained.update(zip(chunks, handles, strict=False))
        number = first_difference([layout.chunks[chunk] for chunk in chunks[: len(handles)]], handles)
        released, refused = call_each(driver, "mem_release", [*zip(handles)])
        for chunk in chunks[: len(released)]:
            del retained[chunk]
        if refused:
            return (len(released), refused) if len(released) <= number else (number, None)
    nothing_mapped = isinstance(unknown, DriverError) and unknown.name == _UNMAPPED
    return number, None if nothing_mapped or number < len(handles) else unknown


class UnmapChunks(Step, frozen=True):
    """Unmap adjacent mappings of a range by one call: it takes the driver as long as a call for each."""

    mappings: tuple[MapChunk, ...]

    phase = Phase.MAP
    verb = "map"
    call = "cuMemMap"
    undoing = Undoing("cuMemUnmap")
    effect = None  # it is only undone, in place of its mappings

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return ("range", self.mappings[0].range), *(("chunk", each.chunk) for each in self.mappings)

    def undo(self, driver: Driver, layout: Layout) -> None:
        first = self.mappings[0]
        if first.range not in layout.ranges:
            return
        base, mapped = layout.ranges[first.range].address, layout.mappings
        addresses = [base + each.offset for each in self.mappings]
        if not mapped.keys() >= set(addresses):
            for each in reversed(self.mappings):
                each.undo(driver, layout)
            return
        driver.mem_unmap(addresses[0], sum(each.size for each in self.mappings))
        for address in addresses:
            del mapped[address]

    def describe(self) -> StepDescription:
        first, last = self.mappings[0], self.mappings[-1]
        return replace(first.describe(), subject=f"{first.chunk} to {last.chunk}")


def runs(items: Iterable[T], joins: Callable[[Sequence[T], T], bool]) -> Iterator[list[T]]:
    """Divide items, in order, before each one that does not join the run before it."""
    run: list[T] = []
    for item in items:
        if run and not joins(run, item):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def joined(undo: Sequence[Step]) -> Iterator[Step]:
    """Steps to undo, with adjacent mappings, of which the last is undone first, as one step."""
    for run in runs(undo, _unmapped_together):
        mappings = tuple(each for each in reversed(run) if isinstance(each, MapChunk))
        yield UnmapChunks(run[-1].path, mappings) if len(run) > 1 else run[0]


def _unmapped_together(run: Sequence[Step], step: Step) -> bool:
    first, last = run[0], run[-1]
    if type(first) is not MapChunk or type(last) is not MapChunk or type(step) is not MapChunk:
        return False
    adjacent = step.range == last.range and step.offset + step.size == last.offset
    return adjacent and first.offset + first.size - step.offset <= LONGEST_RUN


def parts_of(step: Step) -> tuple[Step, ...]:
    """Steps of a plan that an undone step stands for: `joined` ones, or the step itself."""
    return step.mappings if isinstance(step, UnmapChunks) else (step,)


SHORT_GRANT = 128
SHORT_GRANT_BYTES = 256 << 20
"""Maximum number and bytes of the mappings of one call in a change, so that bytes return while the next mappings get
access. A single mapping may be larger."""


class SetAccess(Step, frozen=True):
    """Grant access to whole mappings without holes between them (facts 20, 63). `MapChunk` checks the result.

    A refused call has made the grants that stand before the refused one (fact 62). There is nothing to undo in either
    case: unmapping ends the access, and revoking it would take 24 µs per chunk.
    """

    range: str
    offset: int
    size: int
    grants: tuple[Grant, ...]

    phase = Phase.GRANT
    verb = "grant"
    call = "cuMemSetAccess"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "one of the devices cannot access the other's memory (fact 20)",
            f"grant access only to peers; {PROBE_ADVICE}",
        ),
        "ALREADY_MAPPED": ErrorHint(
            "a mapping runs past its range, into memory that the context uses (fact 15)", DEFECT_ADVICE
        ),
        "INVALID_VALUE": ErrorHint("access is set for whole mappings without a hole (fact 20)", DEFECT_ADVICE),
    }
    required: ClassVar = {"range": "range"}
    effect = None  # access belongs to mappings

    @property
    def position(self) -> tuple[str, int]:
        """End of its last mapping, so that it follows all of them."""
        return self.range, self.offset + self.size - 1

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.mem_set_access(layout.ranges[self.range].address + self.offset, self.size, self.grants)

    def describe(self) -> StepDescription:
        group, _ = numbered(self.range)
        granted = ", ".join(f"{grant.location} {grant.access.word}" for grant in self.grants)
        return StepDescription(self.range, granted, 0, (group, self.grants))


_Change = tuple[MapChunk, tuple[Grant, ...]]
"""Mapping, and the grants by which its access changes."""


def access_changes(
    difference: StepDifference, mapping: type[MapChunk] = MapChunk, grant: type[SetAccess] = SetAccess
) -> Iterator[SetAccess]:
    """Grants for new mappings, and different grants for kept ones; adjacent mappings with equal grants share one.

    `mapping` and `grant` are the classes of the steps.
    """
    steps = ((step, difference.kept.get(effect)) for effect, step in difference.after.items() if type(step) is mapping)
    changed = (
        (step, grants) for step, old in steps if old is not step and (grants := _changed(_access(old), step.access))
    )
    for run in runs(changed, _granted_together):
        (first, grants), (last, _) = run[0], run[-1]
        yield grant(first.path, first.range, first.offset, last.offset + last.size - first.offset, grants)


def _granted_together(run: Sequence[_Change], change: _Change) -> bool:
    (first, grants), (last, _), (step, own) = run[0], run[-1], change
    adjacent = (step.range, step.offset) == (last.range, last.offset + last.size) and own == grants
    return adjacent and len(run) < SHORT_GRANT and step.offset + step.size - first.offset <= SHORT_GRANT_BYTES


def _access(step: Step | None) -> tuple[Grant, ...]:
    return step.access if isinstance(step, MapChunk) else ()


@lru_cache(maxsize=1024)
def _changed(old: tuple[Grant, ...], new: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Grants by which one access becomes another."""
    before, after = dict(old), dict(new)
    changed = (
        # The driver has one access for the host and all its NUMA nodes.
        Grant(location if location.kind is LocationKind.GPU else WHOLE_HOST, after.get(location, Access.NONE))
        for location in sorted({*before, *after})
        if before.get(location, Access.NONE) != after.get(location, Access.NONE)
    )
    return tuple(changed)
