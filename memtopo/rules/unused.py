"""What is valid and probably not meant. Silent about everything that a left-out entry may have used."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics import Diagnostic
from memtopo.geometry import Geometry
from memtopo.machine import Machine


def chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT501. A chunk that is mapped nowhere takes memory for nothing."""
    del machine
    if _unsure(geometry, "map") or _unsure(geometry, "ranges"):
        return
    mapped = {placement.chunk.name for placements in geometry.placements.values() for placement in placements}
    for name, run in geometry.chunks.items():
        if name not in mapped:
            yield Diagnostic("MT501", f"chunk {name!r} is mapped nowhere", run.path, "key")


def ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT502, MT503. A range that holds nothing, and one whose memory nobody can use."""
    del machine
    filled = {name for name, _ in geometry.placements}
    for name, run in geometry.ranges.items():
        if name not in filled and not _unsure(geometry, "map"):
            yield Diagnostic("MT502", f"range {name!r} holds nothing", run.path, "key")
        granted = any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)
        if name in filled and not granted and not _unsure(geometry, "access"):
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"range {name!r} is accessible to nobody", run.path, "key", help=help)


def _unsure(geometry: Geometry, section: str) -> bool:
    return any(left == section for left, _ in geometry.unsure)
