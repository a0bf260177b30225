"""Sizes and counts of chunks that follow: from the memory that is left, or from the range that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from memtopo.common.errors import InternalError
from memtopo.common.units import WHOLE_SHARE, Share, Size, exact, rounded
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import ChunkGroup, TakenShare, round_robin
from memtopo.geometry.rooms import Room, Rooms
from memtopo.geometry.sizing import granularity_note, rounded_to_multiple, size_error
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.fill import Filling, Known, MapEntries, equal_parts, filled_count
from memtopo.kinds.resolution import Resolution
from memtopo.language.scalars import LARGEST_COUNT


class Amounted(Protocol):
    """Keys of an entry that are read here."""

    @property
    def size(self) -> Size | Share: ...
    @property
    def count(self) -> object: ...
    @property
    def round(self) -> object: ...


class Requested(NamedTuple):
    """Chunks of the entry at `path`: `number` of them, 0 if it follows, with granules of `unit` bytes.

    `known` are the groups of entries whose number of chunks does not follow from a range, by name. `entries` are those
    of `map`, if there are entries whose number follows.
    """

    path: Path
    locations: Sequence[Location]
    unit: int
    number: int
    known: Known
    entries: MapEntries | None = None


class Amounts(NamedTuple):
    """Number and size of chunks; `declared` is the size before rounding."""

    number: int
    size: int
    declared: int
    share: TakenShare | None = None
    filled: str = ""


def resolve_amounts(scope: Scope, entry: Amounted, requested: Requested) -> Resolution[Amounts | None]:
    """Size and number of the chunks of an entry; None if they have an error."""
    path, locations, unit, number, known, entries = requested
    if isinstance(entry.size, Share):
        if not number:
            yield _both_follow(path)
            return None
        taken = yield from _shared_size(scope, entry.size, requested)
        return Amounts(number, taken.amount, taken.amount, taken.share) if taken else None
    declared = entry.size.bytes(unit)
    size = rounded_to_multiple(declared, unit, rounding=entry.round is not None)
    if size is None:
        note = granularity_note(unit, locations)
        yield size_error("MT301", f"chunk {path[-1]!r}", declared, unit, (*path, "size"), note)
        return None
    if isinstance(entry.count, Share):
        taken = yield from _shared_number(scope, entry.count, requested, size)
        return Amounts(taken.amount, size, declared, taken.share) if taken else None
    if entries is None or entry.count != "fill":
        return Amounts(number, size, declared)
    filled = yield from filled_count(scope, Filling(str(path[-1]), size, unit, path), entries, known)
    return Amounts(filled[0], size, declared, filled=filled[1]) if filled else None


def amount_notes(group: ChunkGroup) -> Iterator[str]:
    """Notes of a plan about a size or number that follows."""
    number = f"{group.count:,} of {exact(group.size)}" if group.counted else exact(group.size)
    if group.share:
        share, location, room, taken = group.share
        of = f"{share} of the {rounded(room)} that all other entries leave on {location}"
        yield f"chunk {group.name}: {number}; {rounded(taken)} are {of}"
    if group.filled:
        yield f"chunk {group.name}: {number}, as many as {group.filled} needs"


class _Taken(NamedTuple):
    """Bytes of each chunk of a share, or their number, and what the share is of."""

    amount: int
    share: TakenShare


class _Most(NamedTuple):
    """Largest amount that a location has room for."""

    amount: int
    location: Location


def _shared_size(scope: Scope, share: Share, requested: Requested) -> Resolution[_Taken | None]:
    """Size of chunks that take a share of each location, in whole granules."""
    path, unit, number = (*requested.path, "size"), requested.unit, requested.number
    if scope.rooms is None:
        return _Taken(unit, TakenShare(share, requested.locations[0], 0, 0))
    spread = yield from _spread(scope.rooms, share, requested, path)
    if spread is None:
        return None
    rooms = scope.rooms.by_location
    size, least = min(
        _Most(share.of(rooms[location].left) // each // unit * unit, location)
        for locations in spread
        for location, each in round_robin(number, locations).items()
    )
    if not size:
        yield _nothing(share, least, rooms[least], f"granule of {exact(unit)}", path)
        return None
    taken = size * max(round_robin(number, each).get(least, 0) for each in spread)
    return _Taken(size, TakenShare(share, least, rooms[least].left, taken))


def _shared_number(scope: Scope, share: Share, requested: Requested, size: int) -> Resolution[_Taken | None]:
    """Largest number of chunks of `size` bytes that take at most a share of each location, round-robin.

    It has equal parts for the elements of a counted range without a size.
    """
    path, locations = (*requested.path, "count"), requested.locations
    parts = equal_parts(scope, requested.entries, str(requested.path[-1])) if requested.entries else 1
    if scope.rooms is None:
        return _Taken(-(-len(locations) // parts) * parts, TakenShare(share, locations[0], 0, 0))
    spread = yield from _spread(scope.rooms, share, requested, path)
    if spread is None:
        return None
    rooms = scope.rooms.by_location
    number, least = min(_most({at: share.of(rooms[at].left) // size for at in each}, each) for each in spread)
    number -= number % parts
    if not number:
        what = f"chunk of {exact(size)}" + (f" in each of {parts:,} ranges" if parts > 1 else "")
        yield _nothing(share, least, rooms[least], what, path)
        return None
    if number > LARGEST_COUNT:
        of = f"{share} of {rounded(rooms[least].left)} on {least}"
        message = f"{of} are {number:,} chunks, more than the {LARGEST_COUNT:,} that one spec may declare"
        yield Diagnostic("MT109", message, path, help="make the chunks larger")
        return None
    taken = size * max(round_robin(number, each).get(least, 0) for each in spread)
    return _Taken(number, TakenShare(share, least, rooms[least].left, taken))


def _most(fits: Mapping[Location, int], locations: Sequence[Location]) -> _Most:
    """Largest number of chunks, assigned round-robin, and the location that has room for no more."""
    left = dict(fits)
    each = round_robin(len(locations), locations)
    rounds = min(fits[location] // number for location, number in each.items())
    for location, number in each.items():
        left[location] -= rounds * number
    for index, location in enumerate(locations):
        if not left[location]:
            return _Most(rounds * len(locations) + index, location)
        left[location] -= 1
    raise InternalError("a round more would have been counted")


def _spread(
    rooms: Rooms, share: Share, requested: Requested, path: Path
) -> Resolution[Sequence[tuple[Location, ...]] | None]:
    """Locations of the chunks in each instance of the process.

    Yields MT407 if their memory is not known, or if all shares of one are more than the whole.
    """
    spread = rooms.spread.get(requested.path, (tuple(requested.locations),))
    for location in dict.fromkeys(chain.from_iterable(spread)):
        room = rooms.by_location.get(location)
        if room is None:
            message = f"the memory of {location} is not recorded, so that {share} of it is not known"
            yield Diagnostic("MT407", message, path, help="write a size, or record the machine again")
            return None
        if room.thousandths > WHOLE_SHARE.thousandths:
            message = f"the shares of {location} are {Share(room.thousandths)} together"
            note = "the shares of all entries of all processes at one location are added up"
            yield Diagnostic("MT407", message, path, notes=(note,), help="reduce them to 100% or less")
            return None
    return spread


def _both_follow(path: Path) -> Diagnostic:
    message = f"chunk {path[-1]!r}: a size in percent and a count that follows leave both open"
    return Diagnostic("MT314", message, (*path, "count"), help="write a number of chunks, or the size of each")


def _nothing(share: Share, location: Location, room: Room, what: str, path: Path) -> Diagnostic:
    left = f"{rounded(room.left)} that are left on {location}"
    message = f"{share} of the {left} have no room for a {what}"
    note = f"everything else takes {rounded(room.used)} of {rounded(room.whole)} there"
    return Diagnostic("MT407", message, path, notes=(note,), help="make room, or increase the share")
