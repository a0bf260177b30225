"""Addresses of ranges: hints that the driver refuses, and fixed addresses that it would not grant (fact 11)."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.driver.types import ADDRESS_BLOCK
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.geometry.sizing import rounded_to_multiple
from memtopo.machine import Machine

LAST_ADDRESS = (1 << 47) - ADDRESS_BLOCK
"""End of the addresses that can be reserved: an address hint behind it returns OUT_OF_MEMORY (fact 11)."""

_BLOCKS = "the driver rounds an address hint up to a multiple of 32MiB (fact 11)"


def address_error(group: RangeGroup) -> Diagnostic | None:
    """Return MT307 for an address that the driver would refuse, or that a fixed range does not have."""
    path = (*group.path, "address")
    if group.fixed and not group.address:
        message = f"range {group.name!r} is fixed, but has no address"
        return Diagnostic("MT307", message, (*group.path, "fixed"), help="add 'address: 0x…', or leave 'fixed' out")
    unit = max(group.granule, group.align)
    if group.address % unit:
        down = group.address - group.address % unit
        near = f"{down:#x} or {down + unit:#x}" if down else f"{unit:#x}"
        message = f"range {group.name!r}: {group.address:#x} is not aligned to {exact(unit)}"
        notes = (_BLOCKS,) if group.fixed and unit == ADDRESS_BLOCK else ()
        return Diagnostic("MT307", message, path, notes=notes, help=f"write {near}")
    first = rounded_to_multiple(group.address, ADDRESS_BLOCK, rounding=True) or 0
    if group.address and first + group.extent > LAST_ADDRESS:
        extent = f"{rounded(group.extent)} at {group.address:#x}"
        message = f"range {group.name!r}: {extent} are beyond the address space, which ends at {LAST_ADDRESS:#x}"
        return Diagnostic("MT307", message, path)
    return None


def fixed_addresses(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT307 for fixed ranges that overlap: the driver would reserve the second one at another address."""
    del machine
    fixed = sorted(
        (group for group in geometry.of(RangeGroup).values() if group.fixed and group.address),
        key=lambda group: group.address,
    )
    furthest: RangeGroup | None = None
    for group in fixed:
        if furthest and group.address < furthest.address + furthest.extent:
            yield _both_fixed(furthest, group)
        if furthest is None or group.address + group.extent > furthest.address + furthest.extent:
            furthest = group


def _both_fixed(first: RangeGroup, second: RangeGroup) -> Diagnostic:
    end = first.address + first.extent
    message = f"range {second.name!r} is fixed at {second.address:#x}, but {first.name!r} ends at {end:#x}"
    unit = max(second.align, ADDRESS_BLOCK)
    free = rounded_to_multiple(end, unit, rounding=True) or end
    label = Label(f"{first.name!r} is fixed here", (*first.path, "address"))
    return Diagnostic("MT307", message, (*second.path, "address"), labels=(label,), help=f"write {free:#x} or more")
