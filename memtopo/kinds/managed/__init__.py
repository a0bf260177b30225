"""Managed memory of `cuMemAllocManaged`, which migrates between GPUs and the host, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import WHOLE_HOST, Access, Advice, Attribute, Grant, Location, LocationKind, MemAttach, gpu
from memtopo.geometry.groups import Group, Residence, gpus
from memtopo.geometry.model import Geometry
from memtopo.kinds.kind import Kind, Scope, Steps, Words
from memtopo.kinds.resolution import Refused, require_gpu, together, trial_reason
from memtopo.language.entries import Entry
from memtopo.language.fields import Boolean, DeviceName, Devices, PositiveBytes
from memtopo.language.names import NamedDevice
from memtopo.language.scalars import FromWord
from memtopo.machine import Machine

_FLAGS = {"global": MemAttach.GLOBAL, "host": MemAttach.HOST, "single": MemAttach.HOST}
"""Flags of the allocation. Memory of a single stream is attached to the host first, then to its stream (fact 60)."""

_ATTACHMENTS = {each: each for each in _FLAGS}
Attachment = Annotated[Literal["global", "host", "single"], FromWord(_ATTACHMENTS, "a way to attach managed memory")]

_ADVICE = "advice, prefetching and oversubscription require concurrent access by the CPU and GPUs"


class Managed(Entry):
    """Memory of `cuMemAllocManaged`, which migrates between GPUs and the host, with advice."""

    size: PositiveBytes = Field(description="Bytes of the allocation, which is rounded up to whole pages of 4KiB.")
    attach: Attachment = Field(
        default="global",
        description="Users: every GPU and the host (global, the default), the host first (host), or one stream, and "
        "the host while the stream is idle (single).",
    )
    prefer: DeviceName | None = Field(default=None, description="Preferred location: a GPU, host, or host:0.")
    accessed_by: Devices = Field(
        default=[], description="GPUs, or host, that access the memory at its location without migration."
    )
    read_mostly: Boolean = Field(default=False, description="If true, each reader gets its own copy.")
    prefetch: DeviceName | None = Field(
        default=None,
        description="Device to which the memory migrates when the layout is built: a GPU, host, or host:0.",
    )
    oversubscribe: Boolean = Field(
        default=False, description="If true, the size can exceed the free memory of its GPUs; the rest is on the host."
    )


class ManagedAllocation(Group, frozen=True):
    """One allocation of managed memory.

    `home` is the GPU whose context allocates it, and to whose stream `single` memory is attached.
    """

    noun = "managed memory"
    addressed = memory = True

    attach: Literal["global", "host", "single"]
    home: int
    prefer: Location | None = None
    accessed_by: tuple[Location, ...] = ()
    read_mostly: bool = False
    prefetch: Location | None = None
    oversubscribe: bool = False

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs that it may migrate to."""
        named = [each for each in (self.prefer, self.prefetch, *self.accessed_by) if each]
        return gpus(named) | {self.home}

    @property
    def residence(self) -> Residence:
        """Any of its GPUs, or the host."""
        return Residence.EXCEEDING if self.oversubscribe else Residence.MIGRATING

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU that needs a stream for it; None if none does."""
        return self.home if self.attach == "single" else None

    def location_of(self, index: int) -> Location:
        """Location that it is allocated on."""
        return gpu(self.home)

    @property
    def locations(self) -> Sequence[Location]:
        """The location that it prefers, or the GPU that it is allocated on."""
        return tuple(self.shares())

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Read and write access of the GPUs that it may migrate to, its home first, and of the host.

        Memory of the host or of one stream excludes GPUs that cannot use it while the CPU may.
        """
        usable: Iterable[int] = [self.home, *sorted(self.contexts - {self.home})]
        if machine and self.attach != "global":
            name, devices = Attribute.CONCURRENT_MANAGED_ACCESS.name, machine.devices
            usable = (each for each in usable if devices[each].attributes.get(name))
        return tuple(Grant(location, Access.RW) for location in (*map(gpu, usable), WHOLE_HOST))

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
        if self.oversubscribe:
            yield "may exceed its GPU"

    def shares(self) -> Mapping[Location, int]:
        """The location that it prefers, or the GPU that it is allocated on."""
        return {self.prefer or gpu(self.home): 1}

    def demand(self) -> Mapping[Location, int]:
        """Bytes of each location that it may occupy, which is all of it.

        With a preferred location these are that one and the target of the prefetch, since the GPUs of `accessed_by`
        access it there without migration.
        """
        gpus = map(gpu, sorted(self.contexts))
        named = (location for location in (self.prefer, self.prefetch) if location)
        return dict.fromkeys(named if self.prefer else gpus, self.size)


class ManagedMemory(Kind):
    """Section `managed`."""

    section = "managed"
    description = "Memory of cuMemAllocManaged, by name, which migrates between GPUs and the host."
    words = Words("managed memory", "managed", "m: {size: 2MiB}", counted=False, drawn="managed")
    entry = Managed
    group = ManagedAllocation
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": (
            "it already has an address, and VMM cannot map it (fact 60)",
            "use it at its own address, or declare a chunk",
        ),
        "access": (
            "VMM access does not apply to it: cuMemGetAccess returns 0 (fact 60)",
            "declare its use with 'attach', 'prefer' and 'accessed_by'",
        ),
        "exports": (
            "the driver exports no handle of it, and legacy IPC returns INVALID_VALUE (fact 60)",
            "declare a chunk with 'handles: fd'",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: Managed, path: Path) -> ManagedAllocation:
        prefer, prefetch, accessed_by = together(
            partial(_one, scope, entry.prefer, (*path, "prefer")),
            partial(_one, scope, entry.prefetch, (*path, "prefetch")),
            partial(scope.devices.resolve_all, entry.accessed_by, path, "accessed_by"),
        )
        why = "it is allocated in the context of a GPU (fact 60)"
        require_gpu(f"managed memory {path[-1]!r}", scope.machine, path, why)
        for index, location in enumerate(accessed_by):
            if location.kind is LocationKind.HOST_NUMA:  # the driver supports the host as a whole
                message = f"managed memory {path[-1]!r}: 'accessed_by' cannot name {location}"
                note = "the driver returns INVALID_VALUE for a NUMA node (fact 60)"
                where = (*path, "accessed_by", index) if len(accessed_by) > 1 else (*path, "accessed_by")
                raise Refused(Diagnostic("MT701", message, where, notes=(note,), help="write host"))
        named = (*filter(None, (prefer, prefetch)), *accessed_by, *scope.devices.visible)
        return ManagedAllocation(
            name=str(path[-1]),
            path=path,
            size=entry.size.bytes(1),
            attach=entry.attach,
            home=next((each.id for each in named if each.kind is LocationKind.GPU), 0),
            prefer=prefer,
            accessed_by=tuple(dict.fromkeys(accessed_by)),
            read_mostly=entry.read_mostly,
            prefetch=prefetch,
            oversubscribe=entry.oversubscribe,
        )

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        """Steps of all allocations, then of all advice, attachments and migrations."""
        from memtopo.kinds.managed.steps import Advise, AllocateManaged, AttachStream, Prefetch

        for group in groups:
            attach, preferred = _FLAGS[group.attach], group.prefer or gpu(group.home)
            yield AllocateManaged(group.path, group.name, group.home, group.size, attach, preferred)
        for group in groups:
            about = group.name, group.home
            if group.read_mostly:
                # With any GPU the advice is the same, with a NUMA node it has no effect (fact 71).
                yield Advise((*group.path, "read_mostly"), *about, Advice.SET_READ_MOSTLY, gpu(group.home))
            if group.prefer:
                yield Advise((*group.path, "prefer"), *about, Advice.SET_PREFERRED_LOCATION, group.prefer)
            for location in group.accessed_by:
                yield Advise((*group.path, "accessed_by"), *about, Advice.SET_ACCESSED_BY, location)
        for group in groups:
            if group.stream is not None:
                yield AttachStream(group.path, group.name, group.home)
        for group in groups:
            if group.prefetch:
                own = group.stream is not None
                yield Prefetch((*group.path, "prefetch"), group.name, group.home, group.prefetch, own)


def supported(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT701 for GPUs that do not support managed memory, or advice about it (fact 60)."""
    for group in geometry.of(ManagedAllocation).values():
        yield from islice(_faults(group, machine), 1)


def _faults(group: ManagedAllocation, machine: Machine) -> Iterator[Diagnostic]:
    what = f"managed memory {group.name!r}"
    for ordinal in sorted(group.contexts):
        if (trial := machine.trial(gpu(ordinal), "managed")).refused:
            message = f"{what} does not work on gpu{ordinal} of this machine"
            yield Diagnostic("MT701", message, group.path, "key", notes=(trial_reason(trial),), help="declare a chunk")
    for path, location in _requests(group):
        if (trial := machine.trial(location, "concurrent")).refused:
            message = f"{what}: {location} of this machine does not support {str(path[-1])!r}"
            notes = (_ADVICE, trial_reason(trial))
            yield Diagnostic("MT701", message, path, notes=notes, help=f"omit {str(path[-1])!r}")


def _one(scope: Scope, name: NamedDevice | None, path: Path) -> Location | None:
    """Location of a key that names one device; None without the key."""
    return None if name is None else scope.devices.resolve(name, path)


def _requests(group: ManagedAllocation) -> Iterator[tuple[Path, Location]]:
    """Advice, oversubscription and prefetch of an allocation, each with its GPU.

    A prefetch to the host uses the stream of `home`, and read-mostly copies are made for it; other advice about the
    host concerns no GPU.
    """
    if group.read_mostly:
        yield (*group.path, "read_mostly"), gpu(group.home)
    if group.prefer and group.prefer.kind is LocationKind.GPU:
        yield (*group.path, "prefer"), group.prefer
    for location in group.accessed_by:
        if location.kind is LocationKind.GPU:
            yield (*group.path, "accessed_by"), location
    if group.oversubscribe:
        yield from (((*group.path, "oversubscribe"), gpu(ordinal)) for ordinal in sorted(group.contexts))
    if group.prefetch:
        yield (*group.path, "prefetch"), group.prefetch if group.prefetch.kind is LocationKind.GPU else gpu(group.home)


MANAGED = ManagedMemory(rules=(supported,))
