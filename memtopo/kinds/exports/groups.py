"""Groups of exports, and what a change does to them."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import eq

from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, gpus
from memtopo.geometry.model import Geometry
from memtopo.kinds.dmabuf.memory import DmaBufMemory
from memtopo.kinds.exportable import ExportKind
from memtopo.kinds.exports.entry import DMA_BUFS, EXPORTABLE


@dataclass(frozen=True, slots=True)
class ExportGroup(Group):
    """Objects of one group from index `first`, exported as `count` handles in order. `size` is in bytes per object."""

    noun = "export"

    name: str
    path: Path
    kind: str
    via: Via
    group: Group
    first: int
    count: int
    counted: bool
    size: int
    origin: None = None
    commit: bool = False
    """True if a writer commits the content before others may import it."""
    dma_buf: DmaBufMemory | None = None
    """Memory behind the objects, which are dma-bufs; None for any other transport."""

    def label(self, index: int) -> str:
        """Name of the object of one handle."""
        return self.group.label(self.first + index)

    def location_of(self, index: int) -> Location:
        """Location of the object of one handle."""
        if self.dma_buf:
            return self.dma_buf.location(self.first + index)
        return self.group.location_of(self.first + index)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Locations over which the handles are distributed round-robin."""
        if self.dma_buf:
            found = tuple(map(self.location_of, range(self.count)))
            return found[:1] if len(set(found)) == 1 else found
        locations = tuple(self.group.locations)
        first = self.first % len(locations)
        rotated = (locations[first:] + locations[:first])[: self.count]
        return rotated[:1] if len(set(rotated)) == 1 else rotated

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs in whose contexts dma-bufs are exported (fact 83)."""
        return gpus(self.locations) if self.dma_buf else frozenset()

    @property
    def resources(self) -> Iterator[Hashable]:
        """Resources whose handles are exported."""
        if self.dma_buf:
            each = map(self.dma_buf.resources, range(self.first, self.first + self.count))
            return chain.from_iterable(each)
        return ((self.group.noun, self.label(index)) for index in range(self.count))

    def continued_by(self, after: ExportGroup) -> bool:
        """Return whether handles of another export are of the same objects as these, and perhaps of more."""
        if self.commit != after.commit or (self.commit and self.count != after.count):
            return False
        if self.dma_buf and after.dma_buf and self.dma_buf.bytes != after.dma_buf.bytes:
            return False
        return self.via == after.via and all(map(eq, self.resources, after.resources))

    @property
    def exporter(self) -> ExportKind:
        """Kind of the exported objects, or their export as dma-bufs."""
        return DMA_BUFS[self.kind] if self.dma_buf else EXPORTABLE[self.kind]


def exported_resources(geometry: Geometry, exports: Collection[str]) -> Iterator[Hashable]:
    """Yield the resources whose handles are those of some exports of a process."""
    for name, group in geometry.of(ExportGroup).items():
        if name in exports:
            yield from group.resources


def touched_exports(before: Geometry, after: Geometry, undone: Container[Hashable]) -> Iterator[str]:
    """Yield the exports of a process whose objects a change releases, or replaces by others.

    `undone` are the resources that it releases. An export that `after` lacks is touched only by these.
    """
    exports = after.of(ExportGroup)
    for name, group in before.of(ExportGroup).items():
        replaced = name in exports and not group.continued_by(exports[name])
        if replaced or any(resource in undone for resource in group.resources):
            yield name


def emptied_exports(before: Geometry, after: Geometry, undone: Container[Hashable]) -> Iterator[str]:
    """Yield the exports that a writer has to commit again after a change that releases `undone` resources."""
    both = before.of(ExportGroup), after.of(ExportGroup)
    for name in touched_exports(before, after, undone):
        if name in both[1] and both[0][name].commit and both[1][name].commit:
            yield name
