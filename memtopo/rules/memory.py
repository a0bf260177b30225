"""The chunks fit into the memory of their devices."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics import Diagnostic, Label
from memtopo.driver.types import LocationKind
from memtopo.geometry import ChunkRun, Geometry
from memtopo.machine import Machine
from memtopo.units import rounded


def fits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT402. The sum of the chunks on each GPU against its memory."""
    for ordinal, device in enumerate(machine.devices):
        shares = _shares(geometry, ordinal)
        total = sum(size for size, _ in shares)
        if total <= device.memory_bytes:
            continue
        largest, *others = sorted(shares, key=lambda share: -share[0])
        needs = f"needs {_tenths(total)} on gpu{ordinal}, which has {_tenths(device.memory_bytes)}"
        told = f"the layout {needs}: {_tenths(total - device.memory_bytes)} too much"
        labels = tuple(Label(f"{rounded(size)} of it here", (*run.path, "size")) for size, run in others[:3])
        note = f"{largest[1].name!r} takes {rounded(largest[0])} of it"
        yield Diagnostic("MT402", told, (*largest[1].path, "size"), labels=labels, notes=(note,))


def _shares(geometry: Geometry, ordinal: int) -> list[tuple[int, ChunkRun]]:
    found = []
    for run in geometry.chunks.values():
        turns = [
            turn for turn, place in enumerate(run.locations) if place.kind is LocationKind.GPU and place.id == ordinal
        ]
        if size := run.size * sum(run.share(turn) for turn in turns):
            found.append((size, run))
    return found


def _tenths(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"
