"""Rules about a layout as a whole: the balance of memory, addresses, and valid entries that are not used.

Entries that an entry with an error may use are not reported as unused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import ADDRESS_SPACE, WHOLE_HOST, Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup, RangeGroup, Residence, declared_as, from_outside, largest_count
from memtopo.geometry.model import Geometry, Placement, distinct
from memtopo.kinds.exportable import ExportGroup
from memtopo.machine import CONTEXT_BYTES, Machine


class Need(NamedTuple):
    """Bytes that one entry needs at a location. `owner` is its layout where several are counted."""

    name: str
    path: Path
    size: int
    residence: Residence
    owner: str = ""

    @property
    def entry(self) -> Entry:
        """The layout and the entry that need it."""
        return self.owner, self.path


Entry = tuple[str, Path]
"""Layout, where several are counted, and path of an entry in its spec."""

Needs = Mapping[Location, Mapping[Entry, Need]]
"""Needs by location and by entry."""


class Balance(Struct, frozen=True):
    """Memory that a location has, and what is to take it: `needs`, the largest first, and contexts.

    The needs of the whole host are those of its nodes as well; if `locked`, they are what is page-locked of them.
    """

    location: Location
    room: int
    needs: tuple[Need, ...]
    contexts: int = 0
    locked: bool = False

    @property
    def taken(self) -> int:
        """Bytes of all needs and contexts."""
        return sum(need.size for need in self.needs) + self.contexts

    @property
    def over(self) -> int:
        """Bytes that are too much; less than 0 if some are left."""
        return self.taken - self.room


def needed(geometry: Geometry, owner: str = "", *, least: bool = False) -> Needs:
    """Memory that the entries of all processes may occupy, by location; what migrates is on no node in particular.

    With `least`, what a program creates later is not counted. Imports belong to another process. Instances of a counted
    process have the same entries, whose needs are summed.
    """
    found: dict[Location, dict[Entry, Need]] = {}
    for member in geometry.members.values():
        for group in member.every:
            for location, size in (group.least_demand() if least else group.demand()).items():
                need = Need(group.name, group.path, size, group.residence, owner)
                anywhere = need.residence is not Residence.FIXED and location.kind is not LocationKind.GPU
                _add(found.setdefault(WHOLE_HOST if anywhere else location, {}), need)
    return found


def together(every: Iterable[Needs]) -> Needs:
    """Needs of several layouts, each with its own `owner`."""
    found: dict[Location, dict[Entry, Need]] = {}
    for location, needs in chain.from_iterable(each.items() for each in every):
        found.setdefault(location, {}).update(needs)
    return found


def balances(needs: Needs, contexts: Mapping[int, int], machine: Machine) -> Iterator[Balance]:
    """Balance of each GPU and each known NUMA node, of the whole host, and of what is page-locked if that is limited.

    `contexts` are the bytes of all contexts by GPU. Oversubscribed memory that a GPU has no room for is on the host.
    """
    excess: dict[Entry, Need] = {}
    for ordinal, device in enumerate(machine.devices):
        every = _largest_first(needs.get(gpu(ordinal), {}))
        bound = tuple(need for need in every if need.residence is not Residence.EXCEEDING)
        found = Balance(gpu(ordinal), device.room, bound, contexts.get(ordinal, 0))
        yield found
        for need in _exceeding(every, max(0, -found.over)):
            excess[need.entry] = max(need, excess.get(need.entry, need), key=lambda each: each.size)
    for node, size in machine.node_bytes.items():
        yield Balance(node, size, _largest_first(needs.get(node, {})))
    on_host = [each for at, each in needs.items() if at.kind is not LocationKind.GPU]
    every = _largest_first(_merged([*on_host, excess]))
    yield Balance(WHOLE_HOST, machine.host_room, every)
    if machine.pinned_bytes:
        locked = tuple(need for need in every if need.residence is Residence.FIXED)
        yield Balance(WHOLE_HOST, machine.pinned_bytes, locked, locked=True)


def lacking(every: Iterable[Balance]) -> Iterator[Balance]:
    """Balances of GPUs and nodes with too much, and that of the whole host if more is missing than on its nodes."""
    missing, whole = 0, False
    for each in every:
        if each.location == WHOLE_HOST:
            if each.over > missing and not whole:
                whole = True
                yield each
        elif each.over > 0:
            missing += each.over if each.location.kind is not LocationKind.GPU else 0
            yield each


def _exceeding(needs: Iterable[Need], room: int) -> Iterator[Need]:
    """Parts of the oversubscribed memory of a GPU that do not fit into the `room` that all else leaves, in bytes."""
    for need in needs:
        if need.residence is Residence.EXCEEDING:
            if need.size > room:
                yield need._replace(size=need.size - room)
            room = max(0, room - need.size)


def _add(needs: dict[Entry, Need], need: Need) -> None:
    """Add a need to that of the same entry."""
    before = needs.get(need.entry)
    needs[need.entry] = need._replace(size=need.size + before.size) if before else need


def _merged(every: Iterable[Mapping[Entry, Need]]) -> Mapping[Entry, Need]:
    """Needs of several locations, summed by entry."""
    found: dict[Entry, Need] = {}
    for need in chain.from_iterable(needs.values() for needs in every):
        _add(found, need)
    return found


def _largest_first(needs: Mapping[Entry, Need]) -> tuple[Need, ...]:
    return tuple(sorted((need for need in needs.values() if need.size), key=lambda need: -need.size))


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
    of_cluster = next(iter(geometry.nodes), None)
    gpus = [member.gpus for member in geometry.members.values()]
    number = Counter(ordinal for each in gpus for ordinal in each)
    contexts = {ordinal: count * CONTEXT_BYTES for ordinal, count in number.items()}
    for found in lacking(balances(needed(geometry), contexts, machine)):
        location, over = found.location, f"{rounded(found.over)} too much"
        if location.kind is LocationKind.GPU:
            if not found.needs and len(gpus) == 1:
                continue
            has = f"{rounded(found.room)}{' free' if machine.devices[location.id].free_bytes is not None else ''}"
            of = f"{location.on(of_cluster)}, which has {has}: {over}"
            count = number[location.id]
            each = "a context takes" if count == 1 else f"the contexts of {count} processes take"
            taken = f"{each} about {rounded(found.contexts)}"
            if found.needs:
                notes = (f"{taken} of the GPU's memory in addition",)
                yield _needs(found.needs, of, notes=notes, help=_most(geometry, found.needs[0], found.over))
            else:
                yield Diagnostic("MT402", f"{taken} on {of}", ("processes",), "key", help="declare fewer processes")
        else:
            known = machine.host_bytes or found.location.kind is not LocationKind.HOST
            help = _most(geometry, found.needs[0], found.over) if known else None
            yield _needs(found.needs, *_on_host(found, machine, of_cluster), help=help)


def _on_host(found: Balance, machine: Machine, of_cluster: str | None) -> tuple[str, str]:
    """Words for a balance of the host or one of its NUMA nodes, and for its largest need."""
    over, room = f"{rounded(found.over)} too much", rounded(found.room)
    if found.location.kind is not LocationKind.HOST:
        return f"{found.location.on(of_cluster)}, which has {room}: {over}", ""
    host = f"the host{f' of node {of_cluster}' * bool(of_cluster)}"
    if found.locked:
        return f"{host}, where {room} may be page-locked: {over}", ""
    assumed = "" if machine.host_bytes else "; the record does not have its memory, so 1 TiB is assumed"
    return f"{host}, which has {room}: {over}", assumed


_OTHER = "or use memory of another device"


def _most(geometry: Geometry, need: Need, over: int) -> str | None:
    """Help with the largest count or size of chunks that fits if they alone are to need `over` bytes less."""
    groups = [group for member in geometry.members.values() for group in member.of(ChunkGroup).values()]
    groups = [group for group in groups if group.path == need.path and need.size]
    if not groups or groups[0].gone or _has_shares(geometry):
        return None
    first, less = groups[0], -(-over // len(groups))
    together = max(Counter(chain.from_iterable(group.distinct_locations for group in groups)).values())
    if first.filled:
        return f"lower the size of {first.filled!r}, which has so many chunks {first.name!r}; {_OTHER}"
    if largest_count(first) == 1 and not first.growing:
        size = (first.size - less) // first.granule * first.granule
        share = _share("size", together, size // first.granule, 1)
        return f"the largest size that fits is {exact(size)}{share}; {_OTHER}" if size > 0 else None
    parts, overfilled = _mapped(geometry, first)
    unit = math.lcm(parts, len(first.locations))
    most = (largest_count(first) // len(first.locations) - -(-less // first.size)) * len(first.locations)
    most -= most % unit
    if most < max(1, first.count if first.growing else 1):
        return None
    if overfilled and overfilled.size * overfilled.count <= most * first.size:
        return f"write 'count: fill' for as many as {overfilled.name!r} has room for; {_OTHER}"
    key = "max" if first.growing else "count"
    share = _share(key, together, most - unit, max(unit, first.count if first.growing else 1))
    return f"the largest {key} that fits is {most}{share}; {_OTHER}"


def _has_shares(geometry: Geometry) -> bool:
    """Return true if an entry may have a share of the memory, for which the largest amount of another leaves nothing.

    An entry whose share is nothing has an error, and is not resolved.
    """
    groups = (group for member in geometry.members.values() for group in member.every)
    return any(group.share for group in groups) or any(map(geometry.has_unresolved, ("chunks", "heaps")))


def _share(key: str, together: int, most: int, least: int) -> str:
    """Hint at a share of the memory for each of the instances at a location, if 90% of `most` are at least `least`."""
    each = _LOCAL // together
    if not each or most * _LOCAL // 100 < least:
        return ""
    return f", and '{key}: {each}%' is a share of what other entries leave"


_LOCAL = 90
"""Percentage of the memory for shares at a location that are suggested; a local GPU needs some memory besides."""


def _mapped(geometry: Geometry, chunks: ChunkGroup) -> tuple[int, RangeGroup | None]:
    """Number of ranges that have equal parts of some chunks, 1 if none have, and a range that the chunks overfill."""
    placed: dict[str, list[Placement]] = {}
    for (name, _), placements in geometry.placements.items():
        placed.setdefault(name, []).extend(each for each in placements if each.chunk.name == chunks.name)
    parts = 1
    overfilled: RangeGroup | None = None
    for each in placed.values():
        if sum(placement.count for placement in each) == chunks.count:
            past_the_end = [placement.end > placement.range.size for placement in each]
            if any(past_the_end) and not all(past_the_end):
                overfilled = each[0].range
            elif len({placement.count for placement in each}) == 1:
                parts = math.lcm(parts, len(each))
    return parts, overfilled


_LOWER = "lower a size, a count or a limit, or use memory of another device"


def _needs(
    needs: Sequence[Need], of: str, more: str = "", notes: tuple[str, ...] = (), help: str | None = None
) -> Diagnostic:
    """Diagnostic of the entries that need memory, the largest first."""
    largest, *others = needs
    total = sum(need.size for need in needs)
    labels = tuple(Label(f"{rounded(need.size)} of it here", (*need.path, "size")) for need in others[:3])
    notes = (f"{largest.name!r} takes {rounded(largest.size)} of it{more}", *notes)
    message = f"the layout needs {rounded(total)} on {of}"
    return Diagnostic("MT402", message, (*largest.path, "size"), labels=labels, notes=notes, help=help or _LOWER)


def unused_chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT501 for chunks that are neither mapped nor exported."""
    if any(geometry.has_unresolved(section) for section in ("map", "ranges", "exports")):
        return
    used: dict[str, list[range]] = {}
    for placement in chain.from_iterable(geometry.placements.values()):
        used.setdefault(placement.chunk.name, []).append(placement.indices)
    for export in geometry.of(ExportGroup).values():
        if isinstance(export.group, ChunkGroup):
            used.setdefault(export.group.name, []).append(range(export.first, export.first + export.count))
    elastic = (group.elastic for group in geometry.of(RangeGroup).values() if group.elastic)
    backing = {chunk.name for each in elastic for chunk in each.every}
    for name, group in geometry.of(ChunkGroup).items():
        if name in backing or (group.growing and name in used):
            continue
        unused = group.count - distinct(used.get(name, ()), group.count)
        what = "import" if group.origin else "chunk"
        if group.growing:
            message = f"no elastic range can have chunk {name!r}"
            yield Diagnostic("MT501", message, group.path, "key", help="declare a range with 'elastic: true'")
        elif unused == group.count:
            yield Diagnostic("MT501", f"{what} {name!r} is not mapped", group.path, "key")
        elif unused:
            kind = "imported chunks" if group.origin else "chunks"
            message = f"{unused:,} of the {group.count:,} {kind} {name!r} are not mapped"
            help = None if group.origin else "map them as well, or reduce 'count'"
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
                message = f"nothing can be mapped in range {name!r}: it is elastic, but no chunk is"
                yield Diagnostic("MT502", message, group.path, "key", help=help)
        elif name not in filled and mapped:
            yield Diagnostic("MT502", f"range {name!r} has no mappings", group.path, "key")
        elif mapped and filled[name] < group.count and name not in overfull:
            message = f"{group.count - filled[name]:,} of the {group.count:,} ranges {name!r} have no mappings"
            help = "map chunks into them as well, or reduce 'count'"
            yield Diagnostic("MT502", message, group.path, "key", help=help)
        granted = any(grant.access for part in geometry.parts.get(name, ()) for grant in part.grants)
        if (name in filled or group.elastic) and accessible and not granted:
            help = f"grant it: 'access: {{{name}: {{gpu0: rw}}}}'"
            yield Diagnostic("MT503", f"no device has access to range {name!r}", group.path, "key", help=help)
