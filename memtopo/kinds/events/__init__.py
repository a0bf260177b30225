"""Events of GPUs, which legacy IPC can share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from memtopo.common.units import Size
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Handle, Via
from memtopo.geometry.groups import Group, LocatedGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.exportable import Exported, ExportKind, Imported
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.language.entries import Entry
from memtopo.language.fields import DeviceName
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.step import Step


class Event(Entry):
    """An event of a GPU, without timing."""

    device: DeviceName = Field(description="GPU of the event.")


@dataclass(frozen=True, slots=True)
class EventGroup(LocatedGroup):
    """One event of a GPU, or the imported events of all instances of an exporter; `shared` if it is exported."""

    noun = "event"
    offered_as = "event"

    shared: bool = False


class Events(ExportKind):
    """Section `events`."""

    section = "events"
    description = "Events of GPUs, by name."
    plural = "events"
    article = "an event"
    form = "done: {device: gpu0}"
    entry = model = Event
    group = EventGroup
    drawn = "event"
    transports = ("ipc",)
    opens_own = False
    unseen_note = "legacy IPC opens an event on its own GPU"
    commit_note = "an event has no memory"
    trials: ClassVar[Mapping[Via, str]] = {"ipc": "ipc-event"}
    import_keys = ("device",)

    def resolve_entry(self, scope: Scope, entry: Event, path: Path) -> Resolution[EventGroup | None]:
        name = str(path[-1])
        location = yield from scope.devices.resolve(entry.device, (*path, "device"))
        if location is None or (yield from requires_gpu(f"event {name!r}", [location], (*path, "device"))):
            return None
        shared = scope.exports(self.group.noun, name)
        return EventGroup(name, path, 1, counted=False, size=0, locations=(location,), shared=shared)

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        if not geometry.of(EventGroup):
            return
        from memtopo.kinds.events.steps import AliasEvent, CreateEvent, OpenEvent
        from memtopo.kinds.step import HandleReference

        for group in geometry.of(EventGroup).values():
            for index in range(group.count):
                label, device = group.label(index), group.location_of(index).id
                if group.origin and (own := group.origin.own_label(index)):
                    yield AliasEvent(group.path, label, device, own)
                elif group.origin:
                    yield OpenEvent(group.path, label, device, HandleReference.of(group, index))
                else:
                    yield CreateEvent(group.path, label, device, group.shared)

    def try_export(self, path: Path, export: Exported) -> Step:
        from memtopo.kinds.events.steps import TryExportEvent

        return TryExportEvent(path, export.name, export.label(0), export.location_of(0).id)

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> Handle:
        from memtopo.kinds.layout import current

        with current(driver, layout.contexts[export.location_of(index).id]):
            return Handle.of(driver.ipc_get_event_handle(layout.events[export.label(index)]))

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> EventGroup:
        return _imported(imported)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> Resolution[EventGroup]:
        yield from ()
        return _imported(imported)


def _imported(imported: Imported) -> EventGroup:
    count, counted = imported.count, imported.counted
    return EventGroup(imported.name, imported.path, count, counted, 0, imported.locations, imported.origin)


EVENTS = Events()
