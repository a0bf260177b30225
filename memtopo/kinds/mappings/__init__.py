"""Mappings: whole chunks at offsets of ranges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from pydantic import Field

from memtopo.common.units import by_key, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Access, Grant, Location, LocationKind, gpu
from memtopo.geometry.access import granted, mapping_runs
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, Placement, Slice, known_memory
from memtopo.kinds.kind import Items, Keys, Kind, ResolutionStage, Scope, Words
from memtopo.kinds.mappings.placements import Content, resolve_content
from memtopo.kinds.resolution import Refused, Resolution, attempt, indices, refuse_growing
from memtopo.language.entries import Entry
from memtopo.language.fields import Amount, ChunkReference, EachCount, InTurn, PositiveAmount, entries_or_chunks
from memtopo.language.names import Reference, parse_reference
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.mappings.steps import MapChunk


class MapEntry(Entry):
    """Mapping of a chunk, of one of a counted chunk, or of a slice, after the previous entry or at `offset`.

    With `each`, every range of a counted one has mappings of its own.
    """

    chunk: ChunkReference = Field(
        description="Chunks to map: hot, page for all of a counted chunk, page.3, or page.0:4 for the first 4."
    )
    offset: Amount | None = Field(
        default=None, description="Offset in the range; by default the end of the previous entry."
    )
    each: EachCount | None = Field(
        default=None,
        description="Number of mappings in each range: the next chunks, or one chunk repeatedly; fill: as many as "
        "fit; all: every chunk in each range.",
    )
    order: InTurn = Field(
        default=False, description="round-robin: chunks are assigned to the ranges in turn; with 'each'."
    )
    stride: PositiveAmount | None = Field(
        default=None, description="Bytes from the start of one mapping to the start of the next; by default adjacent."
    )


_UNMAP = "leave it out of 'map', or give it a plain count"


class Mappings(Kind):
    """Section `map`."""

    section = "map"
    description = "Chunks mapped into a range, one after another: kv: [hot, page.0:4, {chunk: cold, offset: 64MiB}]."
    words = Words("mapping", "mappings", "kv: [hot]", "and only chunks can be mapped into ranges")
    entry = entries_or_chunks(MapEntry)
    keys = Keys.REFERENCES
    stage = ResolutionStage.MAPPED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        contents: list[Content] = []
        section = scope.spec.at("map")
        for key, slices in scope.slices.items():
            if group := (yield from attempt(scope.referenced, key, self, RangeGroup)):
                contents.append((yield from resolve_content((*section, key), group, slices)))
        scope.leave_unresolved("map", *(each.range.name for each in contents if not each.complete))
        if (yield from scope.too_many({"map": sum(each.number for each in contents)})):
            scope.leave_unresolved("map", *(each.range.name for each in contents))
            return
        found = by_key((placement.where, placement) for each in contents for placement in each.placements())
        offset = attrgetter("offset")
        scope.placements.update({where: tuple(sorted(placed, key=offset)) for where, placed in found.items()})

    def steps(self, geometry: Geometry, machine: Machine) -> Items:
        from memtopo.kinds.mappings.steps import MapChunk

        return mapping_steps(geometry, machine, MapChunk, memory=True)


def mapping_steps(geometry: Geometry, machine: Machine, step: type[MapChunk], *, memory: bool) -> Items:
    """Steps that map chunks, which are `memory`, or other objects; `step` is the class of the one of a mapping."""
    from memtopo.kinds.mappings.steps import MapChunks
    from memtopo.kinds.runs import run_of

    everywhere, access_of = host_has_access(geometry), granted(geometry)
    expected = cache(lambda access, with_host: expected_access(access, geometry, machine, with_host=with_host))
    for placements in geometry.placements.values():
        for placement, numbers, access in mapping_runs(placements, access_of):
            if placement.chunk.memory is memory:
                on_host = (location.kind is not LocationKind.GPU for location in placement.chunk.locations)
                reported = tuple(expected(access, everywhere or each) for each in on_host)
                one = reported[:1] if len({*reported}) == 1 else reported
                yield run_of(MapChunks(step, numbers, placement, one))


def past_the_end(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT305 for mappings past the end of a range, which the driver maps into the next reservation (fact 15)."""
    for placement in chain.from_iterable(geometry.placements.values()):
        if placement.end > placement.range.size:
            group, size = placement.range, placement.chunk.size
            fits = max(0, (group.size - placement.offset) // size)
            label = group.label(placement.instance)
            chunk = placement.chunk.label(placement.index(fits))
            start = placement.offset + fits * size
            would = f"start at {exact(start)}" if start >= group.size else f"end at {exact(start + size)}"
            message = f"{chunk!r} would {would} of {label!r}, which ends at {exact(group.size)}"
            notes = (f"the driver would map it into the addresses after {label!r}",)
            labels = (Label(f"{exact(group.size)} declared here", (*group.path, "size")),)
            help = f"increase the size of {group.name!r} to {exact(placement.end)}, or map less"
            memory = known_memory(machine)
            room = sum(memory.get(each, math.inf) for each in placement.chunk.distinct_locations)
            if placement.step and placement.count * size > room:
                help = f"map fewer chunks: the machine does not have the memory to fill a larger {group.name!r}"
            if group.count > 1:
                help = f"make each {group.name!r} a multiple of {exact(size)}, "
                help += f"or write a key for each: '{group.label(0)}: […]'"
            yield Diagnostic("MT305", message, placement.path, labels=labels, notes=notes, help=help)


def overlaps(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT304 for mappings that overlap, which the driver refuses (fact 14), once for two entries."""
    found: dict[tuple[Path, Path], Diagnostic] = {}
    places: Counter[tuple[Path, Path]] = Counter()
    for placements in geometry.placements.values():
        highest, end = None, 0
        for placement in placements:
            if highest and placement.offset < end:
                first, second = sorted((highest, placement), key=_order)
                entries = (first.path, second.path)
                places[entries] += 1
                if entries not in found:
                    found[entries] = _overlap(first, second)
            if placement.end > end:
                highest, end = placement, placement.end
    for entries, diagnostic in found.items():
        others = places[entries] - 1
        more = f"and in {others:,} more place{'s' * (others > 1)}"
        yield diagnostic._replace(notes=(*diagnostic.notes, more)) if others else diagnostic


def resolve_slices(scope: Scope) -> Resolution[dict[str, list[Slice]]]:
    """Chunks of each map entry, by the keys of the section."""
    found: dict[str, list[Slice]] = {}
    for key, entries in scope.spec.section("map").items():
        slices = found.setdefault(key, [])
        for index, entry in enumerate(entries):
            path = scope.spec.at("map", key, index)
            chunks = yield from attempt(_mapped, scope, entry.chunk, (*path, "chunk"))
            group, first, stop = chunks or (None, 0, 0)
            where = entry.chunk, entry.offset, path
            slices.append(Slice(group, first, stop, *where, entry.each, entry.order, entry.stride))
    return found


def granules(scope: Scope) -> tuple[dict[str, int], set[str]]:
    """Largest granularity of the chunks of each range, and the ranges that need a granule which is not known."""
    largest: dict[str, int] = {}
    partly = {key for section, key in scope.spec.left_out if section == "map"}
    ranges = scope.spec.section("ranges")
    for key, slices in scope.slices.items():
        name = key if key in ranges else parse_reference(key).name
        found = [each.group.granule if each.group else 0 for each in slices]
        largest[name] = max(largest.get(name, 0), *found)
        if 0 in found:
            partly.add(key)
    names = {key.partition(".")[0] for key in partly}
    return largest, names & set(_in_granules(scope)) if names else set()


def _mapped(scope: Scope, reference: Reference, where: Path) -> tuple[ChunkGroup, int, int]:
    """Group, first index and end of the chunks that a map entry names.

    Raises `Refused`, with MT201 for a name that is no chunk unless its entry has an error.
    """
    if group := scope.mappable(reference.name):
        refuse_growing(group, "a program maps them, in an elastic range", where, help=_UNMAP)
        return group, *indices(reference, group, where)
    spec, name = scope.spec, reference.name
    unmappable = (kind for kind in scope.kinds if kind.keys is Keys.UNIQUE and MAPPINGS.section not in kind.unusable)
    if other := next((kind.words.article for kind in unmappable if name in scope.of(kind.group)), None):
        message = f"{name!r} is {other}, and only chunks can be mapped"
        help = "share a chunk via fd instead" if name in spec.section("imports") else "declare it under 'chunks'"
        raise Refused(Diagnostic("MT201", message, where, help=help))
    reported = scope.may_be_mapped(name) or scope.may_be_unusable(name, MAPPINGS, where)
    known = chain(spec.names("chunks"), spec.names("imports"))
    raise scope.errors.undeclared("chunk", name, where, known, reported=reported)


def _in_granules(scope: Scope) -> Iterator[str]:
    """Ranges with an amount in granules, of their own, of a map entry or a part of access, and those without a size."""
    for name, range_ in scope.spec.section("ranges").items():
        if range_.size == "fill" or range_.size.in_granules or (range_.align and range_.align.in_granules):
            yield name
    for key, entries in scope.spec.section("map").items():
        amounts = (amount for entry in entries for amount in (entry.offset, entry.stride))
        if any(amount and amount.in_granules for amount in amounts):
            yield parse_reference(key).name
    for key, entry in scope.spec.section("access").items():
        if not isinstance(entry, dict) and any(part.offset.in_granules or part.size.in_granules for part in entry):
            yield parse_reference(key).name


def host_has_access(geometry: Geometry) -> bool:
    """Return whether the host is granted access to anything."""
    grants = (grant for parts in geometry.parts.values() for part in parts for grant in part.grants)
    return any(grant.location.kind is not LocationKind.GPU for grant in grants)


def expected_access(
    access: tuple[Grant, ...], geometry: Geometry, machine: Machine, *, with_host: bool
) -> tuple[Grant, ...]:
    """Access to a mapping that the driver must report for every visible GPU, and for the host.

    The host is queried as a NUMA node: for HOST, the driver reports the access of a GPU if the host has none (fact 42).
    """
    granted_to = dict(access)
    gpus = geometry.visible or [gpu(ordinal) for ordinal in range(len(machine.devices))]
    found = [Grant(location, granted_to.get(location, Access.NONE)) for location in gpus]
    if with_host:
        host = granted_to.get(WHOLE_HOST, Access.NONE)
        found.append(Grant(Location(LocationKind.HOST_NUMA, 0), host))
    return tuple(found)


def _overlap(first: Placement, second: Placement) -> Diagnostic:
    start = max(first.offset, second.offset)
    message = f"{_names(second)} overlaps {_names(first)} at {exact(start)} of {second.range.label(second.instance)!r}"
    label = Label(f"{_names(first)} is mapped from {exact(first.offset)} to {exact(first.end)} here", first.path)
    end = first.end + second.count * second.chunk.size
    help = f"the first free offset after it is {exact(first.end)}"
    if end > second.range.size:
        help += f", for which the size of {second.range.name!r} is at least {exact(end)}"
    return Diagnostic("MT304", message, second.path, labels=(label,), help=help)


def _names(placement: Placement) -> str:
    first = placement.chunk.label(placement.first)
    last = placement.chunk.label(placement.index(placement.count - 1))
    return repr(first) if first == last else f"'{first} … {last}'"


def _order(placement: Placement) -> tuple[str, int, int]:
    *_, key, index = placement.path
    return str(key), int(index), placement.first


MAPPINGS = Mappings(rules=(past_the_end, overlaps))
