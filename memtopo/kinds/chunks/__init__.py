"""Chunks: physical allocations on a GPU or a host NUMA node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from memtopo.common.units import Share, Size, exact
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.handles import Handle, Via
from memtopo.driver.types import HandleType, Location, LocationKind, Properties, gpu
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.geometry.model import Geometry
from memtopo.geometry.sizing import granularity_note, granule, size_error
from memtopo.kinds.alternatives import Support
from memtopo.kinds.chunks.amounts import Amounts, Requested, amount_notes, resolve_amounts
from memtopo.kinds.chunks.counts import Counts, ElasticCount, written_numbers
from memtopo.kinds.chunks.parts import Parts, resolve_parts
from memtopo.kinds.chunks.support import handle_types, properties, supported_at, taken, without_alternatives
from memtopo.kinds.device_sets import has_set
from memtopo.kinds.exportable import Exported, ExportKind, Imported
from memtopo.kinds.kind import Difference, Rule, Scope
from memtopo.kinds.mappings.fill import Known, MapEntries
from memtopo.kinds.resolution import Resolution
from memtopo.language.alternatives import Alternatives
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import BooleanOrElse, Devices, Handles, Rounding, SizeOrShare
from memtopo.language.names import NamedDevice
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.step import Step

UNSEEN = -2
"""Ordinal that the driver reports for an imported chunk on a GPU that is not visible to the process (fact 43)."""


class Chunk(Entry):
    """Physical memory on a GPU or the host; with `count`, equal chunks distributed round-robin over the locations."""

    location: Devices = Field(
        description="Location of the memory: a device name, or several, over which chunks are distributed round-robin."
    )
    size: SizeOrShare = Field(
        description="Bytes of each chunk: 2MiB, or 1 granule; or 90% of the memory that all other entries leave."
    )
    count: Counts | None = Field(
        default=None,
        description="Number of chunks: page becomes page.0, page.1 and so on; or fill, as many as the range needs that "
        "they are mapped into; or 90% of the memory that all other entries leave; or {min: 0, max: 64}.",
    )
    handles: Handles = Field(
        default=[], description="Handle types for export to other processes: fd, fabric, both, or fabric else fd."
    )
    rdma: BooleanOrElse = Field(
        default=False, description="If true, network cards can access it by GPUDirect RDMA; or true else false."
    )
    compressible: BooleanOrElse = Field(
        default=False, description="If true, the GPU may compress it; or true else false."
    )
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")
    parts: Parts | None = Field(
        default=None, description="Named parts of each chunk, in order: {signal: 4KiB, data: rest}."
    )

    @property
    def fills(self) -> bool:
        """True if the number of chunks follows from ranges."""
        return (self.count.max if isinstance(self.count, ElasticCount) else self.count) == "fill"

    @property
    def has_share(self) -> bool:
        """True if the chunks take a share of the memory that is left."""
        count = self.count.max if isinstance(self.count, ElasticCount) else self.count
        return isinstance(self.size, Share) or isinstance(count, Share)


class Chunks(ExportKind):
    """Section `chunks`."""

    section = "chunks"
    description = "Physical memory on GPUs or the host, by name."
    plural = "chunks"
    article = "a chunk"
    form = "hot: {location: gpu0, size: 2MiB}"
    entry = model = Chunk
    nested = ("count", ElasticCount)
    group = ChunkGroup
    transports = ("fd", "fabric")
    committable = True
    in_granules = True
    anywhere = True
    has_parts = True

    def has_shares(self, spec: Spec) -> bool:
        return any(entry.has_share for entry in spec.section("chunks").values())

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve chunks, those whose number follows from ranges after all others, which are mapped beside them."""
        entries = scope.spec.section("chunks")
        found: dict[str, ChunkGroup | None] = {}
        follow = any(entry.fills or entry.has_share for entry in entries.values())
        mapped, places = MapEntries(scope) if follow else None, _Places(scope)
        for name in sorted(entries, key=lambda name: entries[name].fills) if follow else entries:
            path = scope.spec.at("chunks", name)
            found[name] = yield from _resolved(scope, entries[name], path, found, mapped, places)
        yield from scope.add_all(self, {name: found[name] for name in entries})

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        from memtopo.kinds.chunks.steps import CreateChunk, KeepPool

        del machine
        for group in geometry.of(ChunkGroup).values():
            for index in range(group.count):
                if group.origin:
                    yield _import(group, index, geometry)
                else:
                    yield CreateChunk(group.path, group.label(index), group.size, group.properties_of(index))
            if group.limit is not None:
                yield KeepPool(
                    group.path, group.name, group.size, group.properties, group.granule, group.count, group.limit
                )

    def changes(self, difference: Difference) -> Iterator[Step]:
        from memtopo.kinds.chunks.steps import limit_changes

        return limit_changes(difference)

    def handle_types(self, group: Group) -> tuple[str, ...]:
        assert isinstance(group, ChunkGroup)
        return tuple(group.handles.words)

    def other_handle_types(self, scope: Scope, group: Group) -> tuple[str, ...]:
        entry: Chunk | None = scope.spec.section(self.section).get(group.name)
        found = (each for each in entry.handles if isinstance(each, Alternatives)) if entry else ()
        return tuple(word for each in found for word in each.words)

    def properties(self, group: Group) -> tuple[str, ...]:
        assert isinstance(group, ChunkGroup)
        first = group.properties[0]
        return tuple(word for word, has in (("rdma", first.rdma), ("compressible", first.compressible)) if has)

    def supports(self, scope: Scope, names: Sequence[NamedDevice], via: Via) -> Support:
        return supported_at(scope, names, via)

    def try_export(self, path: Path, export: Exported) -> Step:
        from memtopo.kinds.chunks.steps import TryExportChunk

        return TryExportChunk(path, export.name, export.label(0), HandleType[export.via.upper()], export.count)

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> Handle:
        kind = HandleType[export.via.upper()]
        return Handle.of(driver.mem_export_to_shareable_handle(layout.chunks[export.label(index)], kind))

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> ChunkGroup:
        """Group with the largest granule, and the properties that the driver reports: no handle types (fact 7)."""
        groups = [group for group in exported if isinstance(group, ChunkGroup)]
        size, plain = groups[0].size, groups[0].properties[0]
        found = {
            location: Properties(location, rdma=plain.rdma, compressible=plain.compressible)
            for location in set(imported.locations)
        }
        unit = max(group.granule for group in groups)
        return replace(_imported(imported, size, unit, found), parts=groups[0].parts)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> Resolution[ChunkGroup | None]:
        found = {location: Properties(location) for location in imported.locations}
        unit = max(granule(machine, each) for each in found.values())
        declared = size.bytes(unit)
        if declared % unit:
            yield _misfit(imported, declared, unit)
            return None
        parts = yield from resolve_parts(imported.path, imported.parts, declared, unit)
        return None if parts is None else replace(_imported(imported, declared, unit, found), parts=parts)

    def has_size(self, size: Size, imported: Group, exported: Group) -> bool:
        assert isinstance(imported, ChunkGroup)
        assert isinstance(exported, ChunkGroup)
        return size.bytes(imported.granule) in (imported.size, exported.declared)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(ChunkGroup).values():
            if group.size != group.declared:
                yield f"chunk {group.name}: {exact(group.declared)} rounded up to {exact(group.size)}"
            if group.share or group.filled:
                yield from amount_notes(group)
            if group.limit is not None:
                most = f"{group.limit:,} of {exact(group.size)}"
                yield f"chunk {group.name}: {group.count:,} are created here, and a program may create up to {most}"

    def rules(self) -> tuple[Rule, ...]:
        return (handle_types, properties)


class _Place(NamedTuple):
    """Locations of an entry, the properties of its chunks there, and their granule in bytes.

    `devices` is the number of the locations if they are those of a set of devices.
    """

    locations: tuple[Location, ...]
    properties: tuple[Properties, ...]
    unit: int
    devices: int | None = None


class _Places:
    """Places of entries, resolved once for all entries with the same locations and properties."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[tuple[object, ...], _Place] = {}

    def resolve(self, entry: Chunk, path: Path) -> Resolution[_Place | None]:
        """Place of an entry at all of its locations; None if it has an error."""
        key = (tuple(entry.location), tuple(entry.handles), entry.rdma, entry.compressible)
        if known := self._known.get(key):
            return known
        listed = yield from self._scope.devices.resolve_all(entry.location, path)
        found = yield from taken(self._scope, entry, path)
        if listed is None or found is None:
            return None
        properties = tuple(Properties(location, *found) for location in listed)
        devices = len(listed) if has_set(entry.location) else None
        place = _Place(tuple(listed), properties, _granule(self._scope, properties), devices)
        if without_alternatives(entry):  # the choice among alternatives is noted for each entry
            self._known[key] = place
        return place

    def limited(self, place: _Place, number: int, path: Path) -> Resolution[_Place]:
        """The part of a place that some chunks use; yields MT506 if they are fewer than the locations."""
        if number >= len(place.locations):
            return place
        locations = yield from self._scope.devices.distributed(place.locations, number, path)
        properties = place.properties[: len(locations)]
        return _Place(locations, properties, _granule(self._scope, properties), place.devices)


def _resolved(
    scope: Scope, entry: Chunk, path: Path, known: Known, mapped: MapEntries | None, places: _Places
) -> Resolution[ChunkGroup | None]:
    """Group of an entry; `known` are the groups of entries whose number of chunks does not follow from ranges."""
    place = yield from places.resolve(entry, path)
    if place is None:
        return None
    numbers = written_numbers(entry.count, path, place.devices)
    if isinstance(numbers.largest, int):
        place = yield from places.limited(place, numbers.largest, path)
    requested = Requested(path, place.locations, place.unit, numbers, known, mapped)
    amounts = yield from resolve_amounts(scope, entry, requested)
    if amounts is None:
        return None
    if numbers.follow:
        place = yield from places.limited(place, amounts.number, path)
        requested = requested._replace(unit=place.unit)
    return (yield from _group(scope, entry, requested, amounts, place.properties))


def _group(
    scope: Scope, entry: Chunk, requested: Requested, amounts: Amounts, properties: tuple[Properties, ...]
) -> Resolution[ChunkGroup | None]:
    """Group of an entry whose chunks have these `properties` in the order of the round-robin distribution."""
    path, numbers = requested.path, requested.numbers
    written = None if amounts.share and scope.rooms is None else entry.parts  # the size of a share is not known yet
    parts = yield from resolve_parts(path, written, amounts.size, requested.unit)
    if parts is None:
        return None
    return ChunkGroup(
        str(path[-1]),
        path,
        amounts.created,
        numbers.counted,
        amounts.size,
        amounts.declared,
        requested.unit,
        properties,
        tuple(dict.fromkeys(each.location for each in properties)) if len(properties) > 1 else requested.locations,
        limit=amounts.number if numbers.elastic else None,
        parts=parts,
        share=amounts.share,
        filled=amounts.filled,
    )


def _granule(scope: Scope, properties: Sequence[Properties]) -> int:
    if len(properties) == 1:
        return granule(scope.machine, properties[0])
    return max(granule(scope.machine, each) for each in dict.fromkeys(properties))


def _imported(imported: Imported, size: int, unit: int, found: Mapping[Location, Properties]) -> ChunkGroup:
    properties = tuple(map(found.__getitem__, imported.locations))
    distinct = tuple(dict.fromkeys(imported.locations))
    count, counted = imported.count, imported.counted
    return ChunkGroup(
        imported.name, imported.path, count, counted, size, size, unit, properties, distinct, imported.origin
    )


def _misfit(imported: Imported, size: int, unit: int) -> Diagnostic:
    """Return MT301 without the suggestion of rounding, since the size of an import is fixed."""
    note = granularity_note(unit, imported.locations)
    found = size_error("MT301", f"import {imported.name!r}", size, unit, (*imported.path, "size"), note)
    return found._replace(help=(found.help or "").removesuffix(", or 'round: up'"))


def _import(group: ChunkGroup, index: int, geometry: Geometry) -> Step:
    from memtopo.kinds.chunks.steps import ImportChunk
    from memtopo.kinds.step import HandleReference

    assert group.origin
    location = group.location_of(index)
    seen = location.node or not geometry.visible or location in geometry.visible
    if location.kind is LocationKind.GPU and not seen:
        location = gpu(UNSEEN)
    kind = HandleType[group.origin.via.upper()]
    return ImportChunk(group.path, group.label(index), group.size, location, kind, HandleReference.of(group, index))


CHUNKS = Chunks()
