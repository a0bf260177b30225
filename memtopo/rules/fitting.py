"""Mappings lie inside their reservations and apart from one another."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry import BufferGroup, ChunkGroup, ExternalObject, Geometry, ManagedAllocation, Placement, RangeGroup
from memtopo.machine import Machine

ADDRESS_SPACE = 1 << 47
"""Bytes that a process can reserve at most: 64 TiB succeeded, 128 TiB did not (fact 9)."""


def past_the_end(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT305. The driver lets a mapping run past its reservation into a neighbour's (fact 15), so memtopo must not."""
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


def address_space(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT310. Address space is bounded even where memory is not needed for it (fact 9); nothing can be larger."""
    del machine
    for kind, run in _sized(geometry):
        if run.size >= ADDRESS_SPACE:
            told = f"{kind} {run.name!r}: {rounded(run.size)} do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            yield Diagnostic("MT310", told, (*run.path, "size"))
    total = 0
    for range_ in geometry.ranges.values():
        total += range_.size * range_.count
        if total >= ADDRESS_SPACE:
            up_to_here = f"{rounded(total)} up to here do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            yield Diagnostic("MT310", f"range {range_.name!r}: {up_to_here}", (*range_.path, "size"))
            return


def _sized(geometry: Geometry) -> Iterator[tuple[str, ChunkGroup | BufferGroup | ManagedAllocation | ExternalObject]]:
    """Everything that has a size and no range, with what it is."""
    for chunk in [*geometry.created, *geometry.received]:
        yield "import" if chunk.origin else "chunk" if isinstance(chunk, ChunkGroup) else "buffer", chunk
    yield from (("managed memory", run) for run in geometry.managed.values())
    yield from (("external object", run) for run in geometry.external.values())


def fixed_addresses(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT307. Two ranges cannot both be at an address that is fixed: the driver reserves the second one elsewhere."""
    del machine
    fixed = sorted((run for run in geometry.ranges.values() if run.fixed and run.address), key=lambda run: run.address)
    furthest: RangeGroup | None = None
    for run in fixed:
        if furthest and run.address < furthest.address + furthest.extent:
            yield _both_fixed(furthest, run)
        if furthest is None or run.address + run.extent > furthest.address + furthest.extent:
            furthest = run


def _both_fixed(first: RangeGroup, second: RangeGroup) -> Diagnostic:
    end = first.address + first.extent
    told = f"range {second.name!r} is fixed at {second.address:#x}, where {first.name!r} ends only at {end:#x}"
    label = Label(f"{first.name!r} is fixed here", (*first.path, "address"))
    return Diagnostic("MT307", told, (*second.path, "address"), labels=(label,), help=f"write {end:#x} or more")


def _past(placement: Placement) -> Diagnostic:
    run, size = placement.range, placement.chunk.size
    fits = max(0, (run.size - placement.offset) // size)
    label = run.label(placement.instance)
    chunk = placement.chunk.label(placement.first + fits)
    start = placement.offset + fits * size
    if start >= run.size:
        told = f"{chunk!r} would start at {exact(start)} of {label!r}, which ends at {exact(run.size)}"
    else:
        told = f"{chunk!r} would end at {exact(start + size)} of {label!r}, which ends at {exact(run.size)}"
    notes = (f"the driver would let it run into whatever lies behind {label!r}",)
    labels = (Label(f"{exact(run.size)} declared here", (*run.path, "size")),)
    help = f"give {run.name!r} at least {exact(placement.end)}, or map less"
    if run.count > 1:
        help = f"make each {run.name!r} a multiple of {exact(size)}, or fill them one by one: '{run.label(0)}: […]'"
    return Diagnostic("MT305", told, placement.path, labels=labels, notes=notes, help=help)


def _overlap(first: Placement, second: Placement) -> Diagnostic:
    start = max(first.offset, second.offset)
    told = f"{_names(second)} overlaps {_names(first)} at {exact(start)} of {second.range.label(second.instance)!r}"
    label = Label(f"{_names(first)} is mapped from {exact(first.offset)} to {exact(first.end)} here", first.path)
    fits = first.end + second.count * second.chunk.size <= second.range.size
    help = f"the first free offset after it is {exact(first.end)}" if fits else "they do not fit one after another"
    return Diagnostic("MT304", told, second.path, labels=(label,), help=help)


def _names(placement: Placement) -> str:
    first = placement.chunk.label(placement.first)
    last = placement.chunk.label(placement.first + placement.count - 1)
    return repr(first) if first == last else f"'{first} … {last}'"


def _order(placement: Placement) -> tuple[str, int, int]:
    *_, key, index = placement.path
    return str(key), int(index), placement.first
