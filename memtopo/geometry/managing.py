"""Managed memory: which GPU's context allocates it, and what it is advised."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry.exporting import Shared, is_taken
from memtopo.geometry.groups import ManagedAllocation
from memtopo.geometry.naming import Devices
from memtopo.geometry.sizing import resolved
from memtopo.machine import Machine
from memtopo.spec import Managed, Spec

_OTHERS = ("ranges", "chunks", "buffers", "events", "imports")


def manage(spec: Spec, shared: Shared, devices: Devices, machine: Machine, faults: list[Diagnostic]) -> None:
    """Put a process's managed memory beside what it creates; what has a fault of its own is unsure."""
    for name, entry in spec.managed.items():
        run = _run(spec.at("managed", name), entry, devices, machine, faults)
        taken = is_taken(spec, name, "managed", _OTHERS, faults)
        shared.put("managed", name, None if taken else run)


def _run(
    path: Path, entry: Managed, devices: Devices, machine: Machine, faults: list[Diagnostic]
) -> ManagedAllocation | None:
    prefer = resolved(_one(entry.prefer), path, devices, "prefer")
    prefetch = resolved(_one(entry.prefetch), path, devices, "prefetch")
    accessed_by = resolved(entry.accessed_by, path, devices, "accessed_by")
    if prefer is None or prefetch is None or accessed_by is None:
        return None
    if wrong := _homeless(path, machine) or _by_node(path, accessed_by):
        faults.append(wrong)
        return None
    return ManagedAllocation(
        name=str(path[-1]),
        path=path,
        size=entry.size.bytes(1),
        attach=entry.attach,
        home=_home([*prefer, *prefetch, *accessed_by, *devices.visible]),
        prefer=prefer[0] if prefer else None,
        accessed_by=tuple(dict.fromkeys(accessed_by)),
        read_mostly=entry.read_mostly,
        prefetch=prefetch[0] if prefetch else None,
    )


def _one(name: str | None) -> list[str]:
    return [] if name is None else [name]


def _home(places: Sequence[Location]) -> int:
    """The first GPU of those that are named, else of those that are seen."""
    return next((place.id for place in places if place.kind is LocationKind.GPU), 0)


def _homeless(path: Path, machine: Machine) -> Diagnostic | None:
    if machine.devices:
        return None
    note = "it is allocated in a GPU's context (fact 60)"
    return Diagnostic("MT401", f"managed memory {path[-1]!r} needs a GPU", path, "key", notes=(note,))


def _by_node(path: Path, places: Sequence[Location]) -> Diagnostic | None:
    """Advice that the driver refuses: it knows the host as a whole there, and no NUMA node."""
    index, node = next(
        ((index, place) for index, place in enumerate(places) if place.kind is LocationKind.HOST_NUMA), (0, None)
    )
    if node is None:
        return None
    told = f"managed memory {path[-1]!r}: {node} cannot be told apart from the host in 'accessed_by'"
    note = "the driver answers INVALID_VALUE for a NUMA node there (fact 60)"
    where = (*path, "accessed_by", index) if len(places) > 1 else (*path, "accessed_by")
    return Diagnostic("MT701", told, where, notes=(note,), help="write host")
