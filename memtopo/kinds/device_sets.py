"""Sets of devices: every GPU (`gpus`), every GPU that can access some memory (`peers`), NUMA nodes near GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.diagnostics.model import At, Diagnostic, Path
from memtopo.driver.types import Attribute, Location, LocationKind
from memtopo.kinds.resolution import Resolution
from memtopo.language.names import GPUS, PEERS, NamedDevice, Near
from memtopo.machine import Machine

SETS = (GPUS, PEERS)
"""Names that stand for several devices."""

_PLACES = {GPUS: "in 'location', 'accessed_by', 'access', 'visible' and 'devices'", PEERS: "in 'access'"}


def has_set(names: Sequence[NamedDevice]) -> bool:
    """Return true if one of some names stands for several devices: `gpus`, or the nodes near them."""
    for name in names:  # noqa: SIM110 a generator would double the time, for every entry
        if name == GPUS or (isinstance(name, Near) and name.gpu == GPUS):
            return True
    return False


def expanded(names: Sequence[NamedDevice], gpus: Sequence[Location]) -> list[tuple[NamedDevice, int]]:
    """Names with `gpus` replaced by its members, each with its index in `names`; `{near: gpus}` is their nodes."""
    found: list[tuple[NamedDevice, int]] = []
    for index, name in enumerate(names):
        if name == GPUS:
            found += ((str(each), index) for each in gpus)
        elif isinstance(name, Near) and name.gpu == GPUS:
            found += ((Near(str(each)), index) for each in gpus)
        else:
            found.append((name, index))
    return found


def all_gpus(machine: Machine) -> tuple[Location, ...]:
    """GPUs of a machine by ordinal."""
    return tuple(Location(LocationKind.GPU, ordinal) for ordinal in range(len(machine.devices)))


def assigned(names: Sequence[NamedDevice], machine: Machine, index: int) -> NamedDevice | None:
    """Device of one process among those of a name under `devices`, round-robin; None if there is none."""
    members = expanded(names, all_gpus(machine)) if has_set(names) else [(name, 0) for name in names]
    return members[index % len(members)][0] if members else None


def empty(path: Path, at: At = "value", name: str = GPUS) -> Diagnostic:
    """Return MT401 for `gpus` or `peers` on a machine without GPUs."""
    help = "use a machine with GPUs, or memory of the host: location: host"
    return Diagnostic("MT401", f"{name!r} is empty: the machine has no GPUs", path, at, help=help)


def misplaced(name: str, path: Path, at: At) -> Diagnostic:
    """Return MT103 for a set where one device is named, or where another set would be right."""
    message = f"{name!r} is a set of devices, and one device is expected here"
    if name == PEERS:
        message = f"{name!r} are the GPUs with access to the memory of a range, which only 'access' has"
    return Diagnostic("MT103", message, path, at, help=f"name one device; {name!r} can be used {_PLACES[name]}")


def near_node(machine: Machine, ordinal: int, path: Path) -> Resolution[Location | None]:
    """NUMA node of a GPU's host memory: the advertised one, or the only one. Yields MT401 if it is not known."""
    node = machine.devices[ordinal].attributes.get(Attribute.HOST_NUMA_ID.name, -1)
    nodes = [location for location in machine.locations if location.kind is LocationKind.HOST_NUMA]
    found = nodes[0] if node < 0 and len(nodes) == 1 else Location(LocationKind.HOST_NUMA, node)
    if found in nodes:
        return found
    has = ", ".join(map(str, nodes)) or "no NUMA nodes"
    message, note = f"the machine has no {found}, which is the NUMA node of gpu{ordinal}", f"it has {has}"
    if node < 0:
        message, note = f"the NUMA node of gpu{ordinal} is not known", f"HOST_NUMA_ID is not reported; there are {has}"
    yield Diagnostic("MT401", message, path, notes=(note,), help=f"write {nodes[0] if nodes else 'host'}")
    return None
