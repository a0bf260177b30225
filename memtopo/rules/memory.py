"""The chunks fit into the memory of their devices."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics import Diagnostic, Label
from memtopo.driver.types import LocationKind
from memtopo.geometry import ChunkRun, Geometry
from memtopo.machine import Machine
from memtopo.units import GiB, rounded


def fits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT402. The sum of the chunks on each GPU against its memory: what is free of a live one, else its total."""
    taken = _shares(geometry)
    for ordinal, device in enumerate(machine.devices):
        shares = taken.get(ordinal, [])
        total = sum(size for size, _ in shares)
        if total <= device.room:
            continue
        largest, *others = sorted(shares, key=lambda share: -share[0])
        has = f"{_tenths(device.room)}{' free' if device.free_bytes is not None else ''}"
        over = _over(total - device.room)
        told = f"the layout needs {_tenths(total)} on gpu{ordinal}, which has {has}: {over} too much"
        labels = tuple(Label(f"{rounded(size)} of it here", (*run.path, "size")) for size, run in others[:3])
        note = f"{largest[1].name!r} takes {rounded(largest[0])} of it"
        yield Diagnostic("MT402", told, (*largest[1].path, "size"), labels=labels, notes=(note,))


def _shares(geometry: Geometry) -> dict[int, list[tuple[int, ChunkRun]]]:
    """What each run takes of each GPU, in bytes."""
    found: dict[int, list[tuple[int, ChunkRun]]] = {}
    for run in geometry.chunks.values():
        counts: dict[int, int] = {}
        for turn, place in enumerate(run.locations[: run.count]):
            if place.kind is LocationKind.GPU:
                counts[place.id] = counts.get(place.id, 0) + run.share(turn)
        for ordinal, count in counts.items():
            found.setdefault(ordinal, []).append((count * run.size, run))
    return found


def _tenths(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"


def _over(amount: int) -> str:
    return _tenths(amount) if amount >= GiB else rounded(amount)
