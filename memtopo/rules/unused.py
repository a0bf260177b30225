"""Warnings about entries that are valid and have no use. Silent about what an entry with an error may have used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.exports import ExportGroup
from memtopo.machine import Machine


def chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT501: a chunk that is neither mapped nor exported takes memory for nothing."""
    del machine
    if any(geometry.has_unresolved(section) for section in ("map", "ranges", "exports")):
        return
    used = _mapped(geometry)
    for export in geometry.of(ExportGroup).values():
        if isinstance(export.group, ChunkGroup):
            used.setdefault(export.group.name, []).append((export.first, export.first + export.count))
    for name, group in geometry.of(ChunkGroup).items():
        unused = group.count - _covered(used.get(name, []))
        what = "import" if group.origin else "chunk"
        if unused == group.count:
            yield Diagnostic("MT501", f"{what} {name!r} is mapped nowhere", group.path, "key")
        elif unused:
            kind = "imported chunks" if group.origin else "chunks"
            message = f"{unused:,} of the {group.count:,} {kind} {name!r} are mapped nowhere"
            help = None if group.origin else "map them too, or count fewer"
            yield Diagnostic("MT501", message, group.path, "key", help=help)


def ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT502, MT503: a range without chunks, and one without access."""
    del machine
    filled = Counter(name for name, _ in geometry.placements)
    overfull = {name for (name, _), placed in geometry.placements.items() if placed[-1].end > placed[-1].range.size}
    for name, group in geometry.of(RangeGroup).items():
        if name not in filled and not geometry.has_unresolved("map"):
            yield Diagnostic("MT502", f"range {name!r} holds nothing", group.path, "key")
        elif filled[name] < group.count and name not in overfull and not geometry.has_unresolved("map"):
            message = f"{group.count - filled[name]:,} of the {group.count:,} ranges {name!r} hold nothing"
            yield Diagnostic("MT502", message, group.path, "key", help="fill them too, or count fewer")
        granted = any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)
        if name in filled and not granted and not geometry.has_unresolved("access"):
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"range {name!r} is accessible to nobody", group.path, "key", help=help)


def _mapped(geometry: Geometry) -> dict[str, list[tuple[int, int]]]:
    """Mapped chunks of each group, as half-open spans of their indices."""
    found: dict[str, list[tuple[int, int]]] = {}
    for placements in geometry.placements.values():
        for placement in placements:
            span = (placement.first, placement.first + placement.count)
            found.setdefault(placement.chunk.name, []).append(span)
    return found


def _covered(spans: list[tuple[int, int]]) -> int:
    """Number of indices in at least one span."""
    covered = end = 0
    for first, stop in sorted(spans):
        covered += max(0, stop - max(first, end))
        end = max(end, stop)
    return covered
