"""Groups: the equal objects that one entry of a spec declares, with all sizes resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple

from msgspec import Struct

from memtopo.common.units import NamedPart, Share, Size
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import OfferedKind, Via
from memtopo.driver.types import Grant, HandleType, Location, LocationKind, Properties
from memtopo.machine import Machine


class Origin(Struct, frozen=True):
    """Source of imported objects: `each` handles of one export from every holder, in the order of the holders.

    With `siblings` the holders are processes of the same spec (`reader.3`), else layouts and sockets outside of it, or
    the processes of a held `layout`.
    `exported` is what each process exports: objects of a group, from index `first` on. `own` is the importing process
    where it cannot open handles of itself (fact 31): its own objects are used in their place.
    """

    holders: tuple[str, ...]
    export: str
    each: int
    via: Via
    siblings: bool
    exported: Group | None = None
    first: int = 0
    own: str = ""
    layout: str = ""

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """For each holder in order, the name to connect to, and that of the export there."""
        if self.layout:
            return tuple((self.layout, f"{holder}.{self.export}") for holder in self.holders)
        return tuple((holder, self.export) for holder in self.holders)

    @property
    def identity(self) -> tuple[tuple[str, ...], str]:
        """Holders and export, which are equal for all imports of the same objects."""
        return self.holders, self.export

    def of(self, index: int) -> tuple[str, int]:
        """Holder of the object at an index, and its index within the holder's export."""
        return self.holders[index // self.each], index % self.each

    def own_label(self, index: int) -> str | None:
        """Label of the object of this process that is used as the one at an index; None for one that is opened."""
        holder, number = self.of(index)
        return self.exported.label(self.first + number) if self.exported and holder == self.own else None

    def resource(self, number: int) -> Hashable:
        """Resource of a process behind one handle of its export; None outside of the spec."""
        return None if self.exported is None else (self.exported.noun, self.exported.label(self.first + number))

    def text(self, holder: str) -> str:
        """The export as a spec writes it: `server.weights`, `weights-server/w`."""
        if self.layout:
            return f"{self.layout}/{holder}.{self.export}"
        return f"{holder}{'.' if self.siblings else '/'}{self.export}"


def round_robin(count: int, locations: Sequence[Location]) -> Mapping[Location, int]:
    """Number of objects at each location, if `count` objects are distributed round-robin."""
    whole, rest = divmod(count, len(locations))
    found: dict[Location, int] = {}
    for index, location in enumerate(locations):
        found[location] = found.get(location, 0) + whole + (index < rest)
    return found


def in_turns(locations: Sequence[Location]) -> Sequence[Location]:
    """Return the locations that objects are assigned to in turns, without repetitions of all of them."""
    periods = (
        period
        for period in range(1, len(locations))
        if all(locations[index] == locations[index - period] for index in range(period, len(locations)))
    )
    return locations[: next(periods, len(locations))]


def gpus(locations: Iterable[Location]) -> frozenset[int]:
    """Ordinals of the GPUs among some locations, of one node."""
    return frozenset([location.id for location in locations if location.kind is LocationKind.GPU])


class Residence(Enum):
    """Place of memory: at its location, or where the driver moves it, between GPUs and the host.

    Memory that migrates is not page-locked on the host; what is `EXCEEDING` is there as far as a GPU has no room for
    it. The driver keeps a block of such memory until the process ends (fact 60).
    """

    FIXED = "fixed"
    MIGRATING = "migrating"
    EXCEEDING = "exceeding"


class InnerPart(Struct, frozen=True):
    """Part of an object: its label, offset and size in bytes, and the path of its entry."""

    label: str
    offset: int
    size: int
    path: Path


class _Objects(Struct, frozen=True, kw_only=True):
    """Fields of every group that have defaults."""

    count: int = 1
    counted: bool = False
    size: int = 0
    origin: Origin | None = None


class Group(_Objects, frozen=True):
    """Base of all groups: one object with a name, or `count` objects with a name and numbers.

    A group with an `origin` is imported; any other group is created by this process. `size` is in bytes per object,
    0 if the objects are not memory. `counted` is true if the entry has a `count`, so that its objects have numbers.
    """

    noun: ClassVar[str]
    """Noun for one object in messages."""
    addressed: ClassVar[bool] = False
    """True if the objects have their own addresses, so that they cannot share a name with a range."""
    memory: ClassVar[bool] = False
    """True if the objects are physical memory."""
    bound_to_context: ClassVar[bool] = True
    """True if the objects end with the contexts that they need; chunks and their mappings do not (fact 73)."""
    offered_as: ClassVar[OfferedKind | None] = None
    """Word of the wire protocol for the objects; None if they cannot be offered."""
    name: str
    path: Path

    @property
    def produced(self) -> bool:
        """True if another API or program creates the objects, outside of the spec."""
        return False

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU that needs a stream for the objects; None if none does."""
        return None

    def label(self, index: int) -> str:
        """Name of one object: `hot`, or `page.3` of a counted entry."""
        return f"{self.name}.{index}" if self.counted else self.name

    def labels(self, indices: Iterable[int]) -> list[str]:
        """Names of some objects."""
        return [f"{self.name}.{index}" if self.counted else self.name for index in indices]

    def imported_with(self, index: int) -> Iterable[Hashable]:
        """Resources that an import opens for one object, and that are of the same exporter."""
        return ()

    def location_of(self, index: int) -> Location:
        """Location of one object."""
        raise NotImplementedError

    @property
    def locations(self) -> Sequence[Location]:
        """Locations of the objects in the order of the round-robin distribution."""
        return (self.location_of(0),)

    @property
    def declared_size(self) -> int:
        """Usable bytes of each object, before rounding for legacy IPC."""
        return self.size

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Access to an object at its own address; on a `machine`, without devices that cannot use it."""
        return ()

    @property
    def parts(self) -> Sequence[NamedPart]:
        """Named parts of each object, in order."""
        return ()

    def details(self) -> Iterator[str]:
        """Details for a diagram besides size and location."""
        yield from ()

    def shares(self) -> Mapping[Location, int]:
        """Number of objects that this process creates in the memory of each location."""
        return {}

    def largest_shares(self) -> Mapping[Location, int]:
        """Largest number of objects that may exist in the memory of each location."""
        return self.shares()

    @property
    def residence(self) -> Residence:
        """Place of the objects' memory while they exist."""
        return Residence.FIXED

    @property
    def growing(self) -> bool:
        """True if a program creates and releases objects while the layout exists."""
        return False

    @property
    def share(self) -> TakenShare | None:
        """Share of the memory that all other entries leave, if that is its size."""
        return None

    @property
    def unlimited(self) -> bool:
        """True if a program may create objects without a limit."""
        return False

    def demand(self) -> Mapping[Location, int]:
        """Largest number of bytes that the objects may occupy in the memory of each location."""
        return {location: count * self.size for location, count in self.largest_shares().items()}

    def least_demand(self) -> Mapping[Location, int]:
        """Bytes that the objects occupy from the start, which is all unless a program creates more of them."""
        if not self.growing:
            return self.demand()
        return {location: count * self.size for location, count in self.shares().items()}

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs whose contexts are needed to create or use the objects, by default those of theirs."""
        return gpus(self.locations)


def from_outside(group: Group) -> bool:
    """Return true if the objects of a group are imported from outside of the spec."""
    return group.origin is not None and not group.origin.siblings


def declared_as(group: Group) -> str:
    """Noun for the entry of a group in messages: `import` if the spec has it under imports."""
    return "import" if group.origin and not group.produced else group.noun


def has_size(size: Size, imported: Group, exported: Group) -> bool:
    """Return true if a size that an import declares is that of its objects, before or after rounding."""
    if isinstance(imported, ChunkGroup) and isinstance(exported, ChunkGroup):
        return size.bytes(imported.granule) in (imported.size, exported.declared)
    return size.bytes(1) in (imported.size, exported.declared_size)


def property_words(group: Group) -> tuple[str, ...]:
    """Properties of the memory of a group, besides handle types, that importers are told."""
    return group.properties[0].flags if isinstance(group, ChunkGroup) else ()


def largest_count(group: Group) -> int:
    """Largest number of objects of a group that may exist."""
    return group.count if not isinstance(group, ChunkGroup) or group.limit is None else group.limit


class TakenShare(NamedTuple):
    """Share of the memory that all other entries leave at a location: `room` bytes, of which chunks take `taken`."""

    share: Share
    location: Location
    room: int
    taken: int


class ChunkGroup(Group, frozen=True):
    """Equal chunks that one entry declares: `count` of `size` bytes, distributed round-robin over `locations`.

    Locations without a chunk are left out. `declared` is the size before `round: up`, and `granule` the granularity of
    these properties, both in bytes. With a `limit`, the chunks are elastic: `count` of them are created with the
    layout, and a program may create more, up to the limit, and map them in elastic ranges. Imported ones are lent by
    their holder in place of being created.
    """

    noun = "chunk"
    offered_as: ClassVar[OfferedKind | None] = "chunk"
    memory = True
    bound_to_context = False

    declared: int
    granule: int
    properties: tuple[Properties, ...]
    distinct_locations: tuple[Location, ...]
    """Locations of the chunks, without repetition."""
    limit: int | None = None
    parts: tuple[NamedPart, ...] = ()
    gone: tuple[tuple[int, int], ...] = ()
    """Spans of the chunks that have no memory in the state that the geometry is of."""
    share: TakenShare | None = None
    filled: str = ""
    """Range whose size the number of chunks follows from."""

    def properties_of(self, index: int) -> Properties:
        """Properties that one chunk is created with."""
        return self.properties[index % len(self.properties)]

    def location_of(self, index: int) -> Location:
        """Location of one chunk."""
        return self.properties_of(index).location

    def shares(self) -> Mapping[Location, int]:
        """Number of chunks that this process creates at each location."""
        return {} if self.origin else self._share(self.count)

    def _share(self, count: int) -> Mapping[Location, int]:
        """Number of the first chunks at each location, without chunks that are gone."""
        if not (self.gone and count):
            return round_robin(count, self.locations)
        found = Counter(round_robin(count, self.locations))
        for first, stop in self.gone:
            found.subtract(round_robin(stop, self.locations))
            found.update(round_robin(first, self.locations))
        return found

    @property
    def growing(self) -> bool:
        return self.limit is not None

    def largest_shares(self) -> Mapping[Location, int]:
        """Number of chunks that this process may create at each location."""
        if self.limit is None or self.origin:
            return self.shares()
        return self._share(0 if self.gone else self.limit)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations of the chunks in the order of the round-robin distribution."""
        return tuple([properties.location for properties in self.properties])

    @property
    def handles(self) -> HandleType:
        """Handle types that the chunks can be exported as."""
        return self.properties[0].handles

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs that hold chunks which this process creates."""
        return frozenset() if self.origin else gpus(self.distinct_locations)


class Backing(Struct, frozen=True):
    """Chunks that a program may map in an elastic range, and the zero page behind the rest; None if there is none."""

    chunks: tuple[ChunkGroup, ...]
    zero: ChunkGroup | None
    sized_by_program: bool = False
    """True for a heap: the program chooses the size of each chunk."""

    @property
    def every(self) -> tuple[ChunkGroup, ...]:
        """All of them, the zero page last."""
        return self.chunks if self.zero is None else (*self.chunks, self.zero)


class RangeGroup(Group, frozen=True):
    """Equal ranges that one entry declares: `count` reservations of `size` bytes; elastic ones have an `elastic`."""

    noun = "range"
    offered_as = "range"
    contexts = frozenset[int]()  # addresses belong to no GPU

    declared: int
    granule: int
    align: int
    address: int
    fixed: bool
    elastic: Backing | None = None
    fitted: bool = False
    """True if the size follows from what is mapped into the range."""
    same_address: bool = False
    """True if all instances of a counted process reserve it at one address, which they agree on."""

    @property
    def stride(self) -> int:
        """Bytes between the address hints of counted ranges, each aligned as required."""
        return -(-self.size // self.align) * self.align if self.align else self.size

    @property
    def extent(self) -> int:
        """Bytes from the first address hint to the end of the last range."""
        return self.stride * (self.count - 1) + self.size

    def address_hint(self, instance: int) -> int:
        """Address requested for one range, 0 for none; counted ranges request consecutive addresses (fact 11)."""
        return self.address + instance * self.stride if self.address else 0


class LocatedGroup(Group, frozen=True):
    """Equal objects distributed round-robin over `locations`: `count` of them, created by this process or imported."""

    locations: tuple[Location, ...]

    def location_of(self, index: int) -> Location:
        """Location of one object."""
        return self.locations[index % len(self.locations)]
