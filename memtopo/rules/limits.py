"""Limits of a process's address space."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.machine import Machine

ADDRESS_SPACE = 1 << 47
"""Limit in bytes of the addresses of a process: reserving 64 TiB succeeded, 128 TiB failed (fact 9)."""


def address_space(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT310 if reservations, or one object, exceed the address space of a process (fact 9)."""
    del machine
    for group in geometry.every:
        if group.memory and group.size >= ADDRESS_SPACE and (group.external or not group.origin):
            limit = f"do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            message = f"{group.declared_as} {group.name!r}: {rounded(group.size)} {limit}"
            yield Diagnostic("MT310", message, (*group.path, "size"))
    total = 0
    for range_ in geometry.of(RangeGroup).values():
        total += range_.size * range_.count
        if total >= ADDRESS_SPACE:
            here = f"{rounded(total)} with the ranges before it do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            yield Diagnostic("MT310", f"range {range_.name!r}: {here}", (*range_.path, "size"))
            return
