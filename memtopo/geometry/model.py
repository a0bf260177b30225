"""Runs: what a spec declares, with every number known. A thousand equal pages are one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.diagnostics import Path
from memtopo.driver.types import Grant, HandleType, Location, Properties


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Equal chunks that one entry declares: `count` of `size` bytes, dealt to `locations` in turn.

    Locations whose turn never comes are left out.
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

    def label(self, index: int) -> str:
        """The name of one chunk: `hot`, or `page.3` of a counted entry."""
        return f"{self.name}.{index}" if self.counted else self.name

    def properties_of(self, index: int) -> Properties:
        """What one chunk is created with."""
        return self.properties[index % len(self.properties)]

    def shares(self) -> Mapping[Location, int]:
        """How many of the chunks there are at each place."""
        whole, rest = divmod(self.count, len(self.properties))
        found: dict[Location, int] = {}
        for turn, place in enumerate(self.locations):
            found[place] = found.get(place, 0) + whole + (turn < rest)
        return found

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where the chunks are, in the order of dealing."""
        return tuple(properties.location for properties in self.properties)

    @property
    def handles(self) -> HandleType:
        """The handle types that the chunks can be exported as."""
        return self.properties[0].handles


@dataclass(frozen=True, slots=True)
class RangeRun:
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

    def label(self, instance: int) -> str:
        """The name of one range: `kv`, or `kv.3` of a counted entry."""
        return f"{self.name}.{instance}" if self.counted else self.name

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


Instance = tuple[str, int]
"""One reservation: a range's name and which of its count."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`count` equal chunks, `first` on, mapped one after another from `offset` on in one reservation."""

    range: RangeRun
    instance: int
    offset: int
    chunk: ChunkRun
    first: int
    count: int
    path: Path

    @property
    def end(self) -> int:
        """The first byte of the range after the chunks."""
        return self.offset + self.count * self.chunk.size

    @property
    def where(self) -> Instance:
        """The reservation that the chunks are mapped into."""
        return self.range.name, self.instance


class Part(NamedTuple):
    """Access as one entry of the spec asks for it, in bytes of each instance; later parts win."""

    range: RangeRun
    instances: tuple[int, int]
    offset: int
    size: int
    grants: tuple[Grant, ...]
    path: Path

    @property
    def end(self) -> int:
        """The first byte after the part."""
        return self.offset + self.size

    @property
    def times(self) -> int:
        """How many reservations it holds for."""
        return self.instances[1] - self.instances[0]


class Stretch(NamedTuple):
    """Adjacent mappings in one reservation that have the same access; `path` is the first part's that gives it."""

    range: RangeRun
    instance: int
    offset: int
    size: int
    grants: tuple[Grant, ...]
    path: Path


class Geometry(NamedTuple):
    """A layout in numbers. `placements` are sorted by offset in each reservation; `parts` are in the spec's order."""

    name: str
    devices: Mapping[str, Location]
    chunks: Mapping[str, ChunkRun]
    ranges: Mapping[str, RangeRun]
    placements: Mapping[Instance, tuple[Placement, ...]]
    parts: Mapping[str, tuple[Part, ...]]
    unsure: frozenset[tuple[str, str]]
    """(section, name) of what was left out, or depends on what was left out: rules are silent about it."""
