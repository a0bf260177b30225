"""External memory: objects allocated by another API, such as Vulkan, and the buffers mapped in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import Field

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Location, MemoryHandleType
from memtopo.geometry.groups import Group, InnerPart, Origin
from memtopo.geometry.model import Geometry
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.kind import Kind, Scope, Steps, Words
from memtopo.kinds.resolution import refuse, require_on_gpu, together
from memtopo.language.entries import Entry
from memtopo.language.fields import Boolean, DeviceName, OffsetBytes, OwnName, PositiveBytes, ProducerText
from memtopo.language.names import ImportSource, NamedDevice
from memtopo.language.scalars import FromWord
from memtopo.machine import Machine, Trial

FROM = "camera for its export with the name of this entry, camera/frame for another export, or /path/to/socket/frame."
"""Description of the field `from` of external memory and semaphores."""

_WINDOWS = "it exists on Windows only; on Linux the driver returns NOT_SUPPORTED (fact 54)"

_REASONS = {
    "dma_buf": "a dma-buf is written 'dmabuf'; where it was tried, the driver returned NOT_SUPPORTED (fact 84)",
    "nvscibuf": "it exists on Jetson and DRIVE only; here the driver returns NOT_SUPPORTED (fact 54)",
    "nvscisync": "it exists on Jetson and DRIVE only; here the driver returns NOT_SUPPORTED (fact 54)",
}
"""Reasons why handle types cannot be imported; all others exist on Windows only."""


_HANDLE_TYPES: Mapping[str, MemoryHandleType] = {
    "opaque_fd": MemoryHandleType.OPAQUE_FD,
    DMABUF: MemoryHandleType.DMABUF_FD,
}
"""Handle types that CUDA may import on Linux."""

MEMORY_KINDS = {
    each: each
    for each in (
        "opaque_fd", "dmabuf", "dma_buf", "opaque_win32", "opaque_win32_kmt", "d3d12_heap", "d3d12_resource",
        "d3d11_resource", "d3d11_resource_kmt", "nvscibuf",
    )
}  # fmt: skip
"""Handle types of external memory that the driver knows, by their names in a spec."""

MemoryKind = Annotated[str, FromWord(MEMORY_KINDS, "a kind of external memory")]


class ExternalPart(Entry):
    """Part of an external object that is mapped as a separate buffer, in bytes; parts may overlap."""

    offset: OffsetBytes = Field(default=Size(0), description="Offset of the part in the object.")
    size: PositiveBytes = Field(description="Bytes of the part.")


class External(Entry):
    """Memory allocated by another API."""

    source: ProducerText = Field(alias="from", description=FROM)
    via: MemoryKind = Field(
        description="Handle type: opaque_fd; or dmabuf, if a trial succeeded. CUDA cannot import other types on Linux."
    )
    device: DeviceName = Field(description="GPU of the memory, identified by its UUID.")
    size: PositiveBytes = Field(description="Bytes of the whole object, as allocated.")
    dedicated: Boolean = Field(
        default=False,
        description="If true, the memory was allocated for a single image or buffer, as its producer declares; its "
        "parts begin at offset 0.",
    )
    buffers: dict[OwnName, ExternalPart] = Field(
        default={}, description="Parts with their own addresses: y: {offset: 0, size: 4MiB} becomes frame.y."
    )


class ProducedGroup(Group, frozen=True, kw_only=True):
    """Base of groups of external objects, which a producer outside of the spec creates on `location`."""

    produced = True

    location: Location
    origin: Origin

    def location_of(self, index: int) -> Location:
        """Location of the object."""
        return self.location

    def fault(self, machine: Machine) -> str | None:
        """Reason why a machine cannot import such objects; None if it can."""
        raise NotImplementedError

    def properties(self) -> dict[str, str]:
        """Properties of the object, which must be equal in every entry that imports it."""
        raise NotImplementedError


class ExternalObject(ProducedGroup, frozen=True):
    """One external memory object of `size` bytes on `location`.

    The whole object is mapped under its name, and each of its `buffers` again, as `frame.y`.
    """

    noun = "external object"
    addressed = memory = True
    offered_as = "memory"

    dedicated: bool = False
    buffers: tuple[InnerPart, ...] = ()

    def fault(self, machine: Machine) -> str | None:
        """A trial by the handle type; of dma-bufs one that worked: no driver that was tried imports them (fact 84)."""
        dma_buf = self.origin.via == DMABUF
        trial = machine.trial(self.location, "external-dmabuf" if dma_buf else "external-memory")
        untried = "it was not tried on this machine; on others the driver returned NOT_SUPPORTED (fact 84)"
        return failed(trial) or (untried if dma_buf and not trial.works else None)

    @property
    def mapped(self) -> tuple[InnerPart, ...]:
        """Mapped parts; the whole object is first."""
        return InnerPart(self.name, 0, self.size, self.path), *self.buffers

    def details(self) -> Iterator[str]:
        """Dedicated allocation."""
        if self.dedicated:
            yield "dedicated"

    def properties(self) -> dict[str, str]:
        """Kind, size, device and allocation of the object."""
        dedicated = "dedicated" if self.dedicated else "not dedicated"
        return {"kind": "memory", "size": exact(self.size), "device": str(self.location), "allocation": dedicated}


class ExternalObjects(Kind):
    """Section `external`."""

    section = "external"
    description = "Memory allocated by another API such as Vulkan, by name."
    words = Words(
        "external object",
        "external",
        "frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}",
        drawn="external",
    )
    entry = External
    group = ExternalObject
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": ("the driver maps its buffers at their own addresses (fact 53)", "declare parts under 'buffers'"),
        "access": ("access to a mapped buffer cannot be set: its GPU can read and write it (fact 53)", "omit it"),
        "exports": (
            "the driver exports no handle of it, and legacy IPC returns INVALID_VALUE (fact 53)",
            "also import it from its producer in the other process",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: External, path: Path) -> ExternalObject:
        name, size = str(path[-1]), entry.size.bytes(1)
        what = f"external object {name!r}"
        parts = tuple(
            InnerPart(f"{name}.{key}", part.offset.bytes(1), part.size.bytes(1), (*path, "buffers", key))
            for key, part in entry.buffers.items()
        )
        faults = chain(
            unsupported(what, path, entry.via, *_HANDLE_TYPES),
            from_process(what, path, entry.source, scope.siblings.spec.processes),
            _misplaced(parts, size, path, dedicated=entry.dedicated),
        )
        location, _ = together(partial(producer_gpu, scope, what, entry.device, path), partial(refuse, faults))
        origin = producer_origin(name, entry.source, DMABUF if entry.via == DMABUF else "opaque_fd")
        return ExternalObject(
            name, path, location=location, origin=origin, size=size, dedicated=entry.dedicated, buffers=parts
        )

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        """Steps of the section. The whole object is mapped first, which checks its declared size.

        Each descriptor is imported directly after it is duplicated, since the driver may close it even if the import
        fails (fact 54).
        """
        from memtopo.kinds.external.steps import DuplicateDescriptor, ImportMemory, MapExternal
        from memtopo.kinds.step import HandleReference

        for group in groups:
            yield DuplicateDescriptor(group.path, group.name, HandleReference.of(group, 0))
            kind = _HANDLE_TYPES[group.origin.via]
            yield ImportMemory(group.path, group.name, group.location.id, group.size, kind, group.dedicated)
        for group in groups:
            for part in group.mapped:
                yield MapExternal(part.path, part.label, group.location.id, part.size, group.name, part.offset)


def importable(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT702 for objects whose trial failed, or whose required support is not advertised."""
    for group in geometry.instances_of(ProducedGroup):
        if reason := group.fault(machine):
            what, where = f"{group.noun} {group.name!r}", f"{group.location} of this machine"
            message = f"{what}: {group.origin.via!r} does not work on {where}"
            yield Diagnostic("MT702", message, (*group.path, "via"), notes=(reason,))


def failed(trial: Trial) -> str | None:
    """Failure of a trial with an external object; None if it did not fail."""
    return trial.failure("a trial", "read wrong bytes") if trial.works is False else None


def equal_declarations(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT707 for entries of one object that differ; the driver checks neither size nor kind (facts 53, 55)."""
    known: dict[tuple[tuple[str, ...], str], ProducedGroup] = {}
    for group in chain.from_iterable(each.instances_of(ProducedGroup) for each in geometry.members.values()):
        first = known.setdefault(group.origin.identity, group)
        one, other = first.properties(), group.properties()
        if key := next((key for key, value in one.items() if other.get(key) != value), None):
            source = group.origin.text(group.origin.holders[0])
            message = f"{group.name!r} is {source}, whose {key} is {other[key]} here and {one[key]} for {first.name!r}"
            label = Label(f"{first.name!r} is declared here", first.path, "key")
            help = "declare it equally, or name another export"
            yield Diagnostic("MT707", message, group.path, "key", labels=(label,), help=help)


def producer_gpu(scope: Scope, what: str, device: NamedDevice, path: Path) -> Location:
    """GPU of an external object. Raises `Refused`."""
    location = scope.devices.resolve(device, (*path, "device"))
    require_on_gpu(what, [location], (*path, "device"))
    return location


def producer_origin(name: str, source: ImportSource, via: Via) -> Origin:
    """Origin of an external object; the export has the name of the entry by default."""
    return Origin((source.holder,), source.export or name, 1, via, siblings=False)


def unsupported(what: str, path: Path, via: str, *possible: str) -> Iterator[Diagnostic]:
    """Yield MT702 for a handle type that CUDA cannot import."""
    if via not in possible:
        message = f"{what}: {via!r} cannot be imported on Linux"
        help = f"export it from its producer as an opaque fd: via: {' or '.join(possible)}"
        yield Diagnostic("MT702", message, (*path, "via"), notes=(_REASONS.get(via, _WINDOWS),), help=help)


def from_process(what: str, path: Path, source: ImportSource, processes: Collection[str]) -> Iterator[Diagnostic]:
    """Yield MT203 for a producer with the name of a process of the spec."""
    if source.holder in processes:
        message = f"{what} is from {source.holder!r}, which is the name of a process of this spec"
        help = "import from a process under 'imports', or choose another name for the producer"
        yield Diagnostic("MT203", message, (*path, "from"), help=help)


def _misplaced(parts: Sequence[InnerPart], size: int, path: Path, *, dedicated: bool) -> Iterator[Diagnostic]:
    """Yield MT703 for parts past the end of an object, and for those of a dedicated one that do not begin with it."""
    for part in parts:
        if part.offset + part.size > size:
            message = (
                f"{part.label!r} ends at {exact(part.offset + part.size)} of {path[-1]!r}, which has {exact(size)}"
            )
            label = Label(f"{exact(size)} declared here", (*path, "size"))
            note = "the driver cannot map memory past the end of an object (fact 53)"
            help = f"write 'size: {exact(size - part.offset)}' at most" if part.offset < size else None
            yield Diagnostic("MT703", message, (*part.path, "size"), labels=(label,), notes=(note,), help=help)
        if part.offset and dedicated:
            message = f"{part.label!r} begins at {exact(part.offset)} of {path[-1]!r}, which is dedicated"
            label = Label("dedicated here", (*path, "dedicated"))
            note = "the driver maps a dedicated object from offset 0 only (fact 53)"
            help = "write 'offset: 0', or allocate and export it without a dedicated allocation, and remove 'dedicated'"
            yield Diagnostic("MT703", message, (*part.path, "offset"), labels=(label,), notes=(note,), help=help)


EXTERNAL = ExternalObjects(rules=(importable,), joint_rules=(equal_declarations,))
