"""Entry of `chunks` as a spec writes it, and its resolution.

Sizes and numbers are as written, or of the memory that is left, or of the range that the chunks fill. Named parts,
`signal: 4KiB, data: rest`, are in order without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, WrapValidator

from memtopo.common.errors import InternalError
from memtopo.common.units import WHOLE_SHARE, NamedPart, Share, Size, exact, rounded
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.types import PROPERTY_FLAGS, WHOLE_HOST, Location, Properties, flags_of
from memtopo.geometry.groups import ChunkGroup, TakenShare, round_robin
from memtopo.geometry.model import MemoryBudget, MemoryBudgets, granularity_note, granule
from memtopo.kinds.chunks.support import Support, chosen, supported_at, taken_handles
from memtopo.kinds.device_names import has_set
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.fill import ChunkNumber, MapEntries, SizedChunks, elastic_count, equal_parts, filled_count
from memtopo.kinds.resolution import Refused, together, whole_granules
from memtopo.language.entries import Entry
from memtopo.language.fields import (
    REST,
    Alternatives,
    BooleanOrElse,
    ChunkCount,
    Devices,
    Handles,
    LeastCount,
    OwnName,
    PartSize,
    Rounding,
    SizeOrShare,
)
from memtopo.language.limits import LARGEST_PARTS
from memtopo.language.scalars import LARGEST_COUNT, chunk_count
from memtopo.machine import Machine


class ElasticCount(Entry):
    """Number of chunks that a program creates and releases while the layout exists."""

    min: LeastCount = Field(
        default=0,
        description="Number of chunks that are created with the layout and kept: 16; or 85%, if max is in percent.",
    )
    max: ChunkCount = Field(
        description="Maximum number of chunks: 64, which must fit in the memory of the machine; or 85% of the memory "
        "left by all other entries; or fill, as many as fit in their elastic ranges."
    )


_Counts = int | Share | Literal["fill"] | ElasticCount


def _count(value: object, elastic: Callable[[object], ElasticCount]) -> _Counts:
    return chunk_count(value) if isinstance(value, str) else elastic(value)


if TYPE_CHECKING:
    Counts = _Counts
else:  # not a union, which would report the errors of each member
    Counts = Annotated[ElasticCount, WrapValidator(_count, json_schema_input_type=ChunkCount | ElasticCount)]


class Chunk(Entry):
    """Physical memory on a GPU or the host; with `count`, equal chunks distributed round-robin over the locations."""

    location: Devices = Field(
        description="Location of the memory: a device, a set such as gpus, or several devices, over which chunks are "
        "distributed round-robin."
    )
    size: SizeOrShare = Field(
        description="Bytes of each chunk, a multiple of the granularity of its properties: 2MiB, or 1 granule; or "
        "90% of the memory left by all other entries."
    )
    count: Counts | None = Field(
        default=None,
        description="Number of chunks: page becomes page.0, page.1 and so on; or fill, as many as their "
        "range needs; or 90% of the memory left by all other entries; or {min: 0, max: 64}.",
    )
    handles: Handles = Field(
        default=[], description="Handle types for export to other processes: fd, fabric, both, or fabric else fd."
    )
    rdma: BooleanOrElse = Field(
        default=False, description="If true, network cards can access the memory by GPUDirect RDMA; or true else false."
    )
    compressible: BooleanOrElse = Field(
        default=False, description="If true, the GPU can compress the memory; or true else false."
    )
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")
    parts: Parts | None = Field(
        default=None, description="Named parts of each chunk, in order: {signal: 4KiB, data: rest}."
    )

    @property
    def elastic(self) -> ElasticCount | None:
        """Smallest and largest number of chunks that a program creates and releases; None for other chunks."""
        return self.count if isinstance(self.count, ElasticCount) else None

    @property
    def largest(self) -> int | Share | Literal["fill"] | None:
        """Largest number of chunks, or what it follows from; None for an entry without a count."""
        return self.count.max if isinstance(self.count, ElasticCount) else self.count

    @property
    def number_key(self) -> tuple[str, ...]:
        """Keys that lead to the largest number of chunks."""
        return ("count", "max") if self.elastic else ("count",)

    @property
    def alone(self) -> bool:
        """True if every equal entry has equal chunks: nothing in them depends on their name or on other entries.

        A handle type or a property with alternatives depends on the trials of the machine.
        """
        amounts = isinstance(self.largest, int | None) and not isinstance(self.size, Share)
        flags = (getattr(self, word) for word in PROPERTY_FLAGS)
        return (
            amounts and not self.parts and not any(isinstance(each, Alternatives) for each in (*self.handles, *flags))
        )

    @property
    def value(self) -> tuple[object, ...]:
        """Values of all fields, by which entries are equal."""
        return tuple([tuple(each) if isinstance(each, (list, dict)) else each for each in self.__dict__.values()])


def _checked(parts: dict[str, Size | str]) -> dict[str, Size | str]:
    if not parts:
        raise InvalidValue("MT103", "expected at least one part, found none", help="write 'signal: 4KiB, data: rest'")
    if len(parts) > LARGEST_PARTS:
        raise InvalidValue("MT109", f"{len(parts):,} parts are more than the {LARGEST_PARTS} that one chunk may have")
    if list(parts.values()).count(REST) > 1:
        raise InvalidValue("MT204", f"{REST!r} is the size of several parts", help="give all but one a size in bytes")
    return parts


Parts = Annotated[dict[OwnName, PartSize], AfterValidator(_checked)]


def resolve_parts(path: Path, parts: Mapping[str, Size | str] | None, size: int, unit: int) -> tuple[NamedPart, ...]:
    """Parts of chunks of `size` bytes with granules of `unit` bytes. Raises `Refused` with MT313 if they do not fit."""
    if not parts:
        return ()
    sizes = {name: each.bytes(unit) if isinstance(each, Size) else 0 for name, each in parts.items()}
    left = size - sum(sizes.values())
    rest = next((name for name, bytes_ in sizes.items() if not bytes_), None)
    what, where = f"{path[-1]!r} has {exact(size)}", (*path, "parts")
    if left < 0:
        message, total = f"{what}, and its parts have {exact(size - left)}", -(-(size - left) // unit) * unit
        help = f"make the parts smaller, or write 'size: {exact(total)}' or more"
        raise Refused(Diagnostic("MT313", message, where, help=help))
    if rest and not left:
        message = f"{what}, and its other parts leave nothing for {rest!r}"
        raise Refused(Diagnostic("MT313", message, (*where, rest), help=f"omit {rest!r}, or make other parts smaller"))
    if rest:
        sizes[rest] = left
    return tuple(map(NamedPart, sizes, accumulate(sizes.values(), initial=0), sizes.values()))


def _taken_flags(scope: Scope, entry: Chunk, path: Path) -> set[str]:
    """Properties that are flags; the driver creates no memory with two of them."""
    taken = {*flags_of(entry)}

    def support(word: str, option: bool) -> Support:  # noqa: FBT001 one of the alternatives
        if option and taken:
            return Support(works=False, reason="the driver creates no memory that is both rdma and compressible")
        return supported_at(scope, entry.location, word) if option else Support(works=True)

    for word in PROPERTY_FLAGS:
        written, subject = getattr(entry, word), f"chunk {path[-1]}: {word}"
        if isinstance(written, Alternatives) and chosen(scope, written, subject, (*path, word), partial(support, word)):
            taken.add(word)
    return taken


def resolve_chunks(scope: Scope, entry: Chunk, path: Path, mapped: Callable[[], MapEntries]) -> ChunkGroup:
    """Group of the entry at `path`. Raises `Refused`. `mapped` finds the entries of `map`."""
    listed, handles, flags = together(
        partial(scope.devices.resolve_all, entry.location, path),
        partial(taken_handles, scope, "chunk", path, entry.handles, entry.location),
        partial(_taken_flags, scope, entry, path),
    )
    written = entry.largest or (len(listed) if has_set(entry.location) else 1)
    if isinstance(written, int):
        listed = scope.devices.distributed(listed, written, path)
    # Handles and flags are the same at all locations, and in all instances of the process.
    taken = Properties.with_flags(WHOLE_HOST, handles, flags)
    properties = tuple([taken._replace(location=location) for location in listed])
    unit = _granule(scope.machine, properties)
    size, declared, share = _size(scope, entry, path, listed, unit, written)
    chunks = SizedChunks(str(path[-1]), path, (*path, *entry.number_key), tuple(listed), unit, size)
    largest, created = _numbers(scope, entry, chunks, written, share, mapped)
    used = scope.devices.distributed(listed, largest.number, path)
    properties = properties[: len(used)]
    unit = _granule(scope.machine, properties)
    unknown = largest.share and scope.budgets is None
    return ChunkGroup(
        chunks.name,
        path,
        declared,
        unit,
        properties,
        tuple(dict.fromkeys(used)),
        largest.number if entry.elastic else None,
        resolve_parts(path, None if unknown else entry.parts, size, unit),
        share=largest.share,
        filled=largest.filled,
        count=created,
        counted=entry.count is not None or has_set(entry.location),
        size=size,
    )


def _granule(machine: Machine, properties: Sequence[Properties]) -> int:
    return max(granule(machine, each) for each in dict.fromkeys(properties))


def _size(
    scope: Scope, entry: Chunk, path: Path, locations: Sequence[Location], unit: int, number: ChunkCount
) -> tuple[int, int, TakenShare | None]:
    """Bytes of each chunk, those that are declared, and the share that they follow from. Raises `Refused`."""
    what, where = f"chunk {path[-1]!r}", (*path, "size")
    if isinstance(entry.size, Share):
        if not isinstance(number, int):
            message = f"{what}: a size in percent and a count that follows leave both open"
            help = "write a number of chunks, or the size of each"
            raise Refused(Diagnostic("MT314", message, (*path, *entry.number_key), help=help))
        size, share = of_shared_size(scope, path, locations, unit, number, entry.size, where)
        return size, size, share
    declared, note = entry.size.bytes(unit), granularity_note(unit, locations)
    size = whole_granules("MT301", what, declared, unit, where, note, rounding=entry.round is not None)
    return size, declared, None


def _numbers(
    scope: Scope,
    entry: Chunk,
    chunks: SizedChunks,
    written: ChunkCount,
    share: TakenShare | None,
    mapped: Callable[[], MapEntries],
) -> tuple[ChunkNumber, int]:
    """Largest number of chunks, what is `written` or what follows from it, and the number created with the layout.

    Their size may be of a `share`. Raises `Refused`, with MT803 if more are created than the largest number.
    """
    if isinstance(written, int):
        largest = ChunkNumber(written, share)
    elif isinstance(written, Share):
        largest = _of_shared_number(scope, chunks, written, chunks.number_path, mapped)
    else:
        largest = (elastic_count if entry.elastic else filled_count)(scope, chunks, mapped())
    if not entry.elastic or entry.elastic.min == entry.elastic.max:
        return largest, largest.number
    created, path = entry.elastic.min, (*chunks.path, "count", "min")
    label = Label("the largest number", chunks.number_path)
    if isinstance(created, Share):
        if not isinstance(entry.elastic.max, Share):
            message = f"chunk {chunks.name!r}: a min in percent, and a max that is not"
            help = f"write 'max: {created}' or more, or a number for min"
            raise Refused(Diagnostic("MT314", message, path, labels=(label,), help=help))
        created = _of_shared_number(scope, chunks, created, path, mapped).number
    if created > largest.number and (scope.budgets or not largest.share):
        message = f"chunk {chunks.name!r}: a min of {created:,} is more than the max of {largest.number:,}"
        fixed = isinstance(entry.elastic.max, int) or isinstance(entry.elastic.min, Share)
        help = f"write 'max: {entry.elastic.min}' or more" if fixed else f"write 'min: {largest.number}' or less"
        raise Refused(Diagnostic("MT803", message, path, labels=(label,), help=help))
    return largest, created


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


def of_shared_size(
    scope: Scope, entry: Path, locations: Sequence[Location], unit: int, number: int, share: Share, path: Path
) -> tuple[int, TakenShare]:
    """Bytes of each of a number of chunks that take a share of each location together, in whole granules of `unit`.

    They are those of the `entry` at its path, and the share is written at `path`.
    """
    if scope.budgets is None:
        return unit, TakenShare(share, locations[0], 0, 0)
    spread, at = _spread(scope.budgets, share, entry, locations, path), scope.budgets.by_location
    size, least = min(
        (share.of(at[location].left) // each // unit * unit, location)
        for places in spread
        for location, each in round_robin(number, places).items()
    )
    if not size:
        more = at[least].left >= number * unit
        raise Refused(_nothing(share, least, at[least], f"granule of {exact(unit)}", path, more=more))
    return size, TakenShare(share, least, at[least].left, size * _at_most(number, least, spread))


def _of_shared_number(
    scope: Scope, chunks: SizedChunks, share: Share, path: Path, mapped: Callable[[], MapEntries]
) -> ChunkNumber:
    """Number of chunks that take at most a share of each location, round-robin.

    Ranges of a counted entry without a size have equal parts of them. The share is written at `path`.
    """
    parts, size, locations = equal_parts(scope, mapped(), chunks.name), chunks.size, chunks.locations
    if scope.budgets is None:
        return ChunkNumber(-(-len(locations) // parts) * parts, TakenShare(share, locations[0], 0, 0))
    spread, at = _spread(scope.budgets, share, chunks.path, locations, path), scope.budgets.by_location
    number, least = min(_most({each: share.of(at[each].left) // size for each in places}, places) for places in spread)
    number -= number % parts
    if not number:
        what = f"chunk of {exact(size)}" + (f" in each of {parts:,} ranges" if parts > 1 else "")
        raise Refused(_nothing(share, least, at[least], what, path, more=at[least].left >= size * parts))
    if number > LARGEST_COUNT:
        of = f"{share} of {rounded(at[least].left)} on {least}"
        message = f"{of} are {number:,} chunks, more than the {LARGEST_COUNT:,} allowed in one spec"
        raise Refused(Diagnostic("MT109", message, path, help="make the chunks larger"))
    return ChunkNumber(number, TakenShare(share, least, at[least].left, size * _at_most(number, least, spread)))


def _at_most(number: int, location: Location, spread: Sequence[tuple[Location, ...]]) -> int:
    """Largest number of some chunks that an instance of the process has at a location."""
    return max(round_robin(number, each).get(location, 0) for each in spread)


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
    budgets: MemoryBudgets, share: Share, entry: Path, locations: Sequence[Location], path: Path
) -> Sequence[tuple[Location, ...]]:
    """Locations of the chunks of an entry in each instance of the process.

    Raises `Refused` with MT407 if their memory is not known, or if all shares of one are more than the whole.
    """
    spread = budgets.spread.get(entry, (tuple(locations),))
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


def _nothing(
    share: Share, location: Location, budget: MemoryBudget, what: str, path: Path, *, more: bool
) -> Diagnostic:
    """Diagnostic of a share with no room for anything; a larger share has room if there is `more`."""
    left = f"{rounded(budget.left)} that are left on {location}"
    message = f"{share} of the {left} have no room for a {what}"
    note = f"everything else uses {rounded(budget.used)} of {rounded(budget.whole)} there"
    help = f"lower a size or a count of other entries on {location}{', or increase the share' * more}"
    return Diagnostic("MT407", message, path, notes=(note,), help=help)
