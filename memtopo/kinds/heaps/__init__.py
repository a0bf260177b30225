"""Heaps: reserved addresses in which a program allocates memory, each allocation one chunk.

A heap is an elastic range whose chunks have the sizes that the program asks for: access, states and drawings treat it
as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from pydantic import Field

from memtopo.common.units import Share, Size, exact, rounded
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Access, Location, LocationKind, Properties
from memtopo.geometry.groups import Backing, ChunkGroup, Group, RangeGroup, gpus
from memtopo.geometry.model import Geometry, granularity_note, granule
from memtopo.kinds.chunks.entry import of_shared_size
from memtopo.kinds.chunks.support import handle_types, properties, taken_handles
from memtopo.kinds.kind import Kind, ResolutionStage, Scope, StepDifference, Steps, Words
from memtopo.kinds.resolution import Refused, attempt, require_gpu, together, whole_granules
from memtopo.language.entries import Entry
from memtopo.language.fields import DeviceName, Handles, HeapLimit, PositiveAmount, Rounding
from memtopo.machine import Machine


class Heap(Entry):
    """Addresses in which a program allocates memory of any multiple of the granule."""

    location: DeviceName = Field(description="Location of the memory: a GPU, or a NUMA node of the host.")
    size: PositiveAmount = Field(
        description="Bytes of addresses to reserve, which use no memory: 64GiB, or 4096 granules."
    )
    limit: HeapLimit | None = Field(
        default=None,
        description="Maximum number of allocated bytes: 40GiB; or 90% of the memory left by all other entries; or "
        "the name of another heap, whose limit then applies to both together. By default only the addresses are a "
        "limit.",
    )
    handles: Handles = Field(
        default=[], description="Handle types for export to other processes: fd, fabric, both, or fabric else fd."
    )
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")


class HeapGroup(ChunkGroup, frozen=True):
    """Chunks of one heap, of any number of granules: up to `limit` granules in all, or as many as have room.

    `size` is the granule. A heap in a `budget` has the limit of the heap of that name together with it.
    """

    noun = "heap"
    addressed = True
    bound_to_context = True
    growing = True

    budget: str = ""

    @property
    def contexts(self) -> frozenset[int]:
        """The GPU of the memory, or the first GPU for memory of the host: the calls are made in its context."""
        return gpus(self.distinct_locations) or frozenset({0})

    def largest_shares(self) -> Mapping[Location, int]:
        """Largest number of granules at the location; none without a limit of its own."""
        return {} if self.limit is None or self.gone else {self.location_of(0): self.limit}

    @property
    def unlimited(self) -> bool:
        return self.limit is None and not self.budget

    @property
    def limit_bytes(self) -> int | None:
        """Largest number of bytes that may be allocated; None if there is no limit of its own."""
        return None if self.limit is None else self.limit * self.size


class BackupGroup(Group, frozen=True):
    """Page-locked memory that grows with a heap, and keeps its bytes in states that offload it to `pinned`.

    `size` is the limit of the heap, 0 if it has none.
    """

    noun = "backup"
    memory = True
    growing = True

    gpu: int

    def location_of(self, index: int) -> Location:
        """The host."""
        return WHOLE_HOST

    @property
    def contexts(self) -> frozenset[int]:
        """The GPU in whose context it is page-locked."""
        return frozenset({self.gpu})

    def largest_shares(self) -> Mapping[Location, int]:
        """As much as the heap may have, on the host; none without a limit of its own."""
        return {self.location_of(0): 1} if self.size else {}


class Heaps(Kind):
    """Section `heaps`."""

    section = "heaps"
    description = "Addresses in which a program allocates memory, by name."
    words = Words("heap", "heaps", "weights: {location: gpu0, size: 64GiB}")
    entry = Heap
    group = HeapGroup
    stage = ResolutionStage.GRANTED  # before access, for which its addresses are a range that nothing is mapped into
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": ("a program allocates the memory of a heap", "remove it here, or map chunks into a range")
    }

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        found: dict[str, HeapGroup | None] = {}
        entries, sharing = scope.spec.section(self.section), defaultdict[object, list[Heap]](list)
        for entry in entries.values():
            sharing[entry.limit].append(entry)
        for name, entry in entries.items():
            resolved = yield from attempt(_heap, scope, entry, scope.spec.at(self.section, name), sharing[name])
            found[name] = resolved and resolved[0]
            yield from scope.add(self, name, found[name])
            if resolved and name in scope.of(HeapGroup):
                yield from scope.add(self, name, resolved[1])
        for group in found.values():
            if group and group.budget:
                yield from attempt(_require_budget, scope, group, found)

    def steps(self, geometry: Geometry, machine: Machine) -> Steps:
        heaps, ranges = geometry.of(HeapGroup), geometry.of(RangeGroup)
        if not heaps:
            return
        from memtopo.kinds.heaps.steps import KeepHeap, OpenHeap
        from memtopo.kinds.ranges.elastic_steps import access_pieces

        for name, group in heaps.items():
            (piece,) = access_pieces(ranges[name], 0, geometry, machine)
            device, limit = copying_gpu(geometry, group), heaps.get(group.budget, group)
            given = group.path, name, ranges[name].size, group.granule, group.properties[0]
            yield KeepHeap(*given, piece.grants, piece.expected, device, limit.name, limit.limit_bytes)
        for name, group in heaps.items():
            yield OpenHeap(group.path, name, str(group.location_of(0)))

    def changes(self, difference: StepDifference) -> Steps:
        from memtopo.kinds.heaps.steps import heap_copies

        return heap_copies(difference)

    def refused_changes(self, before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
        """Yield MT813 for heaps that stay but for more than their limit."""
        for name in before.of(HeapGroup).keys() & after.of(HeapGroup).keys():
            if _kept(before, name) != _kept(after, name):
                message = f"the change would rebuild heap {name!r} and lose the allocations of programs"
                help = "change only its limit, or declare a heap with another name"
                yield Diagnostic("MT813", message, (*after.path, "heaps", name), "key", help=help)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(HeapGroup).values():
            if group.share:
                share, location, left, taken = group.share
                of = f"{share} of the {rounded(left)} left by all other entries on {location}"
                limit = group.limit_bytes or taken
                note = f"which are {of}" if limit == taken else f"all its addresses, less than {of}"
                yield f"heap {group.name}: up to {rounded(limit)}, {note}"


def _heap(scope: Scope, entry: Heap, path: Path, sharing: Sequence[Heap]) -> tuple[HeapGroup, RangeGroup]:
    """Group of the entry at `path`, whose limit some others are `sharing`, and that of its addresses.

    Raises `Refused`.
    """
    name = str(path[-1])
    location, handles = together(
        partial(scope.devices.resolve, entry.location, (*path, "location")),
        partial(taken_handles, scope, "heap", path, entry.handles, [entry.location]),
    )
    require_gpu(f"heap {name!r}", scope.machine, path, _GPU)
    given = Properties(location, handles)
    unit = granule(scope.machine, given)
    declared, note = entry.size.bytes(unit), granularity_note(unit, [location])
    rounding = entry.round is not None
    size = whole_granules("MT302", f"heap {name!r}", declared, unit, (*path, "size"), note, rounding=rounding)
    heap = HeapGroup(name, path, unit, unit, (given,), (location,), count=0, size=unit)
    limited = _limited(scope, heap, entry.limit, size + sum(each.size.bytes(unit) for each in sharing))
    backing = Backing((limited,), None, sized_by_program=True)
    return limited, RangeGroup(name, path, declared, unit, 0, 0, fixed=False, elastic=backing, size=size)


_GPU = "the work of a GPU is awaited before its memory is freed"


def _limited(scope: Scope, heap: HeapGroup, limit: Size | Share | str | None, size: int) -> HeapGroup:
    """The heap with its limit; it and the heaps that share the limit have `size` bytes of addresses.

    Raises `Refused`, with MT811 for a limit that is never used.
    """
    path = (*heap.path, "limit")
    if isinstance(limit, str):
        return replace(heap, budget=limit)
    if isinstance(limit, Share):
        most, share = of_shared_size(scope, heap.path, heap.locations, heap.granule, 1, limit, path)
        return replace(heap, limit=min(most, size) // heap.granule, share=share)
    if limit is None:
        return heap
    bytes_ = limit.bytes(heap.granule)
    if heap.granule <= bytes_ <= size:
        return replace(heap, limit=bytes_ // heap.granule)
    wrong = "more than its addresses" if bytes_ > size else "less than a granule"
    message = f"heap {heap.name!r}: a limit of {exact(bytes_)} is {wrong}"
    help = f"write {exact(heap.granule)} to {exact(size)}, or omit 'limit'"
    labels = (Label(f"{exact(size)} declared here", (*heap.path, "size")),)
    raise Refused(Diagnostic("MT811", message, path, labels=labels, help=help))


def _require_budget(scope: Scope, heap: HeapGroup, found: Mapping[str, HeapGroup | None]) -> None:
    """Raise `Refused` with MT201 or MT811 for a heap with the limit of none, or of one that cannot share it."""
    path, named = (*heap.path, "limit"), heap.budget
    if named not in found:
        others = [name for name in found if name != heap.name]
        raise scope.errors.undeclared("heap", named, path, others, reported=scope.spec.may_have("heaps", named))
    other = found[named]
    if other is None:
        return
    if other is heap:
        reason = "it is the heap itself"
    elif other.limit is None:
        reason = "it does not have its own limit"
    elif other.locations != heap.locations:
        reason = f"its memory is on {other.location_of(0)}, and that of {heap.name!r} on {heap.location_of(0)}"
    else:
        return
    message = f"heap {heap.name!r} cannot share the limit of {named!r}: {reason}"
    help = "write a size, or name a heap with a limit at the same location"
    raise Refused(Diagnostic("MT811", message, path, help=help))


def partial_access(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT308 for access to a part of a heap, which may divide an allocation."""
    for name in geometry.of(HeapGroup):
        for part in geometry.parts.get(name, ()):
            if part.offset or part.end != part.range.size:
                message = f"{name!r} is a heap, and access to a part of it would divide an allocation"
                help = "grant access to the whole heap, or declare two heaps"
                yield Diagnostic("MT308", message, part.path, help=help)
                break


def _kept(geometry: Geometry, name: str) -> tuple[object, ...]:
    """Properties of a heap that a change keeps: addresses, memory and access, but not the limit."""
    heap, addresses = geometry.of(HeapGroup)[name], geometry.of(RangeGroup)[name]
    grants = [part.grants for part in geometry.parts.get(name, ())]
    return addresses.size, heap.properties, heap.granule, heap.budget, grants


def copying_gpu(geometry: Geometry, group: HeapGroup) -> int:
    """Ordinal of the GPU that copies the bytes of a heap: its own, or the first one with write access to it."""
    own = group.location_of(0)
    granted = {grant for part in geometry.parts.get(group.name, ()) for grant in part.grants}
    writing = sorted(
        each.location.id for each in granted if each.access is Access.RW and each.location.kind is _GPU_KIND
    )
    return own.id if own.kind is _GPU_KIND else next(iter((*writing, *geometry.gpus)), 0)


_GPU_KIND = LocationKind.GPU

HEAPS = Heaps(rules=(partial(handle_types, kind=HeapGroup), partial(properties, kind=HeapGroup), partial_access))
