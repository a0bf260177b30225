"""How much memory each location has, and how much of it is taken."""

from __future__ import annotations

from memtopo.common.units import rounded
from memtopo.driver.sim.refusal import Refused
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.machine import Machine

HOST_BYTES = 1 << 40  # machines do not record host memory; unlimited would be more than any has
HOST_NODE = Location(LocationKind.HOST_NUMA, 0)
"""Where memory of the host is, also on a machine that lists no such node (fact 6)."""


class Budget:
    """Free and total bytes of every location of a machine."""

    def __init__(self, machine: Machine) -> None:
        nodes = [location for location in machine.locations if location.kind == LocationKind.HOST_NUMA]
        self._total = {gpu(i): device.memory_bytes for i, device in enumerate(machine.devices)}
        self._total |= dict.fromkeys([*nodes, HOST_NODE], HOST_BYTES)
        self._used = dict.fromkeys(self._total, 0)

    def take(self, location: Location, size: int) -> None:
        """Take memory, or refuse with `CUDA_ERROR_OUT_OF_MEMORY`."""
        if size > self.free(location):
            raise Refused("CUDA_ERROR_OUT_OF_MEMORY", f"{location} has {rounded(self.free(location))} free")
        self._used[location] += size

    def give(self, location: Location, size: int) -> None:
        """Give memory back."""
        self._used[location] -= size

    def free(self, location: Location) -> int:
        """Bytes that can still be taken."""
        return self._total[location] - self._used[location]

    def total(self, location: Location) -> int:
        """Bytes in all."""
        return self._total[location]
