"""Rules about a layout as a whole: the limits of memory and of addresses, and valid entries that are not used.

Entries that an entry with an error may use are not reported as unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from memtopo.common.units import rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup, RangeGroup, Residence, declared_as, from_outside
from memtopo.geometry.model import Geometry
from memtopo.kinds.exportable import ExportGroup
from memtopo.machine import CONTEXT_BYTES, Machine

ADDRESS_SPACE = 1 << 47
"""Limit in bytes of the addresses of a process: reserving 64 TiB succeeded, 128 TiB failed (fact 9)."""


def address_space(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT310 if reservations, or one object, exceed the address space of a process (fact 9)."""
    for group in geometry.every:
        if group.memory and group.size >= ADDRESS_SPACE and (from_outside(group) or not group.origin):
            limit = f"do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            message = f"{declared_as(group)} {group.name!r}: {rounded(group.size)} {limit}"
            yield Diagnostic("MT310", message, (*group.path, "size"), help="lower its size")
    total = 0
    for range_ in geometry.of(RangeGroup).values():
        total += range_.size * range_.count
        if total >= ADDRESS_SPACE:
            here = f"{rounded(total)} with the ranges before it do not fit into {rounded(ADDRESS_SPACE)} of addresses"
            help = "lower the size or the count of ranges"
            yield Diagnostic("MT310", f"range {range_.name!r}: {here}", (*range_.path, "size"), help=help)
            return


def fits(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT402 if all processes exceed the (free) memory of a GPU, or that of the host or one of its nodes."""
    node, needed = next(iter(geometry.nodes), None), _needed(geometry)
    gpus = [member.gpus for member in geometry.members.values()]
    excess: dict[Path, _Share] = {}
    for ordinal, device in enumerate(machine.devices):
        shares = _largest_first(needed.get(gpu(ordinal), {}))
        bound = [share for share in shares if share.residence is not Residence.EXCEEDING]
        contexts = sum(ordinal in each for each in gpus)
        over = sum(share.size for share in bound) + contexts * CONTEXT_BYTES - device.room
        if over > 0 and (bound or len(gpus) > 1):
            has = f"{rounded(device.room)}{' free' if device.free_bytes is not None else ''}"
            of = f"{gpu(ordinal).on(node)}, which has {has}: {rounded(over)} too much"
            each = "a context takes" if contexts == 1 else f"the contexts of {contexts} processes take"
            taken = f"{each} about {rounded(contexts * CONTEXT_BYTES)}"
            if bound:
                yield _needs(bound, of, notes=(f"{taken} of the GPU's memory besides",))
            else:
                yield Diagnostic("MT402", f"{taken} on {of}", ("processes",), "key", help="declare fewer processes")
        for share in _exceeding(shares, max(0, -over)):
            excess[share.path] = max(share, excess.get(share.path, share), key=lambda each: each.size)
    yield from _fits_on_host(needed, excess, machine, node)


_HOST = Location(LocationKind.HOST)


class _Share(NamedTuple):
    """Bytes that one entry needs at a location."""

    name: str
    path: Path
    size: int
    residence: Residence


_Needed = Mapping[Location, Mapping[Path, _Share]]


def _exceeding(shares: Iterable[_Share], room: int) -> Iterator[_Share]:
    """Parts of the oversubscribed memory of a GPU that do not fit into the `room` that all else leaves, in bytes."""
    for share in shares:
        if share.residence is Residence.EXCEEDING:
            if share.size > room:
                yield share._replace(size=share.size - room)
            room = max(0, room - share.size)


def _fits_on_host(
    needed: _Needed, excess: Mapping[Path, _Share], machine: Machine, of_cluster: str | None
) -> Iterator[Diagnostic]:
    """Diagnostics of the NUMA nodes, and of the whole host if more is missing than on its nodes.

    `excess` is what the GPUs have no room for, `of_cluster` the name of a node of a cluster.
    """
    missing, host = 0, f"the host{f' of node {of_cluster}' * bool(of_cluster)}"
    for node, size in machine.node_bytes.items():
        shares = _largest_first(needed.get(node, {}))
        over = sum(share.size for share in shares) - size
        if over > 0:
            missing += over
            yield _needs(shares, f"{node.on(of_cluster)}, which has {rounded(size)}: {rounded(over)} too much")
    on_host = [each for at, each in needed.items() if at.kind is not LocationKind.GPU]
    shares = _largest_first(_merged([*on_host, excess]))
    over = sum(share.size for share in shares) - machine.host_room
    if over > missing:
        assumed = "" if machine.host_bytes else "; the record does not have its memory, so 1 TiB is assumed"
        yield _needs(shares, f"{host}, which has {rounded(machine.host_room)}: {rounded(over)} too much", assumed)
    elif machine.pinned_bytes:
        locked = [share for share in shares if share.residence is Residence.FIXED]
        over = sum(share.size for share in locked) - machine.pinned_bytes
        if over > missing:
            room = rounded(machine.pinned_bytes)
            yield _needs(locked, f"{host}, where {room} may be page-locked: {rounded(over)} too much")


def _needs(shares: list[_Share], of: str, more: str = "", notes: tuple[str, ...] = ()) -> Diagnostic:
    """Diagnostic of the entries that need memory, the largest first."""
    largest, *others = shares
    total = sum(share.size for share in shares)
    labels = tuple(Label(f"{rounded(share.size)} of it here", (*share.path, "size")) for share in others[:3])
    notes = (f"{largest.name!r} takes {rounded(largest.size)} of it{more}", *notes)
    message = f"the layout needs {rounded(total)} on {of}"
    help = "lower a size or a count, or use memory of another device"
    return Diagnostic("MT402", message, (*largest.path, "size"), labels=labels, notes=notes, help=help)


def _needed(geometry: Geometry) -> _Needed:
    """Memory that the entries of all processes may occupy, by location; what migrates is on no node in particular.

    Imports belong to another process. Instances of a counted process have the same entries, whose shares are summed.
    """
    needed: dict[Location, dict[Path, _Share]] = {}
    for member in geometry.members.values():
        for group in member.every:
            for location, size in group.demand().items():
                path, residence = group.path, group.residence
                anywhere = residence is not Residence.FIXED and location.kind is not LocationKind.GPU
                shares = needed.setdefault(_HOST if anywhere else location, {})
                whole = size + shares[path].size if path in shares else size
                shares[path] = _Share(group.name, path, whole, residence)
    return needed


def _merged(every: Iterable[Mapping[Path, _Share]]) -> Mapping[Path, _Share]:
    """Shares of several locations, summed by entry."""
    found: dict[Path, _Share] = {}
    for path, share in chain.from_iterable(shares.items() for shares in every):
        found[path] = share._replace(size=share.size + found[path].size) if path in found else share
    return found


def _largest_first(shares: Mapping[Path, _Share]) -> list[_Share]:
    return sorted((share for share in shares.values() if share.size), key=lambda share: -share.size)


def unused_chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT501 for chunks that are neither mapped nor exported."""
    if any(geometry.has_unresolved(section) for section in ("map", "ranges", "exports")):
        return
    used: dict[str, list[tuple[int, int]]] = {}
    for placement in chain.from_iterable(geometry.placements.values()):
        used.setdefault(placement.chunk.name, []).extend(placement.spans)
    for export in geometry.of(ExportGroup).values():
        if isinstance(export.group, ChunkGroup):
            used.setdefault(export.group.name, []).append((export.first, export.first + export.count))
    elastic = (group.elastic for group in geometry.of(RangeGroup).values() if group.elastic)
    backing = {chunk.name for each in elastic for chunk in each.every}
    for name, group in geometry.of(ChunkGroup).items():
        if name in backing or (group.growing and name in used):
            continue
        unused = group.count - _covered(used.get(name, []))
        what = "import" if group.origin else "chunk"
        if group.growing:
            message = f"no elastic range can have chunk {name!r}"
            yield Diagnostic("MT501", message, group.path, "key", help="declare a range with 'elastic: true'")
        elif unused == group.count:
            yield Diagnostic("MT501", f"{what} {name!r} is not mapped", group.path, "key")
        elif unused:
            kind = "imported chunks" if group.origin else "chunks"
            message = f"{unused:,} of the {group.count:,} {kind} {name!r} are not mapped"
            help = None if group.origin else "map them too, or reduce 'count'"
            yield Diagnostic("MT501", message, group.path, "key", help=help)


def unused_ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT502 for ranges without mappings, and MT503 for ranges without access."""
    filled = Counter(name for name, _ in geometry.placements)
    overfull = {name for (name, _), placed in geometry.placements.items() if placed[-1].end > placed[-1].range.size}
    mapped, accessible = not geometry.has_unresolved("map"), not geometry.has_unresolved("access")
    known = not any(geometry.has_unresolved(section) for section in ("chunks", "imports"))
    for name, group in geometry.of(RangeGroup).items():
        if group.elastic:
            if not group.elastic.chunks and mapped and known:
                help = "declare chunks with 'count: {min: 0, max: N}'"
                message = f"nothing can be mapped in range {name!r}: it is elastic, and no chunk is"
                yield Diagnostic("MT502", message, group.path, "key", help=help)
        elif name not in filled and mapped:
            yield Diagnostic("MT502", f"range {name!r} has no mappings", group.path, "key")
        elif mapped and filled[name] < group.count and name not in overfull:
            message = f"{group.count - filled[name]:,} of the {group.count:,} ranges {name!r} have no mappings"
            yield Diagnostic("MT502", message, group.path, "key", help="map chunks into them too, or reduce 'count'")
        granted = any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)
        if (name in filled or group.elastic) and accessible and not granted:
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"no device has access to range {name!r}", group.path, "key", help=help)


def _covered(spans: list[tuple[int, int]]) -> int:
    """Number of indices in at least one span."""
    covered = end = 0
    for first, stop in sorted(spans):
        covered += max(0, stop - max(first, end))
        end = max(end, stop)
    return covered
