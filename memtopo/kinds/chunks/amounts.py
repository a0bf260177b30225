"""Resolution of chunks: sizes and numbers as written, or of the memory that is left, or of the range they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from memtopo.common.errors import InternalError
from memtopo.common.units import WHOLE_SHARE, Share, exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, Properties
from memtopo.geometry.groups import ChunkGroup, TakenShare, round_robin
from memtopo.geometry.sizing import (
    MemoryBudget,
    MemoryBudgets,
    granularity_note,
    granule,
    rounded_to_multiple,
    size_error,
)
from memtopo.kinds.chunks.entry import Chunk, resolve_parts
from memtopo.kinds.chunks.support import taken_properties
from memtopo.kinds.device_names import has_set
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.fill import Filling, Known, MapEntries, elastic_count, equal_parts, filled_count
from memtopo.kinds.resolution import Resolution
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Machine


class _Request(NamedTuple):
    """Chunks of the entry at `path`, with granules of `unit` bytes.

    `largest` is their largest number, or what it follows from. `known` are the groups of entries whose number of chunks
    does not follow from ranges, by name; `mapped` finds the entries of `map`.
    """

    scope: Scope
    entry: Chunk
    path: Path
    locations: tuple[Location, ...]
    unit: int
    largest: int | Share | Literal["fill"]
    known: Known
    mapped: Callable[[], MapEntries]

    @property
    def number_path(self) -> Path:
        """Path of the largest number."""
        return (*self.path, "count", *(["max"] if self.entry.elastic else []))


class _Amounts(NamedTuple):
    """Largest number of chunks, and their size in bytes; `declared` is the size before rounding."""

    number: int
    size: int
    declared: int
    share: TakenShare | None = None
    filled: str = ""


def resolve_chunks(
    scope: Scope, entry: Chunk, path: Path, known: Known, mapped: Callable[[], MapEntries]
) -> Resolution[ChunkGroup | None]:
    """Group of the entry at `path`; None if it has an error.

    `known` are the groups of entries whose number of chunks does not follow from ranges, by name.
    """
    listed = yield from scope.devices.resolve_all(entry.location, path)
    taken = yield from taken_properties(scope, entry, path)
    if listed is None or taken is None:
        return None
    largest = entry.largest or (len(listed) if has_set(entry.location) else 1)
    if isinstance(largest, int):
        listed = [*(yield from scope.devices.distributed(listed, largest, path))]
    properties = tuple([taken._replace(location=location) for location in listed])
    unit = _granule(scope.machine, properties)
    request = _Request(scope, entry, path, tuple(listed), unit, largest, known, mapped)
    amounts = yield from _amounts(request)
    created = (yield from _created(request, amounts)) if amounts else None
    if amounts is None or created is None:
        return None
    if len(listed) > amounts.number:
        yield from scope.devices.distributed(listed, amounts.number, path)
        properties = properties[: amounts.number]
        request = request._replace(unit=_granule(scope.machine, properties))
    return (yield from _group(request, amounts, created, properties))


def _group(
    request: _Request, amounts: _Amounts, created: int, properties: tuple[Properties, ...]
) -> Resolution[ChunkGroup | None]:
    """Group of chunks with `properties` in the order of the round-robin distribution."""
    entry, path, unit = request.entry, request.path, request.unit
    unknown = amounts.share and request.scope.budgets is None
    parts = yield from resolve_parts(path, None if unknown else entry.parts, amounts.size, unit)
    if parts is None:
        return None
    return ChunkGroup(
        str(path[-1]),
        path,
        created,
        entry.count is not None or has_set(entry.location),
        amounts.size,
        amounts.declared,
        unit,
        properties,
        tuple(dict.fromkeys([each.location for each in properties])),
        limit=amounts.number if entry.elastic else None,
        parts=parts,
        share=amounts.share,
        filled=amounts.filled,
    )


def _granule(machine: Machine, properties: Sequence[Properties]) -> int:
    return max(granule(machine, each) for each in dict.fromkeys(properties))


def _amounts(request: _Request) -> Resolution[_Amounts | None]:
    """Size and largest number of chunks; None if they have an error."""
    scope, entry, path, _, unit, largest, known, mapped = request
    if isinstance(entry.size, Share):
        if not isinstance(largest, int):
            yield _both_follow(request)
            return None
        return (yield from _shared_size(request, entry.size, largest))
    declared = entry.size.bytes(unit)
    size = rounded_to_multiple(declared, unit, rounding=entry.round is not None)
    if size is None:
        note = granularity_note(unit, request.locations)
        yield size_error("MT301", f"chunk {path[-1]!r}", declared, unit, (*path, "size"), note, rounding=True)
        return None
    if isinstance(largest, int):
        return _Amounts(largest, size, declared)
    if isinstance(largest, Share):
        shared = yield from _shared_number(request, largest, size, request.number_path)
        return _Amounts(shared[0], size, declared, shared[1]) if shared else None
    follow = elastic_count if entry.elastic else filled_count
    filled = yield from follow(scope, Filling(str(path[-1]), size, unit, request.number_path), mapped(), known)
    return _Amounts(filled[0], size, declared, filled=filled[1]) if filled else None


def _created(request: _Request, found: _Amounts) -> Resolution[int | None]:
    """Number of chunks that are created with the layout; yields MT803 if it is more than the largest."""
    written = request.entry.elastic.min if request.entry.elastic else request.largest
    if written == request.largest:
        return found.number
    number, path = written, (*request.path, "count", "min")
    if isinstance(written, Share):
        if not isinstance(request.largest, Share):
            yield _share_beside_a_number(request, written)
            return None
        shared = yield from _shared_number(request, written, found.size, path)
        if shared is None:
            return None
        number = shared[0]
    assert isinstance(number, int)
    if number > found.number and (request.scope.budgets or not found.share):
        yield _min_above_max(request, number, found)
        return None
    return number


def amount_notes(group: ChunkGroup) -> Iterator[str]:
    """Notes of a plan about a size or number that follows."""
    most = group.count if group.limit is None else group.limit
    number = f"{most:,} of {exact(group.size)}" if group.counted else exact(group.size)
    if group.share:
        share, location, left, taken = group.share
        of = f"{share} of the {rounded(left)} that all other entries leave on {location}"
        yield f"chunk {group.name}: {number}; {rounded(taken)} are {of}"
    if group.filled:
        needs = "have room for" if group.limit is not None else "needs"
        yield f"chunk {group.name}: {number}, as many as {group.filled} {needs}"


def _shared_size(request: _Request, share: Share, number: int) -> Resolution[_Amounts | None]:
    """Amounts of `number` chunks that take a share of each location, in whole granules."""
    path, unit, budgets = (*request.path, "size"), request.unit, request.scope.budgets
    if budgets is None:
        return _Amounts(number, unit, unit, TakenShare(share, request.locations[0], 0, 0))
    spread = yield from _spread(budgets, share, request, path)
    if spread is None:
        return None
    at = budgets.by_location
    size, least = min(
        (share.of(at[location].left) // each // unit * unit, location)
        for locations in spread
        for location, each in round_robin(number, locations).items()
    )
    if not size:
        yield _nothing(share, least, at[least], f"granule of {exact(unit)}", path)
        return None
    taken = size * max(round_robin(number, each).get(least, 0) for each in spread)
    return _Amounts(number, size, size, TakenShare(share, least, at[least].left, taken))


def _shared_number(request: _Request, share: Share, size: int, path: Path) -> Resolution[tuple[int, TakenShare] | None]:
    """Largest number of chunks of `size` bytes that take at most a share of each location, round-robin.

    It has equal parts for the elements of a counted range without a size. The share is written at `path`.
    """
    scope, locations, budgets = request.scope, request.locations, request.scope.budgets
    parts = equal_parts(scope, request.mapped(), str(request.path[-1]))
    if budgets is None:
        return -(-len(locations) // parts) * parts, TakenShare(share, locations[0], 0, 0)
    spread = yield from _spread(budgets, share, request, path)
    if spread is None:
        return None
    at_location = budgets.by_location
    number, least = min(_most({at: share.of(at_location[at].left) // size for at in each}, each) for each in spread)
    number -= number % parts
    if not number:
        what = f"chunk of {exact(size)}" + (f" in each of {parts:,} ranges" if parts > 1 else "")
        yield _nothing(share, least, at_location[least], what, path)
        return None
    if number > LARGEST_COUNT:
        of = f"{share} of {rounded(at_location[least].left)} on {least}"
        message = f"{of} are {number:,} chunks, more than the {LARGEST_COUNT:,} that one spec may declare"
        yield Diagnostic("MT109", message, path, help="make the chunks larger")
        return None
    taken = size * max(round_robin(number, each).get(least, 0) for each in spread)
    return number, TakenShare(share, least, at_location[least].left, taken)


def _most(fits: Mapping[Location, int], locations: Sequence[Location]) -> tuple[int, Location]:
    """Largest number of chunks, assigned round-robin, and the location that has room for no more."""
    left = dict(fits)
    each = round_robin(len(locations), locations)
    rounds = min(fits[location] // number for location, number in each.items())
    for location, number in each.items():
        left[location] -= rounds * number
    for index, location in enumerate(locations):
        if not left[location]:
            return rounds * len(locations) + index, location
        left[location] -= 1
    raise InternalError("a round more would have been counted")


def _spread(
    budgets: MemoryBudgets, share: Share, request: _Request, path: Path
) -> Resolution[Sequence[tuple[Location, ...]] | None]:
    """Locations of the chunks in each instance of the process.

    Yields MT407 if their memory is not known, or if all shares of one are more than the whole.
    """
    spread = budgets.spread.get(request.path, (request.locations,))
    for location in dict.fromkeys(chain.from_iterable(spread)):
        budget = budgets.by_location.get(location)
        if budget is None:
            message = f"the memory of {location} is not recorded, so that {share} of it is not known"
            yield Diagnostic("MT407", message, path, help="write a size, or record the machine again")
            return None
        if budget.thousandths > WHOLE_SHARE.thousandths:
            message = f"the shares of {location} are {Share(budget.thousandths)} together"
            note = "the shares of all entries of all processes at one location are added up"
            yield Diagnostic("MT407", message, path, notes=(note,), help="reduce them to 100% or less")
            return None
    return spread


def _both_follow(request: _Request) -> Diagnostic:
    message = f"chunk {request.path[-1]!r}: a size in percent and a count that follows leave both open"
    return Diagnostic("MT314", message, request.number_path, help="write a number of chunks, or the size of each")


def _share_beside_a_number(request: _Request, created: Share) -> Diagnostic:
    message = f"chunk {request.path[-1]!r}: a min in percent, and a max that is not"
    label = Label("the largest number", request.number_path)
    help = f"write 'max: {created}' or more, or a number for min"
    return Diagnostic("MT314", message, (*request.path, "count", "min"), labels=(label,), help=help)


def _min_above_max(request: _Request, created: int, found: _Amounts) -> Diagnostic:
    assert request.entry.elastic
    written = request.entry.elastic.min
    message = f"chunk {request.path[-1]!r}: a min of {created:,} is more than the max of {found.number:,}"
    label = Label("the largest number", request.number_path)
    fixed = isinstance(request.largest, int) or isinstance(written, Share)
    help = f"write 'max: {written}' or more" if fixed else f"write 'min: {found.number}' or less"
    return Diagnostic("MT803", message, (*request.path, "count", "min"), labels=(label,), help=help)


def _nothing(share: Share, location: Location, budget: MemoryBudget, what: str, path: Path) -> Diagnostic:
    left = f"{rounded(budget.left)} that are left on {location}"
    message = f"{share} of the {left} have no room for a {what}"
    note = f"everything else takes {rounded(budget.used)} of {rounded(budget.whole)} there"
    return Diagnostic("MT407", message, path, notes=(note,), help="make room, or increase the share")
