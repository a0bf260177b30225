"""Memory of each location that is left for shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.geometry.model import Geometry
from memtopo.machine import CONTEXT_BYTES, Machine, Machines


class Room(NamedTuple):
    """Memory of a location: `whole` bytes, of which everything but shares takes `used`.

    `thousandths` is the sum of the shares of all processes, in thousandths of a percent.
    """

    whole: int
    used: int
    thousandths: int

    @property
    def left(self) -> int:
        """Bytes that shares are of."""
        return max(0, self.whole - self.used)


class Rooms(NamedTuple):
    """Memory by location, and the locations of each entry with a share; locations of unknown memory are left out.

    `spread` has the locations of each instance of a counted process, in the order of the round-robin distribution, by
    the path of the entry: its chunks are of the same size and number in all instances.
    """

    by_location: Mapping[Location, Room]
    spread: Mapping[Path, Sequence[tuple[Location, ...]]]


def remaining_rooms(geometry: Geometry, machines: Machines) -> Rooms:
    """Memory of each location that a geometry leaves besides its shares and the contexts of its processes.

    Locations have their nodes.
    """
    every = [_rooms(each, machines.of(node), node) for node, each in geometry.by_node]
    spread: dict[Path, tuple[tuple[Location, ...], ...]] = {}
    for rooms in every:
        for path, locations in rooms.spread.items():
            spread[path] = (*spread.get(path, ()), *locations)
    return Rooms({at: room for rooms in every for at, room in rooms.by_location.items()}, spread)


def _rooms(geometry: Geometry, machine: Machine, node: str | None) -> Rooms:
    """Memory of each location of one node."""
    used: Counter[Location] = Counter()
    shares: Counter[Location] = Counter()
    spread: dict[Path, dict[tuple[Location, ...], None]] = {}
    for member in geometry.members.values():
        used.update({gpu(ordinal): CONTEXT_BYTES for ordinal in member.gpus})
        for group in member.every:
            if isinstance(group, ChunkGroup) and group.share and not group.origin:
                shares.update(dict.fromkeys(group.distinct_locations, group.share.share.thousandths))
                spread.setdefault(group.path, {})[group.locations] = None
            else:
                used.update(_kept(group))
    host = Location(LocationKind.HOST)
    used[host] = sum(size for location, size in used.items() if location.kind is not LocationKind.GPU)
    rooms = {at.on(node): Room(whole, used[at], shares[at]) for at, whole in _memory(machine).items()}
    spread_on = {path: tuple(tuple(at.on(node) for at in each) for each in found) for path, found in spread.items()}
    return Rooms(rooms, spread_on)


def _kept(group: Group) -> dict[Location, int]:
    """Bytes that a group takes from shares by location: on GPUs none of memory that may exceed them (fact 79)."""
    demand = group.demand().items()
    return {at: size for at, size in demand if not (group.exceeds and at.kind is LocationKind.GPU)}


def _memory(machine: Machine) -> dict[Location, int]:
    """Bytes of each location whose memory is known: free on live GPUs, what may be page-locked on the host."""
    found = {gpu(ordinal): device.room for ordinal, device in enumerate(machine.devices)} | machine.node_bytes
    if machine.host_bytes:
        found[Location(LocationKind.HOST)] = machine.pinned_bytes or machine.host_bytes
    return found
