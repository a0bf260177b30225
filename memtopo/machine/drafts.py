"""Drafts: records of machines that nobody probed, and the features that rules look for and nobody tried.

A draft has the published figures of a model, or the facts of a recorded machine without its trials and measurements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, cached_property

from msgspec import Struct

from memtopo.common.errors import Unavailable
from memtopo.diagnostics.messages import choose
from memtopo.driver.types import Location, LocationKind
from memtopo.machine import (
    SHIPPED,
    Cluster,
    Device,
    DriverFacts,
    HostMemory,
    Machine,
    Machines,
    Memory,
    Peer,
    Trial,
    is_file,
    load,
    shipped,
)

_CUDA = "13.0"
"""CUDA version of drafts that are like no recorded machine."""

_BASIS = "vmm"
"""Feature on which every spec depends; that it was not tried distinguishes no spec."""


class Model(Struct, frozen=True):
    """Published figures of a GPU and of NVIDIA's system with it; what is not published is absent.

    `gigabytes` is its memory in units of 10^9 bytes, `links` the number of its NVLinks, and `cpus` the number of CPUs
    of the system, each of which is a NUMA node.
    """

    name: str
    gigabytes: int
    compute_capability: Sequence[int] | None = None
    link: str | None = None
    links: int | None = None
    cpus: int = 1
    sources: Sequence[str] = ()

    @property
    def machine(self) -> Machine:
        """Machine with two of these GPUs, which have access to each other."""
        major, minor = self.compute_capability or (0, 0)
        capability = (major, minor) if self.compute_capability else None
        names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
        nearest = {"HOST_NUMA_ID": 0} if self.cpus == 1 else {}
        device = Device(
            name=self.name,
            compute_capability=capability,
            memory_bytes=self.gigabytes * 10**9,
            attributes=dict(zip(names, capability or (), strict=False)) | nearest,
            memory=Memory(granularity=[]),
        )
        peer = Peer(access=True, link=self.link, links=self.links)
        nodes = (f"host:{number}" for number in range(self.cpus))
        return Machine(
            driver=DriverFacts(cuda=_CUDA),
            devices=[device, device],
            peers=[[None, peer], [peer, None]],
            host={name: HostMemory(granularity=[]) for name in ("host", *nodes)},
        )


@cache
def models() -> dict[str, Model]:
    """Models with published figures, by name."""
    written = json.loads((SHIPPED / "models" / "published.json").read_bytes())
    return {name: Model(**figures) for name, figures in written.items()}


def draft(gpus: int, memory_bytes: int | None, like: str | None) -> Machine:
    """Return the draft of a machine with some GPUs.

    `like` names a model, or a recorded machine whose first GPU and its first peer are those of all GPUs; its trials,
    measurements and amounts of host memory are left out. Without it, the GPUs have `memory_bytes`, and nothing else is
    known. Raises `Unavailable` for an unknown name.
    """
    pattern, sources = _pattern(like)
    first = pattern.devices[0]
    device = Device(
        name=first.name,
        compute_capability=first.compute_capability,
        memory_bytes=memory_bytes or first.memory_bytes,
        attributes=first.attributes,
        memory=Memory(granularity=first.memory.granularity),
    )
    other = pattern.peers[0][1] if len(pattern.devices) > 1 else None
    peer = (other or Peer(access=True)).model_copy(update={"store": None, "copies": None})
    return Machine(
        estimated=[*sources],
        driver=pattern.driver,
        devices=[device] * gpus,
        peers=[[None if a == b else peer for b in range(gpus)] for a in range(gpus)],
        host={name: HostMemory(granularity=memory.granularity) for name, memory in pattern.host.items()},
    )


def _pattern(like: str | None) -> tuple[Machine, Sequence[str]]:
    """Machine that a draft is like, and the sources of its figures."""
    if like is None:
        return Model(name="GPU", gigabytes=1).machine, ()
    if found := models().get(like):
        return found.machine, found.sources
    if is_file(like) or like in shipped():
        return load(like), (f"the record {like}",)
    raise Unavailable(f"there is no model or machine {like!r}", hint=choose(like, [*models(), *shipped()]))


class Watched(Machine):
    """Estimated machine that keeps the features that were asked for and not tried."""

    @cached_property
    def untried(self) -> dict[str, None]:
        """Features by the names of their trials, in the order in which they were asked for."""
        return {}

    def trial(self, location: Location, what: str) -> Trial:
        """Return the trial, as the machine does."""
        found = super().trial(location, what)
        if found.works is None and what != _BASIS:
            place = "" if location.kind is LocationKind.GPU else f" of {location}"
            self.untried[f"{what}{place}"] = None
        return found

    def store(self, device: int, owner: int) -> Trial | None:
        """Return the trial, as the machine does."""
        found = super().store(device, owner)
        if device != owner and (found is None or found.works is None):
            self.untried["store"] = None
        return found


def watched(machines: Machines) -> Machines:
    """Return the machines, of which those that are estimated keep what they are asked for."""
    if isinstance(machines, Cluster):
        return Cluster({node: _watched(each) for node, each in machines.nodes.items()})
    return _watched(machines)


def _watched(machine: Machine) -> Machine:
    if machine.estimated is None:
        return machine
    return Watched.model_construct(**{name: getattr(machine, name) for name in Machine.model_fields})


def untried(machines: Machines) -> tuple[str, ...] | None:
    """Return the features that a validation asked watched machines for, and nobody tried; None for probed machines."""
    every = machines.nodes.values() if isinstance(machines, Cluster) else [machines]
    found = [each.untried for each in every if isinstance(each, Watched)]
    return tuple(dict.fromkeys(name for names in found for name in names)) if found else None
