"""The chunks fit into the memory of their devices."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics import Diagnostic, Label
from memtopo.driver.types import LocationKind
from memtopo.geometry import ChunkRun, Geometry
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.units import GiB, rounded


def fits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT402. The sum of the chunks on each GPU, and its context, against its memory: of a live one, what is free."""
    taken = _shares(geometry)
    for ordinal, device in enumerate(machine.devices):
        shares = taken.get(ordinal, [])
        total = sum(size for size, _ in shares)
        room = device.room - CONTEXT_BYTES
        if not shares or total <= room:
            continue
        largest, *others = sorted(shares, key=lambda share: -share[0])
        has = f"{_tenths(device.room)}{' free' if device.free_bytes is not None else ''}"
        over = _over(total - room)
        told = f"the layout needs {_tenths(total)} on gpu{ordinal}, which has {has}: {over} too much"
        labels = tuple(Label(f"{rounded(size)} of it here", (*run.path, "size")) for size, run in others[:3])
        notes = (
            f"{largest[1].name!r} takes {rounded(largest[0])} of it",
            f"a context takes about {rounded(CONTEXT_BYTES)} of the GPU's memory besides",
        )
        yield Diagnostic("MT402", told, (*largest[1].path, "size"), labels=labels, notes=notes)


def _shares(geometry: Geometry) -> dict[int, list[tuple[int, ChunkRun]]]:
    """What each run takes of each GPU, in bytes."""
    found: dict[int, list[tuple[int, ChunkRun]]] = {}
    for run in geometry.chunks.values():
        for place, count in run.shares().items():
            if place.kind is LocationKind.GPU:
                found.setdefault(place.id, []).append((count * run.size, run))
    return found


def _tenths(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"


def _over(amount: int) -> str:
    return _tenths(amount) if amount >= GiB else rounded(amount)
