"""Buffers (memory of `cuMemAlloc`) and events, which legacy IPC can share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from memtopo.common.units import Size, exact, rounded, rounded_up
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry.groups import Group, LocatedGroup, round_robin
from memtopo.geometry.model import Geometry
from memtopo.kinds.device_names import has_set
from memtopo.kinds.exportable import IPC_OWN, ExportGroup, ExportKind, Imported, ImportKeys, Refusals
from memtopo.kinds.kind import Scope, Steps, Words
from memtopo.kinds.resolution import require_on_gpu
from memtopo.language.entries import Entry
from memtopo.language.fields import Count, DeviceName, Devices, PositiveBytes
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.objects import TryExport


BLOCK = 2 << 20
"""Bytes of a block. Legacy IPC shares whole blocks, so the size of an exported buffer is a multiple."""


class Buffer(Entry):
    """Memory of `cuMemAlloc`, which legacy IPC can share; with `count`, distributed round-robin over the locations."""

    location: Devices = Field(
        description="GPU of the memory, or several, over which buffers are distributed round-robin."
    )
    size: PositiveBytes = Field(description="Bytes of each buffer; rounded up to 2MiB blocks if it is exported.")
    count: Count | None = Field(default=None, description="Number of buffers: b becomes b.0, b.1 and so on.")


class BufferGroup(LocatedGroup, frozen=True):
    """Equal buffers that one entry declares: `count` of `size` bytes, distributed round-robin over `locations`.

    `declared` is the size before it was rounded up to whole blocks for legacy IPC.
    """

    noun = "buffer"
    offered_as = "buffer"
    addressed = memory = True

    declared: int = 0

    @property
    def declared_size(self) -> int:
        """Bytes of each buffer before rounding."""
        return self.declared

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Read and write access of the GPU of the buffer."""
        return (Grant(self.location_of(index), Access.RW),)

    def details(self) -> Iterator[str]:
        """Size before rounding."""
        if self.size != self.declared and not self.origin:
            yield f"{rounded(self.declared)} in a block of its own"

    def shares(self) -> Mapping[Location, int]:
        """Number of buffers that this process creates at each location."""
        return {} if self.origin else round_robin(self.count, self.locations)


class IpcKind(ExportKind):
    """Base of the kinds that legacy IPC shares: objects of GPUs, which other processes open."""

    transports = ("ipc",)


class Buffers(IpcKind):
    """Section `buffers`."""

    section = "buffers"
    description = "Memory of cuMemAlloc, by name, which legacy IPC can share."
    words = Words("buffer", "buffers", "b: {location: gpu0, size: 2MiB}", drawn="buffer")
    entry = Buffer
    group = BufferGroup
    refusals = Refusals(
        commit="memory over legacy IPC is invalid once it is freed, so it is not replaced (fact 31)",
        own=IPC_OWN,
        unseen="legacy IPC opens a buffer on its own GPU",
    )
    trials: ClassVar[Mapping[Via, str]] = {"ipc": "ipc"}

    def resolve_entry(self, scope: Scope, entry: Buffer, path: Path) -> BufferGroup:
        name = str(path[-1])
        listed = scope.devices.resolve_all(entry.location, path)
        require_on_gpu(f"buffer {name!r}", listed, (*path, "location"))
        declared = entry.size.bytes(1)
        size = rounded_up(declared, BLOCK) if scope.exports(self.group.noun, name) else declared
        each = entry.count is None and has_set(entry.location)  # one for each device of a set
        count, counted = entry.count or (len(listed) if each else 1), entry.count is not None or each
        locations = scope.devices.distributed(listed, count, path)
        return BufferGroup(name, path, locations, declared, count=count, counted=counted, size=size)

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        from memtopo.kinds.ipc.steps import AliasBuffer, AllocateBuffer, OpenBuffer
        from memtopo.kinds.objects import import_each

        for group in groups:
            for index in range(0 if group.origin else group.count):
                yield AllocateBuffer(group.path, group.label(index), group.location_of(index).id, group.size)
        yield from import_each(groups, OpenBuffer, AliasBuffer)

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        from memtopo.kinds.ipc.steps import TryExportBuffer

        return TryExportBuffer(*export.handle_fields(index), export.location_of(index).id)

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> BufferGroup:
        return imported.located(BufferGroup, exported[0].size, declared=exported[0].declared_size)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> BufferGroup:
        return imported.located(BufferGroup, rounded_up(size.bytes(1), BLOCK), declared=size.bytes(1))

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(BufferGroup).values():
            if group.size != group.declared and not group.origin:
                sizes = f"{exact(group.declared)} rounded up to {exact(group.size)}"
                yield f"buffer {group.name}: {sizes}, because legacy IPC shares whole blocks of 2MiB"


BUFFERS = Buffers()


class Event(Entry):
    """An event of a GPU, without timing."""

    device: DeviceName = Field(description="GPU of the event.")


class EventGroup(LocatedGroup, frozen=True):
    """One event of a GPU, or the imported events of all instances of an exporter; `shared` if it is exported."""

    noun = "event"
    offered_as = "event"

    shared: bool = False


class Events(IpcKind):
    """Section `events`."""

    section = "events"
    description = "Events of GPUs, by name."
    words = Words("event", "events", "done: {device: gpu0}", drawn="event")
    entry = Event
    group = EventGroup
    refusals = Refusals(commit="an event has no memory", own=IPC_OWN, unseen="legacy IPC opens an event on its own GPU")
    trials: ClassVar[Mapping[Via, str]] = {"ipc": "ipc-event"}
    import_keys = ImportKeys(("device",))

    def resolve_entry(self, scope: Scope, entry: Event, path: Path) -> EventGroup:
        name = str(path[-1])
        location = scope.devices.resolve(entry.device, (*path, "device"))
        require_on_gpu(f"event {name!r}", [location], (*path, "device"))
        return EventGroup(name, path, (location,), shared=scope.exports(self.group.noun, name))

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        from memtopo.kinds.ipc.steps import AliasEvent, CreateEvent, OpenEvent
        from memtopo.kinds.objects import import_each

        for group in groups:
            if not group.origin:
                yield CreateEvent(group.path, group.name, group.location_of(0).id, group.size, group.shared)
        yield from import_each(groups, OpenEvent, AliasEvent)

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        from memtopo.kinds.ipc.steps import TryExportEvent

        return TryExportEvent(*export.handle_fields(index), export.location_of(index).id)

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> EventGroup:
        return imported.located(EventGroup, 0)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> EventGroup:
        return imported.located(EventGroup, 0)


EVENTS = Events()
