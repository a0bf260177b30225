"""Memory that entries need at each location, and the balance of what GPUs and the host have for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.types import WHOLE_HOST, Location, LocationKind, gpu
from memtopo.geometry.groups import Residence
from memtopo.geometry.model import Geometry
from memtopo.machine import Machine


class Need(NamedTuple):
    """Bytes that one entry needs at a location. `owner` is its layout where several are counted."""

    name: str
    path: Path
    size: int
    residence: Residence
    owner: str = ""

    @property
    def entry(self) -> Entry:
        """The layout and the entry that need it."""
        return self.owner, self.path


Entry = tuple[str, Path]
"""Layout, where several are counted, and path of an entry in its spec."""

Needs = Mapping[Location, Mapping[Entry, Need]]
"""Needs by location and by entry."""


class Balance(Struct, frozen=True):
    """Memory that a location has, and what is to take it: `needs`, the largest first, and contexts.

    The needs of the whole host are those of its nodes as well; if `locked`, they are what is page-locked of them.
    """

    location: Location
    room: int
    needs: tuple[Need, ...]
    contexts: int = 0
    locked: bool = False

    @property
    def taken(self) -> int:
        """Bytes of all needs and contexts."""
        return sum(need.size for need in self.needs) + self.contexts

    @property
    def over(self) -> int:
        """Bytes that are too much; less than 0 if some are left."""
        return self.taken - self.room


def needed(geometry: Geometry, owner: str = "", *, least: bool = False) -> Needs:
    """Memory that the entries of all processes may occupy, by location; what migrates is on no node in particular.

    With `least`, what a program creates later is not counted. Imports belong to another process. Instances of a counted
    process have the same entries, whose needs are summed.
    """
    found: dict[Location, dict[Entry, Need]] = {}
    for member in geometry.members.values():
        for group in member.every:
            for location, size in (group.least_demand() if least else group.demand()).items():
                need = Need(group.name, group.path, size, group.residence, owner)
                anywhere = need.residence is not Residence.FIXED and location.kind is not LocationKind.GPU
                _add(found.setdefault(WHOLE_HOST if anywhere else location, {}), need)
    return found


def together(every: Iterable[Needs]) -> Needs:
    """Needs of several layouts, each with its own `owner`."""
    found: dict[Location, dict[Entry, Need]] = {}
    for location, needs in chain.from_iterable(each.items() for each in every):
        found.setdefault(location, {}).update(needs)
    return found


def balances(needs: Needs, contexts: Mapping[int, int], machine: Machine) -> Iterator[Balance]:
    """Balance of each GPU and each known NUMA node, of the whole host, and of what is page-locked if that is limited.

    `contexts` are the bytes of all contexts by GPU. Oversubscribed memory that a GPU has no room for is on the host.
    """
    excess: dict[Entry, Need] = {}
    for ordinal, device in enumerate(machine.devices):
        every = _largest_first(needs.get(gpu(ordinal), {}))
        bound = tuple(need for need in every if need.residence is not Residence.EXCEEDING)
        found = Balance(gpu(ordinal), device.room, bound, contexts.get(ordinal, 0))
        yield found
        for need in _exceeding(every, max(0, -found.over)):
            excess[need.entry] = max(need, excess.get(need.entry, need), key=lambda each: each.size)
    for node, size in machine.node_bytes.items():
        yield Balance(node, size, _largest_first(needs.get(node, {})))
    on_host = [each for at, each in needs.items() if at.kind is not LocationKind.GPU]
    every = _largest_first(_merged([*on_host, excess]))
    yield Balance(WHOLE_HOST, machine.host_room, every)
    if machine.pinned_bytes:
        locked = tuple(need for need in every if need.residence is Residence.FIXED)
        yield Balance(WHOLE_HOST, machine.pinned_bytes, locked, locked=True)


def lacking(every: Iterable[Balance]) -> Iterator[Balance]:
    """Balances of GPUs and nodes with too much, and that of the whole host if more is missing than on its nodes."""
    missing, whole = 0, False
    for each in every:
        if each.location == WHOLE_HOST:
            if each.over > missing and not whole:
                whole = True
                yield each
        elif each.over > 0:
            missing += each.over if each.location.kind is not LocationKind.GPU else 0
            yield each


def _exceeding(needs: Iterable[Need], room: int) -> Iterator[Need]:
    """Parts of the oversubscribed memory of a GPU that do not fit into the `room` that all else leaves, in bytes."""
    for need in needs:
        if need.residence is Residence.EXCEEDING:
            if need.size > room:
                yield need._replace(size=need.size - room)
            room = max(0, room - need.size)


def _add(needs: dict[Entry, Need], need: Need) -> None:
    """Add a need to that of the same entry."""
    before = needs.get(need.entry)
    needs[need.entry] = need._replace(size=need.size + before.size) if before else need


def _merged(every: Iterable[Mapping[Entry, Need]]) -> Mapping[Entry, Need]:
    """Needs of several locations, summed by entry."""
    found: dict[Entry, Need] = {}
    for need in chain.from_iterable(needs.values() for needs in every):
        _add(found, need)
    return found


def _largest_first(needs: Mapping[Entry, Need]) -> tuple[Need, ...]:
    return tuple(sorted((need for need in needs.values() if need.size), key=lambda need: -need.size))
