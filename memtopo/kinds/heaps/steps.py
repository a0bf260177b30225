"""Steps of heaps: the table of allocations, the memory behind them, and the copies of a change of state."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar, NamedTuple, cast

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.common.mapped_files import ANONYMOUS, READ_WRITE, map_memory, unmap
from memtopo.common.units import rounded
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, EventFlags, Grant, HostFlags, Properties
from memtopo.kinds.elastic import HEAPS, AccessPiece, ElasticChunk, ElasticContent
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import LateError, Layout, current
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.states.folders import read_from_folder, write_to_folder
from memtopo.kinds.states.groups import HeapOffload
from memtopo.kinds.states.steps import COPIES, AwaitCopy, KeptBytes, await_copy
from memtopo.kinds.step import ErrorHint, Finding, InChange, Phase, Reading, Step, StepDescription, Undoing
from memtopo.kinds.transfers import Span, SpanMemory
from memtopo.native.heaps import Budget, NativeHeap, Unmapped
from memtopo.native.tables import Allocation, AllocationTable
from memtopo.storage.pieces import LockedFolder

_NOUN = "heap"
_GROWING = "page-locked memory"
_FLAGS = HostFlags.PORTABLE | HostFlags.DEVICEMAP


class Backup(NamedTuple):
    """Host memory that keeps the bytes of an allocation: page-locked, or pageable memory of the process."""

    address: int
    size: int
    pageable: bool = False


class HeapContent(Struct, eq=False):
    """Allocations of one heap, in the addresses of its range.

    `backups` has host memory by the number of the allocation whose bytes it keeps, or kept last, and `kept` the
    addresses of the bytes that come back with the memory. `events` follow the copies of a sleep. A heap is `asleep`
    from the program's own request for that to its end, whatever the state of the layout, and `present` in states that
    give it memory. `held` is the number of bytes that it gave back and that others keep in use, until that is reported.
    `broken` is the reason why the heap can only be taken down.
    """

    step: KeepHeap
    base: int
    native: NativeHeap
    budget: Budget
    backups: dict[int, Backup] = {}
    kept: dict[int, int] = {}
    events: list[int] = []
    saved: LockedFolder | None = None
    """Folder that keeps the bytes while the heap is asleep."""
    asleep: bool = False
    present: bool = False
    held: int = 0
    broken: str | None = None

    def content(self) -> ElasticContent:
        """Return the allocations that have memory now, as chunks in the range of the heap."""
        label, size, step = self.step.label, self.step.size, self.step
        piece = AccessPiece(0, size, step.grants, (), step.expected, ())
        found = ElasticContent(label, self.base, size, (label,), (piece,))
        for each in self.native.allocations():
            if each.mapped:
                chunk = ElasticChunk(f"{label}.{each.number}", each.size, each.number, label)
                found.at[each.address - self.base] = chunk
        found.rebuild()
        return found

    def empty(self) -> None:
        """Release all memory, and keep the addresses of the allocations. Raises `DriverError` with the heap open."""
        self.native.close()
        try:
            self.held = self.native.unmap()
        except DriverError as error:
            if isinstance(error, Unmapped):
                self.broken = f"{error}, after which {error.number:,} allocations have no memory"
            if not self.asleep:
                self.native.open()
            raise

    def leave_folder(self) -> None:
        """Let others use the folder that kept the bytes."""
        if self.saved:
            self.saved.lock.close()
            self.saved = None


def heaps(layout: Layout) -> dict[str, HeapContent]:
    """Heaps of a layout by label."""
    return cast("dict[str, HeapContent]", layout.of(HEAPS))


class KeepHeap(Step, frozen=True):
    """Keep the table of a heap, empty at first. The heaps of one `budget` may allocate `limit` bytes together."""

    label: str
    size: int
    granule: int
    properties: Properties
    grants: tuple[Grant, ...]
    expected: tuple[Grant, ...]
    device: int
    budget: str
    limit: int | None

    phase = Phase.CREATE
    verb = "keep heap"
    call = "cuMemCreate"
    leaks_as = "memory of heap"
    provided = _NOUN, "label"
    calls = 0
    required: ClassVar = {"range": "label", "context": "device"}

    @property
    def effect(self) -> Hashable:
        """Heap without its limit, which can change while its memory stays."""
        return self.verb, self.label, self.size, self.granule, self.properties, self.grants, self.device, self.budget

    def do(self, driver: Driver, layout: Layout) -> None:
        base, size = layout.ranges[self.label]
        sharing = (each.budget for each in heaps(layout).values() if each.budget.name == self.budget)
        budget = next(sharing, None) or Budget(self.budget, self.limit)
        context = layout.contexts[self.device]
        table = AllocationTable.create(layout.name, self.label, size // self.granule)
        native = NativeHeap(driver, table, (base, size), self.granule, self.properties, self.grants, context, budget)
        layout.of(HEAPS)[self.label] = HeapContent(self, base, native, budget)

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Free the memory of all allocations, and of their backups."""
        if content := heaps(layout).get(self.label):
            error = content.native.end()
            content.leave_folder()
            if content.backups or content.events:
                with current(driver, layout.contexts[self.device]):
                    release_backups(driver, content, [*content.backups])
                    while content.events:
                        driver.event_destroy(content.events[-1])
                        content.events.pop()
            del layout.of(HEAPS)[self.label]
            if error:
                raise LateError(error)

    def describe(self) -> StepDescription:
        limit = f"up to {rounded(self.limit)}" if self.limit else ""
        return StepDescription(self.label, str(self.properties.location), note=limit)

    def blocks(self) -> tuple[str, ...]:
        return (ReserveRange.leak(self.label),)


class LimitHeap(Step, frozen=True):
    """Change the limit of a heap, and of the heaps that share it. More may be allocated already: that stays."""

    label: str
    limit: int | None

    phase = Phase.CREATE
    verb = "limit"
    call = "cuMemCreate"
    calls = 0
    effect = None  # the limit belongs to the heap

    def do(self, driver: Driver, layout: Layout) -> None:
        heaps(layout)[self.label].budget.set_limit(self.limit)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, "", note=f"up to {rounded(self.limit)}" if self.limit else "")


class OpenHeap(Step, frozen=True):
    """Let a program allocate in a heap. In a state without this step, its allocations have addresses and no memory."""

    label: str
    where: str

    phase = Phase.MAP
    verb = "open"
    call = "cuMemMap"
    undoing = Undoing("cuMemUnmap", "empty")
    provided = "elastic range", "label"
    calls = 0
    required: ClassVar = {_NOUN: "label"}
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "{where} has less free memory than the allocations of the heap had", "free some of it, and try again"
        )
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        content = heaps(layout)[self.label]
        if not content.asleep:
            content.native.map()
            content.native.open()
        content.present = True

    def undo(self, driver: Driver, layout: Layout) -> None:
        content = heaps(layout).get(self.label)
        if content is None:
            return
        if layout.ending:
            content.native.close()  # the memory ends with the table
            return
        content.empty()
        content.present = False

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        content = heaps(layout)[self.label]
        if content.broken:
            yield Finding("heap", self.label, "its memory", content.broken, self.path)
        for each in content.native.allocations():
            if each.mapped:
                subject = f"{self.label}.{each.number}"
                try:
                    for location, access in content.step.expected:
                        seen = Access(driver.mem_get_access(each.address, location)).word
                        yield Finding("access", f"{subject} for {location}", access.word, seen, self.path)
                except DriverError:  # the program may have freed it meanwhile
                    if each in content.native.allocations():
                        raise

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.where)


class OffloadedHeap(KeptBytes, frozen=True):
    """Bytes of all allocations of a heap, in its backup, in the pinned memory `inside`, or in a folder."""

    label: str
    inside: str | None
    room: int
    keeper: Hashable
    folder: str

    @property
    def keeps(self) -> Hashable:
        return ("elastic range", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return self.keeper, (_NOUN, self.label)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.inside or self.folder or _GROWING)


def offloaded_heap(offload: HeapOffload) -> OffloadedHeap:
    """Step that keeps the bytes of a heap in a state."""
    path, heap, folder, inside = offload.path, offload.heap, offload.folder, offload.inside
    if folder:
        return OffloadedHeap(path, heap, None, 0, ("folder", folder), folder)
    if inside:
        return OffloadedHeap(path, heap, inside.name, inside.size, (inside.noun, inside.name), folder)
    return OffloadedHeap(path, heap, None, 0, (_NOUN, heap), folder)


class NoRoom(MemtopoError):
    """Bytes that the memory for them cannot keep; no byte was moved."""


class _HeapCopy(Step, frozen=True):
    """Copies of all allocations of a heap by its GPU."""

    label: str
    device: int
    inside: str | None
    folder: str

    call = "cuMemcpyAsync"
    effect = None  # a copy leaves no resource

    @property
    def where(self) -> str:
        """Name of what keeps the bytes."""
        return self.inside or self.folder or _GROWING

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.where, 0, (self.verb, self.where))


class CopyOutHeap(_HeapCopy, frozen=True):
    """Copy all allocations to their backup, before their memory is released; nothing can be allocated from then on."""

    room: int

    phase = Phase.SETTLE
    verb = "copy out"
    leaks_as = "event of the copy of"

    @property
    def reading(self) -> Reading:
        wait = None if self.folder else AwaitCopy(self.path, self.label, self.where, self.device)
        return Reading((("elastic range", self.label),), wait)

    def do(self, driver: Driver, layout: Layout) -> None:
        content = heaps(layout)[self.label]
        if content.asleep:
            return  # its bytes are kept already
        content.native.close()
        try:
            if self.folder:
                write_to_folder(driver, layout, self.folder, heap_memory(driver, layout, content))
            else:
                with current(driver, layout.contexts[self.device]):
                    allocations = content.native.allocations()
                    places = self._places(driver, layout, content, allocations)
                    event = layout.of(COPIES)[self.label] = driver.event_create(EventFlags.DISABLE_TIMING)
                    for each in allocations:
                        driver.memcpy_async(places[each.number], each.address, each.size)
                    driver.event_record(event)
                content.kept = places
        except BaseException:
            await_copy(driver, layout, self.label, self.device)
            content.native.open()
            raise

    def _places(
        self, driver: Driver, layout: Layout, content: HeapContent, allocations: list[Allocation]
    ) -> dict[int, int]:
        """Address of the backup of each allocation, by its number. Raises `NoRoom` and `DriverError`."""
        if self.inside is None:
            return grow_backups(driver, content, allocations)
        address, places = layout.memory[self.inside].address, {}
        needed = sum(each.size for each in allocations)
        if needed > self.room:
            message = (
                f"heap {self.label!r} has {rounded(needed)} allocated, and {self.inside!r} keeps {rounded(self.room)}"
            )
            raise NoRoom(message, hint="offload it without naming an entry, or declare more memory there")
        for each in allocations:
            places[each.number] = address
            address += each.size
        return places

    def undo(self, driver: Driver, layout: Layout) -> None:
        await_copy(driver, layout, self.label, self.device)
        if (content := heaps(layout).get(self.label)) and not content.asleep:
            content.native.open()


class CopyInHeap(_HeapCopy, frozen=True):
    """Copy the bytes back, after all allocations have memory with access."""

    phase = Phase.GRANT
    verb = "copy in"
    in_change = InChange(runs_on=True)

    def do(self, driver: Driver, layout: Layout) -> None:
        content = heaps(layout)[self.label]
        if self.folder:
            read_from_folder(driver, layout, self.folder, heap_memory(driver, layout, content))
            return
        with current(driver, layout.contexts[self.device]):
            for each in content.native.allocations():
                if each.mapped and self._has_kept(layout, content, each):
                    driver.memcpy_async(each.address, content.kept[each.number], each.size)

    def _has_kept(self, layout: Layout, content: HeapContent, allocation: Allocation) -> bool:
        """Return whether the place of its bytes exists: a state that drops them does not forget it."""
        place = content.kept.get(allocation.number)
        if place is None or self.inside is None:
            backup = content.backups.get(allocation.number)
            return backup is not None and backup.address == place
        area = layout.memory[self.inside]
        begins_there = min(content.kept.values()) == area.address
        return begins_there and place + allocation.size <= area.address + area.size


def heap_memory(driver: Driver, layout: Layout, content: HeapContent) -> SpanMemory:
    """Allocations of a heap that have memory, as pieces by number."""
    label, device = content.step.label, content.step.device
    allocations = (each for each in content.native.allocations() if each.mapped)
    spans = {f"{label}.{each.number}": Span(each.address, each.size, device) for each in allocations}
    return SpanMemory(driver, layout, spans)


def grow_backups(
    driver: Driver, content: HeapContent, allocations: list[Allocation], *, pageable: bool = False
) -> dict[int, int]:
    """Allocate backups for allocations that have none, and free those of other ones; return the addresses by number.

    Raises `DriverError` and `OSError` with what was allocated so far kept for the next time. Needs a current context.
    """
    numbers = {each.number for each in allocations}
    others = (number for number, each in content.backups.items() if number not in numbers or each.pageable != pageable)
    release_backups(driver, content, [*others])
    try:
        for each in allocations:
            if each.number not in content.backups:
                size = each.size
                own = map_memory(None, size, READ_WRITE, ANONYMOUS) if pageable else driver.mem_host_alloc(size, _FLAGS)
                content.backups[each.number] = Backup(own, size, pageable)
    finally:
        _note_backups(content)
    return {each.number: content.backups[each.number].address for each in allocations}


def release_backups(driver: Driver, content: HeapContent, numbers: list[int]) -> None:
    """Free the backups of some allocations; raises the first error after all were tried. Needs a current context."""
    errors: list[DriverError | OSError] = []
    for number in numbers:
        address, size, pageable = content.backups[number]
        try:
            unmap(address, size) if pageable else driver.mem_free_host(address)
            del content.backups[number]
        except (DriverError, OSError) as error:
            errors.append(error)
    _note_backups(content)
    if errors:
        raise errors[0]


def _note_backups(content: HeapContent) -> None:
    """Note the size of all backups in the table of the heap, where the holder reads it."""
    content.native.note_backed(sum(each.size for each in content.backups.values()))


def heap_copies(difference: StepDifference) -> Iterator[Step]:
    """Copies of heaps whose memory a change takes or gives back, and limits that it changes."""
    before, kept, after = difference
    opened = [{step.label for step in steps.values() if isinstance(step, OpenHeap)} for steps in (before, after)]
    devices = {step.label: step.device for step in (*before.values(), *after.values()) if isinstance(step, KeepHeap)}
    for effect, step in after.items():
        old = kept.get(effect)
        if isinstance(step, KeepHeap) and isinstance(old, KeepHeap) and old.limit != step.limit:
            yield LimitHeap(step.path, step.label, step.limit)
        if isinstance(step, OffloadedHeap) and step.label in opened[0] and step.label not in opened[1]:
            yield CopyOutHeap(step.path, step.label, devices[step.label], step.inside, step.folder, step.room)
    for step in before.values():
        if isinstance(step, OffloadedHeap) and step.label in opened[1] and step.label not in opened[0]:
            yield CopyInHeap(step.path, step.label, devices[step.label], step.inside, step.folder)
