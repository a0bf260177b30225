"""Sizes: granularities of a machine, rounding to them, and the memory of each location that is left for shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from memtopo.common.units import exact
from memtopo.diagnostics.model import Path
from memtopo.driver.types import WHOLE_HOST, Location, LocationKind, Properties, gpu
from memtopo.geometry.groups import ChunkGroup, Residence
from memtopo.geometry.model import Geometry
from memtopo.machine import CONTEXT_BYTES, Machine, Machines

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
