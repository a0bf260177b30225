"""A machine: the recorded facts of a computer, the one word for what a spec is validated against.

Recorded by `memtopo probe -o FILE`; the same record is read from a live driver when the machine is `local`.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memtopo.driver.types import HandleType, Location, LocationKind, Properties
from memtopo.errors import Unavailable
from memtopo.text import nearest
from memtopo.units import shorten

VERSION = 1
LARGEST_FILE = 8 << 20

CONTEXT_BYTES = 512 << 20
"""What a context takes of its GPU's memory, about (fact 30)."""

_SHIPPED = Path(__file__).parent / "machines"
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
    """What was advertised beside what one real attempt showed; None where nothing was advertised or tried (fact 4)."""

    advertised: bool | None = None
    works: bool | None = None
    error: str | None = None

    @property
    def refused(self) -> bool:
        """Whether it did not work or, where that is not known, is not even advertised."""
        return self.works is False or (self.works is None and self.advertised is False)


_NEVER = Trial.model_construct(advertised=None, works=None, error=None)


class Memory(_Record):
    """What chunks can be created at one location: granularities, and a trial per handle type and property."""

    granularity: list[Granularity]
    trials: dict[str, Trial] = {}


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

    @property
    def room(self) -> int:
        """Bytes that chunks can have: what is free where that is known, else the total."""
        return self.memory_bytes if self.free_bytes is None else self.free_bytes


class Peer(_Record):
    """What one GPU may do with the memory of another."""

    access: bool
    performance_rank: int | None = None
    native_atomics: bool | None = None


class DriverFacts(_Record):
    """The driver: the CUDA version it supports and, where known, its release."""

    cuda: str
    release: str | None = None


class Machine(_Record):
    """The facts of one computer. `peers[a][b]` is what GPU a may do with the memory of GPU b; None where a is b."""

    memtopo_machine: Literal[1] = 1
    recorded: str | None = None
    driver: DriverFacts
    devices: list[Device]
    peers: list[list[Peer | None]]
    host: dict[HostPlace, Memory] = {}
    host_name: str | None = None

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


def shipped() -> list[str]:
    """The names of the machines that come with memtopo, each recorded on hardware."""
    return sorted(file.stem for file in _SHIPPED.glob("*.json"))


def load(name: str) -> Machine:
    """Read a shipped machine by name, or a recorded one by path.

    Raises `Unavailable` where there is no such machine, or where the file is not a machine of this version.
    """
    if "/" not in name and not name.endswith(".json"):
        if name not in shipped():
            raise Unavailable(f"machine {shorten(name)!r} is not known", hint=_meant(name))
        return _trusted(json.loads((_SHIPPED / f"{name}.json").read_bytes()))
    return parse(_read(Path(name)), name)


def _trusted(facts: dict[str, Any]) -> Machine:
    """A shipped machine, which a test has validated: building the validator takes longer than all else."""
    devices = [_device(each) for each in facts["devices"]]
    peers = [[peer and Peer.model_construct(**peer) for peer in row] for row in facts["peers"]]
    host = {place: _memory(memory) for place, memory in facts["host"].items()}
    driver = DriverFacts.model_construct(**facts["driver"])
    return Machine.model_construct(**facts | {"driver": driver, "devices": devices, "peers": peers, "host": host})


def _device(device: dict[str, Any]) -> Device:
    read = {"compute_capability": tuple(device["compute_capability"]), "memory": _memory(device["memory"])}
    return Device.model_construct(**device | read)


def _memory(memory: dict[str, Any]) -> Memory:
    granularity = [Granularity.model_construct(**entry) for entry in memory["granularity"]]
    trials = {name: Trial.model_construct(**trial) for name, trial in memory["trials"].items()}
    return Memory.model_construct(granularity=granularity, trials=trials)


def parse(text: bytes, origin: str) -> Machine:
    """Read a recorded machine from JSON; `origin` names it in errors. Raises `Unavailable`."""
    hint = "record it again with 'memtopo probe -o FILE'"
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"machine file {origin!r} is not JSON", hint=hint) from error
    if not isinstance(facts, dict) or "memtopo_machine" not in facts:
        raise Unavailable(f"{origin!r} is not a machine file", hint=hint)
    if (version := facts["memtopo_machine"]) != VERSION:
        told = f"machine file {origin!r} has version {json.dumps(version)[:20]}; this memtopo reads version {VERSION}"
        raise Unavailable(told, hint=hint)
    try:
        machine = Machine.model_validate_json(text)
    except ValidationError as error:
        raise Unavailable(f"machine file {origin!r} is damaged: {_told(error)}", hint=hint) from error
    _square(machine, origin, hint)
    return machine


def dump(machine: Machine) -> str:
    """The machine as it is written to a file: JSON, stable order, one fact a line."""
    return json.dumps(machine.model_dump(mode="json", exclude_none=True), indent=1) + "\n"


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(shorten(str(part)) for part in first["loc"] if part != "[key]")
    what = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where}: {what[:1].lower()}{what[1:]}" if where else what


def _square(machine: Machine, origin: str, hint: str) -> None:
    count = len(machine.devices)
    if len(machine.peers) != count or any(len(row) != count for row in machine.peers):
        raise Unavailable(f"machine file {origin!r} is damaged: peers is not {count} by {count}", hint=hint)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        hint = f"the machines that come with memtopo are {', '.join(shipped())}"
        raise Unavailable(f"machine file {str(path)!r} cannot be read: {reason}", hint=hint) from error
    if len(text) > LARGEST_FILE:
        raise Unavailable(f"machine file {str(path)!r} has more than {LARGEST_FILE >> 20} MiB")
    return text


def _meant(name: str) -> str:
    if os.path.isfile(name):  # noqa: PTH113 of a name that cannot be a path, a Path raises
        return f"to read the file of that name, write ./{name}"
    known = shipped()
    near = nearest(name, known)
    asked = f"did you mean {near!r}? " if near else ""
    return f"{asked}use local, {', '.join(known)}, or the path of a file made by 'memtopo probe -o FILE'"


def _host(name: str) -> Location:
    kind, _, node = name.partition(":")
    return Location(LocationKind.HOST_NUMA, int(node)) if node else Location(LocationKind[kind.upper()])


def _flags(words: list[str]) -> HandleType:
    flags = HandleType.NONE
    for word in words:
        flags |= HandleType[word.upper()]
    return flags
