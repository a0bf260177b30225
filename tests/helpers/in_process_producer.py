"""Producer of external memory and semaphores within the test's own process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from memtopo.common.units import MiB
from memtopo.driver.handles import Handle
from memtopo.driver.types import MemoryHandleType
from memtopo.drivers import target
from memtopo.drivers.sim import SimDriver, external_api
from memtopo.kinds.layout import HandleSource
from memtopo.machine import Machine

BYTES = b"written by another API"


class InProcessProducer(HandleSource):
    """Handle source with a descriptor for each export, all of which stay open; `left` is true after its end."""

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

    def take(self, holder: str, export: str, index: int) -> Handle:
        del holder, index
        return Handle(fd=self.given[export])

    def gone(self, holder: str) -> bool:
        del holder
        return self.left


def uuid(machine: Machine, device: int = 0) -> bytes:
    """The UUID of a simulated GPU."""
    return bytes.fromhex(target.uuids(machine)[device])


def camera(machine: Machine, *, size: int = 8 * MiB, device: int = 0, signalled: int = 1) -> InProcessProducer:
    """A producer with memory `frame`, which begins with `BYTES`, and a timeline `ready`."""
    frame = external_api.allocate(uuid(machine, device), size)
    external_api.write(frame, 0, BYTES)
    return InProcessProducer({"frame": frame, "ready": external_api.make_semaphore(timeline=True, value=signalled)})


def is_intact(fd: int, machine: Machine) -> bool:
    """Return whether a descriptor still has its bytes and a driver imports a copy of it."""
    with SimDriver(machine) as driver:
        driver.init()
        driver.ctx_push_current(driver.device_primary_ctx_retain(0))
        memory = driver.import_external_memory(os.dup(fd), MemoryHandleType.OPAQUE_FD, 8 * MiB)
        at = driver.external_memory_get_mapped_buffer(memory, 0, len(BYTES))
        return driver.memcpy_dtoh(at, len(BYTES)) == BYTES == external_api.read(fd, 0, len(BYTES))
