"""Processes that try what is forbidden, and must not survive it (fact 24): each on a replica of its own.

A replica is one granule with the properties of a chunk of the layout, mapped twice: once with the access that one GPU
has in the layout, and once so that the GPU can show that its kernels work. Children are spawned, never forked (fact
33), and have a time limit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from memtopo import machine
from memtopo.common.errors import MemtopoError
from memtopo.common.spawn import memory_file, python_command, spawn
from memtopo.common.text import signal_name
from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Access, DriverError, Grant, HandleType, Location, LocationKind, Properties, gpu
from memtopo.geometry import Geometry
from memtopo.machine import Machine, target
from memtopo.run.contents import granted, mappings

LIMIT = 60
"""Seconds that a child may take: two contexts and a compilation of kernels, on a busy machine."""

AT_ONCE = 4
"""Children at work at a time: each takes half a GiB of a GPU for its context (fact 30)."""

PATIENCE = 5
"""Seconds that a child which has said all may take to end."""

DIED = "ends the process"

_WORD = 0x6D65_6D74_6F70_6F21
_COMMAND = python_command("memtopo.run.verification.replicas:main")


class Replica(NamedTuple):
    """What a GPU has less than read and write access to: memory of these properties."""

    properties: Properties
    granule: int
    device: int
    access: Access

    @property
    def subject(self) -> str:
        """What is tried, as a person reads it."""
        what = "a store" if self.access else "a load"
        return f"{what} by gpu{self.device}, with access {self.access.word}, to memory of {self.properties.location}"


class Tried(NamedTuple):
    """What became of a try: `seen` is `DIED` or what happened instead; `why_not` is why it was not made."""

    seen: str
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where replicas are built: on this machine, real or simulated, of whose GPUs some may be visible alone."""

    machine: Machine
    simulated: bool
    visible: tuple[int, ...] = ()


def replicas(geometry: Geometry) -> dict[Replica, Path]:
    """What the GPUs of a layout may not do, each kind once, with the entry that mapped the first of its kind.

    Without host memory, which any process may be given more of than it asked for, without what comes from outside of
    the spec, and without the memory of GPUs that the process does not see: it could build no replica there.
    """
    found: dict[Replica, Path] = {}
    access_of = granted(geometry)
    for placements in geometry.placements.values():
        for placement, index, _, grants in mappings(placements, access_of):
            run = placement.chunk
            properties = run.properties_of(index)
            ours = run.origin is None or run.origin.siblings
            if ours and properties.location.kind is LocationKind.GPU and is_seen(geometry, properties.location):
                by_place = dict(grants)
                for device in geometry.gpus:
                    access = by_place.get(gpu(device), Access.NONE)
                    if access is not Access.RW:
                        found.setdefault(Replica(properties, run.granule, device, Access(access)), placement.path)
    return found


def is_seen(geometry: Geometry, location: Location) -> bool:
    """Whether a process sees a GPU."""
    return not geometry.visible or location in geometry.visible


def try_all(tries: Mapping[Replica, Path], place: Place, turn: Callable[[], None]) -> Iterator[tuple[Replica, Tried]]:
    """What became of each try, as they end. `turn` is called now and then; what it raises ends the children."""
    waiting: list[Replica] = list(tries)
    waiting.reverse()
    working: list[_Child] = []
    try:
        while waiting or working:
            while waiting and len(working) < AT_ONCE:
                working.append(_Child(waiting.pop(), place))
            turn()
            for child in _ended(working):
                working.remove(child)
                yield child.replica, child.outcome()
    finally:
        for child in working:
            child.end()


class _Child:
    """One process at work."""

    def __init__(self, replica: Replica, place: Place) -> None:
        self.replica = replica
        self._until = time.monotonic() + LIMIT
        task = memory_file(json.dumps(_packed(replica, place)).encode())
        try:
            self.process = spawn(_COMMAND, stdin=task, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        finally:
            os.close(task)
        assert self.process.stdout
        self.out = self.process.stdout

    @property
    def late(self) -> bool:
        return time.monotonic() > self._until

    def outcome(self) -> Tried:
        """What it said, once it has ended; it is ended where it is late."""
        late = self.late
        said = b"" if late else self.out.read()
        self.end(0 if late else PATIENCE)
        if late:
            return Tried("", f"it took more than {LIMIT} s")
        if said:
            return Tried(*json.loads(said))
        status = self.process.returncode
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
        return Tried("", f"the process {how}")

    def end(self, patience: float = 0) -> None:
        """Leave nothing of it, at the latest after so many seconds."""
        self.out.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _ended(working: list[_Child]) -> list[_Child]:
    """Those that have said all, or are late, within a short time."""
    poll = select.poll()
    for child in working:
        poll.register(child.out, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(200)}
    return [child for child in working if child.out.fileno() in ready or child.late]


def _packed(replica: Replica, place: Place) -> dict[str, Any]:
    return {
        "machine": machine.dump(place.machine) if place.simulated else None,
        "visible": place.visible,
        "location": replica.properties.location,
        "handles": int(replica.properties.handles),
        "rdma": replica.properties.rdma,
        "compressible": replica.properties.compressible,
        "granule": replica.granule,
        "device": replica.device,
        "access": int(replica.access),
    }


def main() -> None:
    """Be such a child: read from stdin what to try, and say on stdout what became of it."""
    signal.alarm(LIMIT)  # also where nobody is left to wait for it
    task = json.load(sys.stdin)
    try:
        tried = _tried(task)
    except DriverError as error:
        tried = Tried("", f"a replica could not be built: {error.message}")
    except MemtopoError as error:
        tried = Tried("", error.message)
    sys.stdout.write(json.dumps(tried))
    sys.stdout.flush()
    os._exit(0)  # nothing of the driver's can be ended in order any more; the system does


def _tried(task: dict[str, Any]) -> Tried:
    facts = machine.parse(task["machine"].encode(), "replica") if task["machine"] else None
    visible = tuple(task["visible"])
    driver = target.open_in_worker(facts, simulated=facts is not None, visible=visible)
    kind, number = task["location"]
    properties = Properties(
        Location(LocationKind(kind), number), HandleType(task["handles"]), task["rdma"], task["compressible"]
    )
    return _try(driver, Replica(properties, task["granule"], task["device"], Access(task["access"])))


def _try(driver: KernelDriver, replica: Replica) -> Tried:
    """Build a replica, and go where it is forbidden. Raises `DriverError` where it cannot be built."""
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
        return Tried("a permitted load does not give what was stored")
    try:
        if access:
            driver.store(address, ~_WORD & (1 << 64) - 1)
            driver.ctx_synchronize()
        else:
            driver.load(address)
    except DriverError as error:
        return Tried(DIED if error.name == "CUDA_ERROR_ILLEGAL_ADDRESS" and _dead(driver) else error.message)
    return Tried("nothing happened")


def _dead(driver: KernelDriver) -> bool:
    """Whether memory can no longer be used, and not by one call alone."""
    try:
        driver.mem_get_info()
    except DriverError as error:
        return error.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
    return False
