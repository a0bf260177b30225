"""The queries that a machine's record answers (facts 4 and 38)."""

from __future__ import annotations

from memtopo.driver.sim.refusal import Refused, invalid
from memtopo.driver.types import Attribute, PeerAttribute
from memtopo.machine import Device, Machine, Peer


class Devices:
    """The GPUs of a machine by ordinal."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def version(self) -> int:
        """13000 for CUDA 13.0."""
        major, _, minor = self._machine.driver.cuda.partition(".")
        return int(major) * 1000 + int(minor or 0) * 10

    def count(self) -> int:
        """How many GPUs there are."""
        return len(self._machine.devices)

    def get(self, device: int) -> Device:
        """One GPU's record; refuses an ordinal that no GPU has."""
        if not 0 <= device < self.count():
            raise Refused("CUDA_ERROR_INVALID_DEVICE", f"gpu{device} does not exist")
        return self._machine.devices[device]

    def uuid(self, device: int) -> bytes:
        """The recorded UUID, or one that names a simulated GPU."""
        text = self.get(device).uuid
        if text is None:
            return b"memtopo sim " + device.to_bytes(4, "big")
        return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))

    def bus_id(self, device: int) -> str:
        """The recorded bus id, or one that tells simulated GPUs apart."""
        return self.get(device).bus_id or f"0000:{device + 1:02x}:00.0"

    def attribute(self, device: int, attribute: Attribute) -> int:
        """What was advertised; an attribute that was not recorded is one that the driver does not know."""
        value = self.get(device).attributes.get(attribute.name)
        if value is None:
            raise invalid(f"{attribute.name} of gpu{device} was not recorded")
        return value

    def can_access_peer(self, device: int, peer: int) -> bool:
        """Whether one GPU can reach another's memory; a GPU is no peer of itself."""
        self.get(device), self.get(peer)
        return device != peer and self._machine.can_access(device, peer)

    def peer_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        """One attribute of the link between two GPUs."""
        self.get(device), self.get(peer)
        if device == peer:
            raise Refused("CUDA_ERROR_INVALID_DEVICE", "a gpu is no peer of itself")
        link = self._machine.peers[device][peer] or Peer(access=False)
        known = {
            PeerAttribute.PERFORMANCE_RANK: link.performance_rank,
            PeerAttribute.ACCESS_SUPPORTED: link.access,
            PeerAttribute.NATIVE_ATOMIC_SUPPORTED: link.native_atomics,
        }
        return int(known[attribute] or 0)
