"""What one process takes from others, resolved to what they export."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from memtopo.common.units import exact
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, Properties
from memtopo.geometry.declaring import contradicts, from_outside
from memtopo.geometry.exporting import Shared, is_taken
from memtopo.geometry.groups import BufferGroup, ChunkGroup, EventGroup, ExportGroup, Imported, Origin
from memtopo.geometry.naming import Devices
from memtopo.machine import Machine
from memtopo.spec import LARGEST_COUNT, Import, Spec


@dataclass(frozen=True, slots=True)
class Sibling:
    """A process of the spec as the others see it: its entries, and for each of it its label and what it exports."""

    spec: Spec
    instances: tuple[tuple[str, Shared], ...]


def receive(
    spec: Spec,
    shared: Shared,
    siblings: Mapping[str, Sibling],
    unread: Collection[str],
    devices: Devices,
    machine: Machine,
    faults: list[Diagnostic],
) -> None:
    """Put what a process imports beside what it creates.

    `siblings` are all processes of the spec by name, `unread` the names of those that could not be read.
    """
    for name, entry in spec.imports.items():
        path = spec.at("imports", name)
        run: Imported | None = None
        if is_taken(spec, name, "imports", ("chunks", "buffers", "events"), faults):
            pass
        elif not entry.source.sibling:
            if not _mistaken(path, entry, siblings, faults):
                run = from_outside(path, entry, devices, machine, faults)
        elif {entry.source.holder, "", "<<"}.isdisjoint(unread):
            run = _from_sibling(path, entry, spec, siblings, devices, faults)
        if isinstance(run, BufferGroup) and is_taken(spec, name, "imports", ("ranges",), faults):
            run = None
        section = {ChunkGroup: "chunks", BufferGroup: "buffers", EventGroup: "events"}.get(type(run), "imports")
        shared.put(section, name, run)


def _mistaken(path: Path, entry: Import, siblings: Mapping[str, Sibling], faults: list[Diagnostic]) -> bool:
    """Whether a layout outside goes by the name of a process, which is most often meant then; it is told."""
    holder, export = entry.source.holder, entry.source.export
    if holder not in siblings:
        return False
    told = f"import {path[-1]!r} is from a held layout {holder!r}, which is the name of a process of this spec"
    label = Label("the process", siblings[holder].spec.path, "key")
    help = f"of the process, write {holder}.{export}; of a layout, give the process another name"
    faults.append(Diagnostic("MT203", told, (*path, "from"), labels=(label,), help=help))
    return True


def _from_sibling(
    path: Path,
    entry: Import,
    spec: Spec,
    siblings: Mapping[str, Sibling],
    devices: Devices,
    faults: list[Diagnostic],
) -> Imported | None:
    source, where = entry.source, (*path, "from")
    sibling = siblings.get(source.holder)
    if sibling is None:
        _no_process(source.holder, siblings, where, faults)
        return None
    exports = _exports(path, entry, sibling, faults)
    if not exports:
        return None
    if exports[0].via == "ipc" and sibling.spec.path == spec.path:
        faults.append(_own(path, entry, exports[0]))
        return None
    labels = tuple(label for label, _ in sibling.instances)
    origin = Origin(labels, source.export, exports[0].count, exports[0].via, siblings=True)
    counted = exports[0].counted or sibling.spec.instances is not None
    run = _imported(path, exports, origin, counted=counted)
    if contradicts(path, entry, run, exports[0], devices, faults) or _out_of_sight(where, run, devices):
        return None
    return run


def _no_process(name: str, siblings: Mapping[str, Sibling], path: Path, faults: list[Diagnostic]) -> None:
    if siblings:
        messages.undeclared(faults, "process", name, path, siblings)
        return
    told = f"process {name!r} is not declared: this spec has no processes"
    faults.append(Diagnostic("MT201", told, path, help="of a held layout, write LAYOUT/EXPORT with a slash"))


def _exports(path: Path, entry: Import, sibling: Sibling, faults: list[Diagnostic]) -> list[ExportGroup]:
    """What each process of a sibling exports under one name; none where that is not known or not possible."""
    source, where = entry.source, (*path, "from")
    found = [shared.exports.get(source.export) for _, shared in sibling.instances]
    exports = [export for export in found if export]
    if sibling.spec.countless or len(exports) < len(found):
        if not sibling.spec.may_have("exports", source.export):
            messages.undeclared(faults, "export", source.export, where, sibling.spec.exports)
        return []
    sizes = {export.size: label for export, (label, _) in zip(exports, sibling.instances, strict=True)}
    total = sum(export.count for export in exports)
    label = Label("exported here", exports[0].path, "key")
    if total > LARGEST_COUNT:
        told = f"import {path[-1]!r} is {total:,} handles, more than the {LARGEST_COUNT:,} that one spec may ask for"
        faults.append(Diagnostic("MT109", told, where, labels=(label,)))
        return []
    if len(sizes) > 1:
        each = " and ".join(f"{exact(size)} in {holder}" for size, holder in islice(sizes.items(), 2))
        told = f"import {path[-1]!r}: {source} is not of one size: {each}"
        note = "granules differ from GPU to GPU"
        help = "write the size of what is exported in bytes, a multiple of the larger granularity"
        faults.append(Diagnostic("MT604", told, where, labels=(label,), notes=(note,), help=help))
        return []
    return exports


def _own(path: Path, entry: Import, export: ExportGroup) -> Diagnostic:
    told = f"import {path[-1]!r} would open {entry.source} in the process that exports it"
    note = "legacy IPC refuses that with INVALID_CONTEXT (fact 31)"
    help = "use the buffer or event itself, or share chunks via fd, which a process may import from itself"
    label = Label("exported here", export.path, "key")
    return Diagnostic("MT605", told, (*path, "from"), labels=(label,), notes=(note,), help=help)


def _out_of_sight(path: Path, run: Imported, devices: Devices) -> bool:
    """Whether a buffer or event is of a GPU that the process is not to see; chunks can be of any (fact 43)."""
    if isinstance(run, ChunkGroup):
        return False
    hidden = next((place for place in run.places if not devices.sees(place)), None)
    if hidden:
        note = f"legacy IPC opens {'an event' if isinstance(run, EventGroup) else 'a buffer'} on its own GPU"
        devices.unseen(str(hidden), hidden, path, notes=(note,))
    return hidden is not None


def _imported(path: Path, exports: Sequence[ExportGroup], origin: Origin, *, counted: bool) -> Imported:
    name, count, places = str(path[-1]), origin.each * len(exports), _dealt(exports)
    match exports[0].run:
        case ChunkGroup() as run:
            unit = max(export.run.granule for export in exports if isinstance(export.run, ChunkGroup))
            asked = _properties(run, places)
            distinct = tuple(dict.fromkeys(places))
            return ChunkGroup(name, path, count, counted, run.size, run.size, unit, asked, distinct, origin)
        case BufferGroup() as run:
            return BufferGroup(name, path, count, counted, run.size, run.declared, places, origin)
        case EventGroup():
            return EventGroup(name, path, count, counted, places, origin)


def _properties(run: ChunkGroup, places: Sequence[Location]) -> tuple[Properties, ...]:
    """What imported chunks read as: of no handle type (fact 7)."""
    plain = run.properties[0]
    found = {place: Properties(place, rdma=plain.rdma, compressible=plain.compressible) for place in set(places)}
    return tuple(found[place] for place in places)


def _dealt(exports: Sequence[ExportGroup]) -> tuple[Location, ...]:
    """Where imported things are, one holder's after another's; in as few turns as are enough where all deal alike."""
    turns = [_turn(export) for export in exports]
    each = exports[0].count
    if len(turns) == 1 or (len(set(turns)) == 1 and each % len(turns[0]) == 0):
        return turns[0]
    return tuple(chain.from_iterable(islice(cycle(turn), each) for turn in turns))


def _turn(export: ExportGroup) -> tuple[Location, ...]:
    """The places that the handles of one export take turns at."""
    run = export.run
    places = run.locations if isinstance(run, ChunkGroup) else run.places
    first = export.first % len(places)
    turned = (places[first:] + places[:first])[: export.count]
    return turned[:1] if len(set(turned)) == 1 else turned
