"""Machines: records of a computer's GPUs, driver and host memory, against which specs are validated, and their files.

`memtopo probe -o FILE` writes a record; for the machine `local`, the same record is read from the live driver.
Recorded machines are shipped, and loaded by name, or are files, and loaded by path. Values that were not queried,
measured or tried are absent, never assumed. Fields that were added in later versions are optional, so that older
records can still be loaded.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from itertools import compress, product
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memtopo.common.errors import Unavailable, reason
from memtopo.common.files import TooLarge, read_file
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.model import Path
from memtopo.driver.types import (
    PROPERTY_FLAGS,
    WHOLE_HOST,
    Attribute,
    HandleType,
    Location,
    LocationKind,
    Properties,
    flags_of,
    gpu,
)


class Refused(Struct, frozen=True):
    """Alternative that was not taken, and why."""

    alternative: str
    reason: str


class Choice(Struct, frozen=True):
    """Alternative that a field of an entry takes on a machine, and the ones before it, which do not work there.

    `subject` is the entry and the field: `chunk hot: handles`. `why` is what the trial of the taken one showed; it is
    empty if that needs no support.
    """

    subject: str
    taken: str
    why: str
    refused: tuple[Refused, ...]
    alternatives: tuple[str, ...]
    path: Path

    @property
    def text(self) -> str:
        """The choice in one line, with its reasons."""
        taken = f"{self.subject} {self.taken}" + (f" ({self.why})" if self.why else "")
        return "; ".join([taken, *(f"not {each.alternative} ({each.reason})" for each in self.refused)])


CONTEXT_BYTES = 512 << 20
"""Approximate memory of a context on its GPU (fact 30)."""

ASSUMED_HOST_BYTES = 1 << 40
"""Memory of a host whose record does not have it, for simulations: unlimited memory would be more than any has."""

_PAGE = 4096

_PLAIN = 2 << 20
"""Granularity of chunks that is assumed where none was recorded."""
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
    "dmabuf": "DMA_BUF_SUPPORTED",
    "external-semaphore": "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED",
    "multicast": "MULTICAST_SUPPORTED",
}


def _handle_type_name(word: str) -> str:
    if word.upper() not in HandleType.__members__:
        raise ValueError(f"{shorten(word)!r} is not a handle type")
    return word


def _host_location(name: str) -> str:
    if not re.fullmatch(r"host(:[0-9]{1,4})?", name):
        raise ValueError(f"{shorten(name)!r} is neither host nor host:N")
    return name


def _granule(size: int) -> int:
    if size < _PAGE or size & (size - 1):
        raise ValueError(f"a granule of {size} bytes is not a power of two from {_PAGE} on")
    return size


HandleTypeName = Annotated[str, AfterValidator(_handle_type_name)]
HostLocation = Annotated[str, AfterValidator(_host_location)]
Number = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""A number as C has it."""

Granule = Annotated[Number, AfterValidator(_granule)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Granularity(_Record):
    """Minimum and recommended granularity, in bytes, of chunks with exactly these properties (fact 1)."""

    handles: list[HandleTypeName]
    rdma: bool
    compressible: bool
    minimum: Granule
    recommended: Granule

    @classmethod
    def of(cls, properties: Properties, minimum: int, recommended: int) -> Granularity:
        """Return the granularity of properties, in bytes."""
        flags: dict[str, Any] = {word: word in properties.flags for word in PROPERTY_FLAGS}
        handles = [*properties.handles.words]
        return cls.model_construct(handles=handles, **flags, minimum=minimum, recommended=recommended)


class Trial(_Record):
    """Advertised support and the result of one real attempt; None if it was not advertised or tried (fact 4).

    `error` is the driver's error name, `TIMEOUT` for a trial that was killed, or the signal that ended it; `call` is
    the driver call that returned the error. `note` is the reason why there was no attempt.
    """

    advertised: bool | None = None
    works: bool | None = None
    error: str | None = None
    call: str | None = None
    note: str | None = None

    @property
    def refused(self) -> bool:
        """True if it did not work or, without an attempt, is advertised as unsupported."""
        return self.works is False or (self.works is None and self.advertised is False)

    def failure(self, trial: str, otherwise: str) -> str:
        """Reason for a diagnostic of a failed trial, with its name, and its result if there was no error."""
        advertised = "it is advertised, but " if self.advertised else ""
        call = f" in {self.call}" if self.call else ""
        return f"{advertised}{trial} {f'failed with {self.error}{call}' if self.error else otherwise}"


@cache
def _untried(advertised: bool | None, error: str | None) -> Trial:  # noqa: FBT001 as recorded
    return Trial.model_construct(advertised=advertised, works=None, error=error)


_NEVER = _untried(None, None)


class Memory(_Record):
    """Support for chunks at one location: granularities, and a trial for each handle type and property."""

    granularity: list[Granularity]
    trials: dict[str, Trial] = {}


class HostMemory(Memory):
    """Support for chunks of the host or of one of its NUMA nodes, and the bytes of the node."""

    memory_bytes: Number | None = Field(default=None, gt=0)


class Rate(_Record):
    """Measured copy: bytes per second, and the latency of a copy of a few bytes in nanoseconds."""

    bytes_per_second: Number = Field(gt=0)
    latency_ns: Number | None = Field(default=None, gt=0)


class Copies(_Record):
    """Measured copies between a GPU's memory and that of a peer or the host, by copy engine and by kernels on its SMs.

    A write is from the GPU to the peer, or from the host to the GPU; a read is in the opposite direction.
    """

    engine_write: Rate | None = None
    engine_read: Rate | None = None
    sm_write: Rate | None = None
    sm_read: Rate | None = None


class Fabric(_Record):
    """NVLink domain of a GPU: the UUID of its cluster, and the clique in it, whose GPUs reach each other's memory.

    The UUID identifies the cluster; it is absent in a record without identities.
    """

    cluster: str | None = None
    clique: Number


class Device(_Record):
    """One GPU. `memory_bytes` is the total; `free_bytes` is known for live GPUs only and never recorded.

    `attributes` are the advertised ones, by the names of those that memtopo uses, and by the numbers of the others.
    """

    name: str
    compute_capability: tuple[Number, Number] | None = None
    memory_bytes: Number = Field(gt=0)
    attributes: dict[str, Number]
    memory: Memory
    uuid: str | None = None
    bus_id: str | None = None
    free_bytes: Number | None = None
    copies: Copies | None = None
    fabric: Fabric | None = None

    @property
    def capability(self) -> str:
        """Compute capability as text: `9.0`."""
        return ".".join(map(str, self.compute_capability or ())) or "not known"

    @property
    def room(self) -> int:
        """Bytes available for chunks: the free memory if it is known, else the total."""
        return self.memory_bytes if self.free_bytes is None else self.free_bytes


class Peer(_Record):
    """Access of one GPU to the memory of another.

    `store` is the trial of a kernel's store that the owner then reads. `link` is the connection in the terms of
    `nvidia-smi topo`: NV, PIX, PXB, PHB, NODE or SYS; `links` is the number of NVLinks.
    """

    access: bool
    performance_rank: Number | None = None
    native_atomics: bool | None = None
    store: Trial | None = None
    link: str | None = None
    links: Number | None = None
    copies: Copies | None = None


class DriverFacts(_Record):
    """CUDA version that the driver supports and, if known, the driver's release."""

    cuda: str
    release: str | None = None

    @property
    def name(self) -> str:
        """Release of the driver; the CUDA version if it is not known."""
        return self.release or f"CUDA {self.cuda}"


class Surroundings(_Record):
    """Conditions of the system and the process that affect trials; they explain failures and may change any time.

    `locked_bytes` is the limit RLIMIT_MEMLOCK and `group_bytes` the smallest memory limit of the process's control
    groups; without such a limit they are absent.
    """

    container: bool
    wsl: bool
    imex_channels: Number
    ptrace_scope: Number | None = None
    open_files: Number
    vulkan: bool
    bindings: str | None = None
    locked_bytes: Number | None = None
    group_bytes: Number | None = None


class Machine(_Record):
    """Record of one computer. `peers[a][b]` is the access of GPU a to the memory of GPU b; None if a is b.

    `host_bytes` is the memory of the host, of all NUMA nodes together, and `pinned_bytes` as much of it as may be
    page-locked, as chunks of the host and pinned memory are (fact 77). `estimated` is present in a record that no probe
    made, and lists the sources of its values.
    """

    memtopo_machine: Literal[1] = 1
    recorded: str | None = None
    estimated: list[str] | None = None
    driver: DriverFacts
    devices: list[Device]
    peers: list[list[Peer | None]]
    host: dict[HostLocation, HostMemory] = {}
    host_name: str | None = None
    host_bytes: Number | None = Field(default=None, gt=0)
    pinned_bytes: Number | None = Field(default=None, gt=0)
    surroundings: Surroundings | None = None

    def of(self, node: str | None) -> Machine:
        """Return the machine of a node: the same for each."""
        del node
        return self

    @cached_property
    def clique(self) -> Fabric | None:
        """Clique of all GPUs together; None if it is not known, or if they are in several ones."""
        found = {device.fabric for device in self.devices}
        only = found.pop() if len(found) == 1 else None
        return only if only and only.cluster else None

    @property
    def host_room(self) -> int:
        """Bytes of the host's memory: the recorded ones, else as many as simulations of the machine assume."""
        return self.host_bytes or ASSUMED_HOST_BYTES

    @cached_property
    def node_bytes(self) -> dict[Location, int]:
        """Bytes of the host's NUMA nodes whose memory is known."""
        return {_host(name): memory.memory_bytes for name, memory in self.host.items() if memory.memory_bytes}

    def granularity(self, properties: Properties) -> Granularity | None:
        """Return the recorded granularity of exactly these properties; None if it was not recorded."""
        return self._granularities.get(properties)

    @cached_property
    def _granularities(self) -> dict[Properties, Granularity]:
        found = {}
        for location, memory in self.locations.items():
            for entry in memory.granularity:
                handles = HandleType.NONE
                for word in entry.handles:
                    handles |= HandleType[word.upper()]
                found[Properties.with_flags(location, handles, flags_of(entry))] = entry
        return found

    @cached_property
    def address_granularity(self) -> int:
        """Bytes of the smallest granularity, which is the default alignment of reservations."""
        every = (entry.minimum for memory in self.locations.values() for entry in memory.granularity)
        return min(every, default=_PLAIN)

    @cached_property
    def plain_granularity(self) -> int:
        """Bytes of the largest granularity of chunks without properties on a GPU."""
        found = (self.granularity(Properties(each)) for each in self.locations if each.kind is LocationKind.GPU)
        return max((entry.minimum if entry else _PLAIN for entry in found), default=_PLAIN)

    @cached_property
    def locations(self) -> dict[Location, Memory]:
        """All locations of chunks: the GPUs by ordinal, then the host and its NUMA nodes."""
        gpus: dict[Location, Memory] = {gpu(i): device.memory for i, device in enumerate(self.devices)}
        return gpus | {_host(name): memory for name, memory in self.host.items()}

    def trial(self, location: Location, what: str) -> Trial:
        """Return the trial of a handle type or property at a location or, without one, the advertised support."""
        found = self.locations[location].trials.get(what, _NEVER)
        if found.works is not None or (advertised := self._advertised(location, what)) is None:
            return found
        return _untried(advertised, found.error)

    def _advertised(self, location: Location, what: str) -> bool | None:
        """Support that a GPU advertises or, for the host, that any GPU advertises."""
        name, gpus = None, self.devices
        if location.kind is LocationKind.GPU:
            name, gpus = _GPU_ATTRIBUTES.get(what), self.devices[location.id : location.id + 1]
        elif what == "vmm":
            name = _HOST_VMM[location.kind]
        values = [device.attributes[name] != 0 for device in gpus if name and name in device.attributes]
        return any(values) if values else None

    def multicast_granule(self, gpus: Iterable[Location]) -> int:
        """Return the granularity that is assumed for multicast objects of some GPUs: that of their plain chunks.

        No record has the driver's answer, since memtopo makes no multicast call on GPUs (fact 87).
        """
        found = (self.granularity(Properties(location)) for location in gpus)
        return max((each.minimum for each in found if each), default=_PLAIN)

    def can_access(self, device: int, owner: int) -> bool:
        """Return true if GPU `device` can access the memory of GPU `owner`."""
        if device == owner:
            return True
        peer = self.peers[device][owner]
        return peer is not None and peer.access

    def store(self, device: int, owner: int) -> Trial | None:
        """Return the trial of a store of GPU `device` into the memory of another, `owner`, if there is one."""
        peer = self.peers[device][owner]
        return peer.store if peer else None


def _host(name: str) -> Location:
    kind, _, node = name.partition(":")
    return Location(LocationKind.HOST_NUMA, int(node)) if node else Location(LocationKind[kind.upper()])


class Cluster(Struct, frozen=True):
    """Machine of each node by name, at least one."""

    nodes: Mapping[str, Machine]

    def of(self, node: str | None) -> Machine:
        """Return the machine of a node; without a name, that of the first one. Raises `KeyError`."""
        return self.nodes[node or next(iter(self.nodes))]


Machines = Machine | Cluster
"""One machine, which each node of a spec is, or a machine for each node. Both have a method `of`."""


class MachineLine(Struct, frozen=True, omit_defaults=True):
    """Machine of a report: its name, whether it is simulated, its GPUs and driver; `estimated` if no probe tried it."""

    name: str
    simulated: bool
    devices: tuple[str, ...]
    driver: str
    estimated: bool = False


VERSION = 1
LARGEST_FILE = 8 << 20

SHIPPED = pathlib.Path(__file__).parent.parent / "machines"


def shipped() -> list[str]:
    """Names of the machines that are part of memtopo, each recorded on hardware."""
    return sorted(file.stem for file in SHIPPED.glob("*.json"))


def is_file(name: str) -> bool:
    """Return true for the path of a recorded machine, and false for the name of a shipped one."""
    return "/" in name or name.endswith(".json")


def load(name: str) -> Machine:
    """Load a shipped machine by name, or a recorded one by path.

    Raises `Unavailable` if there is no such machine, or if the file is not a machine of this version.
    """
    if not is_file(name):
        if name not in shipped():
            raise Unavailable(f"machine {shorten(name)!r} is not known", hint=_hint(name))
        return parse((SHIPPED / f"{name}.json").read_bytes(), name)
    path = pathlib.Path(name)
    try:
        text = read_file(path, LARGEST_FILE)
    except TooLarge as error:
        raise Unavailable(f"machine file {str(path)!r} has more than {LARGEST_FILE >> 20} MiB") from error
    except (OSError, ValueError) as error:
        hint = f"the machines that are part of memtopo are {', '.join(shipped())}"
        raise Unavailable(f"machine file {str(path)!r} cannot be read: {reason(error)}", hint=hint) from error
    return parse(text, name)


@cache
def model_attributes(model: str) -> dict[str, int]:
    """Return the attributes that all GPUs of a model have, by number, for records without them; none if unknown."""
    found: dict[str, dict[str, int]] = json.loads((SHIPPED / "models" / "attributes.json").read_bytes())
    return found.get(model, {})


def parse(text: bytes, origin: str) -> Machine:
    """Parse a recorded machine from JSON; `origin` is its name in errors. Raises `Unavailable`."""
    try:
        machine = Machine.model_validate_json(text)
    except ValidationError as error:
        _require_record(text, origin)
        first, *others = map(_fault, error.errors(include_url=False, include_input=False))
        raise Unavailable(f"machine file {origin!r}: {first}", hint=_FIELDS, details=others[:_LISTED]) from error
    if "memtopo_machine" not in machine.model_fields_set:
        _require_record(text, origin)
    count = len(machine.devices)
    sizes = {"peers": len(machine.peers)} | {f"peers.{n}": len(row) for n, row in enumerate(machine.peers)}
    for where, size in sizes.items():
        if size != count:
            what = f"{where} has {size} entries, and there are {count} devices"
            raise Unavailable(f"machine file {origin!r}: {what}", hint=_FIELDS)
    return machine


def _require_record(text: bytes, origin: str) -> None:
    """Raise `Unavailable` if a text is not JSON, or no record of this version."""
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f": line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise Unavailable(f"machine file {origin!r} is not JSON{where}", hint=_RECORDS) from error
    if not isinstance(facts, dict) or "memtopo_machine" not in facts:
        hint = f'a record begins with {{"memtopo_machine": {VERSION}; {_RECORDS}'
        raise Unavailable(f"{origin!r} is not a machine file", hint=hint)
    if (version := facts["memtopo_machine"]) != VERSION:
        shown = json.dumps(version)[:20]
        raise Unavailable(
            f"machine file {origin!r} has version {shown}; this memtopo reads version {VERSION}", hint=_RECORDS
        )


_DRAFT = "'memtopo machines --draft NAME --gpus 8 --like a100-80gb'"
_RECORDS = f"'memtopo probe -o FILE' records a machine, and {_DRAFT} writes an estimate"
_FIELDS = f"'memtopo schema machine' has all fields, and {_DRAFT} writes them"
_LISTED = 10
"""Faults of a file that are listed after the first one."""


def dump(machine: Machine) -> str:
    """Return the machine as the text of a file: JSON in a stable order, with one value per line.

    It contains no `##`, so that no name in it is a command to a CI runner.
    """
    text = json.dumps(machine.model_dump(mode="json", exclude_none=True), indent=1)
    return text.replace("##", r"#\u0023") + "\n"


def _fault(error: Mapping[str, Any]) -> str:
    """Field with a fault, by its path: `devices.0.memory is missing`."""
    where = ".".join(shorten(str(part)) for part in error["loc"] if part != "[key]")
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        return f"{where} is not a field of a record"
    what = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where}: {what[:1].lower()}{what[1:]}" if where else what


_MODEL = r"(?i)[a-z]+[0-9]+[a-z]*x[0-9]+"


def nearest_shipped(name: str) -> str | None:
    """Shipped machine whose name is most similar; None for the name of another model or of another number of GPUs."""
    known = shipped()
    return nearest(name, known) if name.lower() in known or not re.fullmatch(_MODEL, name) else None


def _hint(name: str) -> str:
    if os.path.isfile(name):  # noqa: PTH113 a Path raises for a name that cannot be a path
        return f"to read the file of that name, write ./{name}"
    if os.path.isfile(f"{name}.json"):  # noqa: PTH113 as above
        return f"to read the file of that name, write {name}.json"
    known = shipped()
    near = nearest_shipped(name)
    suggestion = f"did you mean {near!r}? " if near else ""
    names = name.split(",")
    if len(names) > 1 and all(each in known for each in names):
        return f"name one machine; 'memtopo validate' takes several: --machine {' --machine '.join(names)}"
    files = f"or the path of a file made by 'memtopo probe -o FILE' or {_DRAFT}"
    return f"{suggestion}use local, {', '.join(known)}, {files}"


_WORKS, _FAILS = Trial.model_construct(works=True), Trial.model_construct(works=False)
_NODES = 16
_ABSENT = (Attribute.INTEGRATED, Attribute.HOST_NUMA_ID)


@cache
def large_machine() -> Machine:
    """Return a machine with more GPUs than a spec names, large granularities and much memory; fabric works."""
    return _machine(gpus=72, granule=2 << 20, gpu_bytes=1 << 40, host_bytes=1 << 46, fabric=_WORKS)


@cache
def small_machine(gpus: int) -> Machine:
    """Return a machine with some GPUs, small granularities and little memory; fabric does not work."""
    return _machine(gpus=gpus, granule=64 << 10, gpu_bytes=24 << 30, host_bytes=1 << 43, fabric=_FAILS)


def _machine(*, gpus: int, granule: int, gpu_bytes: int, host_bytes: int, fabric: Trial) -> Machine:
    granularities = list(_granularities(granule))
    trials = {"multicast": _WORKS, "fd": _WORKS, "fabric": fabric}
    device = Device.model_construct(
        name="GPU",
        compute_capability=(9, 0),
        memory_bytes=gpu_bytes,
        attributes={each.name: int(each not in _ABSENT) for each in Attribute} | {"MEMPOOL_SUPPORTED_HANDLE_TYPES": 9},
        memory=Memory.model_construct(granularity=granularities, trials=trials),
        fabric=Fabric.model_construct(cluster="assumed", clique=0),
    )
    peer = Peer.model_construct(access=True, native_atomics=True)
    node = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=host_bytes // _NODES)
    host = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=None)
    return Machine.model_construct(
        driver=DriverFacts.model_construct(cuda="13.0"),
        devices=[device] * gpus,
        peers=[[None if a == b else peer for b in range(gpus)] for a in range(gpus)],
        host={"host": host} | {f"host:{number}": node for number in range(_NODES)},
        host_bytes=host_bytes,
    )


def _granularities(granule: int) -> list[Granularity]:
    handles = [HandleType(value) for value in range(2 * max(HandleType))]
    flags = [[*compress(PROPERTY_FLAGS, each)] for each in product((False, True), repeat=len(PROPERTY_FLAGS))]
    sets = (Properties.with_flags(WHOLE_HOST, *each) for each in product(handles, flags))
    return [Granularity.of(properties, granule, granule) for properties in sets]
