"""What an import says of itself: of one from outside all that is known, and else held to what is exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location, Properties
from memtopo.geometry.exporting import BLOCK, no_gpu
from memtopo.geometry.groups import BufferGroup, ChunkGroup, EventGroup, ExportGroup, Imported, Origin
from memtopo.geometry.naming import Devices
from memtopo.geometry.sizing import granularity_note, granule, misfit, resolved
from memtopo.machine import Machine
from memtopo.spec import Import

_Said = tuple[str, str, str]
"""A key of an import, what it says, and what is so."""

_NAMED = 8
"""Places that a message names."""


def contradicts(
    path: Path, entry: Import, run: Imported, export: ExportGroup, devices: Devices, faults: list[Diagnostic]
) -> bool:
    """Whether an import declares what its sibling does not export; a sibling's need not declare anything."""
    known = len(faults)
    label = Label("exported here", export.path, "key")
    if isinstance(run, BufferGroup) and entry.size and entry.size.in_granules:
        faults.append(_no_granules(path))
    else:
        for key, declared, true in _wrong(path, entry, run, export, devices):
            told = f"import {path[-1]!r} declares {key} {declared}, and {entry.source} {true}"
            help = f"leave {key!r} out: it is taken from the sibling"
            faults.append(Diagnostic("MT604", told, (*path, key), labels=(label,), help=help))
    return len(faults) > known


def _wrong(path: Path, entry: Import, run: Imported, export: ExportGroup, devices: Devices) -> Iterator[_Said]:
    if entry.via and entry.via != export.via:
        yield "via", entry.via, f"is exported via {export.via}"
    if entry.count and entry.count != run.count:
        yield "count", f"{entry.count:,}", f"is {run.count:,} handle{'s' * (run.count != 1)}"
    for key, names in (("location", entry.location), ("device", [entry.device] if entry.device else None)):
        if names and (key == "device") != isinstance(run, EventGroup):
            yield key, ", ".join(names[:_NAMED]), _not_of(run, key)
        elif names and (places := resolved(names, path, devices, key, anywhere=True)) and _unlike(places, run):
            yield key, _listed(places), f"is on {_listed(_places(run))}"
    if entry.size and isinstance(run, EventGroup):
        yield "size", str(entry.size), _not_of(run, "size")
    elif entry.size and not isinstance(run, EventGroup) and not _sized(entry.size, run, export):
        yield "size", str(entry.size), f"is of {exact(run.size)} each" if run.counted else f"has {exact(run.size)}"


def _no_granules(path: Path) -> Diagnostic:
    told = f"import {path[-1]!r} is a buffer, and a buffer has no granules"
    return Diagnostic("MT105", told, (*path, "size"), help="write its bytes: 2MiB")


def _not_of(run: Imported, key: str) -> str:
    has = {EventGroup: "an event, which has a device", BufferGroup: "a buffer, which has a location and a size"}
    return f"is {has.get(type(run), 'a chunk, which has a location and a size')}, and no {key}"


def _sized(size: Size, run: ChunkGroup | BufferGroup, export: ExportGroup) -> bool:
    """Whether a size is that of what is exported, as it was written or as it was rounded."""
    declared = size.bytes(run.granule if isinstance(run, ChunkGroup) else 1)
    return declared == run.size or (not isinstance(export.run, EventGroup) and declared == export.run.declared)


def _places(run: Imported) -> Sequence[Location]:
    return run.locations if isinstance(run, ChunkGroup) else run.places


def _unlike(places: Sequence[Location], run: Imported) -> bool:
    """Whether things that are dealt to these places in turn are elsewhere than where a run has them."""
    true = _places(run)
    few = min(run.count, max(len(places) * len(true), 1))
    return any(one != other for one, other in islice(zip(cycle(places), cycle(true), strict=False), few))


def _listed(places: Sequence[Location]) -> str:
    return ", ".join(map(str, places[:_NAMED])) + " …" * (len(places) > _NAMED)


def from_outside(
    path: Path, entry: Import, devices: Devices, machine: Machine, faults: list[Diagnostic]
) -> Imported | None:
    """What an import from outside of this file is, as it says itself; None where it has a fault."""
    if wrong := _unsaid(path, entry):
        faults.append(wrong)
        return None
    name, count, counted = str(path[-1]), entry.count or 1, entry.count is not None
    memory = entry.size is not None
    names, key = (entry.location or [], "location") if memory else ([entry.device or ""], "device")
    places = resolved(names, path, devices, key, anywhere=memory and entry.via != "ipc")
    if places is None:
        return None
    places = places[:count]
    if entry.size is not None:
        return _memory(path, entry, entry.size, places, machine, faults)
    if wrong := no_gpu(f"import {name!r}", places, (*path, key)):
        faults.append(wrong)
        return None
    return EventGroup(name, path, count, counted, tuple(places), _outside(entry))


def _unsaid(path: Path, entry: Import) -> Diagnostic | None:
    """What is missing, or too much, for telling whether memory or an event is imported."""
    written = {"location": entry.location, "size": entry.size}
    note = "what is declared is checked against what the other end says, and is all that can be planned with"
    if entry.device is None:
        missing = [key for key, value in written.items() if value is None]
        if not missing:
            return None
        told = f"import {path[-1]!r} comes from outside of this file, and its {' and '.join(missing)} must be declared"
        wanted = " and ".join(f"'{key}: …'" for key in missing)
        help = f"add {wanted}; of an event, its device"
        return Diagnostic("MT603", told, path, "key", notes=(note,), help=help)
    told = f"import {path[-1]!r} declares a device, as an event has, and "
    if several := [key for key, value in written.items() if value is not None]:
        help = f"of an event, leave {' and '.join(map(repr, several))} out; of memory, leave 'device' out"
        return Diagnostic("MT603", f"{told}a {several[0]}, as memory has", (*path, several[0]), help=help)
    if entry.via not in (None, "ipc"):
        help = "leave 'via' out; of a chunk, write its location and size"
        return Diagnostic("MT603", f"{told}via {entry.via}, as a chunk has", (*path, "via"), help=help)
    return None


def _outside(entry: Import) -> Origin:
    via = "ipc" if entry.device else entry.via or "fd"
    return Origin((entry.source.holder,), entry.source.export, entry.count or 1, via, siblings=False)


def _memory(
    path: Path, entry: Import, declared: Size, places: Sequence[Location], machine: Machine, faults: list[Diagnostic]
) -> ChunkGroup | BufferGroup | None:
    """Chunks or buffers from outside, as the spec says that they are."""
    name, count, counted = str(path[-1]), entry.count or 1, entry.count is not None
    origin = _outside(entry)
    unit = max(granule(machine, Properties(place)) for place in places)
    size = declared.bytes(unit)
    wrong = None
    if origin.via != "ipc":
        if size % unit:
            wrong = _misfit(name, size, unit, path, places)
    elif declared.in_granules:
        wrong = _no_granules(path)
    else:
        wrong = no_gpu(f"import {name!r}", places, (*path, "location"))
    if wrong:
        faults.append(wrong)
        return None
    if origin.via == "ipc":
        return BufferGroup(name, path, count, counted, -(-size // BLOCK) * BLOCK, size, tuple(places), origin)
    asked = tuple(Properties(place) for place in places)
    return ChunkGroup(name, path, count, counted, size, size, unit, asked, tuple(dict.fromkeys(places)), origin)


def _misfit(name: str, size: int, unit: int, path: Path, places: Sequence[Location]) -> Diagnostic:
    """An import cannot be rounded: it has the size that it has."""
    found = misfit("MT301", f"import {name!r}", size, unit, (*path, "size"), granularity_note(unit, places))
    return found._replace(help=(found.help or "").removesuffix(", or 'round: up'"))
