"""Steps of buffers and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, EventFlags, Location, gpu
from memtopo.kinds.layout import Layout, LayoutTable, current
from memtopo.kinds.objects import Alias, GpuObjectStep, ImportStep, TryExportIpc
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    Readable,
    StepDescription,
    Undoing,
)

EVENT_HANDLES = LayoutTable[str, int]()


class BufferStep(GpuObjectStep, frozen=True):
    """Base of steps that create, open or map a buffer of `size` bytes, outside of ranges."""

    noun = "buffer"
    table = "buffers"
    addressed = True
    leaks_as = "buffer"
    aspect: ClassVar = "buffer"
    """Aspect of the finding that compares its address and size."""

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare address and size with what the driver reports in the context of the GPU."""
        address = layout.buffers[self.label].address
        observed: object = f"no memory that gpu{self.device} can access"
        with current(driver, layout.contexts[self.device]):
            try:
                base, size = driver.mem_get_address_range(address)
                observed = hex(base), size
            except DriverError as error:
                if error.name != "CUDA_ERROR_NOT_FOUND":
                    raise
        yield Finding(self.aspect, self.label, (hex(address), self.size), observed, self.path)

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


class AllocateBuffer(BufferStep, frozen=True):
    """Allocate `size` bytes of GPU memory (fact 45)."""

    phase = Phase.CREATE
    verb = "allocate"
    call = "cuMemAlloc"
    passes = ("size",)
    undoing = Undoing("cuMemFree", "free")

    @property
    def allocates(self) -> tuple[Location, int]:
        return gpu(self.device), self.size

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, (self.device,))

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size)


class OpenBuffer(BufferStep, ImportStep, frozen=True):
    """Open the handle of a buffer, with lazy peer access; each open requires a close (fact 46)."""

    source: HandleReference

    verb = "open buffer"
    note = "ipc"
    call = "cuIpcOpenMemHandle"
    undoing = Undoing("cuIpcCloseMemHandle", "close")
    ended_in_context = True
    leaks_as = "opened buffer"
    hints: ClassVar = {
        "INVALID_CONTEXT": ErrorHint(
            "a handle cannot be opened in the process that created it (fact 31)", "import it in another process"
        ),
        "INVALID_HANDLE": ErrorHint(
            "the exporter has ended (fact 46), or runs in another pid namespace",
            "keep it alive while its memory is used; containers must share a pid namespace (--pid)",
        ),
        "INVALID_VALUE": ErrorHint("the exporter has freed the memory (fact 46)", "keep it allocated while it is used"),
    }


class AliasBuffer(Alias, frozen=True):
    """Use a buffer of this process as one that it imports from itself."""

    opens = OpenBuffer

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        return AllocateBuffer(self.path, self.label, self.device, self.size).check(driver, layout)


class TryExportBuffer(TryExportIpc, frozen=True):
    """Request a handle of a buffer as a test."""

    creates = AllocateBuffer
    verb = "export buffer"
    call = "cuIpcGetMemHandle"


class EventStep(GpuObjectStep, frozen=True):
    """Base of steps that create or open an event of a GPU, which has no size."""

    noun = "event"
    table = EVENT_HANDLES
    leaks_as = "event"
    undoing = Undoing("cuEventDestroy", "destroy")


class CreateEvent(EventStep, frozen=True):
    """Create an event without timing; with `shared` it can be exported, which requires a flag at creation (fact 32)."""

    shared: bool

    phase = Phase.CREATE
    verb = "create event"
    call = "cuEventCreate"

    def arguments(self, layout: Layout) -> tuple[EventFlags]:
        sharing = EventFlags.INTERPROCESS if self.shared else EventFlags(0)
        return (EventFlags.DISABLE_TIMING | sharing,)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the state: an event is complete before its first recording (fact 47)."""
        state = "complete" if driver.event_query(layout.of(EVENT_HANDLES)[self.label]) else "not ready"
        yield Finding("event", self.label, "complete", state, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", note="interprocess" if self.shared else "")


class OpenEvent(EventStep, ImportStep, frozen=True):
    """Open the handle of an event, which is destroyed like an event of this process (fact 47)."""

    source: HandleReference

    verb = "open event"
    note = "ipc"
    call = "cuIpcOpenEventHandle"
    leaks_as = "opened event"
    hints: ClassVar = {
        "MAP_FAILED": ErrorHint(
            "the received object is not an event (fact 47), or its exporter runs in another pid namespace",
            "check the object that the exporter sends; containers must share a pid namespace (--pid)",
        )
    }

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        state = "open" if self.label in layout.of(EVENT_HANDLES) else "gone"
        yield Finding("event", self.label, "open", state, self.path)


class AliasEvent(Alias, frozen=True):
    """Use an event of this process as one that it imports from itself."""

    opens = OpenEvent

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        return CreateEvent(self.path, self.label, self.device, self.size, shared=True).check(driver, layout)


class TryExportEvent(TryExportIpc, frozen=True):
    """Request the handle of an event as a test."""

    creates = CreateEvent
    verb = "export event"
    call = "cuIpcGetEventHandle"
    hints: ClassVar = {
        "INVALID_HANDLE": ErrorHint("the event was created for one process (facts 32, 47)", DEFECT_ADVICE)
    }
