"""Pinned host memory: page-locked memory of `cuMemHostAlloc`, and memory that another program shares in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Access, Grant, HostFlags, Location, LocationKind, RegisterFlags, gpu
from memtopo.geometry.groups import Group, Origin
from memtopo.geometry.model import Geometry
from memtopo.kinds.device_names import built_in
from memtopo.kinds.external import FROM, from_process
from memtopo.kinds.kind import Kind, Scope, Steps, Words
from memtopo.kinds.resolution import Refused, refuse, require_gpu, together, trial_reason
from memtopo.language.entries import Entry
from memtopo.language.fields import Boolean, Count, Devices, FilePath, OffsetBytes, PositiveBytes, ProducerText
from memtopo.machine import Machine

PAGE = 4 << 10
"""Unit of the offset of a part of a file that is mapped."""

_TRIALS = {False: "pinned", True: "registered"}
"""Trials of a machine by whether memory is registered."""


class Pinned(Entry):
    """Page-locked host memory: allocated, or of a file that another program shares."""

    size: PositiveBytes = Field(description="Bytes of each object.")
    count: Count | None = Field(
        default=None, description="Number of objects: p becomes p.0, p.1 and so on; in a file, one after the other."
    )
    accessed_by: Devices = Field(
        default=[],
        description="GPUs that access the memory, which ends with the context of the first GPU. By "
        "default the first GPU.",
    )
    write_combined: Boolean = Field(
        default=False,
        description="If true, the CPU does not cache the memory: CPU writes and GPU reads are fast, and CPU reads "
        "are very slow.",
    )
    file: FilePath | None = Field(
        default=None,
        description="Absolute path of a file shared by another program: /dev/shm/ring, or /proc/PID/fd/N for its "
        "memfd.",
    )
    source: ProducerText | None = Field(alias="from", default=None, description=f"Producer that sends a memfd: {FROM}")
    offset: OffsetBytes | None = Field(
        default=None, description="Offset of the first object in the file, a multiple of 4KiB; by default 0."
    )
    read_only: Boolean = Field(
        default=False, description="If true, the file is mapped read-only for the CPU and the GPUs."
    )


class PinnedGroup(Group, frozen=True):
    """Equal objects of page-locked host memory that one entry declares: `count` of `size` bytes.

    They are allocated in the context of the first of `gpus` (ordinals). With a `file` or an `origin` they are parts of
    a file that another program shares, one after the other from `offset` on, and are registered as a whole.
    """

    noun = "pinned memory"
    addressed = memory = True
    offered_as = "shm"

    gpus: tuple[int, ...]
    write_combined: bool = False
    file: str = ""
    offset: int = 0
    read_only: bool = False

    @property
    def registered(self) -> bool:
        """True if another program shares the memory."""
        return bool(self.file) or self.origin is not None

    @property
    def produced(self) -> bool:
        """True for memory of another program, which is never written by checks."""
        return self.registered

    @property
    def whole(self) -> int:
        """Bytes of all objects together."""
        return self.count * self.size

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs that access it."""
        return frozenset(self.gpus)

    @property
    def access(self) -> Access:
        """Access of the CPU and of each of its GPUs."""
        return Access.R if self.read_only else Access.RW

    def location_of(self, index: int) -> Location:
        """The host."""
        return WHOLE_HOST

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Access of its GPUs, and of the CPU."""
        return tuple(Grant(location, self.access) for location in (*map(gpu, self.gpus), WHOLE_HOST))

    def details(self) -> Iterator[str]:
        """Source, and flags."""
        if self.file:
            yield f"of {self.file}"
        if self.offset:
            yield f"from {exact(self.offset)} on"
        if self.write_combined:
            yield "write-combined"
        if self.read_only:
            yield "read-only"

    def shares(self) -> Mapping[Location, int]:
        """Number of objects that this process allocates; memory of another program is that program's."""
        return {} if self.registered else {WHOLE_HOST: self.count}


class PinnedMemory(Kind):
    """Section `pinned`."""

    section = "pinned"
    description = "Page-locked host memory, by name: allocated, or registered memory of another program."
    words = Words("pinned memory", "objects of pinned memory", "p: {size: 2MiB}", counted=False, drawn="pinned")
    entry = Pinned
    group = PinnedGroup
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": (
            "it already has an address, and VMM cannot map it (fact 74)",
            "use it at its own address, or declare a chunk of 'host'",
        ),
        "access": (
            "VMM access does not apply to it: cuMemGetAccess returns 0 (fact 74)",
            "name the GPUs that use it in 'accessed_by'",
        ),
        "exports": (
            "the driver exports no handle of it, and legacy IPC returns INVALID_VALUE (fact 74)",
            "let both processes register one file: 'file: /dev/shm/NAME'",
        ),
        "states": ("it stays as long as the layout", "omit it: a state can 'offload' chunks to it"),
    }

    def resolve_entry(self, scope: Scope, entry: Pinned, path: Path) -> PinnedGroup:
        name, origin = str(path[-1]), None
        gpus, _ = together(partial(_gpus, scope, entry, path), partial(refuse, _faults(scope, entry, path)))
        if entry.source:
            origin = Origin((entry.source.holder,), entry.source.export or name, 1, "memfd", siblings=False)
        return PinnedGroup(
            name=name,
            path=path,
            count=entry.count or 1,
            counted=entry.count is not None,
            size=entry.size.bytes(1),
            gpus=gpus,
            write_combined=entry.write_combined,
            file=entry.file or "",
            offset=entry.offset.bytes(1) if entry.offset else 0,
            read_only=entry.read_only,
            origin=origin,
        )

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        from memtopo.kinds.pinned.steps import PINNED, AllocatePinned, MapFile, RegisterMemory
        from memtopo.kinds.step import HandleReference

        for group in groups:
            if not group.registered:
                flags = PINNED | (HostFlags.WRITECOMBINED if group.write_combined else HostFlags.NONE)
                for index in range(group.count):
                    yield AllocatePinned(group.path, group.label(index), group.size, group.gpus, flags)
                continue
            source = HandleReference.of(group, 0) if group.origin else group.file
            yield MapFile(group.path, group.name, group.whole, source, group.offset, writable=not group.read_only)
            labels = tuple(group.label(index) for index in range(group.count))
            flags_of = RegisterFlags.PORTABLE | RegisterFlags.DEVICEMAP
            flags_of |= RegisterFlags.READ_ONLY if group.read_only else RegisterFlags.NONE
            yield RegisterMemory(group.path, group.name, group.whole, group.gpus, labels, flags_of)


def supported(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT405 for GPUs on which a trial with such memory failed."""
    for group in geometry.of(PinnedGroup).values():
        for ordinal in group.gpus:
            trial = machine.trial(gpu(ordinal), _TRIALS[group.registered])
            if trial.works is False:
                message = f"pinned memory {group.name!r} does not work on {geometry.place(gpu(ordinal))}"
                help = "declare a chunk of 'host' with access for the GPU"
                yield Diagnostic("MT405", message, group.path, "key", notes=(trial_reason(trial),), help=help)
                break


def _gpus(scope: Scope, entry: Pinned, path: Path) -> tuple[int, ...]:
    """Ordinals of the GPUs that access an entry, by default the first that the process sees."""
    listed = scope.devices.resolve_all(entry.accessed_by, path, "accessed_by")
    what = f"pinned memory {path[-1]!r}"
    if any(location.kind is not LocationKind.GPU for location in listed):
        message = f"{what}: 'accessed_by' accepts only GPUs; the CPU always has access"
        raise Refused(Diagnostic("MT405", message, (*path, "accessed_by"), help="name GPUs alone"))
    require_gpu(what, scope.machine, path, "it is allocated or registered in the context of a GPU (facts 74, 85)")
    first: Sequence[Location] = scope.devices.visible[:1] or (gpu(0),)
    return tuple(dict.fromkeys(location.id for location in listed or first))


def _faults(scope: Scope, entry: Pinned, path: Path) -> Iterator[Diagnostic]:
    """Yield MT203, MT715 and MT716 for a name, keys, an offset and a producer that the entry cannot have.

    A name must not hide a device, or `pinned`, where a state says what keeps offloaded bytes.
    """
    name, offset = str(path[-1]), entry.offset.bytes(1) if entry.offset else 0
    if (what := built_in(name)) or name == PinnedMemory.section:
        own = "stands for pinned memory of the layout's own under 'offload'"
        message = f"{name!r} {f'is the built-in name of {what}' if what else own}"
        yield Diagnostic("MT203", message, path, "key", help="choose another name")
    yield from _contradicting(entry, path)
    if offset % PAGE:
        below = offset - offset % PAGE
        message = f"pinned memory {name!r} begins at {exact(offset)} of its file, which is not a multiple of a page"
        help = f"write {f'{below}B' if below else '0'} or {below + PAGE}B"
        notes = (f"the system maps files in pages of {exact(PAGE)}",)
        yield Diagnostic("MT716", message, (*path, "offset"), notes=notes, help=help)
    if entry.source:
        yield from from_process(f"pinned memory {name!r}", path, entry.source, scope.siblings.spec.processes)


def _contradicting(entry: Pinned, path: Path) -> Iterator[Diagnostic]:
    """Yield MT715 for keys that do not go together."""
    name, shared = path[-1], "file" if entry.file else "from" if entry.source else ""
    if entry.file and entry.source:
        label = Label("the file is named here", (*path, "file"))
        message = f"pinned memory {name!r} has both a file and a producer"
        yield Diagnostic("MT715", message, (*path, "from"), "key", labels=(label,), help="keep one of them")
        return
    only_allocated = {"write_combined": entry.write_combined}
    only_shared = {"offset": entry.offset is not None, "read_only": entry.read_only}
    whole = {"count": entry.count is not None, "offset": entry.offset is not None}
    for key in (key for key, given in only_allocated.items() if given and shared):
        message = f"pinned memory {name!r} belongs to another program, so it cannot be {key.replace('_', '-')}"
        note = "only memory that the driver allocates can be (fact 85)"
        yield Diagnostic("MT715", message, (*path, key), "key", notes=(note,), help=f"omit {key!r}")
    for key in (key for key, given in only_shared.items() if given and not shared):
        message = f"pinned memory {name!r} has {key!r}, which applies only to memory shared by another program"
        yield Diagnostic("MT715", message, (*path, key), "key", help=f"add 'file: /dev/shm/NAME', or omit {key!r}")
    for key in (key for key, given in whole.items() if given and shared == "from"):
        message = f"pinned memory {name!r} has {key!r}, but memory of a producer is registered as a whole"
        yield Diagnostic("MT715", message, (*path, key), "key", help=f"omit {key!r}, and view parts of it")


PINNED_MEMORY = PinnedMemory(rules=(supported,))
