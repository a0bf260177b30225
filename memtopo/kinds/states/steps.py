"""Steps of states: the areas of offloaded chunks, and the copies to them and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, EventFlags, Grant, Properties, gpu
from memtopo.geometry.groups import Group
from memtopo.geometry.model import Geometry
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout, LayoutTable, current
from memtopo.kinds.mappings import expected_access
from memtopo.kinds.mappings.steps import LONGEST_RUN, MapChunk, SetAccess, runs
from memtopo.kinds.pinned.steps import PINNED, AllocatePinned
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.states.groups import Window
from memtopo.kinds.step import InChange, Phase, Readable, Reading, Step, StepDescription
from memtopo.machine import Machine


def area_steps(area: Group, pinned: int | None, geometry: Geometry, machine: Machine) -> Iterator[Step]:
    """Steps that create an area, with access of the GPUs that the layout uses.

    Page-locked memory, allocated in the context of the GPU `pinned`, needs no grant.
    """
    if pinned is not None:
        yield AllocatePinned(area.path, area.name, area.size, (pinned,), PINNED)
        return
    grants = tuple(Grant(gpu(ordinal), Access.RW) for ordinal in geometry.gpus)
    expected = expected_access(grants, geometry, machine, with_host=False)
    yield ReserveRange(area.path, area.name, area.size, 0, 0, fixed=False)
    yield CreateChunk(area.path, area.name, area.size, Properties(area.location_of(0)))
    yield MapChunk(area.path, area.name, 0, area.name, area.size, expected)
    yield SetAccess(area.path, area.name, 0, area.size, grants)


def window_steps(window: Window, geometry: Geometry, machine: Machine) -> Iterator[Step]:
    """Steps that map the chunks of a window, with access of its GPU."""
    path, name, each = window.path, window.name, window.size
    grants = (Grant(gpu(window.device), Access.RW),)
    expected = expected_access(grants, geometry, machine, with_host=False)
    size = each * len(window.chunks)
    yield ReserveRange(path, name, size, 0, 0, fixed=False)
    for number, label in enumerate(window.chunks):
        yield MapChunk(path, name, number * each, label, each, expected)
    yield SetAccess(path, name, 0, size, grants)


class Place(Struct, frozen=True):
    """Offset in a range, an area or pinned memory."""

    range: str
    offset: int

    def address(self, layout: Layout) -> int:
        """Address of the place in a layout."""
        return layout.address(self.range) + self.offset

    def after(self, size: int) -> Place:
        """Place that is `size` bytes further."""
        return Place(self.range, self.offset + size)


COPIES = LayoutTable[str, int]()
"""Event of each copy to an offload area that is under way, by the label of its first chunk."""


class KeptBytes(Step, frozen=True):
    """Bytes that a state keeps elsewhere. A change to this state and from it has the steps that copy them."""

    phase = Phase.SETTLE
    verb = "keep"
    call = ""

    def do(self, driver: Driver, layout: Layout) -> None:
        """Nothing."""


class Offloaded(KeptBytes, frozen=True):
    """Bytes of a chunk, `kept` in the memory of a `keeper`; a change to this state and from it copies them.

    The GPU `device` copies them where the chunk is `mapped` in other states. The keeper is the resource of an area or
    of pinned memory.
    """

    chunk: str
    size: int
    kept: Place
    mapped: Place
    device: int
    keeper: Hashable

    @property
    def keeps(self) -> Hashable:
        return ("chunk", self.chunk)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return self.keeper, ("range", self.mapped.range)

    @property
    def readable(self) -> Readable:
        return Readable(self.keeps, self.kept.range, self.kept.offset, self.size, (self.device,))

    def describe(self) -> StepDescription:
        return StepDescription(self.chunk, self.kept.range, self.size)


class _Copy(Step, frozen=True):
    """Copy of the bytes of adjacent chunks by a GPU."""

    chunks: tuple[str, ...]
    size: int
    source: Place
    target: Place
    device: int

    call = "cuMemcpyAsync"
    effect = None  # a copy leaves no resource

    def describe(self) -> StepDescription:
        where = f"{self.source.range} to {self.target.range}"
        return StepDescription(self.chunks[0], where, self.size, (self.verb, where))

    def copy(self, driver: Driver, layout: Layout) -> None:
        """Start the copy in stream 0 of the current context."""
        driver.memcpy_async(self.target.address(layout), self.source.address(layout), self.size)


class CopyOut(_Copy, frozen=True):
    """Copy of chunks to their area, before their memory is released."""

    phase = Phase.SETTLE
    verb = "copy out"
    leaks_as = "event of the copy of"

    @property
    def reading(self) -> Reading:
        chunks = tuple(("chunk", label) for label in self.chunks)
        return Reading(chunks, AwaitCopy(self.path, self.chunks[0], self.target.range, self.device))

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            event = layout.of(COPIES)[self.chunks[0]] = driver.event_create(EventFlags.DISABLE_TIMING)
            self.copy(driver, layout)
            driver.event_record(event)

    def undo(self, driver: Driver, layout: Layout) -> None:
        await_copy(driver, layout, self.chunks[0], self.device)


class AwaitCopy(Step, frozen=True):
    """Wait for a copy to an area, before the memory that it reads is unmapped (fact 18)."""

    chunk: str
    area: str
    device: int

    phase = Phase.SETTLE
    verb = "await copy"
    call = "cuEventSynchronize"
    effect = None  # a wait leaves no resource

    def do(self, driver: Driver, layout: Layout) -> None:
        await_copy(driver, layout, self.chunk, self.device)

    def describe(self) -> StepDescription:
        return StepDescription(self.chunk, self.area)


class CopyIn(_Copy, frozen=True):
    """Copy of chunks from their area, after access is granted."""

    phase = Phase.GRANT
    verb = "copy in"
    in_change = InChange(runs_on=True)

    @property
    def position(self) -> tuple[str, int]:
        return self.target.range, self.target.offset + self.size - 1

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            self.copy(driver, layout)


def await_copy(driver: Driver, layout: Layout, label: str, device: int) -> None:
    """Wait for the copy of a chunk, and destroy its event; no effect if it is not under way."""
    if label in layout.of(COPIES):
        with current(driver, layout.contexts[device]):
            driver.event_synchronize(layout.of(COPIES)[label])
            driver.event_destroy(layout.of(COPIES)[label])
            del layout.of(COPIES)[label]


def copies(difference: StepDifference) -> Iterator[Step]:
    """Copies of the bytes that a change takes from chunks, and of the bytes that it gives back.

    Bytes that another area is to keep are copied from one to the other.
    """
    before, kept, after = difference
    exist, will = _chunks(before.values()), _chunks(after.values())
    coming = {each.chunk: each for each in before.values() if isinstance(each, Offloaded) and each.effect not in kept}
    out: list[_CopiedPart] = []
    for each in after.values():
        if not isinstance(each, Offloaded) or each.effect in kept:
            continue
        if each.chunk in exist:
            out.append(_CopiedPart(each, each.mapped, each.kept))
        elif earlier := coming.get(each.chunk):
            out.append(_CopiedPart(each, earlier.kept, each.kept))
    # In the order of the undo, which begins with the last mapping.
    yield from reversed(list(_joined(CopyOut, out)))
    back = (each for each in coming.values() if each.chunk in will and each.chunk not in exist)
    yield from _joined(CopyIn, (_CopiedPart(each, each.kept, each.mapped) for each in back))


def _chunks(steps: Iterable[Step]) -> set[str]:
    return {step.label for step in steps if isinstance(step, CreateChunk)}


class _CopiedPart(NamedTuple):
    """Bytes of one chunk to copy."""

    of: Offloaded
    source: Place
    target: Place


def _joined(kind: type[_Copy], parts: Iterable[_CopiedPart]) -> Iterator[_Copy]:
    """Copies of parts; adjacent ones are copied as one, unless that would be too long."""
    for run in runs(parts, _copied_together):
        of, source, target = run[0]
        chunks, size = tuple(part.of.chunk for part in run), sum(part.of.size for part in run)
        yield kind(of.path, chunks, size, source, target, of.device)


def _copied_together(run: Sequence[_CopiedPart], part: _CopiedPart) -> bool:
    first, (of, source, target) = run[0], run[-1]
    adjacent = (part.source, part.target, part.of.device) == (source.after(of.size), target.after(of.size), of.device)
    return adjacent and part.source.offset + part.of.size - first.source.offset <= LONGEST_RUN
