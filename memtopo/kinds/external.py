"""External memory: objects that another API allocated, such as Vulkan, and buffers mapped in them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Location, MemoryHandleType
from memtopo.geometry.groups import Group, InnerPart, Origin, Via
from memtopo.geometry.model import Geometry
from memtopo.kinds.buffers import free_buffer, seated
from memtopo.kinds.kind import Kind, Scope, Use
from memtopo.kinds.layout import Descriptor, Layout, Reservation, current
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.kinds.step import Finding, HandleRequest, Phase, Step, StepDescription
from memtopo.language.entries import Entry
from memtopo.language.fields import Boolean, DeviceName, MemoryKind, OffsetBytes, OwnName, PositiveBytes, ProducerText
from memtopo.language.names import Source
from memtopo.machine import Machine, Trial

FROM = "camera for the export of the entry's own name, camera/frame of another, or /path/to/socket/frame."
"""Description of the field `from` of external memory and semaphores."""

_WINDOWS = "it is for Windows, and the driver of Linux answers NOT_SUPPORTED (fact 54)"

_REASONS = {
    "dma_buf": "the driver hands out DMA-BUFs and takes none: it answers NOT_SUPPORTED (fact 54)",
    "nvscibuf": "it is for Jetson and DRIVE, and the driver answers NOT_SUPPORTED here (fact 54)",
    "nvscisync": "it is for Jetson and DRIVE, and the driver answers NOT_SUPPORTED here (fact 54)",
}
"""Why a kind is refused that is known and is no descriptor of Vulkan's; all others are for Windows."""


class PartEntry(Entry):
    """A part of an external object that is mapped as a buffer of its own, in bytes; parts may overlap."""

    offset: OffsetBytes = Field(default=Size(0), description="Where in the object the part begins.")
    size: PositiveBytes = Field(description="Bytes of the part.")


class External(Entry):
    """Memory that another API allocated."""

    source: ProducerText = Field(alias="from", description=FROM)
    via: MemoryKind = Field(description="How it is handed out: opaque_fd. The others are refused where CUDA cannot.")
    device: DeviceName = Field(description="The GPU whose memory it is, message by its UUID.")
    size: PositiveBytes = Field(description="Bytes of the whole object, as its API allocated it.")
    dedicated: Boolean = Field(default=False, description="Whether it was allocated for one image or buffer alone.")
    buffers: dict[OwnName, PartEntry] = Field(
        default={}, description="Parts with an address of their own: y: {offset: 0, size: 4MiB} becomes frame.y."
    )


@dataclass(frozen=True, slots=True)
class ProducedGroup(Group):
    """Base of what another API created on `place`; it comes from a producer outside of the spec."""

    produced = True
    trial: ClassVar[str]
    """Trial of a machine that shows if such objects can be imported."""

    name: str
    path: Path
    place: Location
    origin: Origin

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinal of the GPU that it is on."""
        return frozenset({self.place.id})

    def place_of(self, index: int) -> Location:
        """Location that the producer created it on."""
        del index
        return self.place

    @property
    def declared_as(self) -> str:
        """Name of the section's entries in messages."""
        return self.noun

    @property
    def must_be_advertised(self) -> bool:
        """True if it cannot be imported where the device does not advertise it."""
        return False

    def properties(self) -> dict[str, str]:
        """Properties of the object itself, which every entry that imports it must declare alike."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ExternalObject(ProducedGroup):
    """One object that another API allocated on `place`, of `size` bytes as a whole.

    It is mapped as a whole, under its name, and each of its `buffers` again, as `frame.y`.
    """

    noun = "external object"
    addressed = memory = True
    trial = "external-memory"
    offered_as = "memory"

    size: int
    dedicated: bool
    buffers: tuple[InnerPart, ...] = ()
    count: int = 1
    counted: bool = False

    @property
    def inner(self) -> tuple[InnerPart, ...]:
        """Buffers that are mapped in the object."""
        return self.buffers

    @property
    def mapped(self) -> tuple[InnerPart, ...]:
        """Everything that is mapped; the whole is first."""
        return InnerPart(self.name, 0, self.size, self.path), *self.buffers

    def details(self) -> Iterator[str]:
        """Allocation for one image or buffer."""
        if self.dedicated:
            yield "dedicated"

    def properties(self) -> dict[str, str]:
        """Kind, size, device and allocation of the object."""
        dedicated = "dedicated" if self.dedicated else "not dedicated"
        return {"kind": "memory", "size": exact(self.size), "device": str(self.place), "allocation": dedicated}


class ExternalMemory(Kind):
    """The section `external`."""

    section = "external"
    description = "External memory, of another API such as Vulkan, by name."
    article = "an external object"
    entry = model = External
    group = ExternalObject
    drawn = "external"
    nested = ("buffers", PartEntry)
    unusable: ClassVar[Mapping[Use, tuple[str, str]]] = {
        "map": (
            "the driver maps its buffers itself, at addresses of their own (fact 53)",
            "name the parts that are used under 'buffers'",
        ),
        "access": (
            "a mapped buffer has no access of its own: its GPU reads and writes it (fact 53)",
            "leave it out",
        ),
        "export": (
            "the driver has no handle of it, and legacy IPC refuses it with INVALID_VALUE (fact 53)",
            "have its producer hand it to the other process as well",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: External, path: Path) -> Resolution[ExternalObject | None]:
        name, size = str(path[-1]), entry.size.bytes(1)
        what = f"external object {name!r}"
        place = yield from producer_gpu(scope, what, entry.device, path)
        parts = tuple(
            InnerPart(f"{name}.{key}", part.offset.bytes(1), part.size.bytes(1), (*path, "buffers", key))
            for key, part in entry.buffers.items()
        )
        wrong = [
            *unsupported(what, path, entry.via, "opaque_fd"),
            *from_process(what, path, entry.source, scope.processes),
            *(_past(part, size, path) for part in parts if part.offset + part.size > size),
            *(_inside(part, path) for part in parts if part.offset and entry.dedicated),
        ]
        yield from wrong
        if wrong or place is None:
            return None
        origin = producer_origin(name, entry.source, "opaque_fd")
        return ExternalObject(name, path, place, origin, size, entry.dedicated, parts)

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        """Each descriptor is imported right after it is duplicated: the driver may close it even on failure (fact 54).

        The whole of an object is mapped first, which shows if its size is as declared.
        """
        del machine
        for group in geometry.of(ExternalObject).values():
            yield DuplicateDescriptor(group.path, group.name, HandleRequest.of(group, 0))
            kind = MemoryHandleType[group.origin.via.upper()]
            yield ImportMemory(group.path, group.name, group.size, group.place.id, kind, group.dedicated)
        for group in geometry.of(ExternalObject).values():
            for part in group.mapped:
                yield MapExternal(part.path, part.label, group.name, group.place.id, part.offset, part.size)


@dataclass(frozen=True, slots=True)
class DuplicateDescriptor(Step):
    """Duplicates what the exchange gives, so that the driver can have one for itself and its owner keeps his (fact 37).

    A refused import may have closed it already (fact 54), so it is closed only where it still is what it was.
    """

    label: str
    request: HandleRequest

    phase = Phase.IMPORT
    verb = "copy descriptor"
    call = "fcntl"
    undo_call = "close"

    def do(self, driver: Driver, layout: Layout) -> None:
        del driver
        given = self.request.fetch(layout.handle_source)
        if not isinstance(given, int):
            raise InternalError(f"{self.request.text} came as bytes")
        try:
            fd = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError as error:
            message = f"{self.request.text} came as a descriptor that cannot be copied: {error.strerror}"
            raise MemtopoError(message, hint="see what the producer hands over") from error
        layout.descriptors[self.label] = Descriptor(fd, _file(fd))

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver
        taken = layout.descriptors.pop(self.label, None)
        if taken and _is(taken):
            os.close(taken.fd)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.request.text, like=self.request.holder)

    def leak_name(self) -> str:
        return f"descriptor of {self.label}"


@dataclass(frozen=True, slots=True)
class ImportMemory(Step):
    """Hands the descriptor to the driver, whose it is from then on, in the context of the memory's own GPU (fact 55).

    Any size is taken: whether it is true shows when it is mapped (fact 53). There is no query for it.
    """

    label: str
    size: int
    device: int
    kind: MemoryHandleType
    dedicated: bool

    phase = Phase.IMPORT
    verb = "import memory"
    call = "cuImportExternalMemory"
    undo_call = "cuDestroyExternalMemory"

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            memory = driver.import_external_memory(fd, self.kind, self.size, dedicated=self.dedicated)
            layout.external[self.label] = memory
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Forgotten first, so that nobody tries a second time, which would end the process (fact 57)."""
        if self.label in layout.external:
            driver.destroy_external_memory(layout.external.pop(self.label))

    def describe(self) -> StepDescription:
        words = [self.kind.name.lower(), *(["dedicated"] if self.dedicated else [])]
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=", ".join(words))

    def leak_name(self) -> str:
        return external_memory_name(self.label)

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


@dataclass(frozen=True, slots=True)
class MapExternal(Step):
    """`size` bytes from `offset` on of the external memory of a label, as a buffer (fact 53)."""

    label: str
    memory: str
    device: int
    offset: int
    size: int

    phase = Phase.MAP
    verb = "map buffer"
    call = "cuExternalMemoryGetMappedBuffer"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            address = driver.external_memory_get_mapped_buffer(layout.external[self.memory], self.offset, self.size)
            layout.buffers[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        free_buffer(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("external", self.label, *seated(driver, layout, self.label, self.device, self.size), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, self.memory)

    def leak_name(self) -> str:
        return f"mapped buffer {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()

    def blocks(self) -> tuple[str, ...]:
        return (external_memory_name(self.memory),)


def importable(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT702: what a trial refused is refused again, and so is what must be advertised and is not."""
    for group in produced(geometry):
        trial = machine.trial(group.place, group.trial)
        if trial.works is False or (group.must_be_advertised and trial.refused):
            message = (
                f"{group.noun} {group.name!r}: {group.origin.via!r} does not work on {group.place} of this machine"
            )
            yield Diagnostic("MT702", message, (*group.path, "via"), notes=(_reason(trial),))


def alike(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT707: entries of one object declare it alike; the driver guards neither size nor kind (facts 53, 55)."""
    del machine
    known: dict[tuple[tuple[str, ...], str], ProducedGroup] = {}
    for member in geometry.members.values():
        for group in produced(member):
            first = known.setdefault((group.origin.holders, group.origin.export), group)
            if diagnostic := _unlike(first, group):
                yield diagnostic


def produced(geometry: Geometry) -> Iterator[ProducedGroup]:
    """Everything of a geometry that another API created."""
    return (group for group in geometry.every if isinstance(group, ProducedGroup))


def producer_gpu(scope: Scope, what: str, device: str, path: Path) -> Resolution[Location | None]:
    """GPU of something that a producer created; the host is an error."""
    place = yield from scope.devices.resolve(device, (*path, "device"))
    if place is None or (yield from requires_gpu(what, [place], (*path, "device"))):
        return None
    return place


def producer_origin(name: str, source: Source, via: Via) -> Origin:
    """Origin of something that a producer created; without an export it is the one of the entry's own name."""
    return Origin((source.holder,), source.export or name, 1, via, siblings=False)


def unsupported(what: str, path: Path, via: str, *possible: str) -> Iterator[Diagnostic]:
    """MT702, where CUDA has a kind of handle by name and cannot take it."""
    if via not in possible:
        message = f"{what}: {via!r} cannot be imported on Linux"
        help = f"have its producer hand it out as an opaque fd: via: {' or '.join(possible)}"
        yield Diagnostic("MT702", message, (*path, "via"), notes=(_REASONS.get(via, _WINDOWS),), help=help)


def from_process(what: str, path: Path, source: Source, processes: Collection[str]) -> Iterator[Diagnostic]:
    """MT203, where a producer goes by the name of a process, of which only imports can come."""
    if source.holder in processes:
        message = f"{what} is from {source.holder!r}, which is the name of a process of this spec"
        help = "what a process exports is imported under 'imports'; a producer outside has another name"
        yield Diagnostic("MT203", message, (*path, "from"), help=help)


def external_memory_name(label: str) -> str:
    """Leak name of external memory."""
    return f"external memory {label}"


def _past(part: InnerPart, size: int, path: Path) -> Diagnostic:
    message = f"{part.label!r} ends at {exact(part.offset + part.size)} of {path[-1]!r}, which has {exact(size)}"
    label = Label(f"{exact(size)} declared here", (*path, "size"))
    note = "the driver maps nothing past the end of an object (fact 53)"
    help = f"write 'size: {exact(size - part.offset)}' at most" if part.offset < size else None
    return Diagnostic("MT703", message, (*part.path, "size"), labels=(label,), notes=(note,), help=help)


def _inside(part: InnerPart, path: Path) -> Diagnostic:
    message = f"{part.label!r} begins at {exact(part.offset)} of {path[-1]!r}, which is dedicated"
    label = Label("dedicated here", (*path, "dedicated"))
    note = "the driver maps a dedicated object from its begin alone (fact 53)"
    help = "write 'offset: 0', or have it allocated and offered without 'dedicated', and leave that out here too"
    return Diagnostic("MT703", message, (*part.path, "offset"), labels=(label,), notes=(note,), help=help)


def _file(fd: int) -> tuple[int, int, int]:
    seen = os.fstat(fd)
    return seen.st_dev, seen.st_ino, seen.st_rdev


def _is(taken: Descriptor) -> bool:
    try:
        return _file(taken.fd) == taken.file
    except OSError:
        return False


def _unlike(first: ProducedGroup, group: ProducedGroup) -> Diagnostic | None:
    one, other = first.properties(), group.properties()
    key = next((key for key, value in one.items() if other.get(key) != value), None)
    if key is None:
        return None
    source = group.origin.text(group.origin.holders[0])
    message = f"{group.name!r} is {source}, whose {key} is {other[key]} here and {one[key]} for {first.name!r}"
    label = Label(f"{first.name!r} is declared here", first.path, "key")
    help = "say the same of it, or name the other export that is meant"
    return Diagnostic("MT707", message, group.path, "key", labels=(label,), help=help)


def _reason(trial: Trial) -> str:
    if trial.works is False:
        return f"a trial {f'was answered with {trial.error}' if trial.error else 'read other bytes'}"
    return "the device does not advertise timeline semaphores"


ExternalMemory.rules = (importable,)
ExternalMemory.joint_rules = (alike,)
EXTERNAL = ExternalMemory()
