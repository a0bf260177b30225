"""Buffers: memory of `cuMemAlloc`, which legacy IPC can share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import Field

from memtopo.common.errors import InternalError
from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, Location
from memtopo.geometry.groups import LocatedGroup, round_robin
from memtopo.geometry.model import Geometry
from memtopo.kinds.kind import Exported, ExportKind, Scope
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.kinds.step import Finding, HandleRequest, Phase, Step, StepDescription
from memtopo.language.entries import Entry
from memtopo.language.fields import Count, Devices, PositiveBytes
from memtopo.machine import Machine

BLOCK = 2 << 20
"""Bytes of a block. Legacy IPC shares whole blocks, so the size of an exported buffer is a multiple."""


class Buffer(Entry):
    """Memory of `cuMemAlloc`, which legacy IPC can share; with `count`, distributed round-robin over the locations."""

    location: Devices = Field(
        description="GPU of the memory, or several, over which buffers are distributed round-robin."
    )
    size: PositiveBytes = Field(description="Bytes of each buffer; rounded up to 2MiB blocks if it is exported.")
    count: Count | None = Field(default=None, description="Number of buffers: b becomes b.0, b.1 and so on.")


@dataclass(frozen=True, slots=True)
class BufferGroup(LocatedGroup):
    """Equal buffers that one entry declares: `count` of `size` bytes, distributed round-robin over `places`.

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
        del machine
        return (Grant(self.place_of(index), Access.RW),)

    def details(self) -> Iterator[str]:
        """Size before rounding."""
        if self.size != self.declared and not self.origin:
            yield f"{rounded(self.declared)} in a block of its own"

    def shares(self) -> Mapping[Location, int]:
        """Number of buffers that this process creates at each location."""
        return {} if self.origin else round_robin(self.count, self.places)


class Buffers(ExportKind):
    """Section `buffers`."""

    section = "buffers"
    description = "Memory of cuMemAlloc, by name, which legacy IPC can share."
    article = "a buffer"
    entry = model = Buffer
    group = BufferGroup
    drawn = "buffer"
    transports = ("ipc",)

    def resolve_entry(self, scope: Scope, entry: Buffer, path: Path) -> Resolution[BufferGroup | None]:
        name = str(path[-1])
        listed = yield from scope.devices.resolve_all(entry.location, path)
        if listed is None or (yield from requires_gpu(f"buffer {name!r}", listed, (*path, "location"))):
            return None
        declared = entry.size.bytes(1)
        size = whole_blocks(declared) if name in _exported(scope) else declared
        count, counted = entry.count or 1, entry.count is not None
        places = yield from scope.devices.distributed(listed, count, path)
        return BufferGroup(name, path, count, counted, size, places, declared=declared)

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        del machine
        for group in geometry.of(BufferGroup).values():
            for index in range(group.count):
                label, device = group.label(index), group.place_of(index).id
                if group.origin:
                    yield OpenBuffer(group.path, label, group.size, device, HandleRequest.of(group, index))
                else:
                    yield AllocateBuffer(group.path, label, group.size, device)

    def try_export(self, path: Path, export: Exported) -> Step:
        return TryExportBuffer(path, export.name, export.label(0), export.place_of(0).id, export.count)

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> int | bytes:
        with current(driver, layout.contexts[export.place_of(index).id]):
            return driver.ipc_get_mem_handle(layout.buffers[export.label(index)].address)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(BufferGroup).values():
            if group.size != group.declared and not group.origin:
                sizes = f"{exact(group.declared)} rounded up to {exact(group.size)}"
                yield f"buffer {group.name}: {sizes}, since legacy IPC shares whole blocks of 2MiB"


@dataclass(frozen=True, slots=True)
class AllocateBuffer(Step):
    """Allocate `size` bytes of GPU memory (fact 45)."""

    label: str
    size: int
    device: int

    phase = Phase.CREATE
    verb = "allocate"
    call = "cuMemAlloc"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.mem_alloc(self.size), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        free_buffer(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding(
            "buffer", self.label, *address_range(driver, layout, self.label, self.device, self.size), self.path
        )

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size)

    def leak_name(self) -> str:
        return f"buffer {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


@dataclass(frozen=True, slots=True)
class OpenBuffer(Step):
    """Open the handle of a buffer, with lazy peer access; each open requires a close (fact 46)."""

    label: str
    size: int
    device: int
    request: HandleRequest

    phase = Phase.IMPORT
    verb = "open buffer"
    call = "cuIpcOpenMemHandle"
    undo_call = "cuIpcCloseMemHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.request.fetch(layout.handle_source)
        if isinstance(handle, int):
            raise InternalError(f"{self.request.text}: received a file descriptor instead of a handle")
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.ipc_open_mem_handle(handle), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.buffers:
            with current(driver, layout.contexts[self.device]):
                driver.ipc_close_mem_handle(layout.buffers[self.label].address)
            del layout.buffers[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding(
            "buffer", self.label, *address_range(driver, layout, self.label, self.device, self.size), self.path
        )

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.request.text, self.size, self.request.holder, "ipc")

    def leak_name(self) -> str:
        return f"opened buffer {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


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

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_mem_handle(layout.buffers[self.buffer].address)

    def describe(self) -> StepDescription:
        return StepDescription(
            self.label, self.buffer.partition(".")[0], note=f"ipc, {self.count:,} handles" if self.count > 1 else "ipc"
        )


def whole_blocks(size: int) -> int:
    """Bytes rounded up to whole blocks of legacy IPC."""
    return -(-size // BLOCK) * BLOCK


def free_buffer(driver: Driver, layout: Layout, label: str) -> None:
    """Free the allocated or mapped buffer with a label."""
    if label in layout.buffers:
        driver.mem_free(layout.buffers[label].address)
        del layout.buffers[label]


def address_range(
    driver: Driver, layout: Layout, label: str, device: int, size: int
) -> tuple[tuple[str, int], tuple[str, int]]:
    """Expected address and size of a buffer, and those that the driver reports in the context of a GPU."""
    address = layout.buffers[label].address
    with current(driver, layout.contexts[device]):
        base, observed = driver.mem_get_address_range(address)
    return (hex(address), size), (hex(base), observed)


def _exported(scope: Scope) -> set[str]:
    entries = scope.spec.section("exports").values()
    return {reference.name for entry in entries for kind, reference in entry.what if kind == "buffer"}


BUFFERS = Buffers()
