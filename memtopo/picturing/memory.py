"""Physical memory: whose chunks fill each device, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memtopo.driver.types import Location, LocationKind
from memtopo.geometry import BufferRun, ChunkRun, Geometry
from memtopo.machine import Machine
from memtopo.picture import MemoryPicture, Share

_Run = ChunkRun | BufferRun
_Shares = dict[tuple[str, int], tuple[int, _Run]]
"""How many chunks or buffers there are of one mark and size, and the first entry that declares some."""


def memory(geometry: Geometry, machine: Machine, marks: Mapping[str, str]) -> Iterator[MemoryPicture]:
    """Every device that holds chunks, GPUs by ordinal first."""
    for place, shares in sorted(_shares(geometry, marks).items()):
        names = tuple(name for name, named in geometry.devices.items() if named == place)
        yield _memory(place, names, shares, machine)


def _shares(geometry: Geometry, marks: Mapping[str, str]) -> dict[Location, _Shares]:
    found: dict[Location, _Shares] = {}
    for run in geometry.chunks.values():
        if run.origin:
            continue  # another process's memory
        kind = marks.get(run.name, run.name), run.size
        for place, count in run.shares().items():
            _add(found, place, kind, count, run)
    for buffer in geometry.buffers.values():
        if not buffer.origin:
            for index in range(buffer.count):
                _add(found, buffer.place_of(index), (buffer.name, buffer.size), 1, buffer)
    return found


def _add(found: dict[Location, _Shares], place: Location, kind: tuple[str, int], count: int, run: _Run) -> None:
    shares = found.setdefault(place, {})
    before, first = shares.get(kind, (0, run))
    shares[kind] = before + count, first


def _memory(place: Location, names: tuple[str, ...], shares: _Shares, machine: Machine) -> MemoryPicture:
    used = sum(count * size for (_, size), (count, _) in shares.items())
    device = machine.devices[place.id] if place.kind is LocationKind.GPU else None
    return MemoryPicture(
        device=str(place),
        names=names,
        used=used,
        total=device.memory_bytes if device else None,
        taken=device.memory_bytes - device.free_bytes if device and device.free_bytes is not None else None,
        free=max(0, device.room - used) if device else None,
        shares=tuple(
            Share(mark, count, size, count * size, first.path) for (mark, size), (count, first) in shares.items()
        ),
    )
