"""States: physical memory that a layout gives back for a while, under addresses that stay."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from memtopo.common.units import by_key, rounded_up
from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Location, Properties
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, granule
from memtopo.kinds.heaps import BackupGroup, HeapGroup, copying_gpu
from memtopo.kinds.kind import Keys, Kind, ResolutionStage, Scope, StepDifference, Words
from memtopo.kinds.pinned import PINNED_MEMORY, PinnedGroup
from memtopo.kinds.resolution import Refused, Resolution, attempt, indices, refuse_growing
from memtopo.kinds.states.groups import (
    Absent,
    HeapOffload,
    OffloadArea,
    OffloadFolder,
    StateGroup,
    copying_mappings,
    kept_at,
    offloaded_heaps,
    offloaded_in_place,
    offloaded_to_entries,
    offloaded_to_folders,
    offloading,
    windows,
)
from memtopo.language.entries import Entry
from memtopo.language.fields import ChunkReference, KeeperName
from memtopo.language.names import AWAKE, NamedDevice, Reference
from memtopo.language.scalars import one_or_more
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.runs import StepRun
    from memtopo.kinds.step import Step


class State(Entry):
    """State in which some physical memory is gone; its addresses stay reserved."""

    drop: Annotated[
        list[ChunkReference], BeforeValidator(one_or_more, json_schema_input_type=ChunkReference | list[ChunkReference])
    ] = Field(
        default=[], description="Ranges or chunks whose memory is released, and recreated later with undefined bytes."
    )
    offload: dict[ChunkReference, KeeperName] = Field(
        default={},
        description="Ranges or chunks whose memory is released, with the memory that keeps their bytes: host, "
        "host:0, a GPU, pinned for memory of cuMemHostAlloc, or the name of an entry of pinned; or the path of a "
        "folder: /nvme/weights.",
    )


PINNED = "pinned"
"""Name of page-locked host memory among the locations of offloaded bytes, unless a device has that name."""


class _Keeper(NamedTuple):
    """Location that keeps offloaded bytes, in page-locked memory, in that of an entry, or in a chunk; or a folder."""

    location: Location
    pinned: bool = False
    entry: PinnedGroup | None = None
    folder: str = ""

    @property
    def word(self) -> str:
        """Name of the keeper, as a spec writes it."""
        if self.folder:
            return self.folder
        return self.entry.name if self.entry else PINNED if self.pinned else str(self.location)


class States(Kind):
    """Section `states`."""

    section = "states"
    description = "States without some of the memory: asleep: {offload: {weights: host:0}, drop: [kv]}."
    words = Words(
        "state", "absent chunks of states", "asleep: {drop: [cache]}", referred="but a state can drop only chunks"
    )
    entry = State
    group = StateGroup
    keys = Keys.OWN
    stage = ResolutionStage.STATES

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        for name, entry in scope.spec.section(self.section).items():
            group = yield from self._state(scope, entry, scope.spec.at(self.section, name))
            yield from scope.add(self, name, group)
        yield from self._folders(scope)
        absent = (each for state in scope.of(StateGroup).values() for each in state.absent)
        total = sum(each.stop - each.first for each in absent)
        if (yield from scope.too_many({self.section: total})):
            scope.leave_out(self)

    def _state(self, scope: Scope, entry: State, path: Path) -> Resolution[StateGroup | None]:
        name = str(path[-1])
        if name == AWAKE:
            message = f"{AWAKE!r} is the name of the layout without any state"
            yield Diagnostic("MT801", message, path, "key", help="choose another name")
            return None
        absent: list[Absent] = []
        complete = True
        dropped = [(reference, (*path, "drop", index)) for index, reference in enumerate(entry.drop)]
        for reference, where in dropped:
            found = yield from attempt(_chunks, scope, reference, where, "value")
            complete &= found is not None
            absent += (Absent(*each, None, where) for each in found or ())
        emptied = {label: where for reference, where in dropped for label in _elastic_ranges(scope, reference)}
        absent += _released(scope, emptied, {each.group.name for each in absent})
        heaps: list[HeapOffload] = []
        for reference, device in entry.offload.items():
            where = (*path, "offload", str(reference))
            if reference.name in scope.of(HeapGroup):
                heap = yield from attempt(_offloaded_heap, scope, reference.name, device, where)
                complete &= heap is not None
                heaps += [heap] if heap else []
                if heap and not heap.keeper and heap.heap not in scope.of(BackupGroup):
                    group = scope.of(HeapGroup)[heap.heap]
                    gpu = copying_gpu(scope.geometry(), group)
                    backup = BackupGroup(group.name, where, gpu, size=group.limit_bytes or 0)
                    yield from scope.add(self, group.name, backup)
                continue
            found = yield from attempt(_chunks, scope, reference, where, "key")
            keeper = yield from attempt(_keeper, scope, device, where)
            complete &= found is not None and keeper is not None
            if found and keeper:
                for each in found:
                    absent.append((yield from self._offloaded(scope, *each, keeper, where)))
        if not complete or (yield from _contradicting(absent, emptied, heaps)):
            return None
        return StateGroup(name, path, tuple(absent), (*emptied, *(each.heap for each in heaps)), tuple(heaps))

    def _offloaded(
        self, scope: Scope, group: ChunkGroup, first: int, stop: int, keeper: _Keeper, path: Path
    ) -> Resolution[Absent]:
        """Absent chunks with their area, which states that offload the same chunks to the same memory share."""
        whole = (first, stop) == (0, group.count)
        location, pinned, entry, folder = keeper
        if folder:
            return Absent(group, first, stop, folder, path)
        label = f"{group.name if whole else Reference(group.name, first, stop)}@{keeper.word}"
        if label not in scope.of(OffloadArea):
            unit = 1 if pinned or entry else granule(scope.machine, Properties(location))
            size = rounded_up((stop - first) * group.size, unit)
            device = next(iter(scope.geometry().gpus), 0) if pinned else None
            yield from scope.add(self, label, OffloadArea(label, path, location, device, entry, size=size))
        return Absent(group, first, stop, label, path)

    def _folders(self, scope: Scope) -> Iterator[Diagnostic]:
        """Add the folders that states name, each with the bytes of all that is offloaded to it."""
        found: dict[str, dict[str, tuple[int, Path]]] = {}
        for state in scope.of(StateGroup).values():
            for each in state.absent:
                if each.area and each.area not in scope.of(OffloadArea):
                    labels = map(each.group.label, range(each.first, each.stop))
                    found.setdefault(each.area, {}).update(dict.fromkeys(labels, (each.group.size, each.path)))
            for heap in state.heaps:
                if heap.folder:
                    limit = scope.of(HeapGroup)[heap.heap].limit_bytes or 0
                    found.setdefault(heap.folder, {})[heap.heap] = limit, heap.path
        for folder, kept in found.items():
            path = next(iter(kept.values()))[1]
            size = sum(each for each, _ in kept.values())
            yield from scope.add(self, folder, OffloadFolder(folder, path, size=size))

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        if geometry.groups.keys().isdisjoint((OffloadArea, OffloadFolder)):
            return
        from memtopo.kinds.states.folders import OpenFolder
        from memtopo.kinds.states.steps import area_steps, window_steps

        yield from (OpenFolder(each.path, each.name, each.size) for each in geometry.of(OffloadFolder).values())
        for area in geometry.of(OffloadArea).values():
            if not area.inside:
                yield from area_steps(area, area.pinned, geometry, machine)
        for window in windows(geometry):
            yield from window_steps(window, geometry, machine)

    def variants(
        self, geometry: Geometry, items: Sequence[Step | StepRun]
    ) -> Iterator[tuple[str, list[Step | StepRun]]]:
        """Items of the plan of each state, by its name."""
        if not geometry.of(StateGroup):
            return
        from memtopo.kinds.heaps.steps import offloaded_heap
        from memtopo.kinds.runs import remaining
        from memtopo.kinds.states.folders import InFolder
        from memtopo.kinds.states.steps import Offloaded, Place

        reached, areas = copying_mappings(geometry), geometry.of(OffloadArea)
        places = kept_at(areas.values())
        for state in geometry.of(StateGroup).values():
            gone: set[Hashable] = {("elastic range", label) for label in state.emptied}
            gone |= {("elastic chunks", each.group.name) for each in state.absent if each.group.growing}
            kept: list[Step | StepRun] = []
            for each in state.absent:
                for number, index in enumerate(range(each.first, each.stop)):
                    label = each.group.label(index)
                    gone.add(("chunk", label))
                    if each.area is not None:
                        where, offset, device = reached[label]
                        size = each.group.size
                        if each.area not in areas:
                            kept.append(InFolder(each.path, label, size, Place(where, offset), device, each.area))
                            continue
                        area = areas[each.area]
                        place = Place(*places[each.area]).after(number * size)
                        kept.append(Offloaded(each.path, label, size, place, Place(where, offset), device, area.keeper))
            kept += map(offloaded_heap, state.heaps)
            yield state.name, [*remaining(items, gone), *kept]

    def changes(self, difference: StepDifference) -> Iterator[Step]:
        from memtopo.kinds.states.folders import folder_copies
        from memtopo.kinds.states.steps import copies

        yield from copies(difference)
        yield from folder_copies(difference)


def _chunks(scope: Scope, reference: Reference, path: Path, at: At) -> list[tuple[ChunkGroup, int, int]]:
    """Chunks of a reference as group, first index and end: of a chunk's entry, or all that is mapped in ranges."""
    if reference.name in scope.of(HeapGroup):
        return []
    if group := scope.of(ChunkGroup).get(reference.name):
        if at == "key" or reference.first is not None:
            refuse_growing(group, "states can only drop all of them", path, at=at)
        return [(group, *indices(reference, group, path, at=at))]
    if other := scope.mappable(reference.name):
        raise Refused(_no_memory(other, path, at))
    if ranges := scope.of(RangeGroup).get(reference.name):
        return _chunks_in(scope, ranges, reference, path, at)
    declared = any(scope.spec.may_have(section, reference.name) for section in ("chunks", "ranges", "imports", "heaps"))
    reported = declared or scope.may_be_unusable(reference.name, STATES, path, at)
    only_chunks = (each for each in scope.spec.names("chunks") if not scope.spec.may_have("ranges", each))
    # Some of them are read, for some of the errors.
    known = chain(scope.spec.names("ranges"), scope.spec.names("heaps"), only_chunks)
    raise scope.errors.undeclared("range or chunk", reference.name, path, known, at, reported=reported)


def _chunks_in(
    scope: Scope, ranges: RangeGroup, reference: Reference, path: Path, at: At
) -> list[tuple[ChunkGroup, int, int]]:
    """Chunks that are mapped in the ranges of a reference, each with its first index and its end."""
    span = indices(reference, ranges, path, at=at)
    if at == "key" and ranges.elastic:
        message = f"{ranges.name!r} is elastic, so a state can only drop the chunks that a program has mapped in it"
        label = Label("declared here", (*ranges.path, "elastic"))
        raise Refused(Diagnostic("MT804", message, path, "key", labels=(label,), help="list it under 'drop'"))
    placed = [each for i in range(*span) for each in scope.placements.get((ranges.name, i), ())]
    if without := next((each.chunk for each in placed if not each.chunk.memory), None):
        raise Refused(_no_memory(without, path, at))
    return list(dict.fromkeys((each.chunk, *span) for each in placed for span in each.spans))


def _no_memory(group: ChunkGroup, path: Path, at: At) -> Diagnostic:
    """Return MT706 for an object that is mapped as a chunk is, but has no memory of its own."""
    message = f"{group.name!r} has no memory that a state could drop or offload"
    label = Label("declared here", group.path, "key")
    return Diagnostic("MT706", message, path, at, labels=(label,), help="name the chunks that are bound to it")


def _elastic_ranges(scope: Scope, reference: Reference) -> Iterator[str]:
    """Labels of the elastic ranges that a reference names."""
    group = scope.of(RangeGroup).get(reference.name)
    if group and group.elastic:
        first, stop = (0, group.count) if reference.first is None else (reference.first, reference.stop or 0)
        yield from (group.label(index) for index in range(first, stop))


def _released(scope: Scope, emptied: Mapping[str, Path], absent: set[str]) -> Iterator[Absent]:
    """Elastic chunks that go with the ranges at some paths, since no other elastic range has them."""
    users: dict[str, set[str]] = {}
    for group in scope.of(RangeGroup).values() if emptied else ():
        for chunk in group.elastic.chunks if group.elastic else ():
            users.setdefault(chunk.name, set()).update(group.label(index) for index in range(group.count))
    for name, labels in users.items():
        if name not in absent and name in scope.of(ChunkGroup) and labels <= emptied.keys():
            chunks = scope.of(ChunkGroup)[name]
            yield Absent(chunks, 0, chunks.count, None, emptied[min(labels)])


def _keeper(scope: Scope, device: NamedDevice, path: Path) -> _Keeper:
    """Location, or entry of pinned memory, that a spec names for offloaded bytes; a device comes before an entry."""
    section = PINNED_MEMORY.section
    if isinstance(device, str) and device.startswith("/"):
        return _Keeper(WHOLE_HOST, folder=device)
    if isinstance(device, str) and not scope.spec.may_have("devices", device):
        if device == PINNED:
            return _Keeper(WHOLE_HOST, pinned=True)
        if entry := scope.of(PinnedGroup).get(device):
            return _Keeper(entry.location_of(0), entry=entry)
        if scope.spec.may_have(section, device):
            raise Refused
    return _Keeper(scope.devices.resolve(device, path, also=(PINNED, *scope.spec.section(section))))


def _offloaded_heap(scope: Scope, name: str, device: NamedDevice, path: Path) -> HeapOffload:
    """Memory that keeps the bytes of a heap. Raises `Refused` with MT812 for memory that cannot."""
    keeper = _keeper(scope, device, path)
    if not (keeper.pinned or keeper.entry or keeper.folder):
        message = f"{name!r} is a heap, which is offloaded to page-locked memory, and not to {keeper.word}"
        help = f"write {PINNED}, the name of pinned memory, or the path of a folder"
        raise Refused(Diagnostic("MT812", message, path, help=help))
    return HeapOffload(name, keeper.entry, keeper.folder, path)


def _contradicting(
    absent: Sequence[Absent], emptied: Mapping[str, Path], heaps: Sequence[HeapOffload]
) -> Resolution[bool]:
    """Yield MT204 and return true if a chunk or a heap is listed twice in one state."""
    if twice := next((each for each in heaps if each.heap in emptied), None):
        labels = (Label("dropped here", emptied[twice.heap]),)
        message = f"{twice.heap!r} is listed twice in this state"
        yield Diagnostic("MT204", message, twice.path, "key", labels=labels, help="keep one of them")
        return True
    for several in by_key((each.group.name, each) for each in absent).values():
        several.sort(key=lambda each: each.first)
        for one, other in pairwise(several):
            if other.first < one.stop:
                message = f"{other.group.label(other.first)!r} is listed twice in this state"
                labels = (Label("first listed here", one.path, one.at),)
                yield Diagnostic("MT204", message, other.path, other.at, labels=labels, help="keep one of them")
                return True
    return False


STATES = States(rules=(offloading, offloaded_in_place, offloaded_to_entries, offloaded_to_folders, offloaded_heaps))
