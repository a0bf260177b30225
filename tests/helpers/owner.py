"""What another API made in this very process, delivered as a holder would deliver it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from memtopo.common.units import MiB
from memtopo.driver.sim import SimDriver, external_api
from memtopo.driver.types import MemoryHandleType
from memtopo.machine import Machine, target

BYTES = b"what another API wrote"


class Owner:
    """Source of descriptors by the names of their exports, which stay the owner's. `left` is true once it is gone."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given, self.left = dict(given), False
        self.attached = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self.given.values():
            os.close(fd)

    def attach(self, holder: str) -> int:
        del holder
        self.attached += 1
        return os.getpid()

    def detach(self, holder: str) -> None:
        del holder
        self.attached -= 1

    def take(self, holder: str, export: str, index: int) -> int:
        del holder, index
        return self.given[export]

    def gone(self, holder: str) -> bool:
        del holder
        return self.left

    def settle(self) -> None:
        pass


def uuid(machine: Machine, device: int = 0) -> bytes:
    """The UUID of a simulated GPU."""
    return bytes.fromhex(target.uuids(machine)[device])


def camera(machine: Machine, *, size: int = 8 * MiB, device: int = 0, signalled: int = 1) -> Owner:
    """An owner of memory called `frame` that begins with `BYTES`, and of a timeline called `ready`."""
    frame = external_api.allocate(uuid(machine, device), size)
    external_api.write(frame, 0, BYTES)
    return Owner({"frame": frame, "ready": external_api.make_semaphore(timeline=True, value=signalled)})


def still_good(fd: int, machine: Machine) -> bool:
    """Whether memory's descriptor is still what it was: its bytes are there, and a driver takes a copy of it."""
    with SimDriver(machine) as driver:
        driver.init()
        driver.ctx_push_current(driver.device_primary_ctx_retain(0))
        memory = driver.import_external_memory(os.dup(fd), MemoryHandleType.OPAQUE_FD, 8 * MiB)
        at = driver.external_memory_get_mapped_buffer(memory, 0, len(BYTES))
        return driver.memcpy_dtoh(at, len(BYTES)) == BYTES == external_api.read(fd, 0, len(BYTES))
