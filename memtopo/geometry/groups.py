"""Groups: equal things that one entry of a spec declares, with every number known. Equal pages are one group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, HandleType, Location, LocationKind, Properties
from memtopo.machine import Machine

Via = Literal["fd", "fabric", "ipc", "opaque_fd", "timeline_fd"]
"""Transports of handles; objects of other APIs use the last two. `opaque_fd` of a semaphore is a binary one."""


OfferedKind = Literal["chunk", "buffer", "event", "memory", "semaphore"]
"""Kinds of things that one process can offer to another; memory and semaphores are those of other APIs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of imported things: `each` handles of one export from every holder, one holder after another.

    With `siblings` the holders are processes of the same spec (`reader.3`), else layouts and sockets outside of it.
    """

    holders: tuple[str, ...]
    export: str
    each: int
    via: Via
    siblings: bool

    def of(self, index: int) -> tuple[str, int]:
        """Holder of the thing at an index, and its number within the holder's export."""
        return self.holders[index // self.each], index % self.each

    def text(self, holder: str) -> str:
        """The export as a spec writes it: `server.weights`, `weights-server/w`."""
        return f"{holder}{'.' if self.siblings else '/'}{self.export}"


def round_robin(count: int, places: Sequence[Location]) -> Mapping[Location, int]:
    """Number of things at each location, if `count` of them are distributed round-robin."""
    whole, rest = divmod(count, len(places))
    found: dict[Location, int] = {}
    for index, place in enumerate(places):
        found[place] = found.get(place, 0) + whole + (index < rest)
    return found


def gpus(places: Iterable[Location]) -> frozenset[int]:
    """Ordinals of the GPUs among some locations."""
    return frozenset(place.id for place in places if place.kind is LocationKind.GPU)


class InnerPart(NamedTuple):
    """A part of a thing: its label, its offset and size in bytes, and the path of its entry."""

    label: str
    offset: int
    size: int
    path: Path


class Group:
    """Base of all groups: one thing under a name, or `count` of them under numbers behind it.

    A group with an `origin` is imported, any other is created by this process. `size` is in bytes each,
    0 for what is no memory. `counted` is true if the entry has a `count`, so that its things have numbers.
    """

    __slots__ = ()
    noun: ClassVar[str]
    """Name of one of its things in messages."""
    addressed: ClassVar[bool] = False
    """True if its things have addresses of their own, so that they cannot share a name with a range."""
    memory: ClassVar[bool] = False
    """True if its things are physical memory."""
    recordable: ClassVar[bool] = False
    """True if its things are events, which one process records and others wait for."""
    produced: ClassVar[bool] = False
    """True if another API creates its things, outside of the spec."""
    offered_as: ClassVar[OfferedKind | None] = None
    """Word of the wire protocol for its things; None if they cannot be offered."""
    name: str
    path: Path
    count: int
    counted: bool
    size: int
    origin: Origin | None

    @property
    def external(self) -> bool:
        """True if the things come from outside of the spec."""
        return self.origin is not None and not self.origin.siblings

    @property
    def declared_as(self) -> str:
        """Name of the section's entries in messages: `import` where the things are imported."""
        return "import" if self.origin else self.noun

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU whose own stream the things need."""
        return None

    def label(self, index: int) -> str:
        """Name of one thing: `hot`, or `page.3` of a counted entry."""
        return f"{self.name}.{index}" if self.counted else self.name

    def place_of(self, index: int) -> Location:
        """Location of one thing."""
        raise NotImplementedError

    @property
    def locations(self) -> Sequence[Location]:
        """Locations of the things in the order of the round-robin distribution."""
        return (self.place_of(0),)

    @property
    def declared_size(self) -> int:
        """Bytes of each thing that a process may use, without what it was rounded up by for legacy IPC."""
        return self.size

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Devices that may use a thing at an address of its own; `machine` tells which of them can."""
        del index, machine
        return ()

    @property
    def inner(self) -> Sequence[InnerPart]:
        """Parts of each thing with an address of their own."""
        return ()

    def details(self) -> Iterator[str]:
        """Words for a diagram about what its size and location do not show."""
        yield from ()

    def shares(self) -> Mapping[Location, int]:
        """Number of things that this process creates in each location's memory."""
        return {}

    def demand(self) -> Mapping[Location, int]:
        """Bytes of each location's memory that the things may come to take."""
        return {place: count * self.size for place, count in self.shares().items()}

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs whose contexts are needed to create or use the things."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class ChunkGroup(Group):
    """Equal chunks that one entry declares: `count` of `size` bytes, distributed round-robin over `locations`.

    Locations without a chunk are left out. `declared` is the size before `round: up`; `granule` the granularity of
    these properties, in bytes.
    """

    noun = "chunk"
    offered_as = "chunk"
    memory = True

    name: str
    path: Path
    count: int
    counted: bool
    size: int
    declared: int
    granule: int
    properties: tuple[Properties, ...]
    places: tuple[Location, ...]
    """Locations of the chunks, without repetition."""
    origin: Origin | None = None

    def properties_of(self, index: int) -> Properties:
        """Properties that one chunk is created with."""
        return self.properties[index % len(self.properties)]

    def place_of(self, index: int) -> Location:
        """Location of one chunk."""
        return self.properties_of(index).location

    def shares(self) -> Mapping[Location, int]:
        """Number of chunks that this process creates at each location."""
        return {} if self.origin else round_robin(self.count, self.locations)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations of the chunks in the order of the round-robin distribution."""
        return tuple(properties.location for properties in self.properties)

    @property
    def handles(self) -> HandleType:
        """Handle types that the chunks can be exported as."""
        return self.properties[0].handles

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs that hold chunks which this process creates."""
        return frozenset() if self.origin else gpus(self.places)


@dataclass(frozen=True, slots=True)
class RangeGroup(Group):
    """Equal ranges that one entry declares: `count` reservations of `size` bytes."""

    noun = "range"

    name: str
    path: Path
    count: int
    counted: bool
    size: int
    declared: int
    granule: int
    align: int = 0
    address: int = 0
    fixed: bool = False
    origin: None = None

    @property
    def stride(self) -> int:
        """Bytes between the address hints of counted ranges, each aligned as required."""
        return -(-self.size // self.align) * self.align if self.align else self.size

    @property
    def extent(self) -> int:
        """Bytes from the first address hint to the end of the last range."""
        return self.stride * (self.count - 1) + self.size

    def address_hint(self, instance: int) -> int:
        """Address requested for one range; counted ranges request consecutive addresses (fact 11)."""
        return self.address + instance * self.stride if self.address else 0


@dataclass(frozen=True, slots=True)
class LocatedGroup(Group):
    """Equal things distributed round-robin over `places`: `count` of them, created here or imported."""

    name: str
    path: Path
    count: int
    counted: bool
    size: int
    places: tuple[Location, ...]
    origin: Origin | None = None

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations of the things in the order of the round-robin distribution."""
        return self.places

    def place_of(self, index: int) -> Location:
        """Location of one thing."""
        return self.places[index % len(self.places)]

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs of the things, imported ones too."""
        return gpus(self.places)
