"""Where shared memory is, in words that mean the same in every process (facts 38, 43)."""

from __future__ import annotations

from memtopo.driver.sim.devices import Devices
from memtopo.driver.types import Location, LocationKind, gpu

ELSEWHERE = gpu(-2)
"""Where imported memory is whose GPU this process does not have (fact 43)."""


def told(location: Location, devices: Devices) -> str:
    """A GPU by its UUID, a NUMA node by its number."""
    if location.kind == LocationKind.GPU:
        return f"gpu {devices.uuid(location.id).hex()}"
    return f"node {location.id:x}"


def found(place: str, devices: Devices) -> Location:
    """The location that a place is here; `ELSEWHERE` of a GPU that is not here."""
    kind, _, name = place.partition(" ")
    if kind == "node":
        return Location(LocationKind.HOST_NUMA, int(name, 16))
    here = [gpu(device) for device in range(devices.count()) if devices.uuid(device).hex() == name]
    return here[0] if here else ELSEWHERE
