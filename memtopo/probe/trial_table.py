"""The trial table: methods of trying at each kind of location, and from it all trials of a machine."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memtopo.driver.types import Attribute, HandleType, Location, LocationKind, Properties, gpu
from memtopo.machine import Machine, Trial

STORE = "store"
"""Trial of a pair of GPUs: a kernel of one stores into the memory of the other, which reads it."""

DMABUF_PCIE = "dmabuf-pcie"
"""Trial of a dma-buf that is mapped through PCIe."""

RATES = "rates"
"""Not a trial: measurement of copies between a GPU and a location."""


class Method(Struct, frozen=True):
    """One trial at a kind of location: how, with which properties of a chunk, and which attributes advertise it.

    `never` is the reason why it is never tried. Of an attribute that is a mask, `bit` is the one that counts.
    """

    name: str
    how: str
    advertised_by: tuple[Attribute, ...] = ()
    handles: HandleType = HandleType.NONE
    bit: int = -1
    never: str | None = None

    def advertised(self, attributes: Mapping[str, int]) -> bool | None:
        """Return whether all attributes advertise it; None if there are none or one is not known."""
        values = [attributes.get(attribute.name) for attribute in self.advertised_by]
        return None if not values or None in values else all(value & self.bit for value in values if value is not None)


class PlannedTrial(Struct, frozen=True):
    """Trial of a method at a location, made by the GPU of ordinal `device`; of `STORE`, into the GPU at `location`."""

    location: Location
    name: str
    device: int

    @property
    def method(self) -> Method:
        """Row of the table; `STORE` and `RATES` have none."""
        return next(each for each in METHODS[self.location.kind] if each.name == self.name)

    @property
    def how(self) -> str:
        """Way of trying."""
        return STORE if self.name == STORE else self.method.how

    @property
    def properties(self) -> Properties:
        """Properties of the trial's chunk."""
        method = self.method
        return Properties.with_flags(self.location, method.handles, (method.name,))


_FD, _FABRIC = HandleType.FD, HandleType.FABRIC
_ADVERTISED_FD = Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
_ADVERTISED_FABRIC = Attribute.HANDLE_TYPE_FABRIC_SUPPORTED
_POOLS = (Attribute.MEMPOOL_SUPPORTED_HANDLE_TYPES,)
_MULTICAST = "others share its switch"

METHODS: dict[LocationKind, tuple[Method, ...]] = {
    LocationKind.GPU: (
        Method("vmm", "use", (Attribute.VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Method("fd", "share", (_ADVERTISED_FD,), _FD),
        Method("fabric", "share", (_ADVERTISED_FABRIC,), _FABRIC),
        Method("win32", "create", (Attribute.HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,), HandleType.WIN32),
        Method("fd+fabric", "share", (_ADVERTISED_FD, _ADVERTISED_FABRIC), _FD | _FABRIC),
        Method("rdma", "use", (Attribute.GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,)),
        Method("compressible", "use", (Attribute.GENERIC_COMPRESSION_SUPPORTED,)),
        Method("managed", "managed", (Attribute.MANAGED_MEMORY,)),
        Method("concurrent", "concurrent", (Attribute.CONCURRENT_MANAGED_ACCESS,)),
        Method("pinned", "pinned"),
        Method("registered", "registered"),
        Method("ipc", "ipc"),
        Method("ipc-event", "ipc_event", (Attribute.IPC_EVENT_SUPPORTED,)),
        Method("pool-fd", "pool", _POOLS, _FD, bit=_FD),
        Method("pool-fabric", "pool", _POOLS, _FABRIC, bit=_FABRIC),
        Method("dmabuf", "dma_buf", (Attribute.DMA_BUF_SUPPORTED,)),
        Method(DMABUF_PCIE, "dma_buf"),
        Method("external-memory", "external_memory"),
        Method("external-dmabuf", "external_dma_buf"),
        Method("external-semaphore", "external_semaphore", (Attribute.TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,)),
        Method("multicast", "never", (Attribute.MULTICAST_SUPPORTED,), never=_MULTICAST),
    ),
    LocationKind.HOST: (
        Method("vmm", "create", (Attribute.HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Method("gpu", "by_gpu"),
        Method("cpu", "by_cpu"),
    ),
    LocationKind.HOST_NUMA: (
        Method("vmm", "create", (Attribute.HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Method("fd", "share", handles=_FD),  # advertised by no attribute
        Method("gpu", "by_gpu"),
        Method("cpu", "by_cpu"),
    ),
}


def planned_trials(machine: Machine) -> list[PlannedTrial]:
    """All trials of a machine, those at a location together, then those of pairs of GPUs."""
    planned: list[PlannedTrial] = []
    for location in machine.locations:
        gpus = [location.id] if location.kind == LocationKind.GPU else list(range(len(machine.devices)))
        for method in METHODS[location.kind]:
            # Use of the host's memory by GPUs is tried with each of them, everything else once.
            tried_by = gpus if method.how == "by_gpu" else gpus[:1]
            planned += [PlannedTrial(location, method.name, device) for device in tried_by]
    count = range(len(machine.devices))
    planned += [PlannedTrial(gpu(owner), STORE, device) for device in count for owner in count if device != owner]
    return planned


def advertised(machine: Machine, planned: PlannedTrial) -> bool | None:
    """Return whether the driver advertises it: by the GPU's attributes; of host memory, by those of any GPU."""
    if planned.name == STORE:
        return machine.can_access(planned.device, planned.location.id)
    method = planned.method
    if planned.location.kind == LocationKind.GPU:
        return method.advertised(machine.devices[planned.location.id].attributes)
    names = {name for device in machine.devices for name in device.attributes}
    return method.advertised({n: max(device.attributes.get(n, 0) for device in machine.devices) for n in names})


def recorded(machine: Machine, planned: PlannedTrial) -> Trial | None:
    """Return the trial in a machine's record, if there is one."""
    if planned.name == STORE:
        return machine.store(planned.device, planned.location.id)
    return machine.locations[planned.location].trials.get(planned.name)
