"""Steps of buffers and events."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, EventFlags, Location, gpu
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.resources import OWN, Alias, ImportStep
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    Readable,
    Step,
    StepDescription,
    handles_tested,
)


@dataclass(frozen=True, slots=True)
class DeviceMemoryStep(Step):
    """Base of steps that create or import `size` bytes of memory of a GPU, outside of ranges."""

    label: str
    size: int
    device: int

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        name = self.leak_name()
        return (name,) if name and device == self.device else ()


@dataclass(frozen=True, slots=True)
class BufferStep(DeviceMemoryStep):
    """Base of steps that create, open or map a buffer, which is freed unless a step undoes it otherwise."""

    aspect: ClassVar = "buffer"
    """Aspect of the finding that compares its address and size."""

    @property
    def provides(self) -> Hashable:
        return ("buffer", self.label)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.buffers:
            driver.mem_free(layout.buffers[self.label].address)
            del layout.buffers[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding(self.aspect, self.label, *self._address_range(driver, layout), self.path)

    def _address_range(self, driver: Driver, layout: Layout) -> tuple[tuple[str, int], tuple[str, int] | str]:
        """Expected address and size, and what the driver reports in the context of the GPU."""
        address = layout.buffers[self.label].address
        with current(driver, layout.contexts[self.device]):
            try:
                base, observed = driver.mem_get_address_range(address)
            except DriverError as error:
                if error.name != "CUDA_ERROR_NOT_FOUND":
                    raise
                return (hex(address), self.size), f"nothing that gpu{self.device} has access to"
        return (hex(address), self.size), (hex(base), observed)


@dataclass(frozen=True, slots=True)
class AllocateBuffer(BufferStep):
    """Allocate `size` bytes of GPU memory (fact 45)."""

    phase = Phase.CREATE
    verb = "allocate"
    undo_verb = "free"
    call = "cuMemAlloc"
    undo_call = "cuMemFree"

    @property
    def allocates(self) -> tuple[Location, int]:
        return gpu(self.device), self.size

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, (self.device,))

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.mem_alloc(self.size), self.size)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size)

    def leak_name(self) -> str:
        return f"buffer {self.label}"


@dataclass(frozen=True, slots=True)
class OpenBuffer(BufferStep, ImportStep):
    """Open the handle of a buffer, with lazy peer access; each open requires a close (fact 46)."""

    source: HandleReference

    verb = "open buffer"
    undo_verb = "close"
    call = "cuIpcOpenMemHandle"
    undo_call = "cuIpcCloseMemHandle"
    hints: ClassVar = {
        "INVALID_CONTEXT": ErrorHint(
            "a handle cannot be opened in the process that created it (fact 31)", "import it in another process"
        ),
        "INVALID_HANDLE": ErrorHint(
            "the exporter has ended (fact 46), or runs in another pid namespace",
            "keep it alive for as long as its memory is used; containers have to share a pid namespace (--pid)",
        ),
        "INVALID_VALUE": ErrorHint(
            "the exporter has freed the memory (fact 46)", "keep it allocated for as long as it is used"
        ),
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.source.fetch_bytes(layout.handle_source)
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.ipc_open_mem_handle(handle), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.buffers:
            with current(driver, layout.contexts[self.device]):
                driver.ipc_close_mem_handle(layout.buffers[self.label].address)
                del layout.buffers[self.label]

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, "ipc")

    def leak_name(self) -> str:
        return f"opened buffer {self.label}"


@dataclass(frozen=True, slots=True)
class AliasBuffer(Alias):
    """Use a buffer of this process as one that it imports from itself, which it cannot open (fact 31)."""

    size: int

    verb = "alias buffer"
    call = "cuIpcOpenMemHandle"
    noun = "buffer"

    def objects(self, layout: Layout) -> dict[str, Any]:
        return layout.buffers

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        return AllocateBuffer(self.path, self.label, self.size, self.device).check(driver, layout)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, self.size, self.own.partition(".")[0], OWN)


@dataclass(frozen=True, slots=True)
class TryExportBuffer(Step):
    """Request the first of `count` handles as a test. Its bytes are secret, and are not kept."""

    label: str
    buffer: str
    device: int
    count: int

    phase = Phase.EXPORT
    verb = "export buffer"
    call = "cuIpcGetMemHandle"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("buffer", self.buffer),)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_mem_handle(layout.buffers[self.buffer].address)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.buffer.partition(".")[0], note=handles_tested(["ipc"], self.count))


@dataclass(frozen=True, slots=True)
class EventStep(Step):
    """Base of steps that create or open an event of a GPU."""

    label: str
    device: int

    undo_verb = "destroy"
    undo_call = "cuEventDestroy"

    @property
    def provides(self) -> Hashable:
        return ("event", self.label)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]


@dataclass(frozen=True, slots=True)
class CreateEvent(EventStep):
    """Create an event without timing; with `shared` it can be exported, which requires a flag at creation (fact 32)."""

    shared: bool

    phase = Phase.CREATE
    verb = "create event"
    call = "cuEventCreate"

    def do(self, driver: Driver, layout: Layout) -> None:
        flags = EventFlags.DISABLE_TIMING | (EventFlags.INTERPROCESS if self.shared else EventFlags(0))
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.event_create(flags)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the state: an event is complete before its first recording (fact 47)."""
        yield Finding("event", self.label, "complete", _state(driver, layout.events[self.label]), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", note="interprocess" if self.shared else "")

    def leak_name(self) -> str:
        return f"event {self.label}"


@dataclass(frozen=True, slots=True)
class OpenEvent(EventStep, ImportStep):
    """Open the handle of an event, which is destroyed like an event of this process (fact 47)."""

    source: HandleReference

    verb = "open event"
    call = "cuIpcOpenEventHandle"
    hints: ClassVar = {
        "MAP_FAILED": ErrorHint(
            "what was received is not an event (fact 47), or its exporter runs in another pid namespace",
            "see what the exporter sends; containers have to share a pid namespace (--pid)",
        )
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.source.fetch_bytes(layout.handle_source)
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.ipc_open_event_handle(handle)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("event", self.label, "open", "open" if self.label in layout.events else "gone", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, like=self.source.holder, note="ipc")

    def leak_name(self) -> str:
        return f"opened event {self.label}"


@dataclass(frozen=True, slots=True)
class AliasEvent(Alias):
    """Use an event of this process as one that it imports from itself, which it cannot open (fact 47)."""

    verb = "alias event"
    call = "cuIpcOpenEventHandle"
    noun = "event"

    def objects(self, layout: Layout) -> dict[str, Any]:
        return layout.events

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        return CreateEvent(self.path, self.label, self.device, shared=True).check(driver, layout)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, note=OWN)


@dataclass(frozen=True, slots=True)
class TryExportEvent(Step):
    """Request the handle as a test. Its 64 bytes are secret, and are not kept."""

    label: str
    event: str
    device: int

    phase = Phase.EXPORT
    verb = "export event"
    call = "cuIpcGetEventHandle"
    hints: ClassVar = {
        "INVALID_HANDLE": ErrorHint("the event was created for one process (facts 32, 47)", DEFECT_ADVICE)
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("event", self.event),)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_event_handle(layout.events[self.event])

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.event, note="ipc")


def _state(driver: Driver, event: int) -> str:
    return "complete" if driver.event_query(event) else "not ready"
