"""Groups of states: absent chunks, what keeps their bytes, and by which mappings."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.types import Access, Location, LocationKind
from memtopo.geometry.access import granted, mappings
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.geometry.model import Geometry
from memtopo.kinds.pinned import PinnedGroup
from memtopo.machine import Machine


class Absent(NamedTuple):
    """Chunks of a group, from index `first` to `stop`, that have no memory in a state.

    `area` is the label of the area that keeps their bytes, in order, or the folder; None if they are dropped.
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


class HeapOffload(Struct, frozen=True):
    """Heap whose bytes a state keeps, in the pinned memory `inside`, a folder, or memory that grows with the heap."""

    heap: str
    inside: PinnedGroup | None
    folder: str
    path: Path

    @property
    def keeper(self) -> str:
        """Name of the pinned memory, or path of the folder; empty for memory that grows."""
        return self.inside.name if self.inside else self.folder


class StateGroup(Group, frozen=True):
    """One state and the chunks that are absent in it."""

    noun = "layout state"
    locations = ()  # a state has no memory of its own

    absent: tuple[Absent, ...]
    emptied: tuple[str, ...] = ()
    """Labels of the elastic ranges and heaps in which nothing is mapped."""
    heaps: tuple[HeapOffload, ...] = ()


class OffloadArea(Group, frozen=True):
    """Memory that keeps the bytes of offloaded chunks. It exists in all states, so that no switch has to create it.

    It is memory of its own, or a part of the pinned memory `inside` of which it is.
    """

    noun = "offload area"
    memory = True

    location: Location
    pinned: int | None
    """GPU in whose context page-locked memory is allocated; None for a chunk or a part."""
    inside: PinnedGroup | None = None

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


class OffloadFolder(Group, frozen=True):
    """Folder that keeps offloaded bytes in files; `size` is that of all chunks, or of the limit of a heap."""

    noun = "offload folder"
    locations = ()  # it has no memory


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


def offloading(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT802 for offloaded chunks that no copy of the driver can reach, or that another process owns."""
    if not any(each.area for state in geometry.of(StateGroup).values() for each in state.absent):
        return
    reached = copying_mappings(geometry)
    for state in geometry.of(StateGroup).values():
        for each in state.absent:
            if each.area is None:
                continue
            label = Label("declared here", each.group.path, "key")
            if each.group.origin:
                message = f"{each.group.name!r} is imported, so its bytes belong to another process"
                yield Diagnostic("MT802", message, each.path, "key", labels=(label,), help="drop it instead")
                continue
            labels = (each.group.label(index) for index in range(each.first, each.stop))
            if chunk := next((name for name in labels if name not in reached), None):
                message = f"{chunk!r} cannot be offloaded: this process uses no GPU that could copy it"
                help = "grant a GPU access to a range that it is mapped in, or drop it"
                yield Diagnostic("MT802", message, each.path, "key", labels=(label,), help=help)


def offloaded_in_place(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT809 for bytes that are offloaded to the memory in which they are."""
    areas = geometry.of(OffloadArea)
    for state in geometry.of(StateGroup).values():
        for each in state.absent:
            if each.area is None or each.area not in areas:
                continue
            area, indices = areas[each.area], range(each.first, each.stop)[: len(each.group.locations)]
            own = [index for index in indices if _same(each.group.location_of(index), area.location)]
            if own:
                chunk, location = each.group.label(own[0]), each.group.location_of(own[0])
                to = "pinned host memory" if area.pinned is not None or area.inside else str(area.location)
                message = f"{chunk!r} is on {location}, but is offloaded to {to}, which frees no memory there"
                labels = (Label("declared here", each.group.path, "key"),)
                help = "offload it to 'host:0', to 'pinned' memory or to another GPU"
                if location.kind is not LocationKind.GPU:
                    help = "omit it, or drop it"
                yield Diagnostic("MT809", message, each.path, labels=labels, help=help)


def offloaded_to_entries(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT717 for bytes that are offloaded to pinned memory that cannot keep them, beside all others."""
    areas = geometry.of(OffloadArea).values()
    places = kept_at(areas)
    for area in areas:
        entry, offset, what = area.inside, places[area.name][1], area.name.rpartition("@")[0]
        if entry is None:
            continue
        label, end = Label("declared here", entry.path, "key"), offset + area.size
        if entry.counted:
            message = f"{what!r} is offloaded to {entry.name!r}, which is counted, and no single object is named"
            help = "offload it to pinned memory without a count"
            yield Diagnostic("MT717", message, area.path, labels=(label,), help=help)
        elif entry.read_only:
            message = f"{what!r} is offloaded to {entry.name!r}, which is read-only"
            label = Label("declared here", (*entry.path, "read_only"))
            yield Diagnostic("MT717", message, area.path, labels=(label,), help="map its file for writing as well")
        elif end > entry.size:
            others = f" after {rounded(offset)} used by other chunks" if offset else ""
            message = f"{what!r} needs {rounded(area.size)} of {entry.name!r}{others}, which has {rounded(entry.size)}"
            label = Label(f"{exact(entry.size)} declared here", (*entry.path, "size"))
            help = f"write 'size: {exact(end)}' at least"
            yield Diagnostic("MT717", message, area.path, labels=(label,), help=help)


def offloaded_heaps(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT717, MT812 and MT815 for heaps in memory that keeps other bytes, too, or that not all states name."""
    users = {area.inside.name: area.path for area in geometry.of(OffloadArea).values() if area.inside}
    absent = (each for state in geometry.of(StateGroup).values() for each in state.absent)
    users |= {each.area: each.path for each in absent if each.area and each.area in geometry.of(OffloadFolder)}
    keepers: dict[str, HeapOffload] = {}
    for state in geometry.of(StateGroup).values():
        for each in state.heaps:
            first = keepers.setdefault(each.heap, each)
            if first.keeper != each.keeper:
                message = f"heap {each.heap!r} is offloaded to different memory in two states"
                label = Label("another one here", first.path)
                yield Diagnostic("MT812", message, each.path, labels=(label,), help="name the same in both")
            if each.keeper and users.setdefault(each.keeper, first.path) != first.path:
                own = f"heap {each.heap!r} needs its own {'folder' if each.folder else 'pinned memory'}"
                message = f"{own}, but {each.keeper!r} also keeps other bytes"
                label = Label("also kept there", users[each.keeper])
                other = f"{each.folder}-{each.heap}"
                help = f"write {other}" if each.folder else "declare pinned memory for it, or write 'pinned'"
                code = "MT815" if each.folder else "MT717"
                yield Diagnostic(code, message, each.path, labels=(label,), help=help)
            if each.inside and (each.inside.counted or each.inside.read_only):
                wrong = "counted" if each.inside.counted else "read-only"
                message = f"heap {each.heap!r} is offloaded to {each.inside.name!r}, which is {wrong}"
                yield Diagnostic("MT717", message, each.path, help="declare pinned memory for it, or write 'pinned'")


def offloaded_to_folders(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT815 for chunks that states offload to different folders, and for a folder in another one."""
    folders = geometry.of(OffloadFolder)
    for inner in folders.values():
        above = map(str, PurePosixPath(inner.name).parents)
        if outer := next((folders[each] for each in above if each in folders), None):
            message = f"folder {inner.name} is in {outer.name}, which also keeps bytes"
            labels = (Label("the other one here", outer.path),)
            beside = f"{outer.name}-{PurePosixPath(inner.name).name}"
            yield Diagnostic("MT815", message, inner.path, labels=labels, help=f"write {beside}")
    found: dict[str, Absent] = {}
    for each in (each for state in geometry.of(StateGroup).values() for each in state.absent if each.area in folders):
        for label in map(each.group.label, range(each.first, each.stop)):
            first = found.setdefault(label, each)
            if first.area != each.area:
                message = f"{label!r} is offloaded to {each.area}, and in another state to {first.area}"
                labels = (Label("the other one here", first.path),)
                yield Diagnostic("MT815", message, each.path, labels=labels, help=f"write {first.area} in both")
                break


def _same(chunk: Location, keeper: Location) -> bool:
    """Return whether memory that keeps bytes is, or may be, that of their chunk: `host` may be any node."""
    if chunk == keeper or LocationKind.GPU in (chunk.kind, keeper.kind):
        return chunk == keeper
    return LocationKind.HOST in (chunk.kind, keeper.kind)


class Window(Struct, frozen=True):
    """Range of memtopo's own, for copies by the GPU `device` of chunks that no GPU may write where a spec maps them."""

    name: str
    path: Path
    device: int
    size: int
    chunks: tuple[str, ...]


def windows(geometry: Geometry) -> list[Window]:
    """Windows of the chunks that are offloaded; they are mapped there for as long as they exist (fact 19)."""
    return _windows(geometry, _writable(geometry))


def _windows(geometry: Geometry, reached: Container[str]) -> list[Window]:
    found: dict[tuple[ChunkGroup, int], dict[str, None]] = {}
    offloaded = (each for state in geometry.of(StateGroup).values() for each in state.absent if each.area is not None)
    for group, first, stop, *_ in offloaded:
        for index in range(first, stop):
            own = group.location_of(index)
            device = own.id if own.kind is LocationKind.GPU else next(iter(geometry.gpus), -1)
            if not group.origin and group.label(index) not in reached and device in geometry.gpus:
                found.setdefault((group, device), {})[group.label(index)] = None
    return [
        Window(f"{group.name}@copies:gpu{device}", group.path, device, group.size, tuple(labels))
        for (group, device), labels in found.items()
    ]


def copying_mappings(geometry: Geometry) -> dict[str, tuple[str, int, int]]:
    """Range, offset and GPU by which each chunk can be copied: a GPU with write access, its own if possible."""
    found = _writable(geometry)
    for window in _windows(geometry, {*found}):
        found |= {
            label: (window.name, number * window.size, window.device) for number, label in enumerate(window.chunks)
        }
    return found


def _writable(geometry: Geometry) -> dict[str, tuple[str, int, int]]:
    """Range, offset and GPU of each chunk that a GPU may write where it is mapped."""
    access_of = granted(geometry)
    found: dict[str, tuple[str, int, int]] = {}
    for placements in geometry.placements.values():
        where = placements[0].range.label(placements[0].instance)
        for placement, index, offset, access in mappings(placements, access_of):
            gpus = [at.id for at, right in access if at.kind is LocationKind.GPU and right is Access.RW]
            if not gpus:
                continue
            own = placement.chunk.location_of(index)
            label = placement.chunk.label(index)
            if own.kind is LocationKind.GPU and own.id in gpus:
                found[label] = where, offset, own.id
            else:
                found.setdefault(label, (where, offset, gpus[0]))
    return found
