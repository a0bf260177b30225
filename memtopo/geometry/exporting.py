"""What one process has beside ranges and chunks: its buffers and events, and what it hands to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry.groups import (
    BufferGroup,
    ChunkGroup,
    EventGroup,
    ExportGroup,
    ExternalObject,
    Imported,
    ImportedSemaphore,
    Kind,
    ManagedAllocation,
    Via,
)
from memtopo.geometry.naming import Devices
from memtopo.geometry.placing import indices
from memtopo.geometry.sizing import resolved
from memtopo.geometry.unmapped import KINDS, explained
from memtopo.spec import Buffer, Event, Export, Spec

BLOCK = 2 << 20
"""What legacy IPC shares: all of a block becomes visible, whatever else is in it, so exported buffers fill theirs."""

_ONE = {
    "ranges": "a range", "chunks": "a chunk", "buffers": "a buffer", "events": "an event", "imports": "an import",
    **KINDS,
}  # fmt: skip
_TRANSPORTS: dict[Kind, tuple[Via, ...]] = {"chunk": ("fd", "fabric"), "buffer": ("ipc",), "event": ("ipc",)}


@dataclass(slots=True)
class Shared:
    """What one process has besides its ranges and own chunks; imports stand beside what it creates itself."""

    chunks: dict[str, ChunkGroup] = field(default_factory=dict)
    buffers: dict[str, BufferGroup] = field(default_factory=dict)
    events: dict[str, EventGroup] = field(default_factory=dict)
    exports: dict[str, ExportGroup] = field(default_factory=dict)
    managed: dict[str, ManagedAllocation] = field(default_factory=dict)
    external: dict[str, ExternalObject] = field(default_factory=dict)
    semaphores: dict[str, ImportedSemaphore] = field(default_factory=dict)
    unsure: set[tuple[str, str]] = field(default_factory=set)

    @property
    def others(self) -> dict[str, str]:
        """What the names are of that are no chunks: "a buffer"."""
        return dict.fromkeys(self.buffers, _ONE["buffers"]) | dict.fromkeys(self.events, _ONE["events"])

    def put(self, section: str, name: str, run: object) -> None:
        """Add what an entry became; None is one whose fault was told."""
        if run is None:
            self.unsure.add((section, name))
        else:
            getattr(self, section)[name] = run


def declare(spec: Spec, chunks: Mapping[str, ChunkGroup], devices: Devices, faults: list[Diagnostic]) -> Shared:
    """A process's own buffers and events, and its exports; what has a fault of its own is unsure."""
    shared = Shared(chunks=dict(chunks))
    exported = {reference.name for entry in spec.exports.values() for kind, reference in entry.what if kind == "buffer"}
    for name, buffer in spec.buffers.items():
        run = _buffer(spec.at("buffers", name), buffer, devices, faults, shared=name in exported)
        taken = is_taken(spec, name, "buffers", ("ranges", "chunks"), faults)
        shared.put("buffers", name, None if taken else run)
    for name, event in spec.events.items():
        made = _event(spec.at("events", name), event, devices, faults)
        taken = is_taken(spec, name, "events", ("chunks", "buffers"), faults)
        shared.put("events", name, None if taken else made)
    for name, entry in spec.exports.items():
        shared.put("exports", name, _export(spec.at("exports", name), entry, shared, spec, faults))
    return shared


def is_taken(spec: Spec, name: str, section: str, others: Sequence[str], faults: list[Diagnostic]) -> bool:
    """Whether something in one of the other sections goes by the same name, which is told."""
    other = next((other for other in others if name in getattr(spec, other)), None)
    if other is None:
        return False
    told = f"{_ONE[section].removeprefix('a ').removeprefix('an ')} {name!r} has the name of {_ONE[other]}"
    label = Label(f"{name!r} is {_ONE[other]} here", spec.at(other, name), "key")
    faults.append(
        Diagnostic("MT203", told, spec.at(section, name), "key", labels=(label,), help="give it a name of its own")
    )
    return True


def _buffer(
    path: Path, buffer: Buffer, devices: Devices, faults: list[Diagnostic], *, shared: bool
) -> BufferGroup | None:
    name = str(path[-1])
    places = resolved(buffer.location, path, devices)
    if places is None:
        return None
    if wrong := no_gpu(f"buffer {name!r}", places, (*path, "location")):
        faults.append(wrong)
        return None
    declared = buffer.size.bytes(1)
    size = -(-declared // BLOCK) * BLOCK if shared else declared
    count = buffer.count or 1
    return BufferGroup(name, path, count, buffer.count is not None, size, declared, tuple(places[:count]))


def _event(path: Path, event: Event, devices: Devices, faults: list[Diagnostic]) -> EventGroup | None:
    name = str(path[-1])
    place = devices.resolve(event.device, (*path, "device"))
    if place is None:
        return None
    if wrong := no_gpu(f"event {name!r}", [place], (*path, "device")):
        faults.append(wrong)
        return None
    return EventGroup(name, path, 1, counted=False, places=(place,))


def no_gpu(what: str, places: Sequence[Location], path: Path) -> Diagnostic | None:
    """That something is on the host which can only be on a GPU; None where it is on one."""
    if all(place.kind is LocationKind.GPU for place in places):
        return None
    return Diagnostic("MT405", f"{what} is on a GPU, and never on the host", path, help="name a GPU")


def _export(path: Path, entry: Export, shared: Shared, spec: Spec, faults: list[Diagnostic]) -> ExportGroup | None:
    kind, reference = entry.what[0]
    runs: Mapping[str, Imported] = getattr(shared, f"{kind}s")
    run = runs.get(reference.name)
    if run is None:
        _missing(path, kind, reference.name, spec, faults)
        return None
    if wrong := _unfit(path, kind, entry.via, run):
        faults.append(wrong)
        return None
    span = indices(reference, run, (*path, kind), faults)
    if span is None:
        return None
    counted = run.counted and (reference.first is None or span[1] - span[0] > 1)
    return ExportGroup(str(path[-1]), path, kind, entry.via, run, span[0], span[1] - span[0], counted)


def _missing(path: Path, kind: Kind, name: str, spec: Spec, faults: list[Diagnostic]) -> None:
    """Say why there is nothing of this name to export, unless it was declared and had a fault of its own."""
    where = (*path, kind)
    if name in spec.imports:
        source = spec.imports[name].source
        told = f"export {path[-1]!r} hands on {name!r}, which is imported from {source}"
        note = f"the chain is {source} → {name} → {path[-1]}; the driver exports no handle that was imported (fact 26)"
        help = f"let whoever needs it import it from {source} itself"
        faults.append(Diagnostic("MT602", told, where, notes=(note,), help=help))
    elif other := next((other for other in _TRANSPORTS if name in getattr(spec, f"{other}s") and other != kind), None):
        told = f"export {path[-1]!r}: {name!r} is {_ONE[f'{other}s']}, and not {_ONE[f'{kind}s']}"
        help = f"write '{{{other}: {name}, via: {_TRANSPORTS[other][0]}}}'"
        faults.append(Diagnostic("MT201", told, where, help=help))
    elif not (
        spec.may_have(f"{kind}s", name)
        or spec.may_have("imports", name)
        or explained(spec, name, "export", where, faults)
    ):
        messages.undeclared(faults, kind, name, where, getattr(spec, f"{kind}s"))


def _unfit(path: Path, kind: Kind, via: Via, run: Imported) -> Diagnostic | None:
    """Why something cannot be shared in this way."""
    if via not in _TRANSPORTS[kind]:
        told = f"export {path[-1]!r}: {_ONE[f'{kind}s']} cannot be shared via {via}"
        note = "legacy IPC shares buffers and events, and refuses VMM chunks (fact 31)"
        return Diagnostic("MT601", told, (*path, "via"), notes=(note,), help=f"write 'via: {_TRANSPORTS[kind][0]}'")
    if not isinstance(run, ChunkGroup) or via in run.handles.words:
        return None
    has = " and ".join(run.handles.words)
    told = f"export {path[-1]!r}: chunk {run.name!r} is created with {has or 'no handle type'}, not with {via}"
    label = Label("created here", run.path, "key")
    help = f"give the chunk 'handles: [{', '.join([*run.handles.words, via])}]'"
    return Diagnostic("MT601", told, (*path, "via"), labels=(label,), help=help)
