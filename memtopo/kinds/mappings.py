"""Mappings: whole chunks at offsets of ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from memtopo.common.errors import InternalError
from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, Location, LocationKind, gpu
from memtopo.geometry.access import granted, mappings
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, Placement
from memtopo.geometry.sizing import size_error
from memtopo.kinds.kind import Kind, Scope, Stage
from memtopo.kinds.layout import Layout
from memtopo.kinds.resolution import Resolution, indices
from memtopo.kinds.step import Finding, Phase, Step, StepDescription, range_name
from memtopo.language.entries import Entry
from memtopo.language.fields import Amount, ChunkReference, one_or_more, parse_reference
from memtopo.machine import Machine

_EQUAL = Finding("access", "", "", "")
"""Finding without words: there is one for each mapping and GPU, and only differences are shown."""


def _map_entry(value: object) -> object:
    return {"chunk": value} if isinstance(value, str) else value


class MapEntry(Entry):
    """A chunk, one of a counted chunk or a slice of it, where the entry before ended or at `offset`."""

    chunk: ChunkReference = Field(
        description="hot, page for all of a counted chunk, page.3, or page.0:4 for the first 4."
    )
    offset: Amount | None = Field(
        default=None, description="Where in the range it begins; else where the entry before ended."
    )


_Mapped = Annotated[MapEntry, BeforeValidator(_map_entry, json_schema_input_type=ChunkReference | MapEntry)]


_OneOrMoreMapped = _Mapped | Annotated[list[_Mapped], Field(min_length=1)]


MapList = Annotated[list[_Mapped], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreMapped)]


class Mappings(Kind):
    """The section `map`."""

    section = "map"
    description = "Chunks that fill a range, one after another: kv: [hot, page.0:4, {chunk: cold, offset: 64MiB}]."
    article = "a mapping"
    entry = MapList
    model = MapEntry
    referring = True
    unique = False
    stage = Stage.MAPPED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        found: dict[tuple[str, int], list[Placement]] = {}
        for key, slices in scope.slices.items():
            group = yield from scope.range_of(key, self)
            if group is None:
                continue
            placed, complete = yield from _place(scope.spec.at("map", key), group, slices)
            if not complete:
                scope.unresolved.add(("map", group.name))
            for placement in placed:
                found.setdefault(placement.where, []).append(placement)
        scope.placements.update({where: tuple(sorted(placed, key=_offset_of)) for where, placed in found.items()})

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        expected: dict[tuple[Grant, ...], tuple[Grant, ...]] = {}
        queried, access_of = _queried(geometry, machine), granted(geometry)
        for placements in geometry.placements.values():
            label = placements[0].range.label(placements[0].instance)
            for placement, index, offset, access in mappings(placements, access_of):
                if access not in expected:
                    by_place = dict(access)
                    expected[access] = tuple(Grant(where, by_place.get(place, Access.NONE)) for where, place in queried)
                chunk = placement.chunk
                yield MapChunk(placement.path, label, offset, chunk.label(index), chunk.size, expected[access])


@dataclass(frozen=True, slots=True)
class MapChunk(Step):
    """`chunk` at `offset` of `range`. `access` is what each location of the machine shall have once all is granted."""

    range: str
    offset: int
    chunk: str
    size: int
    access: tuple[Grant, ...]

    phase = Phase.MAP
    verb = "map"
    call = "cuMemMap"
    undo_call = "cuMemUnmap"

    def do(self, driver: Driver, layout: Layout) -> None:
        base, size = layout.ranges[self.range]
        if self.offset + self.size > size:
            # The driver would map it into a neighbour's addresses (fact 15).
            raise InternalError(f"{self.chunk} at {self.offset:#x} runs past the end of {self.range}")
        driver.mem_map(base + self.offset, self.size, layout.chunks[self.chunk])
        layout.mappings[base + self.offset] = self.chunk

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.range not in layout.ranges:
            return
        address = layout.ranges[self.range].address + self.offset
        if address in layout.mappings:
            driver.mem_unmap(address, self.size)
            del layout.mappings[address]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.ranges[self.range].address + self.offset
        subject = f"{self.chunk} in {self.range} at {self.offset:#x}"
        handle = layout.retained[self.chunk] = driver.mem_retain_allocation_handle(address)
        driver.mem_release(handle)
        del layout.retained[self.chunk]
        yield Finding("mapped chunk", subject, layout.chunks[self.chunk], handle, self.path)
        for location, access in self.access:
            seen = driver.mem_get_access(address, location)
            if seen == access:
                yield _EQUAL
            else:
                yield Finding("access", f"{subject} for {location}", access.word, Access(seen).word, self.path)

    def describe(self) -> StepDescription:
        group = self.range.partition(".")[0]
        return StepDescription(self.chunk, group, self.size, group)

    def leak_name(self) -> str:
        return f"mapping of {self.chunk} in {self.range} at {self.offset:#x}"

    def blocks(self) -> tuple[str, ...]:
        return (range_name(self.range),)


def past_the_end(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT305. The driver lets a mapping group past its reservation into a neighbour's (fact 15), so memtopo must not."""
    del machine
    for placements in geometry.placements.values():
        for placement in placements:
            if placement.end > placement.range.size:
                yield _past(placement)


def overlaps(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT304. Mapping over a live mapping is refused (fact 14)."""
    del machine
    for placements in geometry.placements.values():
        highest: Placement | None = None
        for placement in placements:
            if highest and placement.offset < highest.end:
                yield _overlap(*sorted((highest, placement), key=_order))
            if highest is None or placement.end > highest.end:
                highest = placement


class Slice(NamedTuple):
    """Chunks of one group, `first` up to `stop`, as a map entry names them; no group if they are unknown."""

    group: ChunkGroup | None
    first: int
    stop: int
    entry: MapEntry
    path: Path


def resolve_slices(scope: Scope) -> Resolution[dict[str, list[Slice]]]:
    """Chunks that each map entry names, by the keys of the section."""
    found: dict[str, list[Slice]] = {}
    for key, entries in scope.spec.section("map").items():
        found[key] = []
        for index, entry in enumerate(entries):
            found[key].append((yield from _slice(scope, entry, scope.spec.at("map", key, index))))
    return found


def granules(scope: Scope) -> tuple[dict[str, int], set[str]]:
    """Largest granularity of the chunks of each range, and the ranges measured in granules that are not known."""
    largest: dict[str, int] = {}
    partly = {key for section, key in scope.spec.left_out if section == "map"}
    for key, slices in scope.slices.items():
        name = parse_reference(key).name
        found = max((each.group.granule for each in slices if each.group), default=0)
        largest[name] = max(largest.get(name, 0), found)
        if any(each.group is None for each in slices):
            partly.add(key)
    names = {key.partition(".")[0] for key in partly}
    return largest, names & set(_in_granules(scope)) if names else set()


def _slice(scope: Scope, entry: MapEntry, path: Path) -> Resolution[Slice]:
    name, where = entry.chunk.name, (*path, "chunk")
    group = scope.of(ChunkGroup).get(name)
    if group is not None:
        span = yield from indices(entry.chunk, group, where)
        return Slice(group, *span, entry, path) if span else Slice(None, 0, 0, entry, path)
    spec = scope.spec
    if other := scope.mistaken(name):
        message = f"{name!r} is {other}, and only chunks are mapped"
        help = "share a chunk via fd instead" if name in spec.section("imports") else "declare it under 'chunks'"
        yield Diagnostic("MT201", message, where, help=help)
    elif not (
        spec.may_have("chunks", name)
        or spec.may_have("imports", name)
        or (yield from scope.unusable(name, "map", where))
    ):
        known = chain(spec.section("chunks"), spec.section("imports"))
        yield scope.errors.undeclared("chunk", name, where, known)
    return Slice(None, 0, 0, entry, path)


def _in_granules(scope: Scope) -> Iterator[str]:
    """Ranges with an amount that is written in granules: their own, of a map entry or of a part of access."""
    for name, range_ in scope.spec.section("ranges").items():
        if range_.size.in_granules or (range_.align and range_.align.in_granules):
            yield name
    for key, entries in scope.spec.section("map").items():
        if any(entry.offset and entry.offset.in_granules for entry in entries):
            yield parse_reference(key).name
    for key, entry in scope.spec.section("access").items():
        if not isinstance(entry, dict) and any(part.offset.in_granules or part.size.in_granules for part in entry):
            yield parse_reference(key).name


def _place(path: Path, group: RangeGroup, slices: Sequence[Slice]) -> Resolution[tuple[list[Placement], bool]]:
    """Placements of one key of `map`, the last of `path`, and true if they are complete.

    An unknown chunk leaves what follows it unknown.
    """
    span = yield from indices(parse_reference(str(path[-1])), group, path, at="key")
    if span is None:
        return [], False
    placed: list[Placement] = []
    cursor: int | None = span[0] * group.size
    complete = True
    for each in slices:
        if each.entry.offset is not None:
            cursor = yield from _offset(each, group, span[0] * group.size)
        elif each.group is not None and cursor is not None and cursor % each.group.granule:
            yield _unaligned(each, each.group, group, cursor - span[0] * group.size)
            cursor = None
        if each.group is None or cursor is None:
            cursor, complete = None, False
            continue
        placed += _fill(group, span[1], each.group, each, cursor)
        cursor += (each.stop - each.first) * each.group.size
    return placed, complete


def _offset(each: Slice, group: RangeGroup, base: int) -> Resolution[int | None]:
    assert each.entry.offset is not None
    offset = each.entry.offset.bytes(group.granule)
    unit = each.group.granule if each.group else group.granule
    if offset % unit == 0:
        return base + offset
    note = f"a chunk starts at a multiple of its granularity, {exact(unit)}"
    yield size_error("MT303", f"range {group.name!r}", offset, unit, (*each.path, "offset"), note)
    return None


def _unaligned(each: Slice, chunk: ChunkGroup, group: RangeGroup, offset: int) -> Diagnostic:
    """MT303: an entry that would begin at the end of the one before, no multiple of its own granularity."""
    unit = chunk.granule
    where = f"{exact(offset)}, which is no multiple of {exact(unit)}"
    message = f"range {group.name!r}: {chunk.name!r} would begin at {where}"
    note = "an entry begins where the one before it ended, and a chunk at a multiple of its granularity"
    help = f"write '{{chunk: {each.entry.chunk}, offset: {exact(offset + unit - offset % unit)}}}'"
    return Diagnostic("MT303", message, each.path, notes=(note,), help=help)


def _fill(group: RangeGroup, stop: int, chunk: ChunkGroup, each: Slice, cursor: int) -> Iterator[Placement]:
    """Fill one reservation after another. A rule reports what does not fit and runs past the end."""
    first, left = each.first, each.stop - each.first
    while left:
        instance = min(cursor // group.size, stop - 1)
        offset = cursor - instance * group.size
        fits = min(left, (group.size - offset) // chunk.size) if offset < group.size else 0
        count = fits or left
        yield Placement(group, instance, offset, chunk, first, count, each.path)
        first, left, cursor = first + count, left - count, cursor + count * chunk.size


def _offset_of(placement: Placement) -> int:
    return placement.offset


def _queried(geometry: Geometry, machine: Machine) -> tuple[tuple[Location, Location], ...]:
    """Locations whose access is queried of each mapping, and those whose grants must match.

    They are every GPU, and the host if it is granted any access. The host is queried as one of its NUMA nodes: queried
    as HOST, the driver reports the access of a GPU where the host has none (fact 42).
    """
    named = {grant.location for parts in geometry.parts.values() for part in parts for grant in part.grants}
    host = sorted(place for place in named if place.kind is not LocationKind.GPU)
    visible = geometry.visible or [gpu(ordinal) for ordinal in range(len(machine.devices))]
    gpus = [(place, place) for place in visible]
    return (*gpus, *((Location(LocationKind.HOST_NUMA, 0), place) for place in host))


def _past(placement: Placement) -> Diagnostic:
    group, size = placement.range, placement.chunk.size
    fits = max(0, (group.size - placement.offset) // size)
    label = group.label(placement.instance)
    chunk = placement.chunk.label(placement.first + fits)
    start = placement.offset + fits * size
    if start >= group.size:
        message = f"{chunk!r} would start at {exact(start)} of {label!r}, which ends at {exact(group.size)}"
    else:
        message = f"{chunk!r} would end at {exact(start + size)} of {label!r}, which ends at {exact(group.size)}"
    notes = (f"the driver would let it group into whatever lies behind {label!r}",)
    labels = (Label(f"{exact(group.size)} declared here", (*group.path, "size")),)
    help = f"give {group.name!r} at least {exact(placement.end)}, or map less"
    if group.count > 1:
        help = f"make each {group.name!r} a multiple of {exact(size)}, or fill them one by one: '{group.label(0)}: […]'"
    return Diagnostic("MT305", message, placement.path, labels=labels, notes=notes, help=help)


def _overlap(first: Placement, second: Placement) -> Diagnostic:
    start = max(first.offset, second.offset)
    message = f"{_names(second)} overlaps {_names(first)} at {exact(start)} of {second.range.label(second.instance)!r}"
    label = Label(f"{_names(first)} is mapped from {exact(first.offset)} to {exact(first.end)} here", first.path)
    fits = first.end + second.count * second.chunk.size <= second.range.size
    help = f"the first free offset after it is {exact(first.end)}" if fits else "they do not fit one after another"
    return Diagnostic("MT304", message, second.path, labels=(label,), help=help)


def _names(placement: Placement) -> str:
    first = placement.chunk.label(placement.first)
    last = placement.chunk.label(placement.first + placement.count - 1)
    return repr(first) if first == last else f"'{first} … {last}'"


def _order(placement: Placement) -> tuple[str, int, int]:
    *_, key, index = placement.path
    return str(key), int(index), placement.first


Mappings.rules = (past_the_end, overlaps)
MAPPINGS = Mappings()
