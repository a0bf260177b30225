"""Driver calls and external API of trials (`memtopo.driver.kernels`) on the simulator."""

from __future__ import annotations

import os
from typing import Self

from memtopo.driver.kernels import WORD
from memtopo.driver.types import DriverError
from memtopo.drivers.sim import external_api
from memtopo.drivers.sim.calls import Refused
from memtopo.drivers.sim.driver import SimDriver
from memtopo.drivers.sim.kernels import ILLEGAL


class SimTrialCalls:
    """Trial calls of an initialised simulator."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver

    def store(self, address: int, value: int) -> None:
        try:
            self._driver.store_by_kernel(address, value.to_bytes(WORD, "little"))
        except Refused as refused:
            raise DriverError("cuCtxSynchronize", ILLEGAL, refused.reason) from None

    def meet(self, address: int, value: int) -> bool:
        self._driver.host_write(address, bytes(2 * WORD))
        self.store(address + WORD, value)
        return self._driver.host_read(address + WORD, WORD) == value.to_bytes(WORD, "little")


class SimExternalApi:
    """External API on the GPU with this UUID."""

    def __init__(self, uuid: bytes) -> None:
        self._uuid = uuid
        self._objects: list[_Object] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._objects:
            each.free()

    def allocate(self, size: int, *, dedicated: bool = False) -> SimExternalMemory:
        del dedicated  # the simulator makes no difference
        return self.adopt(external_api.allocate(self._uuid, size), size)

    def adopt(self, fd: int, size: int) -> SimExternalMemory:
        memory = SimExternalMemory(fd, size)
        self._objects.append(memory)
        return memory

    def timeline(self, value: int = 0) -> SimExternalSemaphore:
        return self._semaphore(external_api.make_semaphore(timeline=True, value=value))

    def binary(self) -> SimExternalSemaphore:
        return self._semaphore(external_api.make_semaphore(timeline=False))

    def _semaphore(self, fd: int) -> SimExternalSemaphore:
        semaphore = SimExternalSemaphore(fd)
        self._objects.append(semaphore)
        return semaphore


class _Object:
    """An object of the external API, kept open until it is freed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fd(self) -> int:
        return os.dup(self._fd)

    def free(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SimExternalMemory(_Object):
    """Memory of the external API."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(fd)
        self.whole = size

    def read(self, offset: int, count: int) -> bytes:
        return external_api.read(self._fd, offset, count)

    def write(self, offset: int, data: bytes) -> None:
        external_api.write(self._fd, offset, data)


class SimExternalSemaphore(_Object):
    """Semaphore of the external API."""

    @property
    def counter(self) -> int:
        return external_api.counter(self._fd)

    def signal(self, value: int = 1) -> None:
        external_api.signal(self._fd, value)

    def wait(self, value: int, seconds: float) -> bool:
        return external_api.wait(self._fd, value, seconds)
