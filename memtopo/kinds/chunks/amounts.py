"""Resolution of chunks: sizes and numbers as written, or of the memory that is left, or of the range they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from memtopo.common.errors import InternalError
from memtopo.common.units import WHOLE_SHARE, Share, exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, Properties
from memtopo.geometry.groups import ChunkGroup, TakenShare, round_robin
from memtopo.geometry.sizing import MemoryBudget, MemoryBudgets, granularity_note, granule
from memtopo.kinds.chunks.entry import Chunk, resolve_parts
from memtopo.kinds.chunks.support import taken_properties
from memtopo.kinds.device_names import has_set
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.fill import MapEntries, elastic_count, equal_parts, filled_count, number_path
from memtopo.kinds.resolution import Refused, together, whole_granules
from memtopo.language.fields import ChunkCount
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Machine

G = TypeVar("G", bound=ChunkGroup)


def resolve_chunks(scope: Scope, entry: Chunk, path: Path, mapped: Callable[[], MapEntries]) -> ChunkGroup:
    """Group of the entry at `path`. Raises `Refused`. `mapped` finds the entries of `map`."""
    listed, taken = together(
        partial(scope.devices.resolve_all, entry.location, path), partial(taken_properties, scope, entry, path)
    )
    number = entry.largest or (len(listed) if has_set(entry.location) else 1)
    if isinstance(number, int):
        listed = scope.devices.distributed(listed, number, path)
    properties = tuple([taken._replace(location=location) for location in listed])
    unit, counted = _granule(scope.machine, properties), entry.count is not None or has_set(entry.location)
    limit = 0 if entry.elastic else None  # none is known yet
    group = ChunkGroup(str(path[-1]), path, 0, unit, properties, tuple(listed), count=0, counted=counted, limit=limit)
    largest = _largest(scope, entry, group, number, mapped)
    created = _created(scope, entry, largest, mapped)
    used = scope.devices.distributed(listed, largest.count, path)
    properties = properties[: len(used)]
    unit = _granule(scope.machine, properties)
    unknown = largest.share and scope.budgets is None
    parts = resolve_parts(path, None if unknown else entry.parts, largest.size, unit)
    return replace(
        largest,
        count=created,
        granule=unit,
        properties=properties,
        distinct_locations=tuple(dict.fromkeys(used)),
        limit=largest.count if entry.elastic else None,
        parts=parts,
    )


def _granule(machine: Machine, properties: Sequence[Properties]) -> int:
    return max(granule(machine, each) for each in dict.fromkeys(properties))


def _largest(
    scope: Scope, entry: Chunk, group: ChunkGroup, number: ChunkCount, mapped: Callable[[], MapEntries]
) -> ChunkGroup:
    """The group with its size and the largest number of chunks, which `number` is or from which it follows."""
    if isinstance(entry.size, Share):
        if isinstance(number, int):
            return of_shared_size(scope, replace(group, count=number), entry.size, (*group.path, "size"))
        raise Refused(_both_follow(group))
    declared = entry.size.bytes(group.granule)
    note, where = granularity_note(group.granule, group.locations), (*group.path, "size")
    what, rounding = f"chunk {group.name!r}", entry.round is not None
    size = whole_granules("MT301", what, declared, group.granule, where, note, rounding=rounding)
    group = replace(group, count=number if isinstance(number, int) else 0, size=size, declared=declared)
    if isinstance(number, int):
        return group
    if isinstance(number, Share):
        return _of_shared_number(scope, group, number, number_path(group), mapped)
    return (elastic_count if entry.elastic else filled_count)(scope, group, mapped())


def _created(scope: Scope, entry: Chunk, largest: ChunkGroup, mapped: Callable[[], MapEntries]) -> int:
    """Number of chunks that are created with the layout. Raises `Refused` with MT803 if it is more than the largest."""
    if not entry.elastic or entry.elastic.min == entry.elastic.max:
        return largest.count
    created, path = entry.elastic.min, (*largest.path, "count", "min")
    label = Label("the largest number", number_path(largest))
    if isinstance(created, Share):
        if not isinstance(entry.elastic.max, Share):
            message = f"chunk {largest.name!r}: a min in percent, and a max that is not"
            help = f"write 'max: {created}' or more, or a number for min"
            raise Refused(Diagnostic("MT314", message, path, labels=(label,), help=help))
        created = _of_shared_number(scope, largest, created, path, mapped).count
    if created > largest.count and (scope.budgets or not largest.share):
        message = f"chunk {largest.name!r}: a min of {created:,} is more than the max of {largest.count:,}"
        fixed = isinstance(entry.elastic.max, int) or isinstance(entry.elastic.min, Share)
        help = f"write 'max: {entry.elastic.min}' or more" if fixed else f"write 'min: {largest.count}' or less"
        raise Refused(Diagnostic("MT803", message, path, labels=(label,), help=help))
    return created


def amount_notes(group: ChunkGroup) -> Iterator[str]:
    """Notes of a plan about a size or number that follows."""
    most = group.count if group.limit is None else group.limit
    number = f"{most:,} of {exact(group.size)}" if group.counted else exact(group.size)
    if group.share:
        share, location, left, taken = group.share
        of = f"{share} of the {rounded(left)} left by all other entries on {location}"
        yield f"chunk {group.name}: {number}; {rounded(taken)} are {of}"
    if group.filled:
        needs = "have room for" if group.limit is not None else "needs"
        yield f"chunk {group.name}: {number}, as many as {group.filled} {needs}"


def of_shared_size(scope: Scope, group: G, share: Share, path: Path) -> G:
    """The group with chunks that take a share of each location, in whole granules. The share is written at `path`."""
    number, unit = group.count, group.granule
    if scope.budgets is None:
        return replace(group, size=unit, declared=unit, share=TakenShare(share, group.locations[0], 0, 0))
    spread = _spread(scope.budgets, share, group, path)
    at = scope.budgets.by_location
    size, least = min(
        (share.of(at[location].left) // each // unit * unit, location)
        for locations in spread
        for location, each in round_robin(number, locations).items()
    )
    if not size:
        more = at[least].left >= number * unit
        raise Refused(_nothing(share, least, at[least], f"granule of {exact(unit)}", path, more=more))
    return _sharing(replace(group, size=size, declared=size), share, least, at[least], spread)


def _of_shared_number(
    scope: Scope, group: ChunkGroup, share: Share, path: Path, mapped: Callable[[], MapEntries]
) -> ChunkGroup:
    """The group with as many chunks as take at most a share of each location, round-robin.

    Ranges of a counted entry without a size have equal parts of them. The share is written at `path`.
    """
    parts = equal_parts(scope, mapped(), group.name)
    if scope.budgets is None:
        count = -(-len(group.locations) // parts) * parts
        return replace(group, count=count, share=TakenShare(share, group.locations[0], 0, 0))
    spread = _spread(scope.budgets, share, group, path)
    at, size = scope.budgets.by_location, group.size
    number, least = min(_most({each: share.of(at[each].left) // size for each in places}, places) for places in spread)
    number -= number % parts
    if not number:
        what = f"chunk of {exact(size)}" + (f" in each of {parts:,} ranges" if parts > 1 else "")
        raise Refused(_nothing(share, least, at[least], what, path, more=at[least].left >= size * parts))
    if number > LARGEST_COUNT:
        of = f"{share} of {rounded(at[least].left)} on {least}"
        message = f"{of} are {number:,} chunks, more than the {LARGEST_COUNT:,} allowed in one spec"
        raise Refused(Diagnostic("MT109", message, path, help="make the chunks larger"))
    return _sharing(replace(group, count=number), share, least, at[least], spread)


def _sharing(group: G, share: Share, at: Location, budget: MemoryBudget, spread: Sequence[tuple[Location, ...]]) -> G:
    """The group with the share that its chunks take at the location with the least room."""
    taken = group.size * max(round_robin(group.count, each).get(at, 0) for each in spread)
    return replace(group, share=TakenShare(share, at, budget.left, taken))


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


def _spread(budgets: MemoryBudgets, share: Share, group: ChunkGroup, path: Path) -> Sequence[tuple[Location, ...]]:
    """Locations of the chunks in each instance of the process.

    Raises `Refused` with MT407 if their memory is not known, or if all shares of one are more than the whole.
    """
    spread = budgets.spread.get(group.path, (group.locations,))
    for location in dict.fromkeys(chain.from_iterable(spread)):
        budget = budgets.by_location.get(location)
        if budget is None:
            message = f"the memory of {location} is not recorded, so {share} of it is unknown"
            raise Refused(Diagnostic("MT407", message, path, help="write a size, or record the machine again"))
        if budget.thousandths > WHOLE_SHARE.thousandths:
            message = f"the shares of {location} are {Share(budget.thousandths)} together"
            note = "the shares of all entries of all processes at one location are added up"
            raise Refused(Diagnostic("MT407", message, path, notes=(note,), help="reduce them to 100% or less"))
    return spread


def _both_follow(group: ChunkGroup) -> Diagnostic:
    message = f"chunk {group.name!r}: a size in percent and a count that follows leave both open"
    return Diagnostic("MT314", message, number_path(group), help="write a number of chunks, or the size of each")


def _nothing(
    share: Share, location: Location, budget: MemoryBudget, what: str, path: Path, *, more: bool
) -> Diagnostic:
    """Diagnostic of a share with no room for anything; a larger share has room if there is `more`."""
    left = f"{rounded(budget.left)} that are left on {location}"
    message = f"{share} of the {left} have no room for a {what}"
    note = f"everything else uses {rounded(budget.used)} of {rounded(budget.whole)} there"
    help = f"lower a size or a count of other entries on {location}{', or increase the share' * more}"
    return Diagnostic("MT407", message, path, notes=(note,), help=help)
