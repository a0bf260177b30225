"""What a machine's record holds. What is measured, tried or told by the system is there or it is absent, never assumed.

Fields that a later memtopo added are optional, so that machines recorded earlier stay loadable.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from memtopo.common.units import shorten
from memtopo.driver.types import HandleType, Location, LocationKind, Properties

CONTEXT_BYTES = 512 << 20
"""What a context takes of its GPU's memory, about (fact 30)."""

_PAGE = 4096
_HOST_VMM = {
    LocationKind.HOST: "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    LocationKind.HOST_NUMA: "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
}
_GPU_ATTRIBUTES = {
    "vmm": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "fd": "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "win32": "HANDLE_TYPE_WIN32_HANDLE_SUPPORTED",
    "win32_kmt": "HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED",
    "fabric": "HANDLE_TYPE_FABRIC_SUPPORTED",
    "rdma": "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "compressible": "GENERIC_COMPRESSION_SUPPORTED",
    "managed": "MANAGED_MEMORY",
    "concurrent": "CONCURRENT_MANAGED_ACCESS",
    "external-semaphore": "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED",
}


def _handle_word(word: str) -> str:
    if word.upper() not in HandleType.__members__:
        raise ValueError(f"{shorten(word)!r} is not a handle type")
    return word


def _host_place(place: str) -> str:
    if not re.fullmatch(r"host(:[0-9]{1,4})?", place):
        raise ValueError(f"{shorten(place)!r} is neither host nor host:N")
    return place


def _granule(size: int) -> int:
    if size < _PAGE or size & (size - 1):
        raise ValueError(f"a granule of {size} bytes is not a power of two from {_PAGE} on")
    return size


HandleWord = Annotated[str, AfterValidator(_handle_word)]
HostPlace = Annotated[str, AfterValidator(_host_place)]
Granule = Annotated[int, Field(lt=1 << 63), AfterValidator(_granule)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Granularity(_Record):
    """Minimum and recommended granularity, in bytes, of chunks with exactly these properties (fact 1)."""

    handles: list[HandleWord]
    rdma: bool
    compressible: bool
    minimum: Granule
    recommended: Granule


class Trial(_Record):
    """What was advertised beside what one real attempt showed; None where nothing was advertised or tried (fact 4).

    `error` is the driver's name of it, or `TIMEOUT` or a signal's where the trial had to be killed or died, and `call`
    the driver call that gave it. `note` says why it was not tried.
    """

    advertised: bool | None = None
    works: bool | None = None
    error: str | None = None
    call: str | None = None
    note: str | None = None

    @property
    def refused(self) -> bool:
        """Whether it did not work or, where that is not known, is not even advertised."""
        return self.works is False or (self.works is None and self.advertised is False)


_NEVER = Trial.model_construct(advertised=None, works=None, error=None)


class Memory(_Record):
    """What chunks can be created at one location: granularities, and a trial per handle type and property."""

    granularity: list[Granularity]
    trials: dict[str, Trial] = {}


class Rate(_Record):
    """A measured copy: bytes in a second, and nanoseconds for one of a few bytes."""

    bytes_per_second: int = Field(gt=0)
    latency_ns: int | None = Field(default=None, gt=0)


class Copies(_Record):
    """Measured copies between a GPU's memory and another place's, by copy engine and by kernels on its SMs.

    A write goes from the GPU to the peer, or from the host to the GPU; a read goes the other way.
    """

    engine_write: Rate | None = None
    engine_read: Rate | None = None
    sm_write: Rate | None = None
    sm_read: Rate | None = None


class Device(_Record):
    """One GPU. `memory_bytes` is its total, `free_bytes` known of a live one alone and never recorded.

    `attributes` are advertised, by the driver's names.
    """

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int = Field(gt=0)
    attributes: dict[str, int]
    memory: Memory
    uuid: str | None = None
    bus_id: str | None = None
    free_bytes: int | None = None
    copies: Copies | None = None

    @property
    def room(self) -> int:
        """Bytes that chunks can have: what is free where that is known, else the total."""
        return self.memory_bytes if self.free_bytes is None else self.free_bytes


class Peer(_Record):
    """What one GPU may do with the memory of another.

    `store` is the trial of a kernel's store that the owner then reads. `link` is what joins the two, in the words of
    `nvidia-smi topo`: NV, PIX, PXB, PHB, NODE or SYS; `links` how many NVLinks.
    """

    access: bool
    performance_rank: int | None = None
    native_atomics: bool | None = None
    store: Trial | None = None
    link: str | None = None
    links: int | None = None
    copies: Copies | None = None


class DriverFacts(_Record):
    """The driver: the CUDA version it supports and, where known, its release."""

    cuda: str
    release: str | None = None


class Surroundings(_Record):
    """What of the system and of this process decides about trials: it explains a no, and changes without a reboot."""

    container: bool
    wsl: bool
    imex_channels: int
    ptrace_scope: int | None = None
    open_files: int
    vulkan: bool
    bindings: str | None = None


class Machine(_Record):
    """The facts of one computer. `peers[a][b]` is what GPU a may do with the memory of GPU b; None where a is b."""

    memtopo_machine: Literal[1] = 1
    recorded: str | None = None
    driver: DriverFacts
    devices: list[Device]
    peers: list[list[Peer | None]]
    host: dict[HostPlace, Memory] = {}
    host_name: str | None = None
    surroundings: Surroundings | None = None

    def granularity(self, properties: Properties) -> Granularity | None:
        """The recorded granularity of exactly these properties; None where it was not recorded."""
        return self._granularities.get(properties)

    @cached_property
    def _granularities(self) -> dict[Properties, Granularity]:
        return {
            Properties(location, _flags(entry.handles), entry.rdma, entry.compressible): entry
            for location, memory in self.locations.items()
            for entry in memory.granularity
        }

    @cached_property
    def locations(self) -> dict[Location, Memory]:
        """Every place where chunks can be: the GPUs by ordinal, then the host and its NUMA nodes."""
        gpus = {Location(LocationKind.GPU, i): device.memory for i, device in enumerate(self.devices)}
        return gpus | {_host(name): memory for name, memory in self.host.items()}

    def trial(self, place: Location, what: str) -> Trial:
        """The trial of a handle type or property at a location; without one, what the attributes say of it."""
        found = self.locations[place].trials.get(what, _NEVER)
        if found.works is not None or (said := self._advertised(place, what)) is None:
            return found
        return Trial.model_construct(advertised=said, works=None, error=found.error)

    def _advertised(self, place: Location, what: str) -> bool | None:
        """What a GPU says of itself, and of the host whatever any GPU says."""
        own = place.kind is LocationKind.GPU
        name = _GPU_ATTRIBUTES.get(what) if own else _HOST_VMM[place.kind] if what == "vmm" else None
        gpus = self.devices[place.id : place.id + 1] if own else self.devices
        said = [device.attributes[name] != 0 for device in gpus if name and name in device.attributes]
        return any(said) if said else None

    def can_access(self, device: int, owner: int) -> bool:
        """Whether GPU `device` can reach the memory of GPU `owner`."""
        if device == owner:
            return True
        peer = self.peers[device][owner]
        return peer is not None and peer.access


def _host(name: str) -> Location:
    kind, _, node = name.partition(":")
    return Location(LocationKind.HOST_NUMA, int(node)) if node else Location(LocationKind[kind.upper()])


def _flags(words: list[str]) -> HandleType:
    flags = HandleType.NONE
    for word in words:
        flags |= HandleType[word.upper()]
    return flags
