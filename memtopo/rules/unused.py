"""Warnings about valid entries that are not used. Entries that an entry with an error may use are not reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.exports import ExportGroup
from memtopo.machine import Machine


def chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT501 for chunks that are neither mapped nor exported."""
    if any(geometry.has_unresolved(section) for section in ("map", "ranges", "exports")):
        return
    used = _mapped(geometry)
    for export in geometry.of(ExportGroup).values():
        if isinstance(export.group, ChunkGroup):
            used.setdefault(export.group.name, []).append((export.first, export.first + export.count))
    backing = _backing(geometry)
    for name, group in geometry.of(ChunkGroup).items():
        if name in backing:
            continue
        unused = group.count - _covered(used.get(name, []))
        what = "import" if group.origin else "chunk"
        if group.growing:
            message = f"no elastic range can have chunk {name!r}"
            yield Diagnostic("MT501", message, group.path, "key", help="declare a range with 'elastic: true'")
        elif unused == group.count:
            yield Diagnostic("MT501", f"{what} {name!r} is not mapped", group.path, "key")
        elif unused:
            kind = "imported chunks" if group.origin else "chunks"
            message = f"{unused:,} of the {group.count:,} {kind} {name!r} are not mapped"
            help = None if group.origin else "map them too, or reduce 'count'"
            yield Diagnostic("MT501", message, group.path, "key", help=help)


def ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT502 for ranges without mappings, and MT503 for ranges without access."""
    filled = Counter(name for name, _ in geometry.placements)
    overfull = {name for (name, _), placed in geometry.placements.items() if placed[-1].end > placed[-1].range.size}
    mapped, accessible = not geometry.has_unresolved("map"), not geometry.has_unresolved("access")
    for name, group in geometry.of(RangeGroup).items():
        if group.elastic:
            if not group.elastic.chunks and mapped and not geometry.has_unresolved("chunks"):
                help = "declare chunks with 'count: {min: 0, max: N}'"
                message = f"nothing can be mapped in range {name!r}: it is elastic, and no chunk is"
                yield Diagnostic("MT502", message, group.path, "key", help=help)
        elif name not in filled and mapped:
            yield Diagnostic("MT502", f"range {name!r} has no mappings", group.path, "key")
        elif mapped and filled[name] < group.count and name not in overfull:
            message = f"{group.count - filled[name]:,} of the {group.count:,} ranges {name!r} have no mappings"
            yield Diagnostic("MT502", message, group.path, "key", help="map chunks into them too, or reduce 'count'")
        if (name in filled or group.elastic) and accessible and not _granted(geometry, name):
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"no device has access to range {name!r}", group.path, "key", help=help)


def _granted(geometry: Geometry, name: str) -> bool:
    """Return true if a device has access to a part of a range."""
    return any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)


def _backing(geometry: Geometry) -> set[str]:
    """Names of the chunks that elastic ranges may have."""
    ranges = [group.elastic for group in geometry.of(RangeGroup).values() if group.elastic]
    return {chunk.name for each in ranges for chunk in (*each.chunks, each.zero) if chunk is not None}


def _mapped(geometry: Geometry) -> dict[str, list[tuple[int, int]]]:
    """Mapped chunks of each group, as half-open spans of their indices."""
    found: dict[str, list[tuple[int, int]]] = {}
    for placements in geometry.placements.values():
        for placement in placements:
            found.setdefault(placement.chunk.name, []).extend(placement.spans)
    return found


def _covered(spans: list[tuple[int, int]]) -> int:
    """Number of indices in at least one span."""
    covered = end = 0
    for first, stop in sorted(spans):
        covered += max(0, stop - max(first, end))
        end = max(end, stop)
    return covered
