"""Chunks: physical allocations on a GPU or a host NUMA node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic
from memtopo.driver.types import HandleType, Location, LocationKind, Properties, gpu
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.geometry.model import Geometry, granularity_note, granule
from memtopo.kinds.chunks.entry import Chunk, amount_notes, resolve_chunks, resolve_parts
from memtopo.kinds.chunks.support import handle_types, properties
from memtopo.kinds.exportable import ExportGroup, ExportKind, Imported, ImportKeys, Refusals
from memtopo.kinds.kind import Items, Scope, StepDifference, Words
from memtopo.kinds.mappings.fill import MapEntries
from memtopo.kinds.resolution import attempt, whole_granules
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.objects import TryExport
    from memtopo.kinds.step import Step

UNSEEN = -2
"""Ordinal that the driver reports for an imported chunk on a GPU that is not visible to the process (fact 43)."""


class HandleKind(ExportKind):
    """Kind of objects that are mapped as chunks are, and shared by the handle types that they are created with."""

    transports = ("fd", "fabric")

    def handle_types(self, group: Group) -> tuple[str, ...]:
        assert isinstance(group, ChunkGroup)
        return tuple(group.handles.words)

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        from memtopo.kinds.chunks.steps import TryExportChunk

        return TryExportChunk(*export.handle_fields(index))


class Chunks(HandleKind):
    """Section `chunks`."""

    section = "chunks"
    description = "Physical memory on GPUs or the host, by name."
    words = Words("chunk", "chunks", "hot: {location: gpu0, size: 2MiB}")
    entry = Chunk
    group = ChunkGroup
    import_keys = ImportKeys(("location", "size"), optional=("parts", "max"))
    refusals = Refusals(granules="")

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve chunks, those whose number follows from ranges after all others, which are mapped beside them."""
        entries = scope.spec.section("chunks")
        found: dict[str, ChunkGroup | None] = {}
        mapped = cache(lambda: MapEntries(scope, found))
        # Equal entries are resolved once: 100,000 lines with few different entries take a fifth longer without it.
        resolved: dict[tuple[object, ...], ChunkGroup] = {}
        for name in sorted(entries, key=lambda name: entries[name].largest == "fill"):
            entry, path = entries[name], scope.spec.at("chunks", name)
            value = entry.value
            if equal := resolved.get(value):
                found[name] = replace(equal, name=name, path=path)
                continue
            group = found[name] = yield from attempt(resolve_chunks, scope, entry, path, mapped)
            if group and entry.alone:
                resolved[value] = group
        yield from scope.add_all(self, {name: found[name] for name in entries})

    def steps(self, geometry: Geometry, machine: Machine) -> Items:
        from memtopo.kinds.chunks.steps import CreateChunk, CreateChunks, ImportChunk
        from memtopo.kinds.runs import run_of
        from memtopo.kinds.step import HandleReference

        for group in geometry.of(ChunkGroup).values():
            if group.origin:
                kind = HandleType[group.origin.via.upper()]
                for index in range(group.count):
                    own = group.path, group.label(index), group.size, _reported(group.location_of(index), geometry)
                    yield ImportChunk(*own, kind, HandleReference.of(group, index))
            elif group.count:
                yield run_of(CreateChunks(CreateChunk, range(group.count), group))
            if group.limit is not None:
                yield _pool(group, geometry)

    def changes(self, difference: StepDifference) -> Iterator[Step]:
        from memtopo.kinds.chunks.pools import limit_changes

        return limit_changes(difference)

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> ChunkGroup:
        """Group with the largest granule, and the properties that the driver reports: no handle types (fact 7)."""
        groups = [group for group in exported if isinstance(group, ChunkGroup)]
        size, plain = groups[0].size, groups[0].properties[0]
        found = {
            location: plain._replace(location=location, handles=HandleType.NONE) for location in set(imported.locations)
        }
        unit = max(group.granule for group in groups)
        return replace(_imported(imported, size, unit, found), parts=groups[0].parts)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> ChunkGroup:
        found = {location: Properties(location) for location in imported.locations}
        unit = max(granule(machine, each) for each in found.values())
        what, note = f"import {imported.name!r}", granularity_note(unit, imported.locations)
        declared = whole_granules("MT301", what, size.bytes(unit), unit, (*imported.path, "size"), note)
        parts = resolve_parts(imported.path, imported.parts, declared, unit)
        return replace(_imported(imported, declared, unit, found), parts=parts)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(ChunkGroup).values():
            if group.size != group.declared:
                yield f"chunk {group.name}: {exact(group.declared)} rounded up to {exact(group.size)}"
            if group.share or group.filled:
                yield from amount_notes(group)
            if group.limit is not None:
                most = f"{group.limit:,} of {exact(group.size)}"
                if group.origin:
                    yield f"import {group.name}: up to {most}, lent by the holder"
                else:
                    yield f"chunk {group.name}: {group.count:,} are created here, and a program can create up to {most}"


def _imported(imported: Imported, size: int, unit: int, found: Mapping[Location, Properties]) -> ChunkGroup:
    properties, distinct = tuple(map(found.__getitem__, imported.locations)), tuple(dict.fromkeys(imported.locations))
    own = imported.name, imported.path, size, unit, properties, distinct
    return ChunkGroup(*own, size=size, limit=imported.limit, **imported.common)


def _pool(group: ChunkGroup, geometry: Geometry) -> Step:
    """Step that keeps elastic chunks, which this process creates, or a holder lends."""
    from memtopo.kinds.chunks.pools import BorrowPool, KeepPool
    from memtopo.kinds.step import HandleReference

    assert group.limit is not None
    limits = group.granule, group.count, group.limit
    if group.origin is None:
        return KeepPool(group.path, group.name, group.size, group.properties, *limits)
    properties = tuple(each._replace(location=_reported(each.location, geometry)) for each in group.properties)
    source = HandleReference.of(group, 0), HandleType[group.origin.via.upper()]
    return BorrowPool(group.path, group.name, group.size, properties, *limits, *source)


def _reported(location: Location, geometry: Geometry) -> Location:
    """Location that the driver reports of an imported chunk."""
    seen = location.node or not geometry.visible or location in geometry.visible
    return location if location.kind is not LocationKind.GPU or seen else gpu(UNSEEN)


CHUNKS = Chunks(rules=(handle_types, properties))
