"""Groups of states: the chunks that are absent in one, and the memory that keeps their bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.diagnostics.model import At, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.kinds.pinned import PinnedGroup


class Absent(NamedTuple):
    """Chunks of a group, from index `first` to `stop`, that have no memory in a state.

    `area` is the label of the area that keeps their bytes, in order; None if they are dropped.
    """

    group: ChunkGroup
    first: int
    stop: int
    area: str | None
    path: Path

    @property
    def at(self) -> At:
        """Part of the entry at `path` that names them: offloaded chunks are keys."""
        return "value" if self.area is None else "key"


@dataclass(frozen=True, slots=True)
class StateGroup(Group):
    """One state and the chunks that are absent in it."""

    noun = "layout state"

    name: str
    path: Path
    absent: tuple[Absent, ...]
    emptied: tuple[str, ...] = ()
    """Labels of the elastic ranges in which nothing is mapped."""
    count: int = 1
    counted: bool = False
    size: int = 0
    origin: None = None

    @property
    def locations(self) -> Sequence[Location]:
        """None: a state has no memory of its own."""
        return ()


@dataclass(frozen=True, slots=True)
class OffloadArea(Group):
    """Memory that keeps the bytes of offloaded chunks. It exists in all states, so that no switch has to create it.

    It is memory of its own, or a part of the pinned memory `inside` of which it is.
    """

    noun = "offload area"
    memory = True

    name: str
    path: Path
    size: int
    location: Location
    pinned: int | None
    """GPU in whose context page-locked memory is allocated; None for a chunk or a part."""
    inside: PinnedGroup | None = None
    count: int = 1
    counted: bool = False
    origin: None = None

    def location_of(self, index: int) -> Location:
        """Location of the memory."""
        return self.location

    @property
    def contexts(self) -> frozenset[int]:
        """The GPU of page-locked memory, which ends with its context."""
        return frozenset() if self.pinned is None else frozenset({self.pinned})

    @property
    def keeper(self) -> Hashable:
        """Resource of the memory."""
        if self.inside:
            return (self.inside.noun, self.inside.name)
        return ("chunk" if self.pinned is None else PinnedGroup.noun, self.name)

    def shares(self) -> Mapping[Location, int]:
        """One object at its location; a part is counted with its entry."""
        return {} if self.inside else {self.location: 1}


def kept_at(areas: Iterable[OffloadArea]) -> dict[str, tuple[str, int]]:
    """Label of the memory of each area, and its offset there, by the name of the area.

    Each area in pinned memory has a part for itself, so that no switch replaces what another state keeps.
    """
    taken: dict[str, int] = {}
    found: dict[str, tuple[str, int]] = {}
    for area in areas:
        memory = area.inside.name if area.inside else area.name
        found[area.name] = memory, taken.get(memory, 0)
        taken[memory] = taken.get(memory, 0) + area.size
    return found
