"""Runs: what a spec declares, with every number known. A thousand equal pages are one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memtopo.diagnostics.model import Path
from memtopo.driver.types import HandleType, Location, LocationKind, Properties

Kind = Literal["chunk", "buffer", "event"]
Via = Literal["fd", "fabric", "ipc", "opaque_fd", "timeline_fd"]
"""How handles travel; what Vulkan made comes by the last two. `opaque_fd` of a semaphore is a binary one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where imported things come from: `each` handles of one export from every holder, one holder after another.

    `siblings` says whether the holders are processes of the same spec (`reader.3`) or layouts and sockets outside.
    """

    holders: tuple[str, ...]
    export: str
    each: int
    via: Via
    siblings: bool

    def of(self, index: int) -> tuple[str, int]:
        """The holder of one of the things, and which handle of its export that is."""
        return self.holders[index // self.each], index % self.each

    def text(self, holder: str) -> str:
        """How the export is written: `server.weights`, `weights-server/w`."""
        return f"{holder}{'.' if self.siblings else '/'}{self.export}"


def _shares(count: int, places: Sequence[Location]) -> Mapping[Location, int]:
    """How many of `count` things there are at each of the places that they are dealt to in turn."""
    whole, rest = divmod(count, len(places))
    found: dict[Location, int] = {}
    for turn, place in enumerate(places):
        found[place] = found.get(place, 0) + whole + (turn < rest)
    return found


class _Labelled:
    """One thing under a name, or `count` of them under numbers behind it."""

    __slots__ = ()
    name: str
    counted: bool

    def label(self, index: int) -> str:
        """The name of one of them: `hot`, or `page.3` of a counted entry."""
        return f"{self.name}.{index}" if self.counted else self.name


class _Dealt(_Labelled):
    """Things that are dealt to `places` in turn."""

    __slots__ = ()
    places: tuple[Location, ...]

    def place_of(self, index: int) -> Location:
        """Where one of them is."""
        return self.places[index % len(self.places)]


@dataclass(frozen=True, slots=True)
class ChunkGroup(_Labelled):
    """Equal chunks that one entry declares: `count` of `size` bytes, dealt to `locations` in turn.

    Locations whose turn never comes are left out. Chunks with an `origin` are imported, the others created.
    `declared` is the size before `round: up`; `granule` the granularity of exactly these properties, in bytes.
    """

    name: str
    path: Path
    count: int
    counted: bool
    size: int
    declared: int
    granule: int
    properties: tuple[Properties, ...]
    places: tuple[Location, ...]
    """Where there are any of the chunks, each place once."""
    origin: Origin | None = None

    def properties_of(self, index: int) -> Properties:
        """What one chunk is created with."""
        return self.properties[index % len(self.properties)]

    def place_of(self, index: int) -> Location:
        """Where one chunk is."""
        return self.properties_of(index).location

    def shares(self) -> Mapping[Location, int]:
        """How many of the chunks there are at each place."""
        return _shares(self.count, self.locations)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where the chunks are, in the order of dealing."""
        return tuple(properties.location for properties in self.properties)

    @property
    def handles(self) -> HandleType:
        """The handle types that the chunks can be exported as."""
        return self.properties[0].handles


@dataclass(frozen=True, slots=True)
class RangeGroup(_Labelled):
    """Equal ranges that one entry declares: `count` reservations of `size` bytes."""

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

    @property
    def stride(self) -> int:
        """How far apart the addresses of counted ranges are wished for, each aligned as it is to be."""
        return -(-self.size // self.align) * self.align if self.align else self.size

    @property
    def extent(self) -> int:
        """Bytes from the first address wished for to the end of the last range."""
        return self.stride * (self.count - 1) + self.size

    def wish(self, instance: int) -> int:
        """The address asked for; counted ranges ask for one after another (fact 11)."""
        return self.address + instance * self.stride if self.address else 0


@dataclass(frozen=True, slots=True)
class BufferGroup(_Dealt):
    """Equal buffers that one entry declares: `count` of `size` bytes, dealt to `places` in turn.

    `declared` is the size before it was rounded up to whole blocks for legacy IPC.
    """

    name: str
    path: Path
    count: int
    counted: bool
    size: int
    declared: int
    places: tuple[Location, ...]
    origin: Origin | None = None

    def shares(self) -> Mapping[Location, int]:
        """How many of the buffers there are at each place."""
        return _shares(self.count, self.places)


@dataclass(frozen=True, slots=True)
class EventGroup(_Dealt):
    """One event of a GPU, or as many imported ones as its export has processes, at `places` in turn."""

    name: str
    path: Path
    count: int
    counted: bool
    places: tuple[Location, ...]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class ManagedAllocation:
    """One allocation of managed memory.

    `home` is the GPU whose context allocates it, and whose stream it belongs to where it is attached to a `single` one.
    """

    name: str
    path: Path
    size: int
    attach: Literal["global", "host", "single"]
    home: int
    prefer: Location | None = None
    accessed_by: tuple[Location, ...] = ()
    read_mostly: bool = False
    prefetch: Location | None = None

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs that it may come to take the memory of."""
        named = {each for each in (self.prefer, self.prefetch, *self.accessed_by) if each}
        return frozenset({self.home, *(each.id for each in named if each.kind is LocationKind.GPU)})


@dataclass(frozen=True, slots=True)
class ExternalPart:
    """A part of an external object that is mapped as a buffer of its own; bytes from the object's begin."""

    name: str
    path: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ExternalObject:
    """One object that another API allocated on `place`, of `size` bytes as a whole.

    It is mapped as a whole, under its name, and each of its `buffers` once more, as `frame.y`.
    """

    name: str
    path: Path
    size: int
    place: Location
    dedicated: bool
    origin: Origin
    buffers: tuple[ExternalPart, ...] = ()

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Offset and size of everything that is mapped, by label; the whole comes first."""
        every = {f"{self.name}.{part.name}": (part.offset, part.size) for part in self.buffers}
        return {self.name: (0, self.size), **every}


@dataclass(frozen=True, slots=True)
class ImportedSemaphore:
    """One semaphore that another API made. `wait` and `signal` are the values of a check, 0 where it is a binary one.

    What is None is not done.
    """

    name: str
    path: Path
    place: Location
    timeline: bool
    origin: Origin
    wait: int | None = None
    signal: int | None = None


Imported = ChunkGroup | BufferGroup | EventGroup
"""What can be handed from one process to another."""


@dataclass(frozen=True, slots=True)
class ExportGroup:
    """Things of one entry, `first` on, handed to other processes as `count` handles in order."""

    name: str
    path: Path
    kind: Kind
    via: Via
    run: Imported
    first: int
    count: int
    counted: bool

    def label(self, index: int) -> str:
        """The name of what one handle is of."""
        return self.run.label(self.first + index)

    def place(self, index: int) -> Location:
        """Where what one handle is of is."""
        return self.run.place_of(self.first + index)

    @property
    def size(self) -> int:
        """Bytes of each; 0 for an event."""
        return 0 if isinstance(self.run, EventGroup) else self.run.size
