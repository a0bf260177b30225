"""Geometry of a layout: the groups of a spec, their placements in ranges, and the access to them, as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

from memtopo.common.units import Size
from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup, gpus
from memtopo.language.names import Reference

Instance = tuple[str, int]
"""Reservation, as the name of its range and an index."""


class Slice(NamedTuple):
    """Chunks that a `map` entry names: `first` to before `stop` of a group, or no group if they are not known."""

    group: ChunkGroup | None
    first: int
    stop: int
    reference: Reference
    offset: Size | None
    path: Path


@dataclass(frozen=True, slots=True)
class Placement:
    """Equal chunks mapped consecutively in one reservation: `count` of a group, from index `first`, from `offset`."""

    range: RangeGroup
    instance: int
    offset: int
    chunk: ChunkGroup
    first: int
    count: int
    path: Path

    @property
    def end(self) -> int:
        """Offset of the first byte after the chunks."""
        return self.offset + self.count * self.chunk.size

    @property
    def where(self) -> Instance:
        """Reservation that the chunks are mapped into."""
        return self.range.name, self.instance


class Part(NamedTuple):
    """Access that one entry of the spec declares, in bytes of each reservation; later parts override earlier ones."""

    range: RangeGroup
    instances: tuple[int, int]
    offset: int
    size: int
    grants: tuple[Grant, ...]
    keys: tuple[Path, ...]
    """Path of the device of each grant."""
    path: Path

    def key_of(self, location: Location) -> Path:
        """Path of the device that is granted access at a location."""
        return next(key for grant, key in zip(self.grants, self.keys, strict=True) if grant.location == location)

    @property
    def end(self) -> int:
        """Offset of the first byte after the part."""
        return self.offset + self.size

    @property
    def times(self) -> int:
        """Number of reservations that the part applies to."""
        return self.instances[1] - self.instances[0]


class AccessSpan(NamedTuple):
    """Adjacent mappings in one reservation with equal access; `path` is that of the first part that grants it."""

    range: RangeGroup
    instance: int
    offset: int
    size: int
    grants: tuple[Grant, ...]
    path: Path

    @property
    def end(self) -> int:
        """Offset of the first byte after the span."""
        return self.offset + self.size


_NONE: Mapping[str, Any] = MappingProxyType({})

G = TypeVar("G", bound=Group)


@dataclass(frozen=True)
class Geometry:
    """Geometry of a layout: the groups of one process by class and name, and the placements of chunks.

    `placements` are sorted by offset in each reservation; `parts` are in the spec's order. Imported chunks, buffers and
    events are groups of their class. A multi-process layout has a geometry for each process by label
    (`server`, `reader.0`) and no groups of its own.
    """

    name: str
    devices: Mapping[str, Location] = field(default_factory=dict)
    groups: Mapping[type[Group], Mapping[str, Group]] = field(default_factory=dict)
    placements: Mapping[Instance, tuple[Placement, ...]] = field(default_factory=dict)
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    unresolved: frozenset[tuple[str, str]] = frozenset()
    """(section, name) of entries that were left out or depend on such entries; rules do not report them."""
    path: Path = ()
    visible: tuple[Location, ...] = ()
    """GPUs that are visible to this process; empty for all."""
    processes: Mapping[str, Geometry] = field(default_factory=dict)

    def of(self, kind: type[G]) -> Mapping[str, G]:
        """Groups of one class by name."""
        return cast("Mapping[str, G]", self.groups.get(kind, _NONE))

    @property
    def every(self) -> Iterator[Group]:
        """All groups."""
        for groups in self.groups.values():
            yield from groups.values()

    @property
    def produced(self) -> bool:
        """True if a group is created by another API."""
        return any(group.produced for group in self.every)

    def has_unresolved(self, section: str) -> bool:
        """Return true if an entry of a section was left out or depends on such an entry."""
        return any(left == section for left, _ in self.unresolved)

    @property
    def gpus(self) -> list[int]:
        """Ordinals of the GPUs whose contexts are needed, by a group or for granted access."""
        granted = (grant for parts in self.parts.values() for part in parts for grant in part.grants)
        found = set(gpus(grant.location for grant in granted if grant.access))
        return sorted(found.union(*(group.contexts for group in self.every)))

    @property
    def idle_gpus(self) -> list[int]:
        """Ordinals of the GPUs whose contexts are needed to build, change and check the layout, but not to keep it."""
        bound = frozenset[int]().union(*(group.contexts for group in self.every if group.bound_to_context))
        return [ordinal for ordinal in self.gpus if ordinal not in bound]

    @property
    def members(self) -> Mapping[str, Geometry]:
        """Geometry of every process by label; a single-process layout has one, with an empty label."""
        return self.processes or {"": self}
