"""Physical memory: the chunks, buffers and managed allocations of each device, and the memory that remains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry import Geometry
from memtopo.geometry.diagram import MemoryDiagram, MemoryShare
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.heaps import BackupGroup
from memtopo.kinds.states.groups import OffloadArea
from memtopo.machine import CONTEXT_BYTES, Machine, Machines

_Shares = dict[tuple[str, int], tuple[int, Group]]
"""By mark and size: the largest number of equal pieces of memory, and the first entry that declares some."""


class Owner(Struct, frozen=True):
    """A process that owns memory, with the number of equal processes, and its node if the layout has nodes."""

    process: str
    geometry: Geometry
    processes: int = 1
    node: str | None = None

    def name(self, location: Location) -> str:
        """A location as the process sees it: `a/gpu0` of its node; one of another node has that already."""
        return str(location if location.node else location.on(self.node))

    def names(self, locations: Sequence[Location]) -> tuple[str, ...]:
        """The locations of one round-robin cycle; without a cycle, each location once."""
        return tuple(map(self.name, cycle(locations) or dict.fromkeys(locations)))


def memory(owners: Sequence[Owner], machines: Machines, marks: Marks) -> Iterator[MemoryDiagram]:
    """Each memory with chunks of some processes, GPUs by ordinal first; node by node."""
    for node in dict.fromkeys(owner.node for owner in owners):
        own = [owner for owner in owners if owner.node == node]
        for each in _memory_of_node(own, machines.of(node), marks):
            yield replace(each, device=f"{node}/{each.device}") if node else each


def _memory_of_node(owners: Sequence[Owner], machine: Machine, marks: Marks) -> Iterator[MemoryDiagram]:
    """Besides what is used, a GPU has the contexts of the processes (fact 30), and the host what its nodes have."""
    names = _names(owners)
    found = dict(sorted(_shares(owners, marks).items()))
    used = {at: sum(count * size for (_, size), (count, _) in shares.items()) for at, shares in found.items()}
    on_nodes = sum(amount for at, amount in used.items() if at.kind is LocationKind.HOST_NUMA)
    for at, shares in found.items():
        contexts = sum(owner.processes for owner in owners if at in map(gpu, owner.geometry.gpus))
        besides = on_nodes if at.kind is LocationKind.HOST else contexts * CONTEXT_BYTES
        device = machine.devices[at.id] if at.kind is LocationKind.GPU else None
        whole = machine.host_bytes if at.kind is LocationKind.HOST else machine.node_bytes.get(at)
        total, room = (device.memory_bytes, device.room) if device else (whole, whole)
        yield MemoryDiagram(
            device=str(at),
            names=tuple(name for name, location in names.items() if location == at),
            used=used[at],
            total=total,
            taken=device.memory_bytes - device.free_bytes if device and device.free_bytes is not None else None,
            free=None if room is None else max(0, room - used[at] - besides),
            shares=tuple(
                MemoryShare(mark, count, size, count * size, first.path, _label(first))
                for (mark, size), (count, first) in shares.items()
            ),
            growing=any(group.growing for _, group in shares.values()),
        )


def _names(owners: Sequence[Owner]) -> Mapping[str, Location]:
    """Devices by the spec's names, without names of different devices in different processes."""
    found: dict[str, set[Location]] = {}
    for owner in owners:
        for name, location in owner.geometry.devices.items():
            found.setdefault(name, set()).add(location)
    return {name: locations.pop() for name, locations in found.items() if len(locations) == 1}


def _shares(owners: Sequence[Owner], marks: Marks) -> Mapping[Location, _Shares]:
    found: dict[Location, _Shares] = {}
    for owner in owners:
        for group in owner.geometry.every:
            key = marks.mark(owner.process, group), group.size
            for location, number in group.largest_shares().items():
                shares = found.setdefault(location, {})
                if number:
                    before, first = shares.get(key, (0, group))
                    shares[key] = before + number * owner.processes, first
    return found


def _label(group: Group) -> str:
    """Name of objects that are shown in the memory of their location only; empty for all others."""
    return f"offloaded {group.name.partition('@')[0]}" if isinstance(group, OffloadArea | BackupGroup) else ""


LONGEST_CYCLE = 16
"""Locations after which a round-robin order may begin again, at most, to be recognised as one."""


class Marks:
    """The marks of the memory of a layout: the same for the same chunks in all of its processes.

    Entries that one span covers share the mark of the first of them.
    """

    def __init__(self, members: Mapping[str, Geometry]) -> None:
        self._members = members
        self._shared: dict[str, str] = {}

    def mark(self, process: str, group: Group) -> str:
        """The mark of an entry's memory in a process; of an import from a sibling, the mark that it has there."""
        own = self._own(process, group)
        return self._shared.get(own, own)

    def join(self, process: str, groups: Iterable[Group]) -> str:
        """One mark for several entries, except entries that have another one already."""
        first, *more = groups
        own = self._own(process, first)
        mark = self._shared.setdefault(own, own)
        for group in more:
            self._shared.setdefault(self._own(process, group), mark)
        return mark

    def _own(self, process: str, group: Group) -> str:
        if group.origin and group.origin.siblings:
            process = group.origin.holders[0]
            group = self._members[process].of(ExportGroup)[group.origin.export].group
        return f"{process_entry(process)}: {group.name}" if process else group.name


def process_entry(process: str) -> str:
    """The entry of the spec that declares a process: `reader` of `reader.3`."""
    return process.partition(".")[0]


def source(origin: Origin | None) -> str:
    """The source of an import as the spec writes it, empty for what is created here."""
    if origin is None:
        return ""
    holder = origin.holders[0]
    return origin.text(process_entry(holder) if origin.siblings else holder)


def cycle(locations: Sequence[Location]) -> tuple[Location, ...]:
    """The shortest sequence that the locations repeat, empty if there is none."""
    for length in range(1, min(LONGEST_CYCLE, len(locations)) + 1):
        if all(location == locations[index % length] for index, location in enumerate(locations)):
            return tuple(locations[:length])
    return ()


def is_regular(locations: Sequence[Location]) -> bool:
    """True if the locations repeat a cycle, or are different ones; a drawing of them by their order is exact then."""
    found = cycle(locations) or locations
    return len({*found}) == len(found) or 2 * len(found) <= len(locations)


def regular_lengths(locations: Sequence[Location]) -> Iterator[int]:
    """Lengths of the parts that repeat a cycle each, from the first location on."""
    start = 0
    while start < len(locations):
        best = 1
        for length in range(1, LONGEST_CYCLE + 1):
            stop = start + length
            while stop < len(locations) and locations[stop] == locations[stop - length]:
                stop += 1
            if stop - start >= 2 * length:
                best = max(best, stop - start)
            if best >= 2 * LONGEST_CYCLE:
                break
        yield best
        start += best
