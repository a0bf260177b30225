"""The exports of several processes as one shelf, while they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memtopo.plans.report import Checks
from memtopo.run.processes.coordinator import Coordinator
from memtopo.sharing import Handle, Offer, Secret


class ProcessShelf:
    """Each export under its process's label: `server.weights`, `pe.3.heap`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._owners = {
            f"{label}.{offer.name}": (label, offer)
            for label, member in coordinator.members.items()
            for offer in member.offers
        }

    def offers(self) -> Sequence[Offer]:
        return [replace(offer, name=name) for name, (_, offer) in self._owners.items()]

    def handle(self, export: str, index: int) -> Handle:
        label, offer = self._owners[export]
        packet = self._coordinator.ask(label, offer.name, index, 1)
        if offer.descriptors:
            return Handle(fd=packet.fds.pop())
        return Handle(secret=Secret(bytes.fromhex(packet.message["secrets"][0])))

    def check(self) -> Checks:
        return self._coordinator.look()
