"""What is tried where: a table, and from it everything that one machine is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from memtopo.driver.types import Attribute, HandleType, Location, LocationKind, Properties, gpu
from memtopo.machine import Machine, Trial

STORE = "store"
"""The trial of a pair of GPUs: a kernel of the one stores into the memory of the other, which reads it."""


RATES = "rates"
"""No trial: how fast a GPU copies to and from a place."""


class Way(NamedTuple):
    """One thing to try at a location: how, with which properties of chunks, and what advertises it.

    `never` says why it is not tried at all. Of an attribute that is a mask, `bit` is the one that counts.
    """

    name: str
    how: str
    advertised_by: tuple[Attribute, ...] = ()
    handles: HandleType = HandleType.NONE
    rdma: bool = False
    compressible: bool = False
    bit: int = -1
    never: str | None = None

    def properties(self, location: Location) -> Properties:
        return Properties(location, self.handles, self.rdma, self.compressible)

    def advertised(self, attributes: Mapping[str, int]) -> bool | None:
        """Whether all attributes say so; None where there is none or one was not answered."""
        said = [attributes.get(attribute.name) for attribute in self.advertised_by]
        return None if not said or None in said else all(value & self.bit for value in said if value is not None)


class Ask(NamedTuple):
    """One trial: of what at which place, by the GPU whose context does the work."""

    place: Location
    name: str
    by: int


_FD, _FABRIC = HandleType.FD, HandleType.FABRIC
_ADVERTISED_FD = Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
_ADVERTISED_FABRIC = Attribute.HANDLE_TYPE_FABRIC_SUPPORTED
_POOLS = (Attribute.MEMPOOL_SUPPORTED_HANDLE_TYPES,)
_MULTICAST = "others share its switch"

WAYS: dict[LocationKind, tuple[Way, ...]] = {
    LocationKind.GPU: (
        Way("vmm", "use", (Attribute.VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Way("fd", "share", (_ADVERTISED_FD,), _FD),
        Way("fabric", "share", (_ADVERTISED_FABRIC,), _FABRIC),
        Way("win32", "create", (Attribute.HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,), HandleType.WIN32),
        Way("fd+fabric", "share", (_ADVERTISED_FD, _ADVERTISED_FABRIC), _FD | _FABRIC),
        Way("rdma", "use", (Attribute.GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,), rdma=True),
        Way("compressible", "use", (Attribute.GENERIC_COMPRESSION_SUPPORTED,), compressible=True),
        Way("managed", "managed", (Attribute.MANAGED_MEMORY,)),
        Way("concurrent", "concurrent", (Attribute.CONCURRENT_MANAGED_ACCESS,)),
        Way("ipc", "ipc"),
        Way("ipc-event", "ipc_event", (Attribute.IPC_EVENT_SUPPORTED,)),
        Way("pool-fd", "pool", _POOLS, _FD, bit=_FD),
        Way("pool-fabric", "pool", _POOLS, _FABRIC, bit=_FABRIC),
        Way("external-memory", "external_memory"),
        Way("external-semaphore", "external_semaphore", (Attribute.TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,)),
        Way("multicast", "never", (Attribute.MULTICAST_SUPPORTED,), never=_MULTICAST),
    ),
    LocationKind.HOST: (
        Way("vmm", "create", (Attribute.HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Way("gpu", "by_gpu"),
        Way("cpu", "by_cpu"),
    ),
    LocationKind.HOST_NUMA: (
        Way("vmm", "create", (Attribute.HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Way("fd", "share", handles=_FD),  # no attribute speaks of it
        Way("gpu", "by_gpu"),
        Way("cpu", "by_cpu"),
    ),
}


def way(place: Location, name: str) -> Way:
    """The row of the table."""
    return next(each for each in WAYS[place.kind] if each.name == name)


def asks(machine: Machine) -> list[Ask]:
    """Every trial of a machine, those of a GPU together."""
    return [*_places(machine), *_pairs(machine)]


def _places(machine: Machine) -> Iterator[Ask]:
    for place in machine.locations:
        own = place.kind == LocationKind.GPU
        gpus = [place.id] if own else list(range(len(machine.devices)))
        for each in WAYS[place.kind]:
            # Of the host's memory, each GPU's use is tried, and everything else once.
            for by in gpus if each.how == "by_gpu" else gpus[:1]:
                yield Ask(place, each.name, by)


def _pairs(machine: Machine) -> Iterator[Ask]:
    count = range(len(machine.devices))
    yield from (Ask(gpu(owner), STORE, by) for by in count for owner in count if by != owner)


def advertised(machine: Machine, ask: Ask) -> bool | None:
    """What the driver says of it: a GPU's own attributes, and of the host whatever any GPU says."""
    if ask.name == STORE:
        return machine.can_access(ask.by, ask.place.id)
    row = way(ask.place, ask.name)
    if ask.place.kind == LocationKind.GPU:
        return row.advertised(machine.devices[ask.place.id].attributes)
    names = {name for device in machine.devices for name in device.attributes}
    return row.advertised({n: max(device.attributes.get(n, 0) for device in machine.devices) for n in names})


def recorded(machine: Machine, ask: Ask) -> Trial | None:
    """What a machine's record has of it; None where it has nothing."""
    if ask.name == STORE:
        link = machine.peers[ask.by][ask.place.id]
        return link.store if link else None
    return machine.locations[ask.place].trials.get(ask.name)
