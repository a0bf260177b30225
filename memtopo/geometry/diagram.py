"""A layout as a diagram, as data: the mappings of each range, and the chunks that use each memory.

Sizes and offsets are in bytes, names are those of the spec, devices are `gpu0`, `host`, `host:0`. The size of a diagram
does not grow with the number of equal chunks or equal ranges. Every drawing, in the terminal or in a document, is made
from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from memtopo.common.text import first_words
from memtopo.common.units import NamedPart
from memtopo.diagnostics.model import Path

MOST_NAMES = 8
"""Names of one device that a drawing shows."""


class DeviceAccess(Struct, frozen=True):
    """Access of one device: `r` or `rw`."""

    device: str
    access: str


class MappingSpan(Struct, frozen=True):
    """A hole, which has no chunk, or equal adjacent mappings with the same access.

    `count` mappings of `bytes_each`, of the chunks `first` to `last`. `chunk` is the mark of these chunks: their entry
    in the spec, or the first entry where one span covers many entries of one chunk each; the same mark means the same
    chunks everywhere in a diagram. `index` is the number of the first chunk in its entry. The chunks are on `locations`
    round-robin, or in an order that the drawing does not show if they are `mixed`. The n-th of equal ranges has the
    chunks `n * step` further on; 0 means the same chunks in all. From one mapping to the next, the index increases by
    `interval`; 0 means that all mappings are of one chunk.
    `elsewhere` counts the other mappings of these chunks in the layout. `origin` is the source of imported chunks as
    the spec writes it: `server.weights`; of many exports in one span, the first and the last one. Chunks imported from
    a process of the same spec have the mark that they have there. `parts` are those of each chunk.
    """

    offset: int
    size: int
    chunk: str = ""
    first: str = ""
    last: str = ""
    index: int = 0
    count: int = 0
    bytes_each: int = 0
    step: int = 0
    elsewhere: int = 0
    locations: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    access: tuple[DeviceAccess, ...] = ()
    path: Path = ()
    origin: str = ""
    interval: int = 1
    parts: tuple[NamedPart, ...] = ()
    mixed: bool = False

    def indices(self, ranges: int) -> tuple[int, int]:
        """Least index of the chunks of this span in `ranges` equal ranges, and the one after the largest."""
        return self.index, self.index + (self.count - 1) * self.interval + self.step * (ranges - 1) + 1


class RangeDiagram(Struct, frozen=True):
    """`count` neighbouring ranges of one entry, `first` to `last`, with the same content.

    Each has `size` bytes, of which `mapped` are mapped. `pieces` are the spans of the first range in order of offset;
    they cover its whole size. In an `elastic` range, a program maps the chunks of these entries in the holes, or in
    place of the chunk `zero`, which is mapped wherever nothing else is; they have the access of one of
    `elastic_access`, by part.
    Ranges with a `same_address` have it in all processes of their entry.
    """

    first: str
    last: str
    count: int
    size: int
    mapped: int
    pieces: tuple[MappingSpan, ...]
    path: Path
    elastic: tuple[str, ...] = ()
    zero: str = ""
    same_address: bool = False
    elastic_access: tuple[tuple[DeviceAccess, ...], ...] = ()


class MemoryShare(Struct, frozen=True):
    """Equal chunks or buffers of one mark in one memory; `chunk` is the mark, as in a span.

    `label` says what they are if the drawing shows them here alone.
    """

    chunk: str
    count: int
    bytes_each: int
    size: int
    path: Path
    label: str = ""


class MemoryDiagram(Struct, frozen=True):
    """One memory with chunks: that of a GPU, a NUMA node or the host; `names` are the spec's names for it.

    The `total` of the host or a node is None if the machine's record does not have it. `taken` is what other processes
    and contexts of a live device had in use; it is unknown for a recorded one. `free` is what remains of the total
    besides the contexts of the layout; of the host, besides what its nodes have. With `growing`, a program creates
    chunks, and `used` are the bytes with as many as it may create.
    """

    device: str
    names: tuple[str, ...]
    used: int
    total: int | None
    taken: int | None
    free: int | None
    shares: tuple[MemoryShare, ...]
    growing: bool = False

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names that a drawing shows: the first ones, and the number of the others."""
        return tuple(first_words(self.names, MOST_NAMES))


class Resource(Struct, frozen=True):
    """`count` equal resources of one entry that are in no range, such as buffers and events.

    `kind` is the word for one of them (`buffer`, `event`), `name` the entry, `mark` the mark of its memory. `locations`
    and `origin` are as in a span. `notes` are further properties in words. `parts` are resources inside of this one in
    the order of the spec, each from its `offset` on; they may overlap, and need not cover it.

    `noun` is the kind in a sentence where `kind` alone is no noun (`managed memory`). An `external` resource was made
    by another API; it came by `via` if that is to be shown. A resource with `bound` is no object: the memory of these
    marks is bound to the resource or import `target`.
    """

    drawn: ClassVar = frozenset({"noun", "external", "via", "target", "bound"})
    kind: str
    name: str
    mark: str = ""
    count: int = 1
    bytes_each: int = 0
    locations: tuple[str, ...] = ()
    origin: str = ""
    notes: tuple[str, ...] = ()
    parts: tuple[Resource, ...] = ()
    offset: int = 0
    path: Path = ()
    noun: str = ""
    external: bool = False
    via: str = ""
    target: str = ""
    bound: tuple[str, ...] = ()


class Export(Struct, frozen=True):
    """`count` handles of one export, of the chunks, buffers or events `first` to `last` (`kind`), by `via`.

    `mark` is the mark of their memory.
    """

    name: str
    kind: str
    mark: str
    first: str
    last: str
    via: str
    count: int
    bytes_each: int
    path: Path


class HandleFlow(Struct, frozen=True):
    """Handles that go from the `export` of `source` to the import `name` of `target`.

    `source` and `target` are the `first` of a process diagram each, or empty in a layout of one process; with
    `outside`, `source` is a holder or a socket outside of the spec. Each importing process takes `count` handles from
    each of `processes` processes of the source. Objects of another API are of kind `memory` or `semaphore`, always come
    from outside, and are an `external` resource of the target with the same name.
    """

    drawn: ClassVar = frozenset({"external"})
    source: str
    export: str
    target: str
    name: str
    kind: str
    via: str
    count: int
    bytes_each: int
    path: Path
    outside: bool = False
    processes: int = 1
    external: bool = False


class ProcessDiagram(Struct, frozen=True):
    """`count` processes of one entry with the same content: `first`, and each `step`-th from there up to `last`.

    `picture` is the diagram of the first one; its memory is what that process creates itself. They are on one `node`,
    if the layout has nodes; then the devices of the diagram have their nodes: `a/gpu0`. Processes that are `alike`
    differ by their numbers and GPUs.
    """

    drawn: ClassVar = frozenset({"alike"})
    first: str
    last: str
    count: int
    step: int
    picture: Diagram
    path: Path
    node: str = ""
    alike: bool = False


class Diagram(Struct, frozen=True):
    """One layout: its ranges in the order of the spec, and each memory that it uses.

    A multi-process layout has a diagram for each group of equal processes. Its own `memory` is the sum of theirs, its
    `flows` are all of theirs, and its marks begin with the name of the process that owns the memory: `server: w`. In a
    layout of one process, `flows` are those from outside. `choices` are the alternatives that the layout takes on the
    machine, a line for each, with the reason; there is a line for the number of choices that are left out.
    """

    ranges: tuple[RangeDiagram, ...]
    memory: tuple[MemoryDiagram, ...]
    things: tuple[Resource, ...] = ()
    exports: tuple[Export, ...] = ()
    processes: tuple[ProcessDiagram, ...] = ()
    flows: tuple[HandleFlow, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def pictures(self) -> tuple[Diagram, ...]:
        """Diagrams of the processes."""
        return tuple(each.picture for each in self.processes)


def marks(diagram: Diagram) -> Iterator[str]:
    """The marks of memory in the order in which every drawing assigns letters, with repetitions."""
    for each in (*diagram.pictures, diagram):
        yield from (span.chunk for range_ in each.ranges for span in range_.pieces if span.chunk)
        yield from (thing.mark for thing in each.things if thing.mark)
        yield from (export.mark for export in each.exports if export.mark)
        yield from (share.chunk for memory in each.memory for share in memory.shares)


def devices(diagram: Diagram) -> Iterator[str]:
    """The devices with memory in the order in which every drawing assigns colours, with repetitions."""
    for each in (diagram, *diagram.pictures):
        yield from (memory.device for memory in each.memory)
        yield from (name for range_ in each.ranges for span in range_.pieces for name in span.locations)
        yield from (name for thing in each.things for name in thing.locations)
