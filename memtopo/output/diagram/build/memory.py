"""Physical memory: whose chunks fill each device, and what they leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry import BufferGroup, ChunkGroup, Geometry, ManagedAllocation
from memtopo.machine import Machine
from memtopo.output.diagram.build.names import Marks, named
from memtopo.output.diagram.model import MemoryDiagram, MemoryShare

_Run = ChunkGroup | BufferGroup | ManagedAllocation
_Shares = dict[tuple[str, int], tuple[int, _Run]]
"""How many things there are of one mark and size, and the first entry that declares some."""


class Owner(NamedTuple):
    """A process whose memory it is: its label, its geometry, and how many processes are like it."""

    process: str
    geometry: Geometry
    times: int = 1


def memory(owners: Iterable[Owner], machine: Machine, marks: Marks) -> Iterator[MemoryDiagram]:
    """Every device that holds chunks of some processes, GPUs by ordinal first."""
    owners = list(owners)
    names = _names(owners)
    for place, shares in sorted(_shares(owners, marks).items()):
        yield _memory(place, names.get(place, ()), shares, machine)


def _names(owners: Iterable[Owner]) -> Mapping[Location, tuple[str, ...]]:
    """What the spec calls each device, by names that mean the same one in all processes."""
    meant: dict[str, set[Location]] = {}
    for owner in owners:
        for name, place in owner.geometry.devices.items():
            meant.setdefault(name, set()).add(place)
    found: dict[Location, tuple[str, ...]] = {}
    for name, places in meant.items():
        if len(places) == 1:
            (place,) = places
            found[place] = (*found.get(place, ()), name)
    return found


def _shares(owners: Iterable[Owner], marks: Marks) -> dict[Location, _Shares]:
    found: dict[Location, _Shares] = {}
    for owner in owners:
        for run in owner.geometry.created:  # what is imported is another process's memory
            kind = marks.of(owner.process, run), run.size
            for place, count in run.shares().items():
                shares = found.setdefault(place, {})
                before, first = shares.get(kind, (0, run))
                shares[kind] = before + count * owner.times, first
        for managed in owner.geometry.managed.values():  # where it is allocated: it may come to be elsewhere
            shares = found.setdefault(gpu(managed.home), {})
            shares[named(owner.process, managed.name), managed.size] = owner.times, managed
    return found


def _memory(place: Location, names: tuple[str, ...], shares: _Shares, machine: Machine) -> MemoryDiagram:
    used = sum(count * size for (_, size), (count, _) in shares.items())
    device = machine.devices[place.id] if place.kind is LocationKind.GPU else None
    return MemoryDiagram(
        device=str(place),
        names=names,
        used=used,
        total=device.memory_bytes if device else None,
        taken=device.memory_bytes - device.free_bytes if device and device.free_bytes is not None else None,
        free=max(0, device.room - used) if device else None,
        shares=tuple(
            MemoryShare(mark, count, size, count * size, first.path) for (mark, size), (count, first) in shares.items()
        ),
    )
