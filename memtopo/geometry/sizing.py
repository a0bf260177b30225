"""Chunks and ranges with their granules resolved and their sizes rounded or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import Location, LocationKind, Properties
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.naming import Devices
from memtopo.machine import Machine
from memtopo.spec import Chunk, Range, Spec, parse_reference

_PLAIN = 2 << 20


class Units(NamedTuple):
    """What a range is measured by: the granularity of its chunks, or of plain memory, and of all addresses."""

    granule: int
    address: int
    filled: bool


def granule(machine: Machine, properties: Properties) -> int:
    """The minimum granularity of chunks with exactly these properties; of plain ones where it was not recorded."""
    entry = machine.granularity(properties) or machine.granularity(Properties(properties.location))
    return entry.minimum if entry else _PLAIN


def plain_granule(machine: Machine) -> int:
    """The largest granularity of plain GPU memory: what a range is measured by that holds nothing."""
    places = [place for place in machine.locations if place.kind is LocationKind.GPU]
    return max((granule(machine, Properties(place)) for place in places), default=_PLAIN)


def address_granule(machine: Machine) -> int:
    """What every reservation begins at a multiple of, without asking: the smallest granularity there is."""
    every = (entry.minimum for memory in machine.locations.values() for entry in memory.granularity)
    return min(every, default=_PLAIN)


def chunk_run(
    path: Path, chunk: Chunk, devices: Devices, machine: Machine, faults: list[Diagnostic]
) -> ChunkGroup | None:
    """The chunks of one entry, or None where it has a fault of its own."""
    name = str(path[-1])
    places = resolved(chunk.location, path, devices)
    if places is None:
        return None
    places = places[: chunk.count or 1]
    properties = tuple(Properties(place, chunk.handle_types, chunk.rdma, chunk.compressible) for place in places)
    unit = max(granule(machine, each) for each in properties)
    declared = chunk.size.bytes(unit)
    size = _fit(declared, unit, rounding=chunk.round is not None)
    if size is None:
        faults.append(
            misfit("MT301", f"chunk {name!r}", declared, unit, (*path, "size"), granularity_note(unit, places))
        )
        return None
    distinct = tuple(dict.fromkeys(places))
    return ChunkGroup(name, path, chunk.count or 1, chunk.count is not None, size, declared, unit, properties, distinct)


def resolved(
    names: Sequence[str], path: Path, devices: Devices, key: str = "location", *, anywhere: bool = False
) -> list[Location] | None:
    """The locations of the names under one key of an entry; None where one of them has a fault, which is told.

    They are ones that the process sees, if they may not be `anywhere`.
    """
    single = len(names) == 1
    found = [
        devices.resolve(name, (*path, key) if single else (*path, key, index), anywhere=anywhere)
        for index, name in enumerate(names)
    ]
    places = [place for place in found if place is not None]
    return places if len(places) == len(found) else None


def range_run(path: Path, range_: Range, units: Units, faults: list[Diagnostic]) -> RangeGroup | None:
    """The ranges of one entry, or None where it has a fault of its own."""
    name = str(path[-1])
    unit = units.granule
    declared = range_.size.bytes(unit)
    size = _fit(declared, unit, rounding=range_.round is not None)
    if size is None:
        faults.append(misfit("MT302", f"range {name!r}", declared, unit, (*path, "size"), _measure(units)))
        return None
    align = range_.align.bytes(unit) if range_.align else 0
    if (wrong := _alignment(path, align, unit)) is not None:
        faults.append(wrong)
        return None
    if align or unit > units.address:
        align = max(align, unit)
    run = RangeGroup(
        name,
        path,
        range_.count or 1,
        range_.count is not None,
        size,
        declared,
        unit,
        align,
        range_.address or 0,
        range_.fixed,
    )
    if (wrong := _address(run)) is not None:
        faults.append(wrong)
        return None
    return run


def in_granules(spec: Spec) -> Iterator[str]:
    """The ranges with an amount that is written in granules: their own, of a map entry or of a part of access."""
    for name, range_ in spec.ranges.items():
        if range_.size.in_granules or (range_.align and range_.align.in_granules):
            yield name
    for key, entries in spec.map.items():
        if any(entry.offset and entry.offset.in_granules for entry in entries):
            yield parse_reference(key).name
    for key, asked in spec.access.items():
        if not isinstance(asked, dict) and any(part.offset.in_granules or part.size.in_granules for part in asked):
            yield parse_reference(key).name


def misfit(code: str, what: str, amount: int, unit: int, path: Path, note: str) -> Diagnostic:
    """A size or offset that is no multiple of its granule, with the nearest ones that are."""
    down = amount - amount % unit
    near = f"{exact(down)} or {exact(down + unit)}" if down else exact(unit)
    over = f" ({rounded(amount % unit)} over)" if down else ""
    told = f"{what}: {exact(amount)} is no multiple of {exact(unit)}{over}"
    help = f"write {near}" + (", or 'round: up'" if code != "MT303" else "")
    return Diagnostic(code, told, path, notes=(note,), help=help)


def granularity_note(unit: int, places: Iterable[Location]) -> str:
    """Where a granule comes from, in words."""
    names = ", ".join(str(place) for place in dict.fromkeys(places))
    return f"the granularity of chunks with these properties on {names} is {exact(unit)} on this machine"


def _fit(amount: int, unit: int, *, rounding: bool) -> int | None:
    if amount % unit == 0:
        return amount
    return amount + unit - amount % unit if rounding else None


def _measure(units: Units) -> str:
    if units.filled:
        return f"the chunks in it have a granularity of {exact(units.granule)}"
    return f"it holds no chunk, and plain memory of this machine has a granularity of {exact(units.granule)}"


def _alignment(range_: Path, align: int, unit: int) -> Diagnostic | None:
    name, path = range_[-1], (*range_, "align")
    if align >> 47:
        told = f"range {name!r}: an alignment of {exact(align)} is more than there are addresses"
        return Diagnostic("MT306", told, path, help=f"the least is {exact(unit)}, which needs no align")
    if align & (align - 1):
        near = f"{exact(1 << align.bit_length() - 1)} or {exact(1 << align.bit_length())}"
        told = f"range {name!r}: an alignment is a power of two, which {exact(align)} is not"
        return Diagnostic("MT306", told, path, help=f"write {near}")
    return None


def _address(run: RangeGroup) -> Diagnostic | None:
    path = (*run.path, "address")
    if run.fixed and not run.address:
        told = f"range {run.name!r} is fixed, and no address is given that it could be fixed at"
        return Diagnostic("MT307", told, (*run.path, "fixed"), help="add 'address: 0x…', or leave 'fixed' out")
    unit = max(run.granule, run.align)
    if run.address % unit:
        down = run.address - run.address % unit
        told = f"range {run.name!r}: {run.address:#x} is not aligned to {exact(unit)}"
        return Diagnostic("MT307", told, path, help=f"write {down:#x} or {down + unit:#x}")
    if run.address + run.extent > 1 << 47:
        from_there = f"{run.address:#x} and {rounded(run.extent)} from there"
        told = f"range {run.name!r}: {from_there} lie beyond 47 bits of address space"
        return Diagnostic("MT307", told, path)
    return None
