"""Multicast objects, from NVIDIA's documentation and the code of NCCL and PyTorch: no hardware was tried (fact 87)."""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

from msgspec import field

from memtopo.driver.types import MULTICAST_SLOTS, HandleType, Properties, gpu
from memtopo.drivers.sim.calls import RefusedCall
from memtopo.drivers.sim.chunks import Creation, SimChunk, SimChunks, SimMappings
from memtopo.drivers.sim.physical import PAGE, Physical
from memtopo.drivers.sim.process import SimProcess
from memtopo.drivers.sim.shared_files import Tag, exclusive, nonce

KIND = "multicast"
"""Kind of the file behind a multicast object, in its tag."""

_HEAD = Struct("=IIQ")  # GPUs of the team, GPUs that are added, bytes of the object
_UUID = 16


class SimBinding(NamedTuple):
    """Memory of a GPU that this process has bound: bytes from `at` on of a chunk, at an offset of the object."""

    device: int
    offset: int
    size: int
    chunk: SimChunk
    at: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.size


class Broadcast(Physical):
    """Bytes behind a multicast address: a write goes to all memory that this process has bound.

    The file has the team, which all processes share, and no bytes.
    """

    bindings: list[SimBinding] = field(default_factory=list)

    def read(self, at: int, count: int) -> bytes:
        del at, count
        raise documented("only multimem instructions, which are not simulated, can read a multicast address")

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        for each in self.bindings:
            low, high = max(at, each.offset), min(at + len(rest), each.end)
            if low < high:
                each.chunk.physical.write(each.at + low - each.offset, rest[low - at : high - at])

    def copy(self, at: int, source: Physical, from_at: int, count: int) -> None:
        for each in self.bindings:
            low, high = max(at, each.offset), min(at + count, each.end)
            if low < high:
                each.chunk.physical.copy(each.at + low - each.offset, source, from_at + low - at, high - low)


class SimMulticastObject(SimChunk, kw_only=True, eq=False):
    """A multicast object, which is mapped, exported and released as a chunk is; `broadcast` is its memory."""

    broadcast: Broadcast

    def check_complete(self) -> None:
        """Refuse an object whose team lacks a GPU: the call would wait until another process adds it."""
        expected, added, _ = self.team()
        _refuse_if(added < expected, f"the call would wait: {added} of the {expected} GPUs of the team are added")

    def team(self) -> tuple[int, int, int]:
        """Number of GPUs that the team has, and that are added, and bytes of the object."""
        expected, added, size = _HEAD.unpack(os.pread(self.broadcast.fd, _HEAD.size, 0))
        return expected, added, size

    def members(self) -> list[bytes]:
        """UUIDs of the GPUs that are added, by any process."""
        _, added, _ = self.team()
        found = os.pread(self.broadcast.fd, added * _UUID, _HEAD.size)
        return [found[at : at + _UUID] for at in range(0, len(found), _UUID)]

    def add(self, uuid: bytes) -> None:
        """Add a GPU to the team; refuses one too many, and one that is added already."""
        with exclusive(self.broadcast.fd) as fd:
            expected, added, size = self.team()
            _refuse_if(uuid in self.members(), "the gpu is added already")
            _refuse_if(added == expected, f"all {expected} GPUs of the team are added already")
            os.pwrite(fd, uuid, _HEAD.size + added * _UUID)
            os.pwrite(fd, _HEAD.pack(expected, added + 1, size), 0)


def documented(reason: str, name: str = "INVALID_VALUE") -> RefusedCall:
    """Return a refusal that no hardware has shown, but the documentation states or follows from it."""
    return RefusedCall(f"CUDA_ERROR_{name}", f"{reason} (fact 87: from documentation, not tried on hardware)")


def _refuse_if(broken: object, reason: str, name: str = "INVALID_VALUE") -> None:
    if broken:
        raise documented(reason, name)


class SimMulticast:
    """Multicast objects of one process."""

    def __init__(self, sim: SimProcess, creation: Creation, chunks: SimChunks, mappings: SimMappings) -> None:
        self._sim, self._creation, self._chunks, self._mappings = sim, creation, chunks, mappings
        self._bound: set[SimMulticastObject] = set()
        """Objects with bindings, each of which takes a slot of the switch."""

    def multicast_create(self, devices: int, size: int, handles: HandleType, flags: int = 0) -> int:
        """Create an object with one reference."""
        _refuse_if(flags, "flags must be 0")
        _refuse_if(devices <= 0 or size <= 0, "the team or the size is empty")
        granule = self._sim.machine.multicast_granule(self._sim.machine.locations)
        _refuse_if(size % granule, "the size is not a multiple of the granularity")
        if not any(self._works(device) for device in range(len(self._sim.machine.devices))):
            raise documented("multicast was tried on no gpu of this machine", "NOT_SUPPORTED")
        if HandleType.FABRIC in handles:
            self._creation.check_fabric()
        # PyTorch saw a multicast address reported as of device 0.
        tag = Tag(KIND, PAGE, granule, self._sim.devices.location_name(gpu(0)), nonce())
        fd = self._sim.files.create(tag)
        os.pwrite(fd, _HEAD.pack(devices, 0, size), 0)
        return self._added(Properties(gpu(0), handles), tag, fd, imported=False)

    def adopt(self, fd: int, tag: Tag) -> int:
        """Return a new handle, with one reference, to an object of a process."""
        return self._added(Properties(self._sim.devices.locate(tag.location)), tag, fd, imported=True)

    def multicast_add_device(self, handle: int, device: int) -> None:
        """Add a GPU to the team of an object."""
        team = self._get(handle)
        uuid = self._sim.devices.device_get_uuid(device)
        _refuse_if(not self._works(device), f"multicast was not tried on gpu{device} of this machine", "NOT_SUPPORTED")
        team.add(uuid)

    def multicast_bind_mem(
        self, handle: int, offset: int, chunk: int, chunk_offset: int, size: int, flags: int = 0
    ) -> None:
        """Bind memory of a GPU of the team."""
        self._bind(handle, offset, self._chunks.get(chunk), chunk_offset, size, flags)

    def multicast_bind_addr(self, handle: int, offset: int, address: int, size: int, flags: int = 0) -> None:
        """Bind memory that is mapped at an address."""
        mapping = self._mappings.around(address)
        self._bind(handle, offset, mapping.chunk, address - mapping.start, size, flags)

    def _bind(self, handle: int, offset: int, chunk: SimChunk, at: int, size: int, flags: int) -> None:
        team = self._get(handle)
        _refuse_if(flags, "flags must be 0")
        if (
            isinstance(chunk, SimMulticastObject)
            or any(each % team.granule for each in (offset, at, size))
            or size <= 0
        ):
            raise documented("size and offsets of memory must be multiples of the granularity")
        if at + size > chunk.size or offset + size > team.team()[2]:
            raise documented("the bytes run past the end of the chunk or of the multicast object")
        shared = team.imported or team.properties.handles
        if shared and not (chunk.properties.handles or chunk.imported):
            raise documented("a multicast object with handle types accepts only shareable memory")
        team.check_complete()
        device = chunk.properties.location
        if (
            device not in self._sim.machine.locations
            or self._sim.devices.device_get_uuid(device.id) not in team.members()
        ):
            raise documented(f"{device} is not in the team", "INVALID_DEVICE")
        bound = SimBinding(device.id, offset, size, chunk, at)
        there = [each for each in team.broadcast.bindings if each.device == bound.device]
        if any(each.offset < bound.end and bound.offset < each.end for each in there):
            raise documented("something of the gpu is bound there")
        if team not in self._bound and len(self._bound) >= MULTICAST_SLOTS:
            raise documented(f"the {MULTICAST_SLOTS} slots of the switch are taken (nccl#2077)", "OUT_OF_MEMORY")
        self._bound.add(team)
        team.broadcast.bindings.append(bound)

    def multicast_unbind(self, handle: int, device: int, offset: int, size: int) -> None:
        """Unbind exactly what was bound; refused, but done, if the memory is freed already (pytorch#163750)."""
        team = self._get(handle)
        bindings = team.broadcast.bindings
        found = next(
            (each for each in bindings if (each.device, each.offset, each.size) == (device, offset, size)), None
        )
        if found is None:
            raise documented("nothing was bound with this offset and size: undefined")
        bindings.remove(found)
        if not bindings:
            self._bound.discard(team)
        _refuse_if(found.chunk.freed, "the memory was freed before it was unbound")

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        found = self._chunks.get(handle)
        if isinstance(found, SimMulticastObject):
            raise documented("the properties of a multicast object are not documented", "NOT_SUPPORTED")
        return found.properties

    def _added(self, properties: Properties, tag: Tag, fd: int, *, imported: bool) -> int:
        size = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))[2]
        memory = Broadcast(fd, 0, size, tag=tag)
        return self._chunks.add(
            SimMulticastObject(size, tag.granule, properties, memory, imported=imported, broadcast=memory)
        )

    def _get(self, handle: int) -> SimMulticastObject:
        found = self._chunks.get(handle)
        if not isinstance(found, SimMulticastObject):
            raise documented("the handle is not a multicast object")
        return found

    def _works(self, device: int) -> bool:
        return self._sim.machine.trial(gpu(device), "multicast").works is True
