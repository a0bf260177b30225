"""What is valid and probably not meant. Silent about everything that a left-out entry may have used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry import Geometry
from memtopo.machine import Machine


def chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT501. A chunk that is neither mapped nor exported takes memory for nothing."""
    del machine
    if any(_unsure(geometry, section) for section in ("map", "ranges", "exports")):
        return
    used = _mapped(geometry)
    for export in geometry.exports.values():
        if export.kind == "chunk":
            used.setdefault(export.run.name, []).append((export.first, export.first + export.count))
    for name, run in geometry.chunks.items():
        unused = run.count - _covered(used.get(name, []))
        what = "import" if run.origin else "chunk"
        if unused == run.count:
            yield Diagnostic("MT501", f"{what} {name!r} is mapped nowhere", run.path, "key")
        elif unused:
            kind = "imported chunks" if run.origin else "chunks"
            told = f"{unused:,} of the {run.count:,} {kind} {name!r} are mapped nowhere"
            help = None if run.origin else "map them too, or count fewer"
            yield Diagnostic("MT501", told, run.path, "key", help=help)


def ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT502, MT503. A range that holds nothing, and one whose memory nobody can use."""
    del machine
    filled = Counter(name for name, _ in geometry.placements)
    overfull = {name for (name, _), placed in geometry.placements.items() if placed[-1].end > placed[-1].range.size}
    for name, run in geometry.ranges.items():
        if name not in filled and not _unsure(geometry, "map"):
            yield Diagnostic("MT502", f"range {name!r} holds nothing", run.path, "key")
        elif filled[name] < run.count and name not in overfull and not _unsure(geometry, "map"):
            told = f"{run.count - filled[name]:,} of the {run.count:,} ranges {name!r} hold nothing"
            yield Diagnostic("MT502", told, run.path, "key", help="fill them too, or count fewer")
        granted = any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)
        if name in filled and not granted and not _unsure(geometry, "access"):
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"range {name!r} is accessible to nobody", run.path, "key", help=help)


def _mapped(geometry: Geometry) -> dict[str, list[tuple[int, int]]]:
    """Which chunks of each run are mapped, as half-open stretches of their indices."""
    found: dict[str, list[tuple[int, int]]] = {}
    for placements in geometry.placements.values():
        for placement in placements:
            stretch = (placement.first, placement.first + placement.count)
            found.setdefault(placement.chunk.name, []).append(stretch)
    return found


def _covered(stretches: list[tuple[int, int]]) -> int:
    """How many indices lie in at least one stretch."""
    covered = end = 0
    for first, stop in sorted(stretches):
        covered += max(0, stop - max(first, end))
        end = max(end, stop)
    return covered


def _unsure(geometry: Geometry, section: str) -> bool:
    return any(left == section for left, _ in geometry.unsure)
