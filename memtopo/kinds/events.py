"""Events of GPUs, which legacy IPC can share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from memtopo.common.errors import InternalError
from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import EventFlags
from memtopo.geometry.groups import LocatedGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.kind import Exported, ExportKind, Scope
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.kinds.step import Finding, HandleRequest, Phase, Step, StepDescription
from memtopo.language.entries import Entry
from memtopo.language.fields import DeviceName
from memtopo.machine import Machine


class Event(Entry):
    """An event of a GPU, without timing."""

    device: DeviceName = Field(description="GPU of the event.")


@dataclass(frozen=True, slots=True)
class EventGroup(LocatedGroup):
    """One event of a GPU, or the imported events of all instances of an exporter; `shared` if it is exported."""

    noun = "event"
    recordable = True
    offered_as = "event"

    shared: bool = False


class Events(ExportKind):
    """Section `events`."""

    section = "events"
    description = "Events of GPUs, by name."
    article = "an event"
    entry = model = Event
    group = EventGroup
    drawn = "event"
    transports = ("ipc",)

    def resolve_entry(self, scope: Scope, entry: Event, path: Path) -> Resolution[EventGroup | None]:
        name = str(path[-1])
        place = yield from scope.devices.resolve(entry.device, (*path, "device"))
        if place is None or (yield from requires_gpu(f"event {name!r}", [place], (*path, "device"))):
            return None
        exports = scope.spec.section("exports").values()
        shared = any(kind == "event" and reference.name == name for each in exports for kind, reference in each.what)
        return EventGroup(name, path, 1, counted=False, size=0, places=(place,), shared=shared)

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        del machine
        for group in geometry.of(EventGroup).values():
            for index in range(group.count):
                label, device = group.label(index), group.place_of(index).id
                if group.origin:
                    yield OpenEvent(group.path, label, device, HandleRequest.of(group, index))
                else:
                    yield CreateEvent(group.path, label, device, group.shared)

    def try_export(self, path: Path, export: Exported) -> Step:
        return TryExportEvent(path, export.name, export.label(0), export.place_of(0).id)

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> int | bytes:
        with current(driver, layout.contexts[export.place_of(index).id]):
            return driver.ipc_get_event_handle(layout.events[export.label(index)])


@dataclass(frozen=True, slots=True)
class CreateEvent(Step):
    """Create an event without timing; with `shared` it can be exported, which requires a flag at creation (fact 32)."""

    label: str
    device: int
    shared: bool

    phase = Phase.CREATE
    verb = "create event"
    call = "cuEventCreate"
    undo_call = "cuEventDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        flags = EventFlags.DISABLE_TIMING | (EventFlags.INTERPROCESS if self.shared else EventFlags(0))
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.event_create(flags)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the state: an event is complete before its first recording (fact 47)."""
        yield Finding("event", self.label, "complete", _state(driver, layout.events[self.label]), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", note="interprocess" if self.shared else "")

    def leak_name(self) -> str:
        return f"event {self.label}"


@dataclass(frozen=True, slots=True)
class OpenEvent(Step):
    """Open the handle of an event, which is destroyed like an event of this process (fact 47)."""

    label: str
    device: int
    request: HandleRequest

    phase = Phase.IMPORT
    verb = "open event"
    call = "cuIpcOpenEventHandle"
    undo_call = "cuEventDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.request.fetch(layout.handle_source)
        if isinstance(handle, int):
            raise InternalError(f"{self.request.text}: received a file descriptor instead of a handle")
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.ipc_open_event_handle(handle)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        del driver
        yield Finding("event", self.label, "open", "open" if self.label in layout.events else "gone", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.request.text, like=self.request.holder, note="ipc")

    def leak_name(self) -> str:
        return f"opened event {self.label}"


@dataclass(frozen=True, slots=True)
class TryExportEvent(Step):
    """Request the handle as a test. Its 64 bytes are secret, and are not kept."""

    label: str
    event: str
    device: int

    phase = Phase.EXPORT
    verb = "export event"
    call = "cuIpcGetEventHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_event_handle(layout.events[self.event])

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.event, note="ipc")


def _state(driver: Driver, event: int) -> str:
    return "complete" if driver.event_query(event) else "not ready"


EVENTS = Events()
