"""Devices of a recorded machine (facts 4, 38), those that are visible to a process, and memory budgets."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

from memtopo.common.units import rounded
from memtopo.driver import types
from memtopo.driver.types import WHOLE_HOST, Attribute, Location, LocationKind, gpu
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if
from memtopo.machine import Device, Machine, Peer, model_attributes, queries

INVISIBLE_GPU = gpu(-2)
"""Location of imported memory whose GPU this process does not have (fact 43)."""


def machine_of(machine: Machine, gpus: Sequence[int]) -> Machine:
    """Return the machine as a process sees it to which some of its GPUs are visible, in this order (fact 38)."""
    if [*gpus] == [*range(len(machine.devices))]:
        return machine
    known = SimDevices(machine)
    named = [
        device.model_copy(update={"bus_id": known.device_get_pci_bus_id(ordinal)})
        for ordinal, device in enumerate(machine.devices)
    ]
    uuids = [types.uuid_text(known.device_get_uuid(each)) for each in gpus]
    return queries.with_gpus(queries.changed(machine, devices=named), gpus, uuids)


class SimDevices:
    """The GPUs of a machine by ordinal."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def driver_get_version(self) -> int:
        """13000 for CUDA 13.0."""
        major, _, minor = self._machine.driver.cuda.partition(".")
        return int(major) * 1000 + int(minor or 0) * 10

    def device_get_count(self) -> int:
        """Number of GPUs."""
        return len(self._machine.devices)

    def get(self, device: int) -> Device:
        """Record of one GPU; refuses an ordinal that no GPU has."""
        if not 0 <= device < len(self._machine.devices):
            raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"gpu{device} does not exist")
        return self._machine.devices[device]

    def device_get_name(self, device: int) -> str:
        return self.get(device).name

    def device_total_mem(self, device: int) -> int:
        return self.get(device).memory_bytes

    def device_get_uuid(self, device: int) -> bytes:
        """Recorded UUID, or one made from the ordinal."""
        text = self.get(device).uuid
        if text is None:
            return b"memtopo sim " + device.to_bytes(4, "big")
        return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))

    def device_get_pci_bus_id(self, device: int) -> str:
        """Recorded PCI bus id, or one made from the ordinal."""
        return self.get(device).bus_id or f"0000:{device + 1:02x}:00.0"

    def device_get_attribute(self, device: int, attribute: int) -> int:
        """Recorded attribute; an attribute that was not recorded is unknown to the driver."""
        found = self.get(device)
        if attribute in types.PLACE_ATTRIBUTES:
            numbers = self.device_get_pci_bus_id(device).replace(".", ":").split(":")
            return int(numbers[types.PLACE_ATTRIBUTES.index(attribute)], 16)
        name = Attribute(attribute).name if attribute in set(Attribute) else str(attribute)
        value = found.attributes.get(name, model_attributes(found.name).get(name))
        if value is None:
            raise invalid(f"attribute {name} of gpu{device} was not recorded")
        return value

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        """Return whether one GPU can access another's memory; a GPU is no peer of itself."""
        self.get(device), self.get(peer)
        return device != peer and self._machine.can_access(device, peer)

    def device_get_p2p_attribute(self, attribute: int, device: int, peer: int) -> int:
        """Attribute of the link between two GPUs."""
        self.get(device), self.get(peer)
        refuse_if(device == peer, "a gpu is not a peer of itself", "CUDA_ERROR_INVALID_DEVICE")
        link = self._machine.peers[device][peer] or Peer(access=False)
        known: dict[int, int | bool | None] = {
            types.PeerAttribute.PERFORMANCE_RANK: link.performance_rank,
            types.PeerAttribute.ACCESS_SUPPORTED: link.access,
            types.PeerAttribute.NATIVE_ATOMIC_SUPPORTED: link.native_atomics,
        }
        refuse_if(attribute not in known, "the attribute of the link was not recorded, or has no such number")
        return int(known[attribute] or 0)

    def location_name(self, location: Location) -> str:
        """Name of a location that is the same in every process (fact 38): a GPU's UUID, or a NUMA node's number."""
        if location.kind == LocationKind.GPU:
            return f"gpu {self.device_get_uuid(location.id).hex()}"
        return f"node {location.id:x}"

    def locate(self, name: str) -> Location:
        """Location with such a name; `INVISIBLE_GPU` for a GPU that this process does not have (fact 43)."""
        kind, _, number = name.partition(" ")
        if kind == "node":
            return Location(LocationKind.HOST_NUMA, int(number, 16))
        ordinals = range(len(self._machine.devices))
        return next((gpu(i) for i in ordinals if self.device_get_uuid(i).hex() == number), INVISIBLE_GPU)


HOST_NODE = Location(LocationKind.HOST_NUMA, 0)
"""Location of host memory, also on a machine that lists no such node (fact 6)."""


_HOST_NUMA = LocationKind.HOST_NUMA
"""Looked up once: to find a member of an enumeration takes longer than the rest of what is done for a chunk."""


class SimMemoryBudget:
    """Free and total bytes of every location of a machine; what a NUMA node takes is taken of the whole host, too.

    The processes of one machine have a budget each, of the same memory: `of` is another one of the machine. `gpus` are
    the visible ones in the order of the process, all if it is None.
    """

    def __init__(self, machine: Machine, of: SimMemoryBudget | None = None, gpus: Sequence[int] | None = None) -> None:
        self._ordinals = {} if gpus is None else {gpu(own): gpu(each) for own, each in enumerate(gpus)}
        nodes = [location for location in machine.locations if location.kind == LocationKind.HOST_NUMA]
        self._total = {gpu(i): device.memory_bytes for i, device in enumerate(machine.devices)}
        self._total |= dict.fromkeys([*nodes, HOST_NODE, WHOLE_HOST], machine.host_room) | machine.node_bytes
        self.machine, self._of = machine, of  # which lives as long as this one
        self.used: dict[Location, int] = of.used if of else dict.fromkeys(self._total, 0)
        self._own = dict.fromkeys(self._total, 0)
        weakref.finalize(self, _end, self.used, self._own).atexit = False

    def check(self, location: Location, size: int) -> None:
        """Refuse a size that is not free, with `CUDA_ERROR_OUT_OF_MEMORY`."""
        if size > self.free(location):
            where = "the host" if location == WHOLE_HOST else location
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", f"{where} has {rounded(self.free(location))} free")

    def take(self, location: Location, size: int) -> None:
        """Take memory; refuses with `CUDA_ERROR_OUT_OF_MEMORY`."""
        self.check(location, size)
        self.add(location, size)

    def add(self, location: Location, size: int) -> None:
        """Take memory that was checked to be free."""
        for each in self._counted(location):
            self.used[each] += size
            self._own[each] += size

    def end(self) -> None:
        """Give back what this process has taken."""
        _end(self.used, self._own)

    def give(self, location: Location, size: int) -> None:
        """Give memory back."""
        self.add(location, -size)

    def free(self, location: Location) -> int:
        """Bytes that are not taken."""
        return min([self._total[each] - self.used[each] for each in self._counted(location)])

    def total(self, location: Location) -> int:
        """Bytes in all."""
        return self._total[self._counted(location)[0]]

    def _counted(self, location: Location) -> tuple[Location, ...]:
        if self._ordinals:
            location = self._ordinals.get(location, location)
        return (location, WHOLE_HOST) if location.kind is _HOST_NUMA else (location,)


def _end(used: dict[Location, int], own: dict[Location, int]) -> None:
    for each, size in own.items():
        used[each] -= size
        own[each] = 0


VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
"""Variables of the environment that make GPUs visible to a process, as the driver reads them at `cuInit`."""
LONGEST = 1 << 14
"""Bytes of a variable that are read."""

_ORDERS = (None, "", "FASTEST_FIRST", "PCI_BUS_ID")
_INDEX = re.compile(r"\s*([+-]?[0-9]+)")
_UUID = re.compile(r"\s*(?:GPU|MIG)-([0-9A-Fa-f][0-9A-Fa-f-]*)")
_LARGEST, _WORD = (1 << 63) - 1, 0xFFFF_FFFF


def visible_gpus(devices: SimDevices, visible: str | None, order: str | None) -> Sequence[int]:
    """Return the ordinals of the visible GPUs in the order of the process, from the values of the two variables.

    One H200, and two, gave the answers; that a prefix of a UUID must be unique is from the CUDA programming guide.
    The list ends at the first entry that names no GPU. Its entries are all indices, or all UUIDs, as the first one is.
    Raises `RefusedCall` if there is no such GPU, if one is listed twice, or for another order than the driver has.
    """
    refuse_if(order not in _ORDERS, f"CUDA_DEVICE_ORDER is {order!r}", "CUDA_ERROR_INVALID_DEVICE")
    every = range(devices.device_get_count())
    if visible is None:
        return every
    uuids = [devices.device_get_uuid(each).hex() for each in every]
    are_uuids = bool(_UUID.match(visible))
    found = list[int]()
    for entry in visible.split(","):
        device = _by_uuid(entry, uuids) if are_uuids else _by_index(entry, every)
        if device is None:
            break
        found.append(device)
    refuse_if(not found, f"CUDA_VISIBLE_DEVICES is {visible!r}, which begins with no gpu", "CUDA_ERROR_NO_DEVICE")
    if len(set(found)) < len(found):
        raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"CUDA_VISIBLE_DEVICES is {visible!r}, with a gpu twice")
    return found


def _by_index(entry: str, every: range) -> int | None:
    """GPU whose index begins an entry; other text after it is not looked at, nor are bits above the lower 32."""
    match = _INDEX.match(entry)
    index = min(int(match[1]), _LARGEST) & _WORD if match else -1
    return index if index in every else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    """GPU whose UUID begins with the digits of an entry, if no other one's does."""
    match = _UUID.match(entry)
    digits = match[1].replace("-", "").lower() if match else ""
    found = [device for device, uuid in enumerate(uuids) if digits and uuid.startswith(digits[: len(uuid)])]
    return found[0] if len(found) == 1 else None
