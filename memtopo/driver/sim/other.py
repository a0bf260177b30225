"""`memtopo.driver.trying.Foreign` on the simulator: another API, as trials and tests use it."""

from __future__ import annotations

import os
from typing import Self

from memtopo.driver.sim import foreign


class SimForeign:
    """Another API on the GPU with this UUID."""

    def __init__(self, uuid: bytes) -> None:
        self._uuid = uuid
        self._made: list[_Made] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            made.free()

    def allocate(self, size: int, *, dedicated: bool = False) -> SimForeignMemory:
        del dedicated  # it is the same to a simulator
        return self.adopt(foreign.allocate(self._uuid, size), size)

    def adopt(self, fd: int, size: int) -> SimForeignMemory:
        memory = SimForeignMemory(fd, size)
        self._made.append(memory)
        return memory

    def timeline(self, value: int = 0) -> SimForeignSemaphore:
        return self._semaphore(foreign.make_semaphore(timeline=True, value=value))

    def binary(self) -> SimForeignSemaphore:
        return self._semaphore(foreign.make_semaphore(timeline=False))

    def _semaphore(self, fd: int) -> SimForeignSemaphore:
        semaphore = SimForeignSemaphore(fd)
        self._made.append(semaphore)
        return semaphore


class _Made:
    """Something by a descriptor, which is kept until it is freed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fd(self) -> int:
        return os.dup(self._fd)

    def free(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SimForeignMemory(_Made):
    """Memory."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(fd)
        self.whole = size

    def read(self, offset: int, count: int) -> bytes:
        return foreign.read(self._fd, offset, count)

    def write(self, offset: int, data: bytes) -> None:
        foreign.write(self._fd, offset, data)


class SimForeignSemaphore(_Made):
    """A semaphore."""

    @property
    def counter(self) -> int:
        return foreign.counter(self._fd)

    def signal(self, value: int = 1) -> None:
        foreign.signal(self._fd, value)

    def wait(self, value: int, seconds: float) -> bool:
        return foreign.wait(self._fd, value, seconds)
