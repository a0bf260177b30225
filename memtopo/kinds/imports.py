"""Imports: chunks, buffers and events exported by other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

from pydantic import Field

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, Properties
from memtopo.geometry.groups import ChunkGroup, Origin
from memtopo.geometry.sizing import granularity_note, granule, size_error
from memtopo.kinds.buffers import BufferGroup, whole_blocks
from memtopo.kinds.events import EventGroup
from memtopo.kinds.exports import ExportGroup
from memtopo.kinds.kind import Kind, Scope, Sibling, Stage
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.language.entries import Entry
from memtopo.language.fields import LARGEST_COUNT, Count, DeviceName, Devices, PositiveAmount, SourceText, Transport

Imported = ChunkGroup | BufferGroup | EventGroup
"""Groups that can be imported from another process."""

_Declared = tuple[str, str, str]
"""Key of an import, its declared value, and the actual value."""

_LISTED = 8
"""Maximum number of locations in a message."""


class Import(Entry):
    """Objects exported by another process. Properties of imports from outside of the spec are declared, and checked."""

    source: SourceText = Field(
        alias="from",
        description="server.weights of a process, weights-server/w of a held layout, /path/to/socket/w.",
    )
    via: Transport | None = Field(default=None, description="fd, fabric or ipc; by default that of the export, or fd.")
    location: Devices | None = Field(default=None, description="Location of the memory, as for a chunk.")
    size: PositiveAmount | None = Field(default=None, description="Bytes of each chunk or buffer.")
    count: Count | None = Field(default=None, description="Number of handles of a counted export.")
    device: DeviceName | None = Field(default=None, description="GPU of an event.")


class Imports(Kind):
    """Section `imports`."""

    section = "imports"
    description = "Objects exported by other processes, used like chunks, buffers and events: w: {from: server.w}."
    plural = "handles of imports"
    article = "an import"
    entry = model = Import
    stage = Stage.IMPORTED

    def resolve_entry(self, scope: Scope, entry: Import, path: Path) -> Resolution[Imported | None]:
        if not entry.source.sibling:
            if wrong := _named_like_process(scope, path, entry):
                yield wrong
                return None
            return (yield from _from_outside(scope, path, entry))
        if {entry.source.holder, "", "<<"}.isdisjoint(scope.siblings.unread):
            return (yield from _from_sibling(scope, path, entry))
        return None


def _named_like_process(scope: Scope, path: Path, entry: Import) -> Diagnostic | None:
    """Return MT203 for a layout with the name of a process of the spec, which is probably intended."""
    holder, export = entry.source.holder, entry.source.export
    if holder not in scope.siblings.processes:
        return None
    message = f"import {path[-1]!r} is from a held layout {holder!r}, which is the name of a process of this spec"
    label = Label("the process", scope.siblings.processes[holder].spec.path, "key")
    help = f"write {holder}.{export} for the process, or choose another name for it"
    return Diagnostic("MT203", message, (*path, "from"), labels=(label,), help=help)


def _from_sibling(scope: Scope, path: Path, entry: Import) -> Resolution[Imported | None]:
    source, where = entry.source, (*path, "from")
    sibling = scope.siblings.processes.get(source.holder)
    if sibling is None:
        yield _no_process(scope, source.holder, where)
        return None
    exports = yield from _exports(scope, path, entry, sibling)
    if not exports:
        return None
    if exports[0].via == "ipc" and sibling.spec.path == scope.spec.path:
        yield _own_export(path, entry, exports[0])
        return None
    labels = tuple(label for label, _ in sibling.instances)
    origin = Origin(labels, source.export, exports[0].count, exports[0].via, siblings=True)
    counted = exports[0].counted or sibling.spec.instances is not None
    group = _imported(path, exports, origin, counted=counted)
    wrong = [*(yield from _contradictions(scope, path, entry, group, exports[0])), *_unseen(scope, where, group)]
    yield from wrong
    return None if wrong else group


def _no_process(scope: Scope, name: str, path: Path) -> Diagnostic:
    if scope.siblings.processes:
        return scope.errors.undeclared("process", name, path, scope.siblings.processes)
    message = f"process {name!r} is not declared: this spec has no processes"
    return Diagnostic("MT201", message, path, help="write LAYOUT/EXPORT for a held layout")


def _exports(scope: Scope, path: Path, entry: Import, sibling: Sibling) -> Resolution[list[ExportGroup]]:
    """Exports of one name by each instance of a process; empty if there is an error."""
    source, where = entry.source, (*path, "from")
    found = [each.of(ExportGroup).get(source.export) for _, each in sibling.instances]
    exports = [export for export in found if export]
    if sibling.spec.countless or len(exports) < len(found):
        if not sibling.spec.may_have("exports", source.export):
            yield scope.errors.undeclared("export", source.export, where, sibling.spec.section("exports"))
        return []
    sizes = {export.size: label for export, (label, _) in zip(exports, sibling.instances, strict=True)}
    total = sum(export.count for export in exports)
    label = Label("exported here", exports[0].path, "key")
    if total > LARGEST_COUNT:
        message = f"import {path[-1]!r} is {total:,} handles, more than the {LARGEST_COUNT:,} that one spec may declare"
        yield Diagnostic("MT109", message, where, labels=(label,))
        return []
    if len(sizes) > 1:
        each = " and ".join(f"{exact(size)} in {holder}" for size, holder in islice(sizes.items(), 2))
        message = f"import {path[-1]!r}: {source} has different sizes: {each}"
        note = "the granularities of the GPUs differ"
        help = "write the size of the exported entry in bytes, as a multiple of the larger granularity"
        yield Diagnostic("MT604", message, where, labels=(label,), notes=(note,), help=help)
        return []
    return exports


def _own_export(path: Path, entry: Import, export: ExportGroup) -> Diagnostic:
    message = f"import {path[-1]!r} would open {entry.source} in the process that exports it"
    note = "legacy IPC returns INVALID_CONTEXT (fact 31)"
    help = "use the buffer or event directly, or share chunks via fd, which a process can import from itself"
    label = Label("exported here", export.path, "key")
    return Diagnostic("MT605", message, (*path, "from"), labels=(label,), notes=(note,), help=help)


def _unseen(scope: Scope, path: Path, group: Imported) -> Iterator[Diagnostic]:
    """Yield MT606 for a buffer or event of a GPU that is not visible; chunks can be on any GPU (fact 43)."""
    if isinstance(group, ChunkGroup):
        return
    hidden = next((place for place in group.places if not scope.devices.sees(place)), None)
    if hidden:
        note = f"legacy IPC opens {'an event' if isinstance(group, EventGroup) else 'a buffer'} on its own GPU"
        yield scope.devices.unseen(str(hidden), hidden, path, notes=(note,))


def _imported(path: Path, exports: Sequence[ExportGroup], origin: Origin, *, counted: bool) -> Imported:
    name, count, places = str(path[-1]), origin.each * len(exports), _distributed(exports)
    match exports[0].group:
        case ChunkGroup() as group:
            unit = max(export.group.granule for export in exports if isinstance(export.group, ChunkGroup))
            requested = _properties(group, places)
            distinct = tuple(dict.fromkeys(places))
            return ChunkGroup(name, path, count, counted, group.size, group.size, unit, requested, distinct, origin)
        case BufferGroup() as buffer:
            return BufferGroup(name, path, count, counted, buffer.size, places, origin, buffer.declared)
    return EventGroup(name, path, count, counted, 0, places, origin)


def _properties(group: ChunkGroup, places: Sequence[Location]) -> tuple[Properties, ...]:
    """Properties that the driver reports for imported chunks: without handle types (fact 7)."""
    plain = group.properties[0]
    found = {place: Properties(place, rdma=plain.rdma, compressible=plain.compressible) for place in set(places)}
    return tuple(found[place] for place in places)


def _distributed(exports: Sequence[ExportGroup]) -> tuple[Location, ...]:
    """Locations of imported objects in the order of the holders, shortened to one period if they repeat."""
    rounds = [export.locations for export in exports]
    each = exports[0].count
    if len(rounds) == 1 or (len(set(rounds)) == 1 and each % len(rounds[0]) == 0):
        return rounds[0]
    return tuple(chain.from_iterable(islice(cycle(found), each) for found in rounds))


def _contradictions(
    scope: Scope, path: Path, entry: Import, group: Imported, export: ExportGroup
) -> Resolution[list[Diagnostic]]:
    """Diagnostics of an import that declares other properties than its sibling exports; all of them are optional."""
    if isinstance(group, BufferGroup) and entry.size and entry.size.in_granules:
        return [_no_granules(path)]
    label = Label("exported here", export.path, "key")
    found = []
    for key, declared, actual in (yield from _differences(scope, path, entry, group, export)):
        message = f"import {path[-1]!r} declares {key} {declared}, but {entry.source} {actual}"
        help = f"leave {key!r} out: it is taken from the export"
        found.append(Diagnostic("MT604", message, (*path, key), labels=(label,), help=help))
    return found


def _differences(
    scope: Scope, path: Path, entry: Import, group: Imported, export: ExportGroup
) -> Resolution[list[_Declared]]:
    found: list[_Declared] = []
    if entry.via and entry.via != export.via:
        found.append(("via", entry.via, f"is exported via {export.via}"))
    if entry.count and entry.count != group.count:
        found.append(("count", f"{entry.count:,}", f"is {group.count:,} handle{'s' * (group.count != 1)}"))
    for key, names in (("location", entry.location), ("device", [entry.device] if entry.device else None)):
        if names and (key == "device") != isinstance(group, EventGroup):
            found.append((key, ", ".join(names[:_LISTED]), _not_of(group, key)))
        elif names:
            places = yield from scope.devices.resolve_all(names, path, key, anywhere=True)
            if places and _on_other_locations(places, group):
                found.append((key, _listed(places), f"is on {_listed(group.locations)}"))
    if entry.size and isinstance(group, EventGroup):
        found.append(("size", str(entry.size), _not_of(group, "size")))
    elif entry.size and not isinstance(group, EventGroup) and not _has_size(entry.size, group, export):
        size = f"has {exact(group.size)} each" if group.counted else f"has {exact(group.size)}"
        found.append(("size", str(entry.size), size))
    return found


def _no_granules(path: Path) -> Diagnostic:
    message = f"import {path[-1]!r} is a buffer, and a buffer has no granules"
    return Diagnostic("MT105", message, (*path, "size"), help="write bytes: 2MiB")


def _not_of(group: Imported, key: str) -> str:
    has = "a device" if isinstance(group, EventGroup) else "a location and a size"
    return f"is {'an' if isinstance(group, EventGroup) else 'a'} {group.noun}, which has {has}, not a {key}"


def _has_size(size: Size, group: ChunkGroup | BufferGroup, export: ExportGroup) -> bool:
    """Return true if a size is that of the exported objects, before or after rounding."""
    declared = size.bytes(group.granule if isinstance(group, ChunkGroup) else 1)
    exported = export.group
    return declared == group.size or (isinstance(exported, ChunkGroup | BufferGroup) and declared == exported.declared)


def _on_other_locations(places: Sequence[Location], group: Imported) -> bool:
    """Return true if a round-robin distribution over `places` differs from that of a group."""
    actual = group.locations
    period = min(group.count, max(len(places) * len(actual), 1))
    return any(one != other for one, other in islice(zip(cycle(places), cycle(actual), strict=False), period))


def _listed(places: Sequence[Location]) -> str:
    return ", ".join(map(str, places[:_LISTED])) + " …" * (len(places) > _LISTED)


def _from_outside(scope: Scope, path: Path, entry: Import) -> Resolution[Imported | None]:
    """Group of an import from outside of the spec, as declared."""
    if wrong := _undeclared_properties(path, entry):
        yield wrong
        return None
    name, count, counted = str(path[-1]), entry.count or 1, entry.count is not None
    memory = entry.size is not None
    names, key = (entry.location or [], "location") if memory else ([entry.device or ""], "device")
    listed = yield from scope.devices.resolve_all(names, path, key, anywhere=memory and entry.via != "ipc")
    if listed is None:
        return None
    places = yield from scope.devices.distributed(listed, count, path, key)
    if entry.size is not None:
        return (yield from _memory(scope, path, entry, entry.size, places))
    if (yield from requires_gpu(f"import {name!r}", places, (*path, key))):
        return None
    return EventGroup(name, path, count, counted, 0, places, _outside(entry))


def _undeclared_properties(path: Path, entry: Import) -> Diagnostic | None:
    """Return MT603 if the declared properties are those of neither memory nor an event."""
    memory = {"location": entry.location, "size": entry.size}
    note = "the plan is made from the declared properties, which are compared with the export when it is imported"
    if entry.device is None:
        missing = [key for key, value in memory.items() if value is None]
        if not missing:
            return None
        message = f"import {path[-1]!r} is from outside of this spec, and its {' and '.join(missing)} must be declared"
        keys = " and ".join(f"'{key}: …'" for key in missing)
        help = f"add {keys}; for an event, add its device"
        return Diagnostic("MT603", message, path, "key", notes=(note,), help=help)
    message = f"import {path[-1]!r} declares a device like an event, and "
    if several := [key for key, value in memory.items() if value is not None]:
        help = f"leave {' and '.join(map(repr, several))} out for an event, or 'device' for memory"
        return Diagnostic("MT603", f"{message}a {several[0]} like memory", (*path, several[0]), help=help)
    if entry.via not in (None, "ipc"):
        help = "leave 'via' out, or declare the location and size of a chunk"
        return Diagnostic("MT603", f"{message}via {entry.via} like a chunk", (*path, "via"), help=help)
    return None


def _outside(entry: Import) -> Origin:
    via = "ipc" if entry.device else entry.via or "fd"
    return Origin((entry.source.holder,), entry.source.export, entry.count or 1, via, siblings=False)


def _memory(
    scope: Scope, path: Path, entry: Import, declared: Size, places: Sequence[Location]
) -> Resolution[ChunkGroup | BufferGroup | None]:
    """Chunks or buffers from outside of the spec, as declared."""
    name, count, counted = str(path[-1]), entry.count or 1, entry.count is not None
    origin = _outside(entry)
    unit = max(granule(scope.machine, Properties(place)) for place in places)
    size = declared.bytes(unit)
    if origin.via != "ipc":
        if size % unit:
            yield _misfit(name, size, unit, path, places)
            return None
        requested = tuple(Properties(place) for place in places)
        return ChunkGroup(name, path, count, counted, size, size, unit, requested, tuple(dict.fromkeys(places)), origin)
    if declared.in_granules:
        yield _no_granules(path)
        return None
    if (yield from requires_gpu(f"import {name!r}", places, (*path, "location"))):
        return None
    return BufferGroup(name, path, count, counted, whole_blocks(size), tuple(places), origin, size)


def _misfit(name: str, size: int, unit: int, path: Path, places: Sequence[Location]) -> Diagnostic:
    """Return MT301 without the suggestion of rounding, since the size of an import is fixed."""
    found = size_error("MT301", f"import {name!r}", size, unit, (*path, "size"), granularity_note(unit, places))
    return found._replace(help=(found.help or "").removesuffix(", or 'round: up'"))


IMPORTS = Imports()
