"""Ranges: reserved virtual address ranges, and elastic ones.

In an elastic range a program maps chunks while the layout exists, and a zero page may back the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

from msgspec import Struct
from pydantic import BeforeValidator, Field

from memtopo.common.units import exact, rounded, rounded_up
from memtopo.diagnostics.messages import SUGGESTED
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.geometry.access import AccessParts
from memtopo.geometry.groups import Backing, ChunkGroup, RangeGroup, largest_count
from memtopo.geometry.model import Geometry, Part, Placement
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.kind import Kind, ResolutionStage, Scope, Steps, Words
from memtopo.kinds.mappings import granules, resolve_slices
from memtopo.kinds.mappings.fill import fitting_size, keys_by_range
from memtopo.kinds.resolution import Refused, attempt, require_on_gpu, together, whole_granules
from memtopo.language.entries import Entry
from memtopo.language.fields import Address, Boolean, Count, OwnName, PositiveAmount, Rounding, SizeOrFill
from memtopo.language.scalars import one_or_more
from memtopo.machine import Machine


class Elastic(Entry):
    """Chunks that a program may map in a range, and the chunk behind everything that is not mapped."""

    chunks: Annotated[list[OwnName], BeforeValidator(one_or_more, json_schema_input_type=OwnName | list[OwnName])] = (
        Field(default=[], description="Elastic chunks that can be mapped in the range; by default all of the spec.")
    )
    zero: OwnName | None = Field(
        default=None,
        description="Zero page: a chunk of zeros that is mapped read-only wherever the range has no other mapping.",
    )


def _elastic(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value
    if value not in ("true", "false"):
        raise InvalidValue("MT107", f"{value!r} is not a boolean", help="write true, or {zero: NAME}")
    return {} if value == "true" else None


Elasticity = Annotated[Elastic | None, BeforeValidator(_elastic, json_schema_input_type=bool | Elastic)]


class Range(Entry):
    """A reserved address range. `address` is a hint; with `fixed`, another address fails the check."""

    size: SizeOrFill = Field(
        description="Bytes of addresses to reserve, a multiple of the largest granularity of its chunks: 96MiB, or 4 "
        "granules; or fill, the size of the chunks mapped into it."
    )
    align: PositiveAmount | None = Field(default=None, description="Alignment of the address, a power of two.")
    address: Address | None = Field(default=None, description="Requested address, 0x…; a hint unless 'fixed' is true.")
    fixed: Boolean = Field(
        default=False, description="If true, an address other than the requested one fails the check."
    )
    count: Count | None = Field(default=None, description="Number of equal ranges: kv becomes kv.0, kv.1 and so on.")
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")
    same_address: Boolean = Field(
        default=False,
        description="If true, all instances of a counted process reserve it at the same address, with an alignment "
        "of at least 32MiB.",
    )
    elastic: Elasticity | None = Field(
        default=None,
        description="true, or {chunks: page, zero: blank}: a program maps and unmaps chunks while the layout exists.",
    )


class Ranges(Kind):
    """Section `ranges`."""

    section = "ranges"
    description = "Reserved virtual address ranges, by name."
    words = Words("range", "ranges", "kv: {size: 2MiB}")
    entry = Range
    group = RangeGroup
    stage = ResolutionStage.RESERVED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve ranges. The granule of a range is the largest granularity of the chunks mapped into it."""
        scope.slices = yield from resolve_slices(scope)
        entries = scope.spec.section("ranges")
        keys = keys_by_range(scope) if any(entry.size == "fill" for entry in entries.values()) else {}
        mapped = _Mapped(*granules(scope), keys)
        found: dict[str, RangeGroup | None] = {}
        for name, entry in entries.items():
            found[name] = yield from attempt(_range, scope, name, entry, mapped)
        yield from scope.add_all(self, found)
        totals: dict[str, int] = {}  # except of `map` and `access`, which are not resolved yet
        for kind in scope.kinds:
            for group in scope.of(kind.group).values():
                section = "imports" if group.origin else kind.section
                totals[section] = totals.get(section, 0) + max(group.count, largest_count(group))
        if (yield from scope.too_many(totals)):
            scope.leave_out(self)
            scope.slices.clear()

    def steps(self, geometry: Geometry, machine: Machine) -> Steps:
        from memtopo.kinds.resources import ReserveRange

        groups = geometry.of(RangeGroup).values()
        # Fixed and agreed addresses first, before the driver or a hint takes them for another range.
        for group in sorted(groups, key=lambda each: (not each.fixed, not each.same_address)):
            for index in range(group.count):
                place = group.size, group.align, group.address_hint(index), group.fixed, group.same_address
                yield ReserveRange(group.path, group.label(index), *place)
        if any(group.elastic for group in groups):
            from memtopo.kinds.ranges.elastic_steps import elastic_steps

            yield from elastic_steps(geometry, machine)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(RangeGroup).values():
            if group.size != group.declared:
                yield f"range {group.name}: {exact(group.declared)} rounded up to {exact(group.size)}"
            if group.fitted:
                yield f"range {group.name}: {exact(group.size)}, the size of the chunks mapped into it"

    def refused_changes(self, before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
        """Yield MT810 for ranges at the same address in all processes that come, go or are reserved otherwise."""
        old, new = _common_ranges(before), _common_ranges(after)
        for name in dict.fromkeys([*old, *new]):
            if name not in old or name not in new or _reserved(old[name]) != _reserved(new[name]):
                path = (*after.path, "ranges", *([name] if name in after.of(RangeGroup) else []))
                message = f"the change would reserve range {name!r} again, which has the same address in all processes"
                note = "processes agree on addresses only while a layout is built"
                help = "release the layout, and apply the spec"
                yield Diagnostic("MT810", message, path, "key", notes=(note,), help=help)


class _Mapped(Struct, frozen=True):
    """Largest granularity of the chunks in each range, ranges for which it is not known, and keys of `map` by range."""

    granules: Mapping[str, int]
    unknown: Collection[str]
    keys: Mapping[str, Sequence[str]]


def _range(scope: Scope, name: str, entry: Range, mapped: _Mapped) -> RangeGroup:
    """Ranges of an entry. Raises `Refused`."""
    path = scope.spec.at("ranges", name)
    backing, _ = together(
        partial(resolve_backing, scope, (*path, "elastic"), entry.elastic),
        partial(require_common_address, scope, path, entry),
    )
    if name in mapped.unknown:
        raise Refused
    of_chunks = max(mapped.granules.get(name, 0), granule_of(backing))
    unit = of_chunks or scope.machine.plain_granularity
    declared = _declared(scope, name, entry, unit, mapped.keys.get(name, ()))
    where = "the chunks in it have" if of_chunks else "without chunks in it, plain memory of this machine has"
    note, rounding = f"{where} a granularity of {exact(unit)}", entry.round is not None
    size = whole_granules("MT302", f"range {name!r}", declared, unit, (*path, "size"), note, rounding=rounding)
    align = entry.align.bytes(unit) if entry.align else 0
    _require_alignment(path, align, unit)
    if align or unit > scope.machine.address_granularity:
        align = max(align, unit)
    if entry.fixed or entry.same_address:
        align = max(align, ADDRESS_BLOCK)
    group = RangeGroup(
        name,
        path,
        declared,
        unit,
        align,
        entry.address or 0,
        entry.fixed,
        count=entry.count or 1,
        counted=entry.count is not None,
        size=size,
        elastic=backing,
        fitted=entry.size == "fill",
        same_address=entry.same_address,
    )
    require_address(group)
    return group


def _declared(scope: Scope, name: str, entry: Range, unit: int, keys: Sequence[str]) -> int:
    """Bytes of a range before rounding, for granules of `unit` bytes."""
    if entry.size != "fill":
        return entry.size.bytes(unit)
    if entry.elastic is None:
        return fitting_size(scope, name, keys, entry.count, unit)
    message = f"range {name!r} is elastic, so its size cannot be computed from its chunks"
    raise Refused(Diagnostic("MT314", message, scope.spec.at("ranges", name, "size"), help="write a size"))


def _require_alignment(range_: Path, align: int, unit: int) -> None:
    name, path = range_[-1], (*range_, "align")
    if align >> 47:
        message = f"range {name!r}: an alignment of {exact(align)} exceeds the address space"
        raise Refused(Diagnostic("MT306", message, path, help=f"the default is {exact(unit)}, without 'align'"))
    if align & (align - 1):
        near = f"{exact(1 << align.bit_length() - 1)} or {exact(1 << align.bit_length())}"
        message = f"range {name!r}: the alignment {exact(align)} is not a power of two"
        raise Refused(Diagnostic("MT306", message, path, help=f"write {near}"))


_CONTEXTS = 0x2_0000_0000
"""Address in the block that the driver takes for contexts, so that no range can be fixed there (fact 11)."""

_BLOCKS = "the driver rounds an address hint up to a multiple of 32MiB (fact 11)"


def require_address(group: RangeGroup) -> None:
    """Raise `Refused` with MT307 for an address that the driver would refuse, or that a fixed range does not have."""
    path, unit = (*group.path, "address"), _unit(group)
    if group.fixed and not group.address:
        message = f"range {group.name!r} is fixed, but has no address"
        help = "add 'address: 0x…', or omit 'fixed'"
        raise Refused(Diagnostic("MT307", message, (*group.path, "fixed"), help=help))
    if group.address % unit:
        message = f"range {group.name!r}: {group.address:#x} is not aligned to {exact(unit)}"
        down, last = group.address - group.address % unit, LAST_ADDRESS - group.extent
        near = [each for each in (down, down + unit) if each and rounded_up(each, ADDRESS_BLOCK) <= last]
        nearest = f"write {' or '.join(f'{each:#x}' for each in near)}" if near else _lowered(group, unit)
        notes = (_BLOCKS,) if (group.fixed or group.same_address) and unit == ADDRESS_BLOCK else ()
        raise Refused(Diagnostic("MT307", message, path, notes=notes, help=nearest))
    if group.address and rounded_up(group.address, ADDRESS_BLOCK) + group.extent > LAST_ADDRESS:
        extent = f"{rounded(group.extent)} at {group.address:#x}"
        message = f"range {group.name!r}: {extent} are beyond the address space, which ends at {LAST_ADDRESS:#x}"
        raise Refused(Diagnostic("MT307", message, path, help=_lowered(group, unit)))


def require_common_address(scope: Scope, path: Path, entry: Range) -> None:
    """Raise `Refused` with MT609 for a range at the same address in processes that cannot agree on one."""
    spec, name, where = scope.spec, path[-1], (*path, "same_address")
    if not entry.same_address:
        return
    if scope.siblings.spec.held_processes and not spec.held:
        message = f"range {name!r} is at the same address in all instances of {spec.name!r}, which join one by one"
        help = "omit 'same_address', or hold no process, so that all processes are built together"
        raise Refused(Diagnostic("MT609", message, where, help=help))
    if spec.instances is None and not spec.countless:
        message = (
            f"range {name!r} requires the same address in all instances of a process, but this process is not counted"
        )
        if not spec.path:
            message = f"range {name!r} requires the same address in all processes, but this spec has no processes"
        help = "omit 'same_address', or give the process a 'count'"
        raise Refused(Diagnostic("MT609", message, where, help=help))
    if entry.fixed and not spec.countless:
        message = f"range {name!r} has a fixed address, which is the same in all processes"
        label = Label("fixed here", (*path, "fixed"))
        help = "omit 'same_address', or omit 'fixed' to make the address a hint"
        raise Refused(Diagnostic("MT609", message, where, labels=(label,), help=help))


def _common_ranges(geometry: Geometry) -> dict[str, RangeGroup]:
    return {name: group for name, group in geometry.of(RangeGroup).items() if group.same_address}


def _reserved(group: RangeGroup) -> tuple[int, int, int, int]:
    return group.count, group.size, group.align, group.address


def fixed_addresses(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT307 for fixed ranges over a context's addresses or one another, which the driver reserves elsewhere.

    The first ones have the nearest address that would do.
    """
    fixed = [group for group in geometry.of(RangeGroup).values() if group.fixed and group.address]
    fixed.sort(key=lambda group: group.address)
    in_use = bool(geometry.gpus)
    furthest: RangeGroup | None = None
    found = 0
    for group in fixed:
        what, message, where = f"range {group.name!r} is fixed", "", (*group.path, "address")
        labels: tuple[Label, ...] = ()
        notes: tuple[str, ...] = ()
        if in_use and group.address <= _CONTEXTS < _end(group):
            message = f"{what} over {_CONTEXTS:#x}, where the driver keeps contexts"
            notes = ("it would be reserved at another address (fact 11)",)
        elif furthest and group.address < _end(furthest):
            message = f"{what} at {group.address:#x}, but {furthest.name!r} ends at {_end(furthest):#x}"
            labels = (Label(f"{furthest.name!r} is fixed here", (*furthest.path, "address")),)
        if message:
            help = _nearest(group, fixed) if found < SUGGESTED else None
            yield Diagnostic("MT307", message, where, labels=labels, notes=notes, help=help)
            found += 1
        if furthest is None or _end(group) > _end(furthest):
            furthest = group


def _lowered(group: RangeGroup, unit: int) -> str | None:
    """Help with the last address at which a range fits into the address space; None if it fits nowhere."""
    last = LAST_ADDRESS - group.extent
    last -= last % max(unit, ADDRESS_BLOCK)
    return f"write {last:#x} or less" if last > 0 else None


def _nearest(group: RangeGroup, fixed: Sequence[RangeGroup]) -> str | None:
    """Help with the nearest address at which a range overlaps neither another fixed one nor contexts; None for none.

    `fixed` are all fixed ranges by address.
    """
    taken = [(_CONTEXTS, _CONTEXTS + ADDRESS_BLOCK)]
    taken += [(each.address, _end(each)) for each in fixed if each is not group]
    low, unit, found = ADDRESS_BLOCK, _unit(group), list[int]()
    for start, end in [*sorted(taken), (LAST_ADDRESS, LAST_ADDRESS)]:
        first, last = rounded_up(low, unit), (start - group.extent) // unit * unit
        if first <= last:
            found.append(min(max(group.address, first), last))
        low = max(low, end)
    if not found:
        return None
    return f"write {min(found, key=lambda each: abs(each - group.address)):#x}, the nearest address that is free"


def _unit(group: RangeGroup) -> int:
    """Unit of its address: its alignment, which is at least a block of addresses if it is fixed."""
    return max(group.granule, group.align)


def _end(group: RangeGroup) -> int:
    return group.address + group.extent


def resolve_backing(scope: Scope, path: Path, entry: Elastic | None) -> Backing | None:
    """Chunks of the `elastic` of a range at `path`; None for a range without it. Raises `Refused`."""
    if entry is None:
        return None
    chunks = [partial(_growing, scope, name, (*path, "chunks", index)) for index, name in enumerate(entry.chunks)]
    zero = [] if entry.zero is None else [partial(_zero, scope, entry.zero, (*path, "zero"))]
    found = together(*chunks, *zero)
    growing = found[: len(chunks)] if chunks else [group for group in scope.of(ChunkGroup).values() if group.growing]
    return Backing(tuple(growing), found[-1] if zero else None)


def granule_of(backing: Backing | None) -> int:
    """Largest granularity of the chunks that may be mapped in an elastic range; 0 if there are none."""
    return max((group.granule for group in backing.every), default=0) if backing else 0


def zero_chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT805 for zero pages that do not fill exactly what they are to back."""
    elastic = {name: group for name, group in geometry.of(RangeGroup).items() if group.elastic}
    parts = AccessParts({name: geometry.parts.get(name, ()) for name in elastic})
    for group in elastic.values():
        zero = group.elastic.zero if group.elastic else None
        if group.elastic is None or zero is None:
            continue
        for chunk in group.elastic.chunks:
            if chunk.size % zero.size:
                yield _misfit(group, zero, f"a chunk of {chunk.name!r} has {exact(chunk.size)}", (*chunk.path, "size"))
        if group.size % zero.size:
            yield _misfit(group, zero, f"{group.name!r} has {exact(group.size)}", (*group.path, "size"))
        for instance in range(group.count):
            placed = geometry.placements.get((group.name, instance), ())
            yield from _bounds(group, zero, placed, parts.of(group.name, instance))


def held_elastic_ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT814 for elastic ranges of processes that are held, of whose chunks none are lent.

    A layout of one process is held if other processes import from it.
    """
    for label, member in geometry.members.items():
        exports = [export for export in member.of(ExportGroup).values() if not export.dma_buf]
        if label not in geometry.held and (geometry.processes or not exports):
            continue
        if member.has_unresolved("exports"):
            continue
        lent = {export.group.name for export in exports if export.lends}
        for group in member.of(RangeGroup).values():
            chunks = group.elastic.chunks if group.elastic and not group.elastic.sized_by_program else ()
            if chunks and lent.isdisjoint(each.name for each in chunks):
                message = f"no process can map chunks in range {group.name!r} while the layout is held"
                note = "a process that holds it runs no program, and none of these chunks are lent"
                first = chunks[0].name
                handles = "" if chunks[0].handles else ", and give them 'handles: fd'"
                help = f"export them: '{first}: {{chunk: {first}, via: fd}}'{handles}"
                yield Diagnostic("MT814", message, group.path, "key", notes=(note,), help=help)


def _bounds(
    group: RangeGroup, zero: ChunkGroup, placed: Sequence[Placement], parts: Sequence[Part]
) -> Iterator[Diagnostic]:
    """Yield MT805 for fixed mappings and parts of access that begin or end within a zero page."""
    bounds = [("fixed chunks", each.offset, each.end, each.path) for each in placed]
    bounds += [("a part of access", each.offset, each.end, each.path) for each in parts]
    for what, start, end, path in bounds:
        at = next((at for at in (start, end) if at % zero.size and at != group.size), None)
        if at is not None:
            yield _misfit(group, zero, f"{what} would split one at {exact(at)}", path)


def _misfit(group: RangeGroup, zero: ChunkGroup, why: str, path: Path) -> Diagnostic:
    message = f"range {group.name!r}: zero pages of {exact(zero.size)} cannot back it, because {why}"
    label = Label("this must be a multiple of the zero page", path)
    help = f"make it a multiple of {exact(zero.size)}, or make the zero page smaller"
    return Diagnostic("MT805", message, (*group.path, "elastic", "zero"), labels=(label,), help=help)


def _growing(scope: Scope, name: str, path: Path) -> ChunkGroup:
    group = scope.named(ChunkGroup, name, path, "chunks", "imports")
    if group.growing:
        return group
    message = f"{name!r} is not elastic: a program can map only chunks whose count has a min and a max"
    label = Label("declared here", group.path, "key")
    raise Refused(Diagnostic("MT804", message, path, labels=(label,), help="write 'count: {min: 0, max: N}' there"))


def _zero(scope: Scope, name: str, path: Path) -> ChunkGroup:
    group = scope.named(ChunkGroup, name, path, "chunks", "imports")
    require_on_gpu("a zero page", group.locations, path)
    if not group.counted and group.origin is None:
        return group
    what = "is imported" if group.origin else "has a count"
    label = Label("declared here", group.path, "key")
    message = f"{name!r} {what}, but a zero page must be a single chunk that this process creates and fills with zeros"
    raise Refused(Diagnostic("MT805", message, path, labels=(label,), help="declare a chunk without 'count' for it"))


RANGES = Ranges(rules=(fixed_addresses, zero_chunks), joint_rules=(held_elastic_ranges,))
