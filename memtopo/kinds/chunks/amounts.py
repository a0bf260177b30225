"""Sizes and counts of chunks that follow: from the memory that is left, or from the range that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from memtopo.common.errors import InternalError
from memtopo.common.units import WHOLE_SHARE, Share, Size, exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import ChunkGroup, TakenShare, round_robin
from memtopo.geometry.rooms import Room, Rooms
from memtopo.geometry.sizing import granularity_note, rounded_to_multiple, size_error
from memtopo.kinds.chunks.counts import Numbers
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.fill import Filling, Known, MapEntries, elastic_count, equal_parts, filled_count
from memtopo.kinds.resolution import Resolution
from memtopo.language.scalars import LARGEST_COUNT


class Amounted(Protocol):
    """Keys of an entry that are read here."""

    @property
    def size(self) -> Size | Share: ...
    @property
    def round(self) -> object: ...


class Requested(NamedTuple):
    """Chunks of the entry at `path`, with granules of `unit` bytes.

    `known` are the groups of entries whose number of chunks does not follow from ranges, by name. `entries` are those
    of `map`, if there are entries whose number follows.
    """

    path: Path
    locations: tuple[Location, ...]
    unit: int
    numbers: Numbers
    known: Known
    entries: MapEntries | None = None


class Amounts(NamedTuple):
    """Largest number of chunks, the number of those `created` with the layout, and their size.

    `declared` is the size before rounding.
    """

    created: int
    number: int
    size: int
    declared: int
    share: TakenShare | None = None
    filled: str = ""


def resolve_amounts(scope: Scope, entry: Amounted, requested: Requested) -> Resolution[Amounts | None]:
    """Size and numbers of the chunks of an entry; None if they have an error."""
    numbers = requested.numbers
    if isinstance(entry.size, Size):
        found = yield from _counted(scope, entry, entry.size, requested)
    elif isinstance(numbers.largest, int):
        taken = yield from _shared_size(scope, entry.size, requested, numbers.largest)
        found = Amounts(numbers.largest, numbers.largest, taken.amount, taken.amount, taken.share) if taken else None
    else:
        yield _both_follow(requested)
        return None
    if found is None or not numbers.elastic:
        return found
    created = yield from _created(scope, requested, found)
    return None if created is None else found._replace(created=created)


def _counted(scope: Scope, entry: Amounted, written: Size, requested: Requested) -> Resolution[Amounts | None]:
    """Amounts of chunks whose size is written, as if all of them were created with the layout."""
    path, unit, numbers = requested.path, requested.unit, requested.numbers
    declared = written.bytes(unit)
    size = rounded_to_multiple(declared, unit, rounding=entry.round is not None)
    if size is None:
        note = granularity_note(unit, requested.locations)
        yield size_error("MT301", f"chunk {path[-1]!r}", declared, unit, (*path, "size"), note)
        return None
    if isinstance(numbers.largest, int):
        return Amounts(numbers.largest, numbers.largest, size, declared)
    if isinstance(numbers.largest, Share):
        taken = yield from _shared_number(scope, numbers.largest, requested, size, numbers.path)
        return Amounts(taken.amount, taken.amount, size, declared, taken.share) if taken else None
    filling = Filling(str(path[-1]), size, unit, numbers.path)
    assert requested.entries
    follow = elastic_count if numbers.elastic else filled_count
    filled = yield from follow(scope, filling, requested.entries, requested.known)
    return Amounts(filled[0], filled[0], size, declared, filled=filled[1]) if filled else None


def _created(scope: Scope, requested: Requested, found: Amounts) -> Resolution[int | None]:
    """Number of elastic chunks that are created with the layout; yields MT803 if it is more than the largest."""
    written, largest = requested.numbers.created, requested.numbers.largest
    if written == largest:
        return found.number
    number = written
    if isinstance(written, Share):
        if not isinstance(largest, Share):
            yield _share_beside_a_number(requested, written)
            return None
        path = (*requested.path, "count", "min")
        taken = yield from _shared_number(scope, written, requested, found.size, path)
        number = taken.amount if taken else 0
    assert isinstance(number, int)
    if number > found.number and (scope.rooms or not found.share):
        yield _min_above_max(requested, number, found)
        return None
    return number if number or not written else None


def amount_notes(group: ChunkGroup) -> Iterator[str]:
    """Notes of a plan about a size or number that follows."""
    most = group.count if group.limit is None else group.limit
    number = f"{most:,} of {exact(group.size)}" if group.counted else exact(group.size)
    if group.share:
        share, location, room, taken = group.share
        of = f"{share} of the {rounded(room)} that all other entries leave on {location}"
        yield f"chunk {group.name}: {number}; {rounded(taken)} are {of}"
    if group.filled:
        needs = "have room for" if group.limit is not None else "needs"
        yield f"chunk {group.name}: {number}, as many as {group.filled} {needs}"


class _Taken(NamedTuple):
    """Bytes of each chunk of a share, or their number, and what the share is of."""

    amount: int
    share: TakenShare


class _Most(NamedTuple):
    """Largest amount that a location has room for."""

    amount: int
    location: Location


def _shared_size(scope: Scope, share: Share, requested: Requested, number: int) -> Resolution[_Taken | None]:
    """Size of chunks that take a share of each location, in whole granules."""
    path, unit = (*requested.path, "size"), requested.unit
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


def _shared_number(
    scope: Scope, share: Share, requested: Requested, size: int, path: Path
) -> Resolution[_Taken | None]:
    """Largest number of chunks of `size` bytes that take at most a share of each location, round-robin.

    It has equal parts for the elements of a counted range without a size. The share is written at `path`.
    """
    locations = requested.locations
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


def _both_follow(requested: Requested) -> Diagnostic:
    message = f"chunk {requested.path[-1]!r}: a size in percent and a count that follows leave both open"
    return Diagnostic("MT314", message, requested.numbers.path, help="write a number of chunks, or the size of each")


def _share_beside_a_number(requested: Requested, created: Share) -> Diagnostic:
    message = f"chunk {requested.path[-1]!r}: a min in percent, and a max that is not"
    label = Label("the largest number", requested.numbers.path)
    help = f"write 'max: {created}' or more, or a number for min"
    return Diagnostic("MT314", message, (*requested.path, "count", "min"), labels=(label,), help=help)


def _min_above_max(requested: Requested, created: int, found: Amounts) -> Diagnostic:
    written = requested.numbers.created
    message = f"chunk {requested.path[-1]!r}: a min of {created:,} is more than the max of {found.number:,}"
    label = Label("the largest number", requested.numbers.path)
    fixed = isinstance(requested.numbers.largest, int) or isinstance(written, Share)
    help = f"write 'max: {written}' or more" if fixed else f"write 'min: {found.number}' or less"
    return Diagnostic("MT803", message, (*requested.path, "count", "min"), labels=(label,), help=help)


def _nothing(share: Share, location: Location, room: Room, what: str, path: Path) -> Diagnostic:
    left = f"{rounded(room.left)} that are left on {location}"
    message = f"{share} of the {left} have no room for a {what}"
    note = f"everything else takes {rounded(room.used)} of {rounded(room.whole)} there"
    return Diagnostic("MT407", message, path, notes=(note,), help="make room, or increase the share")
