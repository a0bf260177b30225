"""Addresses of ranges: hints that the driver refuses, and fixed addresses that it would not grant (fact 11)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.messages import SUGGESTED
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.resolution import Resolution
from memtopo.language.entries import Spec
from memtopo.machine import Machine

_CONTEXTS = 0x2_0000_0000
"""Address in the block that the driver takes for contexts, so that no range can be fixed there (fact 11)."""

_BLOCKS = "the driver rounds an address hint up to a multiple of 32MiB (fact 11)"


def address_error(group: RangeGroup) -> Diagnostic | None:
    """Return MT307 for an address that the driver would refuse, or that a fixed range does not have."""
    path, unit = (*group.path, "address"), _unit(group)
    if group.fixed and not group.address:
        message = f"range {group.name!r} is fixed, but has no address"
        return Diagnostic("MT307", message, (*group.path, "fixed"), help="add 'address: 0x…', or leave 'fixed' out")
    if group.address % unit:
        message = f"range {group.name!r}: {group.address:#x} is not aligned to {exact(unit)}"
        notes = (_BLOCKS,) if (group.fixed or group.same_address) and unit == ADDRESS_BLOCK else ()
        return Diagnostic("MT307", message, path, notes=notes, help=_aligned(group, unit))
    if group.address and _up(group.address, ADDRESS_BLOCK) + group.extent > LAST_ADDRESS:
        extent = f"{rounded(group.extent)} at {group.address:#x}"
        message = f"range {group.name!r}: {extent} are beyond the address space, which ends at {LAST_ADDRESS:#x}"
        return Diagnostic("MT307", message, path, help=_lowered(group, unit))
    return None


def no_common_address(spec: Spec, path: Path, entry: Any) -> Resolution[bool]:
    """Yield MT609 and return true for a range at the same address in processes that cannot agree on one."""
    if spec.countless or (spec.instances is not None and not entry.fixed):
        return False
    name, where = path[-1], (*path, "same_address")
    if spec.instances is None:
        message = f"range {name!r} is at the same address in all processes of one, and this one is not counted"
        if not spec.path:
            message = f"range {name!r} is at the same address in all processes, and this spec has none"
        help = "leave 'same_address' out, or give the process a 'count'"
        yield Diagnostic("MT609", message, where, help=help)
        return True
    message = f"range {name!r} has a fixed address, which is the same in all processes"
    label = Label("fixed here", (*path, "fixed"))
    help = "leave 'same_address' out, or 'fixed', so that the address is a hint"
    yield Diagnostic("MT609", message, where, labels=(label,), help=help)
    return True


def changed_common_addresses(before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
    """Yield MT810 for ranges at the same address in all processes that come, go or are reserved otherwise."""
    old, new = _common_ranges(before), _common_ranges(after)
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new or _reserved(old[name]) != _reserved(new[name]):
            path = (*after.path, "ranges", *([name] if name in after.of(RangeGroup) else []))
            message = f"the change would reserve range {name!r}, which is at the same address in all processes, anew"
            note = "processes agree on addresses only while a layout is built"
            help = "release the layout, and apply the spec"
            yield Diagnostic("MT810", message, path, "key", notes=(note,), help=help)


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
        wrong = None
        if in_use and group.address <= _CONTEXTS < _end(group):
            wrong = _over_contexts(group)
        elif furthest and group.address < _end(furthest):
            wrong = _both_fixed(furthest, group)
        if wrong:
            yield wrong._replace(help=_nearest(group, fixed)) if found < SUGGESTED else wrong
            found += 1
        if furthest is None or _end(group) > _end(furthest):
            furthest = group


def _over_contexts(group: RangeGroup) -> Diagnostic:
    message = f"range {group.name!r} is fixed over {_CONTEXTS:#x}, where the driver keeps contexts"
    notes = ("it would be reserved at another address (fact 11)",)
    return Diagnostic("MT307", message, (*group.path, "address"), notes=notes)


def _both_fixed(first: RangeGroup, second: RangeGroup) -> Diagnostic:
    ends = f"{first.name!r} ends at {_end(first):#x}"
    message = f"range {second.name!r} is fixed at {second.address:#x}, but {ends}"
    label = Label(f"{first.name!r} is fixed here", (*first.path, "address"))
    return Diagnostic("MT307", message, (*second.path, "address"), labels=(label,))


def _aligned(group: RangeGroup, unit: int) -> str | None:
    """Help with the nearest aligned addresses that are in the address space."""
    down = group.address - group.address % unit
    near = [each for each in (down, down + unit) if each and _up(each, ADDRESS_BLOCK) + group.extent <= LAST_ADDRESS]
    return f"write {' or '.join(f'{each:#x}' for each in near)}" if near else _lowered(group, unit)


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
        first, last = _up(low, unit), (start - group.extent) // unit * unit
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


def _up(address: int, unit: int) -> int:
    return -(-address // unit) * unit
