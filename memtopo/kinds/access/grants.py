"""Grants of access as a spec writes them, resolved to locations, and the access that GPUs have to one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from memtopo.common.text import enumerated
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Access, Grant, Location, LocationKind
from memtopo.geometry.access import AccessParts, Segment, from_offset, segments
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, Part, Placement
from memtopo.kinds.device_names import SETS, empty
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Refused
from memtopo.language.names import GPUS, PEERS
from memtopo.machine import Machine, Trial


def can_access(location: Location, owner: Location, machine: Machine) -> bool:
    """Return true if a GPU, or the host, can access the memory of a location.

    GPUs can access all memory of other nodes that was imported: it is of their clique.
    """
    if owner.node:
        return location.kind is LocationKind.GPU
    trial = access_trial(location, owner, machine)
    if owner.kind is not LocationKind.GPU:
        return trial is None or trial.works is not False
    access = location.kind is LocationKind.GPU and machine.can_access(location.id, owner.id)
    return access and (trial is None or trial.works is not False)


def access_trial(location: Location, owner: Location, machine: Machine) -> Trial | None:
    """Trial of access by a location: a store to a peer GPU, or access of a GPU or the CPU to host memory."""
    if owner.node:
        return None
    if owner.kind is not LocationKind.GPU:
        return machine.trial(owner, "gpu" if location.kind is LocationKind.GPU else "cpu")
    return machine.store(location.id, owner.id) if location.kind is LocationKind.GPU else None


def owners(placement: Placement, start: int, end: int) -> set[Location]:
    """Locations of the chunks of a placement between two offsets of its range."""
    chunk = placement.chunk
    first = (max(start, placement.offset) - placement.offset) // chunk.size
    stop = -(-(min(end, placement.end) - placement.offset) // chunk.size)
    stop = min(stop, first + len(chunk.properties))  # the locations repeat
    return {chunk.location_of(placement.index(nth)) for nth in range(first, stop)}


def peer_access(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT403 for GPUs without peer access, and MT406 for grants of GPU memory to the host (fact 20)."""
    reported: set[tuple[object, ...]] = set()
    owners_of: dict[str, set[Location]] = {}
    unreachable = _Unreachable(geometry, machine)
    for part, location, owner, chunk in chain(_placed(geometry, unreachable), _elastic(geometry, unreachable)):
        key = part.key_of(location)
        # One grant to memory of one location, or one set of devices.
        subject = key if key[-1] in SETS else (key, location, owner)
        if subject not in reported:
            reported.add(subject)
            trial = access_trial(location, owner, machine)
            name = part.range.name
            if name not in owners_of:
                owners_of[name] = _owners(geometry, part.range)
            help = _help(part, location, chunk, owners_of[name], machine)
            yield _no_access(part, location, owner, chunk, trial, help)


_Missing = tuple[Part, Location, Location, ChunkGroup]
"""Grant to a device that has no access: its part, the device, the location of the memory, and the chunk there."""


def _placed(geometry: Geometry, unreachable: _Unreachable) -> Iterator[_Missing]:
    """Grants to devices that have no access to the chunks that are mapped."""
    names = {name for name, each in geometry.parts.items() if any(unreachable.of(part.grants) for part in each)}
    names -= {name for section, name in geometry.unresolved if section == "access"}
    parts = AccessParts({name: geometry.parts[name] for name in names})
    for where, placements in geometry.placements.items() if names else ():
        if where[0] not in names:
            continue
        for segment in segments(parts.of(*where)):
            for owner, location, placement in _unreachable_grants(segment, placements, unreachable):
                yield segment.given[location], location, owner, placement.chunk


def _elastic(geometry: Geometry, unreachable: _Unreachable) -> Iterator[_Missing]:
    """Grants to devices that have no access to chunks that a program may map anywhere in an elastic range."""
    for group in geometry.of(RangeGroup).values():
        if group.elastic is None or ("access", group.name) in geometry.unresolved:
            continue
        for part in geometry.parts.get(group.name, ()):
            devices = unreachable.of(tuple(grant for grant in part.grants if grant.access))
            for chunk, owner in ((each, owner) for each in group.elastic.every for owner in each.distinct_locations):
                yield from ((part, location, owner, chunk) for location in devices.get(owner, ()))


class _Unreachable:
    """Grants to devices that cannot access the memory of a location."""

    def __init__(self, geometry: Geometry, machine: Machine) -> None:
        chunks = geometry.instances_of(ChunkGroup)
        used = dict.fromkeys(chain.from_iterable(chunk.distinct_locations for chunk in chunks))
        self._owners = [each for each in used if each.node or each in machine.locations]
        self._machine = machine
        self._known: dict[tuple[Grant, ...], dict[Location, list[Location]]] = {}

    def of(self, grants: tuple[Grant, ...]) -> dict[Location, list[Location]]:
        """Devices of the grants without access, by the location of the memory; locations without any are left out."""
        if grants not in self._known:
            without = {
                owner: [each.location for each in grants if not can_access(each.location, owner, self._machine)]
                for owner in self._owners
            }
            self._known[grants] = {owner: devices for owner, devices in without.items() if devices}
        return self._known[grants]


def _unreachable_grants(
    segment: Segment, placements: Sequence[Placement], unreachable: _Unreachable
) -> Iterator[tuple[Location, Location, Placement]]:
    """Location of memory in a segment, device that is granted access but cannot have it, and placement."""
    if not (devices := unreachable.of(segment.grants)):
        return
    for placement in from_offset(placements, segment.start):
        if placement.offset >= segment.end:
            return
        if devices.keys() & placement.chunk.distinct_locations:
            for owner in sorted(devices.keys() & owners(placement, segment.start, segment.end)):
                for location in devices[owner]:
                    yield owner, location, placement


def _owners(geometry: Geometry, range_: RangeGroup) -> set[Location]:
    """Locations of all memory that is mapped in some ranges, or that a program may map there."""
    instances = (geometry.placements.get((range_.name, each), ()) for each in range(range_.count))
    chunks = {placement.chunk.name: placement.chunk for placement in chain.from_iterable(instances)}
    elastic = range_.elastic.every if range_.elastic else ()
    return set(chain.from_iterable(chunk.distinct_locations for chunk in (*chunks.values(), *elastic)))


def _help(part: Part, location: Location, chunk: ChunkGroup, memory: set[Location], machine: Machine) -> str:
    """Grants that GPUs without peer access can have to some memory, and a location that all these GPUs can access."""
    able = [each for each in machine.locations if all(can_access(each, owner, machine) for owner in memory)]
    granted = [grant.location for grant in part.grants if grant.access]
    named = [str(each) for each in able if each in granted] or [str(each) for each in able[:1]]
    if part.key_of(location)[-1] == GPUS and named:
        return f"write {PEERS} for the GPUs that can access all the memory"
    help = "grant access to parts of the range, each with memory of one GPU"
    if named:
        help = f"grant access to {enumerated(named, 'and')} only"
    plain = not (chunk.origin or chunk.properties[0].flags or chunk.properties[0].handles)
    nodes = [each for each in machine.locations if each.kind is not LocationKind.HOST] if plain else []
    found = (each for each in nodes if all(can_access(location, each, machine) for location in granted))
    return f"{help}, or declare {chunk.noun} {chunk.name!r} on {each}" if (each := next(found, None)) else help


def _no_access(
    part: Part, location: Location, owner: Location, chunk: ChunkGroup, trial: Trial | None, without: str
) -> Diagnostic:
    """Diagnostic of a grant. `without` is help for a GPU that has no peer access, from the machine's description."""
    where = part.key_of(location)
    label = Label(f"{chunk.name!r} is on {owner}", chunk.path, "key")
    if trial and trial.works is False:
        message = f"{location} cannot access the memory of {owner} of this machine, where {chunk.name!r} is"
        note = trial.failure("a store in a trial", "was lost without an error")
        code = "MT403" if owner.kind is LocationKind.GPU else "MT406"
        help = "'memtopo probe' reports the likely cause"
        return Diagnostic(code, message, where, "key", labels=(label,), notes=(note,), help=help)
    if location.kind is LocationKind.GPU:
        message = f"{location} has no peer access to the memory of {owner}, where {chunk.name!r} is"
        return Diagnostic("MT403", message, where, "key", labels=(label,), help=without)
    message = f"{location} cannot be granted access to {chunk.name!r}, which is memory of {owner}"
    note = "the driver returns NOT_SUPPORTED; the host can be granted access to host memory only"
    return Diagnostic("MT406", message, where, "key", labels=(label,), notes=(note,))


_LABELS = 3
"""Places of memory that a diagnostic shows."""


class Extent(NamedTuple):
    """Bytes from `offset` to `end` of the ranges `first` to before `stop` of a group, which grants are for."""

    range: RangeGroup
    first: int
    stop: int
    offset: int
    end: int


def resolve_grants(
    scope: Scope, entry: dict[str, Access], path: Path, extent: Extent
) -> tuple[tuple[Grant, ...], tuple[Path, ...]]:
    """Grants of the entry at `path`, by location, and the path of each one's device. Raises `Refused`.

    A device that the entry names has that access, the others of a set have the set's.
    """
    found: dict[Location, str] = {}
    sets = [name for name in SETS if name in entry]
    for name in [*(name for name in entry if name not in sets), *sets] if sets else entry:
        for location in _locations(scope, name, path, extent):
            other = found.setdefault(location, name)
            if other != name and (name not in SETS or other in SETS):
                what, same = f"it is one of {other!r} and of {name!r}", f"one of {other!r}"
                if name not in SETS:
                    what, same = f"{name!r} is the same device", f"{other!r} is {location}"
                message, label = f"access for {location} is declared twice: {what}", Label(same, (*path, other), "key")
                help = "keep one of them"
                raise Refused(Diagnostic("MT204", message, (*path, name), "key", labels=(label,), help=help))
    by_location = sorted(found.items())
    grants = tuple(Grant(location, entry[name]) for location, name in by_location)
    return grants, tuple((*path, name) for _, name in by_location)


def _locations(scope: Scope, name: str, path: Path, extent: Extent) -> Sequence[Location]:
    """Locations that one key of an entry names; the host and its NUMA nodes have one access for all of them."""
    if name not in SETS:
        location = scope.devices.resolve(name, (*path, name), "key", also=SETS)
        return (location if location.kind is LocationKind.GPU else WHOLE_HOST,)
    gpus = scope.devices.gpus
    if not gpus:
        raise Refused(empty((*path, name), "key", name))
    return gpus if name == GPUS else _peers(scope, gpus, path, extent)


def _peers(scope: Scope, gpus: Sequence[Location], path: Path, extent: Extent) -> list[Location]:
    """GPUs that can access all memory of an extent. Raises `Refused` with MT403 if none can."""
    if scope.has_unresolved("map"):
        raise Refused
    memory = dict(_memory(scope, extent))
    without = {each: [owner for owner in memory if not can_access(each, owner, scope.machine)] for each in gpus}
    if found := [each for each, owners in without.items() if not owners]:
        return found
    message = f"{PEERS!r} is empty: no GPU can access all the memory of {extent.range.name!r}"
    labels = tuple(Label(f"{chunk.name!r} is on {owner}", chunk.path, "key") for owner, chunk in memory.items())
    notes = tuple(f"{each} cannot access the memory of {owners[0]}" for each, owners in without.items())
    help = "grant access to parts of the range, each with memory of one GPU"
    raise Refused(Diagnostic("MT403", message, (*path, PEERS), "key", labels[:_LABELS], notes[:_LABELS], help))


def _memory(scope: Scope, extent: Extent) -> Iterator[tuple[Location, ChunkGroup]]:
    """Locations of the memory that is mapped in an extent, or that a program may map there, each with a chunk."""
    missing: dict[str, set[Location]] = {}
    for instance in range(extent.first, extent.stop):
        for placement in from_offset(scope.placements.get((extent.range.name, instance), ()), extent.offset):
            if placement.offset >= extent.end:
                break
            chunk = placement.chunk
            if chunk.name not in missing:
                missing[chunk.name] = set(chunk.distinct_locations)
            if left := missing[chunk.name]:
                found = left & owners(placement, extent.offset, extent.end)
                left -= found
                yield from ((owner, chunk) for owner in found)
    if elastic := extent.range.elastic:
        yield from ((owner, chunk) for chunk in elastic.every for owner in chunk.distinct_locations)
