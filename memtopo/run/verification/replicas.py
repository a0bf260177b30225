"""Forbidden accesses by kernels, each tried on a replica in a process of its own that must not survive it (fact 24).

A replica is one granule with the properties of a chunk of the layout, mapped twice: with the access that one GPU has in
the layout, and with read and write access, to show that the kernels work. The processes are spawned, not forked (fact
33), and have a time limit.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from memtopo import machine
from memtopo.common.processes import Broken, python_command
from memtopo.common.text import ending
from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, Properties, gpu
from memtopo.drivers import target
from memtopo.geometry import Geometry
from memtopo.geometry.access import granted, mappings
from memtopo.kinds.views import MappedMemory
from memtopo.machine import Machine
from memtopo.sharing.channel import Channel, Child, work_for_parent
from memtopo.sharing.sockets import wait_readable

LIMIT = 60
"""Seconds that a child may take: two contexts and a compilation of kernels, on a busy machine."""

MAX_CHILDREN = 4
"""Children that run at a time: each takes half a GiB of a GPU for its context (fact 30)."""

ENDS_PROCESS = "ends the process"

_INTERVAL, _EXIT = 0.2, 5.0
_WORD = 0x6D65_6D74_6F70_6F21
_COMMAND = python_command("memtopo.run.verification.replicas:main")


class Replica(NamedTuple):
    """Memory with these properties that a GPU has less than read and write access to."""

    properties: Properties
    granule: int
    device: int
    access: Access

    @property
    def subject(self) -> str:
        """Description of the forbidden access."""
        verb = "a store" if self.access else "a load"
        return f"{verb} by gpu{self.device}, with access {self.access.word}, to memory of {self.properties.location}"


class Tried(Struct, frozen=True):
    """Result of a try: `seen` is `ENDS_PROCESS` or what happened instead, `why_not` why it was not made."""

    seen: str
    why_not: str | None = None


class Begin(Struct, frozen=True):
    """First message to a child: the machine to simulate, None for real GPUs, its visible GPUs, and the replica."""

    record: str | None
    visible: tuple[int, ...]
    replica: Replica


class ReplicaHost(Struct, frozen=True):
    """Machine on which replicas are built, real or simulated; `visible` are its visible GPUs, if not all are.

    A child has `limit` seconds; `command` replaces memtopo's own.
    """

    machine: Machine
    simulated: bool
    visible: tuple[int, ...] = ()
    limit: float = LIMIT
    command: tuple[str, ...] = _COMMAND


def replicas(geometry: Geometry) -> dict[Replica, Path]:
    """Replicas for the forbidden accesses of a layout, without duplicates, with the first entry that maps each.

    Host memory is left out, since a process may have more access to it than was granted. So are external memory and the
    memory of GPUs that the process does not see, of which it cannot build a replica.
    """
    found: dict[Replica, Path] = {}
    access_of = granted(geometry)
    for placements in geometry.placements.values():
        for placement, index, _, grants in mappings(placements, access_of):
            group = placement.chunk
            properties = group.properties_of(index)
            ours = group.memory and (group.origin is None or group.origin.siblings)
            if ours and properties.location.kind is LocationKind.GPU and is_visible(geometry, properties.location):
                access_by_location = dict(grants)
                for device in geometry.gpus:
                    access = access_by_location.get(gpu(device), Access.NONE)
                    if access is not Access.RW:
                        found.setdefault(Replica(properties, group.granule, device, Access(access)), placement.path)
    return found


def without_replica(geometry: Geometry, memory: Iterable[MappedMemory]) -> dict[str, int]:
    """Number of mapped chunks and buffers that have no replica, by the reason."""
    mapped = [each for each in memory if each.views]
    created = [each for each in mapped if each.ours]
    gpus = [each for each in created if each.location.kind is LocationKind.GPU]
    return {
        "host memory has no replica": len(created) - len(gpus),
        "external memory has no replica": len(mapped) - len(created),
        "its GPU is not visible to this process": sum(1 for each in gpus if not is_visible(geometry, each.location)),
    }


def is_visible(geometry: Geometry, location: Location) -> bool:
    """Return whether a GPU is visible to a process."""
    return not geometry.visible or location in geometry.visible


def try_all(tries: Iterable[Replica], host: ReplicaHost, poll: Callable[[], None]) -> Iterator[tuple[Replica, Tried]]:
    """Yield the result of each try as its child ends. `poll` is called regularly; its exceptions end the children."""
    record = machine.dump(host.machine) if host.simulated else None
    waiting, running = deque(tries), dict[Child[Tried | Broken], tuple[Replica, float]]()
    try:
        while waiting or running:
            poll()
            while waiting and len(running) < MAX_CHILDREN:
                replica = waiting.popleft()
                begin = Begin(record, host.visible, replica)
                child = Child[Tried | Broken](host.command, (Tried, Broken), begin, stderr=subprocess.DEVNULL)
                running[child] = replica, time.monotonic() + host.limit
            wait_readable([child.channel for child in running], _INTERVAL)
            for child, (replica, deadline) in [*running.items()]:
                if child.channel.wait(0.0) or time.monotonic() > deadline:
                    del running[child]
                    yield replica, _result(child, host.limit)
    finally:
        for child in running:
            child.end()


def _result(child: Child[Tried | Broken], limit: float) -> Tried:
    """Result of a child, which is then ended."""
    try:
        received = child.channel.receive()
    except BlockingIOError:
        child.end()
        return Tried("", f"it took more than {limit:g} s")
    status = child.end(_EXIT)
    match received and received.message:
        case Tried() as tried:
            return tried
        case Broken(error):
            return Tried("", error)
    return Tried("", f"the process {ending(status)}")


def main(descriptor: str) -> None:
    """Run a child: receive the task, and send the result."""
    work_for_parent(descriptor, (Begin,), _work)
    os._exit(0)  # the driver cannot shut down in order any more; the system cleans up


def _work(channel: Channel[Begin]) -> None:
    record, visible, replica = astuple(next(iter(channel)).message)
    simulated = machine.parse(record.encode(), "replica") if record else None
    driver = target.open_in_worker(simulated, simulated=simulated is not None, visible=visible)
    try:
        channel.send(_try(driver, replica))
    except DriverError as error:
        channel.send(Tried("", f"a replica could not be built: {error.message}"))


def _try(driver: KernelDriver, replica: Replica) -> Tried:
    """Build a replica, and make the forbidden access. Raises `DriverError` if it cannot be built."""
    properties, granule, device, access = replica
    driver.ctx_push_current(driver.device_primary_ctx_retain(device))
    driver.module_load_data()
    handle = driver.mem_create(granule, properties)
    address = driver.mem_address_reserve(2 * granule)
    for at in (address, address + granule):
        driver.mem_map(at, granule, handle)
    driver.mem_set_access(address, granule, (Grant(gpu(device), access),))
    driver.mem_set_access(address + granule, granule, (Grant(gpu(device), Access.RW),))
    driver.store(address + granule, _WORD)
    if access and driver.load(address) != _WORD:
        return Tried("a permitted load returns other bytes than were stored")
    try:
        if access:
            driver.store(address, ~_WORD & (1 << 64) - 1)
            driver.ctx_synchronize()
        else:
            driver.load(address)
    except DriverError as error:
        ended = error.name == "CUDA_ERROR_ILLEGAL_ADDRESS" and _unusable(driver)
        return Tried(ENDS_PROCESS if ended else error.message)
    return Tried("nothing happened")


def _unusable(driver: KernelDriver) -> bool:
    """Return whether every later call fails, not the one alone."""
    try:
        driver.mem_get_info()
    except DriverError as error:
        return error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    return False
