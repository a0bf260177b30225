"""Grants of access as a spec writes them: devices and sets of devices, resolved to locations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Access, Grant, Location, LocationKind
from memtopo.geometry.access import from_offset
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.access.peers import can_access, owners
from memtopo.kinds.device_sets import SETS, empty
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Resolution
from memtopo.language.names import GPUS, PEERS
from memtopo.machine import Machine

_LABELS = 3
"""Places of memory that a diagnostic shows."""


class Granting(NamedTuple):
    """Grants in the order of their locations, and the path of each one's device."""

    grants: tuple[Grant, ...]
    keys: tuple[Path, ...]


class Extent(NamedTuple):
    """Bytes from `offset` to `end` of the ranges `first` to before `stop` of a group, which grants are for."""

    range: RangeGroup
    first: int
    stop: int
    offset: int
    end: int


def resolve_grants(scope: Scope, entry: dict[str, Access], path: Path, extent: Extent) -> Resolution[Granting | None]:
    """Grants of the entry at `path`; None if it has an error."""
    if (found := (yield from _resolved(scope, entry, path, extent))) is None:
        return None
    by_location = sorted(found.items())
    grants = tuple(Grant(location, entry[name]) for location, name in by_location)
    return Granting(grants, tuple((*path, name) for _, name in by_location))


def _resolved(
    scope: Scope, entry: dict[str, Access], path: Path, extent: Extent
) -> Resolution[dict[Location, str] | None]:
    """Names of the granted locations. A device that the entry names has that access, the others of a set the set's."""
    found: dict[Location, str] = {}
    sets = [name for name in SETS if name in entry]
    for name in [*(name for name in entry if name not in sets), *sets] if sets else entry:
        locations = yield from _locations(scope, name, path, extent)
        if locations is None:
            return None
        for location in locations:
            other = found.setdefault(location, name)
            if other != name and (name not in SETS or other in SETS):
                yield _twice(location, name, other, path)
                return None
    return found


def _locations(scope: Scope, name: str, path: Path, extent: Extent) -> Resolution[Sequence[Location] | None]:
    """Locations that one key of an entry names; the host and its NUMA nodes have one access for all of them."""
    if name not in SETS:
        location = yield from scope.devices.resolve(name, (*path, name), "key", also=SETS)
        if location is None:
            return None
        return (location if location.kind is LocationKind.GPU else Location(LocationKind.HOST),)
    gpus = scope.devices.gpus
    if not gpus:
        yield empty((*path, name), "key", name)
        return None
    return gpus if name == GPUS else (yield from _peers(scope, gpus, path, extent))


def _peers(scope: Scope, gpus: Sequence[Location], path: Path, extent: Extent) -> Resolution[list[Location] | None]:
    """GPUs that can access all memory of an extent; yields MT403 if none can."""
    if scope.has_unresolved("map"):
        return None
    memory = dict(_memory(scope, extent))
    found = [each for each in gpus if all(can_access(each, owner, scope.machine) for owner in memory)]
    if found:
        return found
    labels = (Label(f"{chunk.name!r} is on {owner}", chunk.path, "key") for owner, chunk in memory.items())
    notes = tuple(islice(_missing(gpus, list(memory), scope.machine), _LABELS))
    yield Diagnostic(
        "MT403",
        f"{PEERS!r} is empty: no GPU can access all the memory of {extent.range.name!r}",
        (*path, PEERS),
        "key",
        labels=tuple(islice(labels, _LABELS)),
        notes=notes,
        help="grant access to parts of the range, each with memory of one GPU",
    )
    return None


def _missing(gpus: Sequence[Location], memory: Sequence[Location], machine: Machine) -> Iterator[str]:
    for each in gpus:
        owner = next(owner for owner in memory if not can_access(each, owner, machine))
        yield f"{each} cannot access the memory of {owner}"


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
        backing = (*elastic.chunks, *([elastic.zero] if elastic.zero else []))
        yield from ((owner, chunk) for chunk in backing for owner in chunk.distinct_locations)


def _twice(location: Location, name: str, other: str, path: Path) -> Diagnostic:
    message = f"access for {location} is declared twice: {name!r} is the same device"
    label = Label(f"{other!r} is {location}", (*path, other), "key")
    if name in SETS:
        message = f"access for {location} is declared twice: it is one of {other!r} and of {name!r}"
        label = Label(f"one of {other!r}", (*path, other), "key")
    return Diagnostic("MT204", message, (*path, name), "key", labels=(label,), help="keep one of them")
