"""Limits of device memory, host memory, and the address space of a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from memtopo.common.units import rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.machine import CONTEXT_BYTES, Machine

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


def fits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT402 if the objects and contexts of all processes exceed the (free) memory of a GPU, or of the host."""
    needed = _needed(geometry)
    gpus = [member.gpus for member in geometry.members.values()]
    for ordinal, device in enumerate(machine.devices):
        shares = _largest_first(needed.get(gpu(ordinal), {}))
        contexts = sum(ordinal in each for each in gpus)
        total = sum(share.size for share in shares)
        over = total + contexts * CONTEXT_BYTES - device.room
        if over > 0 and (shares or len(gpus) > 1):
            has = f"{rounded(device.room)}{' free' if device.free_bytes is not None else ''}"
            yield _too_much(shares, contexts, f"gpu{ordinal}, which has {has}: {rounded(over)} too much")
    shares = _largest_first(needed.get(_HOST, {}))
    over = sum(share.size for share in shares) - machine.host_room
    if over > 0:
        assumed = "" if machine.host_bytes else "; the record does not have its memory, so 1 TiB is assumed"
        yield _needs(shares, f"the host, which has {rounded(machine.host_room)}: {rounded(over)} too much", assumed)


_HOST = Location(LocationKind.HOST)


class _Share(NamedTuple):
    """Bytes that one entry needs on a GPU or on the host."""

    name: str
    path: Path
    size: int


def _too_much(shares: list[_Share], contexts: int, of: str) -> Diagnostic:
    """Diagnostic of a GPU with too little memory."""
    each = "a context takes" if contexts == 1 else f"the contexts of {contexts} processes take"
    taken = f"{each} about {rounded(contexts * CONTEXT_BYTES)}"
    if not shares:
        return Diagnostic("MT402", f"{taken} on {of}", ("processes",), "key", help="declare fewer processes")
    found = _needs(shares, of)
    return found._replace(notes=(*found.notes, f"{taken} of the GPU's memory besides"))


def _needs(shares: list[_Share], of: str, more: str = "") -> Diagnostic:
    """Diagnostic of the entries that need memory, the largest first."""
    largest, *others = shares
    total = sum(share.size for share in shares)
    labels = tuple(Label(f"{rounded(share.size)} of it here", (*share.path, "size")) for share in others[:3])
    notes = (f"{largest.name!r} takes {rounded(largest.size)} of it{more}",)
    message = f"the layout needs {rounded(total)} on {of}"
    return Diagnostic("MT402", message, (*largest.path, "size"), labels=labels, notes=notes)


def _needed(geometry: Geometry) -> dict[Location, dict[Path, _Share]]:
    """Memory that the entries of all processes may occupy, by GPU, and in all NUMA nodes of the host together.

    Imports belong to another process. Instances of a counted process have the same entries, whose shares are summed.
    """
    needed: dict[Location, dict[Path, _Share]] = {}
    for member in geometry.members.values():
        for group in member.every:
            for location, size in group.demand().items():
                shares = needed.setdefault(location if location.kind is LocationKind.GPU else _HOST, {})
                before = shares.get(group.path)
                shares[group.path] = _Share(group.name, group.path, size + (before.size if before else 0))
    return needed


def _largest_first(shares: Mapping[Path, _Share]) -> list[_Share]:
    return sorted((share for share in shares.values() if share.size), key=lambda share: -share.size)
