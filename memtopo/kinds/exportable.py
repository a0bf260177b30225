"""Exportable kinds: kinds whose objects one process exports by handles, and another imports."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from msgspec import Struct

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Handle, Via
from memtopo.driver.types import DmaBufFlags, Location
from memtopo.geometry.groups import ChunkGroup, Group, LocatedGroup, Origin, RangeGroup, gpus, in_turns
from memtopo.geometry.model import Placement
from memtopo.kinds.kind import Kind
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.objects import TryExport

L = TypeVar("L", bound=LocatedGroup)


class Refusals(Struct, frozen=True):
    """Reasons in messages for what is refused of exported objects; empty for what is not refused.

    They are about a size in `granules`, another `transport`, an export with a `commit`, whose memory is replaced, an
    import by the exporting process (`own`), of objects on a GPU that the importing process does not see (`unseen`), and
    from or by processes `outside` of the spec.
    """

    granules: str = "has no granules"
    transport: str = "legacy IPC supports buffers and events, but not VMM chunks (fact 31)"
    commit: str = ""
    own: str = ""
    unseen: str = ""
    outside: str = ""


IPC_OWN = "legacy IPC returns INVALID_CONTEXT (fact 31)"
"""Reason against an import via legacy IPC by the exporting process."""


class ImportKeys(NamedTuple):
    """Keys by which an import declares its objects.

    `required` ones are all declared outside of the spec, and may be for a process of it. `optional` ones are `parts`,
    `max` in the `count` of elastic chunks, which a holder lends and a program creates while the layout exists, and
    `accessed_by` of objects with access of their own, which may be of the host.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


class ExportKind(Kind):
    """Kind whose objects can be exported to other processes, and imported from them."""

    transports: ClassVar[tuple[Via, ...]]
    """Supported transports; messages suggest the first, which is the default of an import from outside of the spec."""
    trials: ClassVar[Mapping[Via, str]] = {}
    """Trials of a machine that show whether a transport works, apart from those of the kind's own rules."""
    import_keys: ClassVar[ImportKeys] = ImportKeys(("location", "size"))
    refusals: ClassVar[Refusals] = Refusals()

    def handle_types(self, group: Group) -> tuple[str, ...]:
        """Transports that the objects of a group are created for."""
        return self.transports

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        """Step that exports one handle."""
        raise NotImplementedError

    def handle(self, driver: Driver, layout: Layout, export: ExportGroup, index: int) -> Handle:
        """Export one handle, which the caller closes."""
        return self.export_step(export, index).export(driver, layout)

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> Group:
        """Group of an import from a process of the spec: of what each of its instances exports."""
        raise NotImplementedError

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> Group:
        """Group of an import from outside of the spec, as declared; `size` is 0 if no key declares bytes.

        Raises `Refused`.
        """
        raise NotImplementedError


class DmaBufMemory(Struct, frozen=True):
    """Memory behind the dma-bufs of the objects of a group: `size` bytes from `offset` of each.

    `placements` are the first one of each chunk, by which it has the same dma-buf in any order of entries, or those in
    ranges.
    """

    group: Group
    offset: int
    size: int
    flags: DmaBufFlags
    placements: tuple[Placement, ...] = ()

    @property
    def bytes(self) -> tuple[int, int, DmaBufFlags]:
        """Part of each object, and the mapping of it."""
        return self.offset, self.size, self.flags

    def place(self, index: int) -> tuple[str, int]:
        """Label of the range, or of an object with an address of its own, and the offset there of one object's memory.

        Raises `KeyError` for a chunk that is mapped nowhere.
        """
        if not isinstance(self.group, ChunkGroup):
            return self.group.label(index), self.offset
        for placement in self.placements:
            for nth in placement.mapped(index):
                label = placement.range.label(placement.instance)
                return label, placement.offset + nth * self.group.size + self.offset
        raise KeyError(self.group.label(index))

    def content(self, index: int) -> Iterator[tuple[int, str]]:
        """Offset in the range and label of each chunk behind one object; none for memory that is no chunk's."""
        if isinstance(self.group, ChunkGroup):
            yield self.place(index)[1] - self.offset, self.group.label(index)
        for placement in self.inside(index):
            for nth in range(placement.count):
                offset = placement.offset + nth * placement.chunk.size
                yield offset, placement.chunk.label(placement.index(nth))

    def inside(self, index: int) -> Iterator[Placement]:
        """Placements in one range."""
        if isinstance(self.group, RangeGroup):
            yield from (each for each in self.placements if each.instance == index)

    def location(self, index: int) -> Location:
        """Location of the memory of one object."""
        for placement in self.inside(index):
            return placement.chunk.location_of(placement.first)
        return self.group.location_of(index)

    def resources(self, index: int) -> Iterator[Hashable]:
        """Resources whose memory one dma-buf is of."""
        chunks = [("chunk", label) for _, label in self.content(index)]
        yield from chunks or [(self.group.noun, self.group.label(index))]

    def address(self, layout: Layout, index: int) -> int:
        """Address of one object in a layout; raises `KeyError` if it has no memory in its present state."""
        label, start = self.place(index)
        base = layout.address(label)
        for offset, chunk in self.content(index):
            if layout.mappings.get(base + offset) != chunk:
                raise KeyError(chunk)
        return base + start


class ExportGroup(Group, frozen=True):
    """Objects of one group from index `first`, exported as `count` handles in order. `size` is in bytes per object.

    Elastic chunks are lent: a holder creates them, up to `count`, for clients that have at most a `quota` of them each.
    """

    noun = "export"

    exporter: ExportKind
    """Kind of the exported objects, or their export as dma-bufs."""
    via: Via
    group: Group
    first: int
    commit: bool = False
    """True if a writer commits the content before others may import it."""
    dma_buf: DmaBufMemory | None = None
    """Memory behind the objects, which are dma-bufs; None for any other transport."""
    quota: int | None = None

    @property
    def lends(self) -> bool:
        """True if each handle is lent to one client at a time."""
        return self.group.growing

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
    def terms(self) -> dict[str, str]:
        """Properties that importers outside of the spec rely on, by the keys that declare them."""
        lent = "up to " * self.lends
        found = {"kind": self.group.noun, "via": self.via, "count": f"{lent}{self.count:,}", "size": exact(self.size)}
        return {**found, "location": ", ".join(map(str, in_turns(self.locations)))}

    @property
    def resources(self) -> Iterator[Hashable]:
        """Resources whose handles are exported."""
        if self.dma_buf:
            each = map(self.dma_buf.resources, range(self.first, self.first + self.count))
            return chain.from_iterable(each)
        if self.lends:
            return iter([pool_resource(self.group.name)])
        return ((self.group.noun, self.label(index)) for index in range(self.count))

    @property
    def memory_resources(self) -> Iterator[Hashable]:
        """Resources whose memory importers may map: those of the handles, and the chunks that a pool keeps."""
        kept = range(self.group.count if self.lends else 0)
        return chain(self.resources, ((self.group.noun, self.group.label(index)) for index in kept))

    def handle_fields(self, index: int) -> tuple[Path, str, str, str, str, int]:
        """Fields that the steps which export one handle have in common."""
        return self.path, self.name, self.group.noun, self.label(index), self.via, self.count

    def continued_by(self, after: ExportGroup) -> bool:
        """Return whether handles of another export are of the same objects as these, and perhaps of more."""
        if self.commit != after.commit or (self.commit and self.count != after.count):
            return False
        if self.dma_buf and after.dma_buf and self.dma_buf.bytes != after.dma_buf.bytes:
            return False
        return self.via == after.via and all(map(eq, self.resources, after.resources))


def pool_resource(name: str) -> Hashable:
    """Return the resource that a pool of elastic chunks is, by the name of its entry."""
    return "elastic chunks", name


class Imported(Struct, frozen=True):
    """Entry of an import, resolved apart from its kind: `count` objects, distributed round-robin over `locations`."""

    path: Path
    count: int
    counted: bool
    locations: tuple[Location, ...]
    origin: Origin
    parts: Mapping[str, Size | str] | None = None
    """Declared parts of each object, of an import from outside of the spec."""
    accessed_by: tuple[Location, ...] = ()
    """Declared devices with access, besides the location of the objects."""
    home: int = 0
    """Ordinal of a GPU whose context is used to import objects of the host."""
    limit: int | None = None
    """Largest number of elastic chunks that a holder lends, none of which exist at first; None for other objects."""

    @property
    def name(self) -> str:
        """Name of the entry."""
        return str(self.path[-1])

    @property
    def common(self) -> dict[str, Any]:
        """Fields that all groups have in common."""
        return {"count": self.count, "counted": self.counted, "origin": self.origin}

    def located(self, group: type[L], size: int, **properties: Any) -> L:
        """Group of a class with these objects, of `size` bytes each."""
        return group(self.name, self.path, self.locations, size=size, **self.common, **properties)
