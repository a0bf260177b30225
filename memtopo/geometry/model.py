"""Geometry of a layout: the groups of a spec, their placements in ranges, and the access to them, as numbers.

Sizes follow from the granularities of a machine, and from the memory of each location that is left for shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Path
from memtopo.driver.types import WHOLE_HOST, Grant, Location, LocationKind, Properties, gpu
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup, Residence, from_outside, gpus
from memtopo.language.names import Reference
from memtopo.machine import CONTEXT_BYTES, Choice, Machine, Machines

Instance = tuple[str, int]
"""Reservation, as the name of its range and an index."""


Each = int | Literal["fill", "all"]
"""Number of mappings of an entry in each range: as many as fit, or one of every chunk."""


class Slice(Struct, frozen=True):
    """Chunks that a `map` entry names: `first` to before `stop` of a group, or no group if they are not known.

    With `each`, every range has that many mappings of the next chunks or, `in_turn`, the chunks round-robin.
    """

    group: ChunkGroup | None
    first: int
    stop: int
    reference: Reference
    offset: Size | None
    path: Path
    each: Each | None = None
    in_turn: bool = False
    stride: Size | None = None

    @property
    def number(self) -> int:
        """Number of chunks."""
        return self.stop - self.first

    @property
    def repeated(self) -> bool:
        """True if `each` maps one chunk again and again: one without a count, or one element of a counted one."""
        counted = self.group is not None and self.group.counted
        return not counted or (self.reference.first is not None and self.number == 1)


Indices = range
"""Indices of objects of a group."""


class Placement(Struct, frozen=True):
    """Equal chunks mapped consecutively in one reservation: `count` of a group, from index `first`, from `offset`.

    The index increases by `step` from one mapping to the next; 0 means one chunk that is mapped again and again.
    """

    range: RangeGroup
    instance: int
    offset: int
    chunk: ChunkGroup
    first: int
    count: int
    path: Path
    step: int = 1

    @property
    def end(self) -> int:
        """Offset of the first byte after the chunks."""
        return self.offset + self.count * self.chunk.size

    def index(self, nth: int) -> int:
        """Index of the chunk of a mapping, counted from 0."""
        return self.first + nth * self.step

    def chunks(self, numbers: Indices) -> Sequence[int]:
        """Indices of the chunks of some mappings, counted from 0."""
        if not self.step:
            return [self.first] * len(numbers)
        return range(self.index(numbers.start), self.index(numbers.stop), self.step * numbers.step)

    def mapped(self, index: int) -> Sequence[int]:
        """Mappings of the chunk with an index, counted from 0."""
        if not self.step:
            return range(self.count if index == self.first else 0)
        nth, rest = divmod(index - self.first, self.step)
        return range(nth, nth + 1) if not rest and 0 <= nth < self.count else range(0)

    @property
    def indices(self) -> Indices:
        """Indices of the chunks, each once."""
        return range(self.first, self.index(self.count - 1) + 1, self.step or 1)

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Indices of the chunks, each once, as half-open spans."""
        return self.spans_between(0, self.count)

    def spans_between(self, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """Indices of the chunks of the mappings from `start` to before `stop`, each once, as half-open spans."""
        if self.step > 1:
            return [(self.index(nth), self.index(nth) + 1) for nth in range(start, stop)]
        return ((self.index(start), self.index(stop - 1) + 1),)

    @property
    def where(self) -> Instance:
        """Reservation that the chunks are mapped into."""
        return self.range.name, self.instance


def distinct(several: Iterable[Indices], count: int) -> int:
    """Number of the indices below `count` that are in at least one of several."""
    flags = bytearray(count)
    for each in several:
        part = slice(each.start, each.stop, each.step)
        flags[part] = b"\1" * len(range(*part.indices(count)))
    return flags.count(1)


def mapped_once(placements: Sequence[Placement]) -> bool:
    """Return true if no chunk of a group, of which these are all placements, is mapped twice."""
    mappings = sum(each.count for each in placements)
    group = placements[0].chunk
    return mappings <= group.count and mappings == distinct((each.indices for each in placements), group.count)


class Part(Struct, frozen=True):
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


class AccessSpan(Struct, frozen=True):
    """Adjacent mappings in one reservation with equal access; `path` leads to the access of the first of them."""

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


class Geometry(Struct, frozen=True, dict=True):
    """Geometry of a layout: the groups of one process by class and name, and the placements of chunks.

    `placements` are sorted by offset in each reservation; `parts` are in the spec's order. Imported chunks, buffers and
    events are groups of their class. A multi-process layout has a geometry for each process by label
    (`server`, `reader.0`) and no groups of its own.
    """

    name: str
    devices: Mapping[str, Location] = {}
    groups: Mapping[type[Group], Mapping[str, Group]] = {}
    placements: Mapping[Instance, tuple[Placement, ...]] = {}
    parts: Mapping[str, tuple[Part, ...]] = {}
    unresolved: frozenset[tuple[str, str]] = frozenset()
    """(section, name) of entries that were left out or depend on such entries; rules do not report them."""
    path: Path = ()
    visible: tuple[Location, ...] = ()
    """GPUs that are visible to this process; empty for all."""
    processes: Mapping[str, Geometry] = {}
    choices: tuple[Choice, ...] = ()
    """Alternatives that fields of the spec take on the machine."""
    nodes: Mapping[str, tuple[str, ...]] = {}
    """Labels of the processes of each node, in order, by its name; empty for a layout of one host."""
    held: frozenset[str] = frozenset()
    """Labels of the processes that are held where others join them one by one; none if all are built together."""
    node: str | None = None
    """Node of the process that this is the geometry of; None for all processes, and in a layout of one host."""

    def place(self, location: Location) -> str:
        """Return a location as messages name it: `gpu0 of this machine`, or with the node of the process, `a/gpu0`."""
        found = location if location.node else location.on(self.node)
        return str(found) if found.node else f"{found} of this machine"

    def node_of(self, label: str) -> str | None:
        """Return the node of a process; None in a layout of one host."""
        return next((node for node, labels in self.nodes.items() if label in labels), None)

    def labels_beside(self, label: str) -> tuple[str, ...]:
        """Return the labels of the processes on the node of a process, its own among them; none for one host."""
        return self.nodes.get(self.node_of(label) or "", ())

    @property
    def is_held_part(self) -> bool:
        """True if other processes of the spec join those of this geometry, which are held."""
        return bool(self.held) and self.processes.keys() == self.held

    @property
    def held_part(self) -> Geometry:
        """Geometry of the processes that are held, which are all of them if none joins."""
        members = {label: each for label, each in self.processes.items() if label in self.held}
        return replace(self, processes=members) if members else self

    @property
    def by_node(self) -> Iterator[tuple[str | None, Geometry]]:
        """Geometry of the processes of each node; that of all of them, without a node, for a layout of one host."""
        if not self.nodes:
            yield None, self
        for node, labels in self.nodes.items():
            members = {label: self.processes[label] for label in labels}
            yield node, replace(self, processes=members, nodes={node: labels})

    def of(self, kind: type[G]) -> Mapping[str, G]:
        """Groups of one class by name."""
        found: Mapping[str, Any] = self.groups.get(kind, _NONE)
        return found

    def instances_of(self, base: type[G]) -> Iterator[G]:
        """Groups of a class and of those derived from it."""
        for kind, groups in self.groups.items():
            if issubclass(kind, base):
                yield from cast("Mapping[str, G]", groups).values()

    @property
    def every(self) -> Iterator[Group]:
        """All groups."""
        for groups in self.groups.values():
            yield from groups.values()

    @property
    def produced(self) -> bool:
        """True if a group is created by another API."""
        return any(group.produced for group in self.every)

    @property
    def imports_from_outside(self) -> bool:
        """True if a process imports objects from outside of the spec."""
        return any(from_outside(group) for member in self.members.values() for group in member.every)

    def has_unresolved(self, section: str) -> bool:
        """Return true if an entry of a section was left out or depends on such an entry."""
        return bool(self.unresolved) and any(left == section for left, _ in self.unresolved)

    @cached_property
    def gpus(self) -> list[int]:
        """Ordinals of the GPUs whose contexts are needed, by a group or for granted access."""
        granted = (grant for parts in self.parts.values() for part in parts for grant in part.grants)
        found = set(gpus(grant.location for grant in granted if grant.access))
        return sorted(found.union(*{group.contexts for group in self.every}))

    @property
    def idle_gpus(self) -> list[int]:
        """Ordinals of the GPUs whose contexts are needed to build, change and check the layout, but not to keep it."""
        kept = self.kept_contexts
        return [ordinal for ordinal in self.gpus if ordinal not in kept]

    @property
    def kept_contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs with an object that ends with its context."""
        return frozenset[int]().union(*(group.contexts for group in self.every if group.bound_to_context))

    @property
    def members(self) -> Mapping[str, Geometry]:
        """Geometry of every process by label; a single-process layout has one, with an empty label."""
        return self.processes or {"": self}


_PLAIN = 2 << 20


def granule(machine: Machine, properties: Properties) -> int:
    """Minimum granularity in bytes of chunks with exactly these properties, or of plain ones if it was not recorded."""
    entry = machine.granularity(properties) or machine.granularity(Properties(properties.location))
    return entry.minimum if entry else _PLAIN


def granularity_note(unit: int, locations: Iterable[Location]) -> str:
    """Note about the granularity of chunks at some locations."""
    names = ", ".join(str(location) for location in dict.fromkeys(locations))
    return f"the granularity of chunks with these properties on {names} is {exact(unit)} on this machine"


class MemoryBudget(Struct, frozen=True):
    """Memory of a location: `whole` bytes, of which everything but shares takes `used`.

    `thousandths` is the sum of the shares of all processes, in thousandths of a percent.
    """

    whole: int
    used: int
    thousandths: int

    @property
    def left(self) -> int:
        """Bytes that shares are of."""
        return max(0, self.whole - self.used)


class MemoryBudgets(Struct, frozen=True):
    """Memory by location, and the locations of each entry with a share; locations of unknown memory are left out.

    `spread` has the locations of each instance of a counted process, in the order of the round-robin distribution, by
    the path of the entry: its chunks are of the same size and number in all instances.
    """

    by_location: Mapping[Location, MemoryBudget]
    spread: Mapping[Path, Sequence[tuple[Location, ...]]]


def memory_budgets(geometry: Geometry, machines: Machines) -> MemoryBudgets:
    """Memory of each location that a geometry leaves besides its shares and the contexts of its processes.

    Locations have their nodes.
    """
    budgets: dict[Location, MemoryBudget] = {}
    spread: dict[Path, dict[tuple[Location, ...], None]] = {}
    for node, part in geometry.by_node:
        used: Counter[Location] = Counter()
        shares: Counter[Location] = Counter()
        for member in part.members.values():
            used.update({gpu(ordinal): CONTEXT_BYTES for ordinal in member.gpus})
            for group in member.every:
                if isinstance(group, ChunkGroup) and group.share and not group.origin:
                    shares.update(dict.fromkeys(group.distinct_locations, group.share.share.thousandths))
                    spread.setdefault(group.path, {})[tuple(at.on(node) for at in group.locations)] = None
                    continue
                exceeding = group.residence is Residence.EXCEEDING  # takes none from shares of GPUs (fact 79)
                for at, size in group.demand().items():
                    used[at] += 0 if exceeding and at.kind is LocationKind.GPU else size
        used[WHOLE_HOST] = sum(size for location, size in used.items() if location.kind is not LocationKind.GPU)
        for at, whole in known_memory(machines.of(node)).items():
            budgets[at.on(node)] = MemoryBudget(whole, used[at], shares[at])
    return MemoryBudgets(budgets, {path: tuple(found) for path, found in spread.items()})


def known_memory(machine: Machine) -> dict[Location, int]:
    """Bytes of each location whose memory is known: free on live GPUs, what may be page-locked on the host."""
    found = {gpu(ordinal): device.room for ordinal, device in enumerate(machine.devices)} | machine.node_bytes
    if machine.host_bytes:
        found[WHOLE_HOST] = machine.pinned_bytes or machine.host_bytes
    return found
