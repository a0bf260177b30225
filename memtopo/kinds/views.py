"""Mapped views: the memory of a layout that a run may verify, with every address that it is accessible at."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location
from memtopo.geometry.access import granted, mappings
from memtopo.geometry.groups import Group, from_outside
from memtopo.geometry.model import Geometry
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.ipc import EventGroup
from memtopo.kinds.pools.allocations import AllocationGroup
from memtopo.machine import Machine

View = tuple[str, int, tuple[Grant, ...]]
"""Name of a range or of the memory itself, offset in it, and access at that offset."""


class Identity(Struct, frozen=True):
    """Identity of an object in a run: its owner, and its label there.

    The owner is the label of the creating process, empty in a single-process layout, or a holder outside of the spec.
    """

    owner: str
    label: str


class MappedMemory(Struct, frozen=True):
    """One chunk, buffer, managed or pinned allocation with all its views.

    `ours` is true if a process of this run created it; only then may it be written.
    """

    identity: Identity
    name: str
    size: int
    location: Location
    path: Path
    views: tuple[View, ...]
    ours: bool = True
    resource: Hashable = None
    """Resource that its step provides."""
    addressed: bool = False
    """True if it has an address of its own, so that VMM access does not apply to it."""
    by_kernels: bool = False
    """True if GPUs access it by kernels alone, and the CPU may always."""


class Member(Struct, frozen=True):
    """Process of a layout: its geometry, its label, and the geometries of all processes by label."""

    geometry: Geometry
    label: str = ""
    siblings: Mapping[str, Geometry] | None = None

    def identity(self, group: Group, index: int, label: str) -> Identity:
        """Identity of one object of a group, which has a label in this process."""
        if group.origin is None:
            return Identity(self.label, label)
        holder, number = group.origin.of(index)
        if group.origin.siblings and self.siblings:
            return Identity(holder, self.siblings[holder].of(ExportGroup)[group.origin.export].label(number))
        # An outside holder may have the name of a process; no process has a name with a slash.
        return Identity(f"{holder}/", f"{group.origin.export}.{number}")


def mapped_memory(member: Member, machine: Machine | None = None) -> list[MappedMemory]:
    """Memory that a process creates or imports, in the order of creation, without memory of other programs."""
    views = _mapped_views(member.geometry)
    groups = (group for group in member.geometry.every if group.memory and not group.produced)
    return [each for group in groups for each in _memory_of(group, views.get(group.name, {}), member, machine)]


def _mapped_views(geometry: Geometry) -> dict[str, dict[int, list[View]]]:
    """Views of mapped objects, by the name of their group and their index."""
    found: dict[str, dict[int, list[View]]] = {}
    access_of = granted(geometry)
    for placements in geometry.placements.values():
        label, latest = placements[0].range.label(placements[0].instance), None
        for placement, index, offset, access in mappings(placements, access_of):
            if placement is not latest:
                latest, views = placement, found.setdefault(placement.chunk.name, {})
            views.setdefault(index, []).append((label, offset, access))
    return found


def _memory_of(
    group: Group, views: Mapping[int, Sequence[View]], member: Member, machine: Machine | None
) -> Iterator[MappedMemory]:
    """Memory of a group, whose `views` are by index."""
    # What is the same for thousands of objects is computed once.
    size, path, noun = group.declared_size, group.path, group.noun
    ours, addressed = not from_outside(group), group.addressed
    by_kernels = isinstance(group, AllocationGroup) and group.by_kernels
    for index in range(group.count):
        label = group.label(index)
        identity, location = member.identity(group, index, label), group.location_of(index)
        seen, of = tuple(views.get(index, ())) or _own_view(group, index, machine), (noun, label)
        yield MappedMemory(identity, label, size, location, path, seen, ours, of, addressed, by_kernels)


def all_mapped_memory(geometry: Geometry) -> dict[str, list[MappedMemory]]:
    """Memory of each process by label; the label of a single process is empty."""
    siblings = geometry.processes or None
    return {label: mapped_memory(Member(each, label, siblings)) for label, each in geometry.members.items()}


def _own_view(group: Group, index: int, machine: Machine | None) -> tuple[View, ...]:
    grants = group.own_access(index, machine)
    return ((group.label(index), 0, grants),) if grants else ()


class RecordedEvent(Struct, frozen=True):
    """Event that a run may record: its identity, its name in this process, and its GPU."""

    identity: Identity
    event: str
    device: int
    path: Path


def recorded_events(member: Member) -> Iterator[RecordedEvent]:
    """Events of a process: created by it, or opened from processes of the same spec."""
    for group in member.geometry.every:
        if isinstance(group, EventGroup) and not from_outside(group):
            for index, event in enumerate(map(group.label, range(group.count))):
                yield RecordedEvent(
                    member.identity(group, index, event), event, group.location_of(index).id, group.path
                )
