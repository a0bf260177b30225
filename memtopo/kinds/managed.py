"""Managed memory of `cuMemAllocManaged`, which migrates between GPUs and the host, with advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    HOST,
    Access,
    Advice,
    Attribute,
    Grant,
    Location,
    LocationKind,
    MemAttach,
    RangeAttribute,
    gpu,
)
from memtopo.geometry.groups import Group, gpus
from memtopo.geometry.model import Geometry
from memtopo.kinds.kind import Kind, Rule, Scope, Use
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.resolution import Resolution
from memtopo.kinds.step import Finding, Phase, Step, StepDescription
from memtopo.language.entries import Entry
from memtopo.language.fields import Attachment, Boolean, DeviceName, Devices, PositiveBytes
from memtopo.machine import Machine, Trial

_FLAGS = {"global": MemAttach.GLOBAL, "host": MemAttach.HOST, "single": MemAttach.HOST}
"""Flags of the allocation. Memory of a single stream is attached to the host first, then to its stream (fact 60)."""

_ASPECTS = {
    Advice.SET_READ_MOSTLY: "read mostly",
    Advice.SET_PREFERRED_LOCATION: "preferred",
    Advice.SET_ACCESSED_BY: "accessed by",
}

_ATTRIBUTES = {
    Advice.SET_READ_MOSTLY: RangeAttribute.READ_MOSTLY,
    Advice.SET_PREFERRED_LOCATION: RangeAttribute.PREFERRED_LOCATION,
    Advice.SET_ACCESSED_BY: RangeAttribute.ACCESSED_BY,
}

_REPORTED = (LocationKind.GPU, LocationKind.HOST)
"""Kinds of locations that range attributes report (fact 60)."""

_ADVICE = "advice and prefetching require concurrent access by the CPU and GPUs"


class Managed(Entry):
    """Memory of `cuMemAllocManaged`, which migrates between GPUs and the host, with advice."""

    size: PositiveBytes = Field(description="Bytes of the allocation.")
    attach: Attachment = Field(
        default="global",
        description="Users: every GPU and the host (global), initially the host only (host), or one stream (single).",
    )
    prefer: DeviceName | None = Field(default=None, description="Preferred location.")
    accessed_by: Devices = Field(
        default=[], description="GPUs, or host, that access it at its location without migration."
    )
    read_mostly: Boolean = Field(default=False, description="If true, each reader gets its own copy.")
    prefetch: DeviceName | None = Field(
        default=None, description="Device that the memory migrates to when the layout is built."
    )


@dataclass(frozen=True, slots=True)
class ManagedAllocation(Group):
    """One allocation of managed memory.

    `home` is the GPU whose context allocates it, and to whose stream `single` memory is attached.
    """

    noun = "managed memory"
    addressed = memory = memory_kept_by_driver = True

    name: str
    path: Path
    size: int
    attach: Literal["global", "host", "single"]
    home: int
    prefer: Location | None = None
    accessed_by: tuple[Location, ...] = ()
    read_mostly: bool = False
    prefetch: Location | None = None
    count: int = 1
    counted: bool = False
    origin: None = None

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs that it may migrate to."""
        named = [each for each in (self.prefer, self.prefetch, *self.accessed_by) if each]
        return gpus(named) | {self.home}

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU that needs a stream for it; None if none does."""
        return self.home if self.attach == "single" else None

    def place_of(self, index: int) -> Location:
        """Location that it is allocated on."""
        del index
        return gpu(self.home)

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Read and write access of the GPUs that it may migrate to, its home first, and of the host.

        Memory of the host or of one stream excludes GPUs that cannot use it while the CPU may.
        """
        del index
        ordinals = [self.home, *sorted(self.contexts - {self.home})]
        usable = (each for each in ordinals if self.attach == "global" or machine is None or _concurrent(machine, each))
        return tuple(Grant(place, Access.RW) for place in (*map(gpu, usable), Location(LocationKind.HOST)))

    def details(self) -> Iterator[str]:
        """Attachment and advice."""
        if self.attach != "global":
            yield f"attached to {'one stream' if self.attach == 'single' else 'the host'}"
        if self.prefer:
            yield f"prefers {self.prefer}"
        if self.accessed_by:
            yield f"accessed by {', '.join(map(str, self.accessed_by))}"
        if self.read_mostly:
            yield "read mostly"
        if self.prefetch:
            yield f"prefetched to {self.prefetch}"

    def shares(self) -> Mapping[Location, int]:
        """The GPU that it is allocated on."""
        return {gpu(self.home): 1}

    def demand(self) -> Mapping[Location, int]:
        """Bytes of each GPU that it may migrate to, which is all of it."""
        return {gpu(ordinal): self.size for ordinal in sorted(self.contexts)}


class ManagedMemory(Kind):
    """Section `managed`."""

    section = "managed"
    description = "Memory of cuMemAllocManaged, by name, which migrates between GPUs and the host."
    article = "managed memory"
    entry = model = Managed
    group = ManagedAllocation
    drawn = "managed"
    unusable: ClassVar[Mapping[Use, tuple[str, str]]] = {
        "map": (
            "it already has an address, and VMM cannot map it (fact 60)",
            "use it at its own address, or declare a chunk",
        ),
        "access": (
            "VMM access does not apply to it: cuMemGetAccess returns 0 (fact 60)",
            "declare its use with 'attach', 'prefer' and 'accessed_by'",
        ),
        "export": (
            "the driver exports no handle of it, and legacy IPC returns INVALID_VALUE (fact 60)",
            "declare a chunk with 'handles: fd'",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: Managed, path: Path) -> Resolution[ManagedAllocation | None]:
        prefer = yield from scope.devices.resolve_all(_one(entry.prefer), path, "prefer")
        prefetch = yield from scope.devices.resolve_all(_one(entry.prefetch), path, "prefetch")
        accessed_by = yield from scope.devices.resolve_all(entry.accessed_by, path, "accessed_by")
        if prefer is None or prefetch is None or accessed_by is None:
            return None
        if wrong := _homeless(path, scope.machine) or _by_node(path, accessed_by):
            yield wrong
            return None
        return ManagedAllocation(
            name=str(path[-1]),
            path=path,
            size=entry.size.bytes(1),
            attach=entry.attach,
            home=_home([*prefer, *prefetch, *accessed_by, *scope.devices.visible]),
            prefer=prefer[0] if prefer else None,
            accessed_by=tuple(dict.fromkeys(accessed_by)),
            read_mostly=entry.read_mostly,
            prefetch=prefetch[0] if prefetch else None,
        )

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        """Steps of all allocations, then of all advice, attachments and migrations."""
        del machine
        groups = list(geometry.of(ManagedAllocation).values())
        for group in groups:
            yield AllocateManaged(group.path, group.name, group.size, group.home, _FLAGS[group.attach])
        for group in groups:
            yield from _advise(group)
        for group in groups:
            if group.stream is not None:
                yield AttachStream(group.path, group.name, group.home)
        for group in groups:
            if group.prefetch:
                own = group.stream is not None
                yield Prefetch((*group.path, "prefetch"), group.name, group.prefetch, group.home, own)

    def rules(self) -> tuple[Rule, ...]:
        return (supported,)


@dataclass(frozen=True, slots=True)
class AllocateManaged(Step):
    """Allocate `size` bytes in the context of a GPU; `attach` is GLOBAL or HOST (facts 39, 60)."""

    label: str
    size: int
    device: int
    attach: MemAttach

    phase = Phase.CREATE
    verb = "allocate managed"
    call = "cuMemAllocManaged"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.managed[self.label] = Reservation(driver.mem_alloc_managed(self.size, self.attach), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.managed:
            driver.mem_free(layout.managed[self.label].address)
            del layout.managed[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.managed[self.label].address
        with current(driver, layout.contexts[self.device]):
            base, size = driver.mem_get_address_range(address)
            managed = driver.pointer_is_managed(address)
        yield Finding("managed", self.label, (hex(address), self.size), (hex(base), size), self.path)
        yield Finding("managed", self.label, "managed", "managed" if managed else "not managed", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=f"attached {self.attach.name.lower()}")

    def leak_name(self) -> str:
        return f"managed memory {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        del device
        return (self.leak_name(),)


@dataclass(frozen=True, slots=True)
class Advise(Step):
    """Give advice for a whole allocation in the context of `device`.

    There is nothing to undo: the advice ends with the memory.
    """

    label: str
    advice: Advice
    location: Location
    device: int

    phase = Phase.CREATE
    verb = "advise"
    call = "cuMemAdvise"

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            driver.mem_advise(address, size, self.advice, self.location)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        if self.location.kind not in _REPORTED:
            return
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            values = driver.mem_range_get_attribute(address, size, _ATTRIBUTES[self.advice])
        yield Finding(_ASPECTS[self.advice], self.label, *self._compared(values), self.path)

    def describe(self) -> StepDescription:
        where = "" if self.advice is Advice.SET_READ_MOSTLY else str(self.location)
        return StepDescription(self.label, where, like=self.advice, note=_ASPECTS[self.advice])

    def _compared(self, values: tuple[int, ...]) -> tuple[str, str]:
        """Expected and observed location; a list of accessing devices may contain others as well."""
        if self.advice is Advice.SET_READ_MOSTLY:
            return "yes", "yes" if values == (1,) else "no"
        expected, observed = as_reported(self.location), [device_name(each) for each in values]
        if self.advice is Advice.SET_ACCESSED_BY and expected in observed:
            return expected, expected
        return expected, ", ".join(observed) or "none"


@dataclass(frozen=True, slots=True)
class AttachStream(Step):
    """Attach a whole allocation to the stream of its GPU, since the driver refuses stream 0 (fact 60).

    There is nothing to undo: the attachment ends with the memory. The driver has no query for it.
    """

    label: str
    device: int

    phase = Phase.CREATE
    verb = "attach to stream"
    call = "cuStreamAttachMemAsync"

    def do(self, driver: Driver, layout: Layout) -> None:
        address = layout.managed[self.label].address
        with current(driver, layout.contexts[self.device]):
            driver.stream_attach_mem_async(layout.streams[self.device], address, MemAttach.SINGLE)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}")


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Migrate a whole allocation, in the stream of `device` that the memory is attached to if `own`, else in stream 0.

    `Synchronize` waits for it. There is nothing to undo.
    """

    label: str
    location: Location
    device: int
    own: bool

    phase = Phase.SETTLE
    verb = "prefetch"
    call = "cuMemPrefetchAsync"

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.managed[self.label]
        stream = layout.streams[self.device] if self.own else 0
        with current(driver, layout.contexts[self.device]):
            driver.mem_prefetch_async(address, size, self.location, stream)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            values = driver.mem_range_get_attribute(address, size, RangeAttribute.LAST_PREFETCH_LOCATION)
        observed = ", ".join(map(device_name, values)) or "none"
        yield Finding("prefetched", self.label, as_reported(self.location), observed, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.location), like=self.location)


def supported(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT701 for GPUs that do not support managed memory, or advice about it (fact 60)."""
    for group in geometry.of(ManagedAllocation).values():
        if diagnostic := _memory(group, machine) or _advice(group, machine):
            yield diagnostic


def device_name(ordinal: int) -> str:
    """Name in a spec of a device that a range attribute reports."""
    return "host" if ordinal == HOST else f"gpu{ordinal}"


def as_reported(location: Location) -> str:
    """Name of a location as range attributes report it: all NUMA nodes are `host` (fact 60)."""
    return str(location) if location.kind is LocationKind.GPU else "host"


def _concurrent(machine: Machine, ordinal: int) -> bool:
    """Return true if a GPU and the CPU may use managed memory concurrently."""
    return bool(machine.devices[ordinal].attributes.get(Attribute.CONCURRENT_MANAGED_ACCESS.name))


def _advise(group: ManagedAllocation) -> Iterator[Step]:
    path, name, home = group.path, group.name, group.home
    if group.read_mostly:
        # The driver ignores the location of this advice.
        yield Advise((*path, "read_mostly"), name, Advice.SET_READ_MOSTLY, gpu(home), home)
    if group.prefer:
        yield Advise((*path, "prefer"), name, Advice.SET_PREFERRED_LOCATION, group.prefer, home)
    for place in group.accessed_by:
        yield Advise((*path, "accessed_by"), name, Advice.SET_ACCESSED_BY, place, home)


def _one(name: str | None) -> list[str]:
    return [] if name is None else [name]


def _home(places: Sequence[Location]) -> int:
    """Ordinal of the first GPU of some locations, 0 if there is none."""
    return next((place.id for place in places if place.kind is LocationKind.GPU), 0)


def _homeless(path: Path, machine: Machine) -> Diagnostic | None:
    if machine.devices:
        return None
    note = "it is allocated in the context of a GPU (fact 60)"
    return Diagnostic("MT401", f"managed memory {path[-1]!r} needs a GPU", path, "key", notes=(note,))


def _by_node(path: Path, places: Sequence[Location]) -> Diagnostic | None:
    """Return MT701 for advice about a NUMA node, which the driver refuses; it supports the host as a whole."""
    index, node = next(
        ((index, place) for index, place in enumerate(places) if place.kind is LocationKind.HOST_NUMA), (0, None)
    )
    if node is None:
        return None
    message = f"managed memory {path[-1]!r}: 'accessed_by' cannot name {node}"
    note = "the driver returns INVALID_VALUE for a NUMA node (fact 60)"
    where = (*path, "accessed_by", index) if len(places) > 1 else (*path, "accessed_by")
    return Diagnostic("MT701", message, where, notes=(note,), help="write host")


def _memory(group: ManagedAllocation, machine: Machine) -> Diagnostic | None:
    for ordinal in sorted(group.contexts):
        if (trial := machine.trial(gpu(ordinal), "managed")).refused:
            message = f"managed memory {group.name!r} does not work on gpu{ordinal} of this machine"
            return Diagnostic("MT701", message, group.path, "key", notes=(_reason(trial),), help="declare a chunk")
    return None


def _advice(group: ManagedAllocation, machine: Machine) -> Diagnostic | None:
    for path, place in _requests(group):
        if (trial := machine.trial(place, "concurrent")).refused:
            message = f"managed memory {group.name!r}: {place} of this machine does not support {str(path[-1])!r}"
            notes = (_ADVICE, _reason(trial))
            return Diagnostic("MT701", message, path, notes=notes, help=f"leave {str(path[-1])!r} out")
    return None


def _requests(group: ManagedAllocation) -> Iterator[tuple[Path, Location]]:
    """Advice and prefetch of an allocation, each with its GPU; a prefetch to the host uses the stream of `home`."""
    if group.prefer and group.prefer.kind is LocationKind.GPU:
        yield (*group.path, "prefer"), group.prefer
    for place in group.accessed_by:
        if place.kind is LocationKind.GPU:
            yield (*group.path, "accessed_by"), place
    if group.prefetch:
        yield (*group.path, "prefetch"), group.prefetch if group.prefetch.kind is LocationKind.GPU else gpu(group.home)


def _reason(trial: Trial) -> str:
    if trial.works is not False:
        return "the device does not advertise it"
    advertised = "it is advertised, but " if trial.advertised else ""
    return f"{advertised}a trial {f'failed with {trial.error}' if trial.error else 'read wrong bytes'}"


MANAGED = ManagedMemory()
