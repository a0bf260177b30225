"""Types of the driver protocol, and the use of GPU memory that NVML reports. Numbers are those of `cuda.h`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any, Literal, NamedTuple, Self

from msgspec import Struct

from memtopo.common.errors import MemtopoError

ADDRESS_BLOCK = 32 << 20
"""Bytes of the blocks of addresses that the driver divides among reservations, each at a multiple (fact 11)."""

ADDRESS_SPACE = 1 << 47
"""Limit in bytes of the addresses of a process: reserving 64 TiB succeeded, 128 TiB failed (fact 9)."""

LAST_ADDRESS = ADDRESS_SPACE - ADDRESS_BLOCK
"""End of the addresses that can be reserved: an address hint behind it returns OUT_OF_MEMORY (fact 11)."""


MULTICAST_SLOTS = 128
"""Multicast objects that a switch of NVLink can have at once, as users found: nccl#2077 (fact 87)."""


class LocationKind(IntEnum):
    """Kind of a location of memory, or of a processor with access (`CUmemLocationType`)."""

    GPU = 1
    HOST = 2
    HOST_NUMA = 3
    HOST_NUMA_CURRENT = 4


class Location(NamedTuple):
    """A GPU by ordinal, the host, or one of its NUMA nodes.

    `node` is the name of another node of a cluster that has it; it is empty for what the process has itself.
    """

    kind: LocationKind
    id: int = 0
    node: str = ""

    def on(self, node: str | None) -> Location:
        """Return the same location of a node."""
        return self._replace(node=node or "") if self.node != (node or "") else self

    @property
    def processor(self) -> int:
        """Ordinal of a GPU, or `HOST`, which all NUMA nodes share."""
        return self.id if self.kind == LocationKind.GPU else HOST

    def __str__(self) -> str:
        if self.node:
            return f"{self.node}/{self.on(None)}"
        match self.kind:
            case LocationKind.GPU:
                return f"gpu{self.id}" if self.id >= 0 else "a gpu that is not visible"
            case LocationKind.HOST:
                return "host"
            case LocationKind.HOST_NUMA:
                return f"host:{self.id}"
            case _:
                return "host:current"


def gpu(ordinal: int) -> Location:
    """Location of a GPU."""
    return Location(LocationKind.GPU, ordinal)


WHOLE_HOST = Location(LocationKind.HOST)
"""Location of host memory that may be on any node."""


class HandleType(IntFlag):
    """Shareable handle types of a chunk (`CUmemAllocationHandleType`); a bit mask (fact 5)."""

    NONE = 0
    FD = 1
    WIN32 = 2
    WIN32_KMT = 4
    FABRIC = 8

    @property
    def words(self) -> tuple[str, ...]:
        """Names in a spec: `("fd", "fabric")`."""
        return _words(self)


@cache
def _words(handles: HandleType) -> tuple[str, ...]:
    return tuple(str(kind.name).lower() for kind in HandleType if kind and kind in handles)


class Access(IntFlag):
    """Access to a mapping (`CUmemAccess_flags`)."""

    NONE = 0
    R = 1
    RW = 3

    @property
    def word(self) -> str:
        """Name in a spec: `none`, `r` or `rw`."""
        return {0: "none", 1: "r", 3: "rw"}.get(int(self), f"flags {int(self)}")


class EventFlags(IntFlag):
    """Flags of an event (`CUevent_flags`); a shared event needs the last two (facts 32, 47)."""

    NONE = 0
    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2
    INTERPROCESS = 4


class HostFlags(IntFlag):
    """Flags of page-locked host memory (`CU_MEMHOSTALLOC_*`)."""

    NONE = 0
    PORTABLE = 1
    DEVICEMAP = 2
    WRITECOMBINED = 4


class DmaBufFlags(IntFlag):
    """Flags of a dma-buf (`CUmemRangeFlags`)."""

    NONE = 0
    PCIE = 1
    """The memory is mapped through PCIe (BAR1), also where a GPU has a faster link to the CPU."""


class RegisterFlags(IntFlag):
    """Flags of the registration of host memory (`CU_MEMHOSTREGISTER_*`)."""

    NONE = 0
    PORTABLE = 1
    DEVICEMAP = 2
    IOMEMORY = 4
    READ_ONLY = 8


class AllocationType(IntEnum):
    """Kind of physical memory (`CUmemAllocationType`)."""

    PINNED = 1
    MANAGED = 2


class MemAttach(IntEnum):
    """Attachment of managed memory (`CUmemAttach_flags`)."""

    GLOBAL = 1
    HOST = 2
    SINGLE = 4


class Advice(IntEnum):
    """Advice on the use of managed memory (`CUmem_advise`)."""

    SET_READ_MOSTLY = 1
    SET_PREFERRED_LOCATION = 3
    SET_ACCESSED_BY = 5


class RangeAttribute(IntEnum):
    """Attribute of a range of managed memory (`CUmem_range_attribute`)."""

    READ_MOSTLY = 1
    PREFERRED_LOCATION = 2
    ACCESSED_BY = 3
    LAST_PREFETCH_LOCATION = 4


HOST = -1
"""The host among the ordinals of a range attribute (`CU_DEVICE_CPU`)."""


class MemoryHandleType(IntEnum):
    """Kind of external memory (`CUexternalMemoryHandleType`), without those of Direct3D."""

    OPAQUE_FD = 1
    OPAQUE_WIN32 = 2
    OPAQUE_WIN32_KMT = 3
    NVSCIBUF = 8
    DMABUF_FD = 9


class SemaphoreHandleType(IntEnum):
    """Kind of an external semaphore (`CUexternalSemaphoreHandleType`) of Vulkan; an opaque fd is a binary one."""

    OPAQUE_FD = 1
    OPAQUE_WIN32 = 2
    OPAQUE_WIN32_KMT = 3
    TIMELINE_FD = 9
    TIMELINE_WIN32 = 10


PROPERTY_FLAGS: Mapping[str, tuple[str, str]] = {
    "rdma": ("gpuDirectRDMACapable", "1"),
    "compressible": ("compressionType", "CU_MEM_ALLOCATION_COMP_GENERIC"),
}
"""Properties that are true or false, each with its field in `CUmemAllocationProp.allocFlags` and the value, which is 1.

They are fields of `Properties`, of a chunk in a spec, and of a recorded granularity, and names of trials.
"""


def flags_of(properties: object) -> tuple[str, ...]:
    """Names of the flags that are set in properties, a granularity or an entry."""
    return tuple(word for word in PROPERTY_FLAGS if getattr(properties, word) is True)


class Properties(NamedTuple):
    """Properties of a chunk (`CUmemAllocationProp`)."""

    location: Location
    handles: HandleType = HandleType.NONE
    rdma: bool = False
    compressible: bool = False
    type: AllocationType = AllocationType.PINNED

    @property
    def words(self) -> tuple[str, ...]:
        """Properties that are set, as a spec names them: `("fd", "compressible")`."""
        return (*self.handles.words, *self.flags)

    @property
    def flags(self) -> tuple[str, ...]:
        """Properties besides handle types that are set, as a spec names them."""
        return flags_of(self)

    @classmethod
    def with_flags(cls, location: Location, handles: HandleType, flags: Collection[str]) -> Self:
        """Return properties with the flags of some names."""
        found: dict[str, Any] = {word: word in flags for word in PROPERTY_FLAGS}
        return cls(location, handles, **found)

    def __str__(self) -> str:
        return ", ".join((str(self.location), *self.words))


class PoolProperties(NamedTuple):
    """Properties of a memory pool (`CUmemPoolProps`); a `max_size` of 0 bytes is no limit."""

    location: Location
    handles: HandleType = HandleType.NONE
    max_size: int = 0


class PoolAttribute(IntEnum):
    """Attribute of a memory pool (`CUmemPool_attribute`); the first four can be set."""

    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1
    REUSE_ALLOW_OPPORTUNISTIC = 2
    REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3
    RELEASE_THRESHOLD = 4
    RESERVED_MEM_CURRENT = 5
    RESERVED_MEM_HIGH = 6
    USED_MEM_CURRENT = 7
    USED_MEM_HIGH = 8


class Grant(NamedTuple):
    """Access for one location (`CUmemAccessDesc`)."""

    location: Location
    access: Access


class Attribute(IntEnum):
    """Device attributes that memtopo uses (`CUdevice_attribute`); a record has the others by their numbers."""

    MULTIPROCESSOR_COUNT = 16
    INTEGRATED = 18
    ECC_ENABLED = 32
    UNIFIED_ADDRESSING = 41
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MANAGED_MEMORY = 83
    PAGEABLE_MEMORY_ACCESS = 88
    CONCURRENT_MANAGED_ACCESS = 89
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
    HANDLE_TYPE_WIN32_HANDLE_SUPPORTED = 104
    HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED = 105
    GENERIC_COMPRESSION_SUPPORTED = 107
    GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110
    TIMELINE_SEMAPHORE_INTEROP_SUPPORTED = 114
    MEMORY_POOLS_SUPPORTED = 115
    GPU_DIRECT_RDMA_SUPPORTED = 116
    MEMPOOL_SUPPORTED_HANDLE_TYPES = 119
    DMA_BUF_SUPPORTED = 124
    IPC_EVENT_SUPPORTED = 125
    HANDLE_TYPE_FABRIC_SUPPORTED = 128
    NUMA_CONFIG = 130
    NUMA_ID = 131
    MULTICAST_SUPPORTED = 132
    HOST_NUMA_ID = 134
    HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141
    HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145


PLACE_ATTRIBUTES = (50, 33, 34)
"""Attributes that are the domain, the bus and the device of a GPU's PCI bus id, and are not in records."""


class PeerAttribute(IntEnum):
    """Attribute of a pair of GPUs (`CUdevice_P2PAttribute`)."""

    PERFORMANCE_RANK = 1
    ACCESS_SUPPORTED = 2
    NATIVE_ATOMIC_SUPPORTED = 3


def uuid_text(raw: bytes) -> str:
    """Format a GPU's UUID as nvidia-smi does: `GPU-bb4e8c0a-098d-8d01-5e1a-e755d684523b`."""
    from uuid import UUID  # noqa: PLC0415  # this module is imported for specs too, which need no UUIDs

    return f"GPU-{UUID(bytes=raw)}"


class DriverError(MemtopoError):
    """A driver call that did not return `CUDA_SUCCESS`.

    `call` is the driver's name of the call (`cuMemMap`), `name` the error (`CUDA_ERROR_INVALID_VALUE`), and `reason`,
    on the simulator alone, the rule that was broken.
    """

    def __init__(self, call: str, name: str, reason: str | None = None) -> None:
        super().__init__(f"{call}: {name}" + (f" ({reason})" if reason else ""))
        self.call, self.name, self.reason = call, name, reason


Work = Literal["compute", "graphics"]


class GpuMemory(Struct, frozen=True):
    """Memory of one GPU in bytes; `index` is NVML's, as `nvidia-smi` prints it, and differs from CUDA's ordinals.

    `reserved` is what driver and firmware keep for themselves. Each is None if NVML does not report it.
    """

    index: int
    name: str | None
    uuid: str | None
    total: int | None
    used: int | None
    reserved: int | None
    free: int | None


class ProcessMemory(Struct, frozen=True):
    """Memory of one process on one GPU; `bytes` is None if NVML does not report it.

    `gpu` is the index of the GPU, `instance` the number of the MIG instance, None without MIG. `pid` is NVML's, which
    may be of another pid namespace.
    """

    gpu: int
    pid: int
    work: tuple[Work, ...]
    bytes: int | None
    instance: int | None = None


class GpuUsage(Struct, frozen=True):
    """Memory of all GPUs and of the processes on them; `unknown` are sentences about what could not be read."""

    gpus: tuple[GpuMemory, ...] = ()
    processes: tuple[ProcessMemory, ...] = ()
    unknown: tuple[str, ...] = ()
