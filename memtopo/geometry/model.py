"""A layout in numbers: where the runs of a spec are placed, and who has access to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Grant, Location, LocationKind
from memtopo.geometry.groups import (
    BufferGroup,
    ChunkGroup,
    EventGroup,
    ExportGroup,
    ExternalObject,
    Imported,
    ImportedSemaphore,
    ManagedAllocation,
    RangeGroup,
)

Instance = tuple[str, int]
"""One reservation: a range's name and which of its count."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`count` equal chunks, `first` on, mapped one after another from `offset` on in one reservation."""

    range: RangeGroup
    instance: int
    offset: int
    chunk: ChunkGroup
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

    range: RangeGroup
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

    range: RangeGroup
    instance: int
    offset: int
    size: int
    grants: tuple[Grant, ...]
    path: Path


_NONE: Mapping[str, Any] = MappingProxyType({})


class Geometry(NamedTuple):
    """A layout in numbers. `placements` are sorted by offset in each reservation; `parts` are in the spec's order.

    Imports are among the chunks, buffers and events. A layout of several processes has a geometry for each of them, by
    the labels of the processes (`server`, `reader.0`), and nothing of its own.
    """

    name: str
    devices: Mapping[str, Location]
    chunks: Mapping[str, ChunkGroup]
    ranges: Mapping[str, RangeGroup]
    placements: Mapping[Instance, tuple[Placement, ...]]
    parts: Mapping[str, tuple[Part, ...]]
    unsure: frozenset[tuple[str, str]]
    """(section, name) of what was left out, or depends on what was left out: rules are silent about it."""
    buffers: Mapping[str, BufferGroup] = _NONE
    events: Mapping[str, EventGroup] = _NONE
    exports: Mapping[str, ExportGroup] = _NONE
    path: Path = ()
    visible: tuple[Location, ...] = ()
    """The only GPUs that this process is to see; without any it sees all."""
    processes: Mapping[str, Geometry] = _NONE
    managed: Mapping[str, ManagedAllocation] = _NONE
    external: Mapping[str, ExternalObject] = _NONE
    semaphores: Mapping[str, ImportedSemaphore] = _NONE

    @property
    def foreign(self) -> list[ExternalObject | ImportedSemaphore]:
        """What another API made: it always comes from outside of the spec."""
        return [*self.external.values(), *self.semaphores.values()]

    @property
    def runs(self) -> list[Imported]:
        """Everything that can be imported, whether it is or not."""
        return [*self.chunks.values(), *self.buffers.values(), *self.events.values()]

    @property
    def created(self) -> list[ChunkGroup | BufferGroup]:
        """The memory that is this process's own, and not imported."""
        return [run for run in self._memory if not run.origin]

    @property
    def received(self) -> list[ChunkGroup | BufferGroup]:
        """The memory that comes from outside of the spec."""
        return [run for run in self._memory if run.origin and not run.origin.siblings]

    @property
    def _memory(self) -> list[ChunkGroup | BufferGroup]:
        return [*self.chunks.values(), *self.buffers.values()]

    @property
    def gpus(self) -> list[int]:
        """The ordinals of the GPUs whose contexts are needed.

        They hold memory that is created here, buffers or events of whomever, may come to hold managed memory, own what
        another API made, or are granted access.
        """
        places = {place for run in self.chunks.values() if not run.origin for place in run.places}
        every = (grant for parts in self.parts.values() for part in parts for grant in part.grants)
        places |= {grant.location for grant in every if grant.access}
        places |= {place for run in self.buffers.values() for place in run.places}
        places |= {place for run in self.events.values() for place in run.places}
        places |= {run.place for run in self.foreign}
        places |= {Location(LocationKind.GPU, device) for run in self.managed.values() for device in run.gpus}
        return sorted(place.id for place in places if place.kind is LocationKind.GPU)

    @property
    def members(self) -> Mapping[str, Geometry]:
        """Every process's geometry by its label; of a layout of one process that one, without a label."""
        return self.processes or {"": self}
