"""State of a sequence of other calls than VMM's: events, streams, external objects, and a second process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from memtopo.common.mapped_files import map_shared, unmap
from memtopo.driver.kernels import ExternalApi, ExternalApiMemory, ExternalApiSemaphore
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.drivers.target import external_api
from memtopo.machine import Machine, dump
from tests.contract.other_process import Other
from tests.differential.session import Session

PATIENCE = 5.0
"""Seconds after which outstanding work counts as busy."""
HIGHEST = 1000
_PAUSE = 0.0002


class ResourceSession(Session):
    """Values of symbols in one process; `maker` is an external API on gpu0, `there` the session of another process.

    Handles that travel between processes are in `fds` and `handed`, which both sessions share.
    """

    def __init__(self, driver: Driver, contexts: Sequence[int], maker: ExternalApi | None = None) -> None:
        super().__init__(driver, contexts)
        self.maker = maker
        self.there: ResourceSession | None = None
        self.events: dict[str, int] = {}
        self.streams: dict[str, int] = {"0": 0}
        self.opened_memory: list[int] = []
        self.external: dict[str, int] = {}
        self.semaphores: dict[str, int] = {}
        self.handed: dict[str, bytes] = {}
        self.made: dict[str, ExternalApiMemory] = {}
        self.signals: dict[str, ExternalApiSemaphore] = {}
        self.pools: dict[str, int] = {}
        self.pooled: dict[int, bool] = {}  # addresses of allocations of pools; true for those that are imported
        self.imported_pools: set[str] = set()
        self.pinned: set[int] = set()
        self.registered: set[int] = set()
        self.files: dict[int, int] = {}  # sizes of mapped files by address

    def join(self, there: ResourceSession) -> None:
        """Use the session of another process, and share what travels between the two."""
        self.there = there
        there.fds, there.handed = self.fds, self.handed

    def is_idle(self, stream: int, seconds: float = PATIENCE) -> bool:
        """Wait until the work of a stream is done; false if it still is not after a time."""
        return reached(lambda: self.driver.stream_query(stream), seconds)

    def map_file(self, fd: int) -> int:
        """Map a whole file into the process of the driver."""
        size = os.fstat(fd).st_size
        if isinstance(self.driver, Other):
            return int(self.driver.map_path(f"/proc/{os.getpid()}/fd/{fd}", size))
        return map_shared(fd, 0, size, writable=True)

    def unmap_file(self, address: int) -> None:
        """Unmap a file from the process of the driver."""
        size = self.files.pop(address)
        if isinstance(self.driver, Other):
            self.driver.unmap(address, size)
        else:
            unmap(address, size)

    def close(self) -> bool:
        """Give back everything in both processes; returns false if something was refused."""
        sessions = [self, self.there] if self.there else [self]
        ended = [each.end_imports() for each in sessions]
        ended += [each.end_resources() for each in sessions]
        closed = [Session.close(each) for each in sessions]
        return all(ended) and all(closed)

    def end_imports(self) -> bool:
        """Give back what is imported from pools, before their exporter gives it back (fact 82)."""
        if not self.imported_pools:
            return True
        self.driver.ctx_push_current(self.contexts[0])
        clean = _succeeds(self.driver.ctx_synchronize)
        for address in [each for each, opened in self.pooled.items() if opened]:
            clean = _succeeds(self.driver.mem_free, address) and clean
            del self.pooled[address]
        for symbol in self.imported_pools & self.pools.keys():
            clean = _succeeds(self.driver.mem_pool_destroy, self.pools.pop(symbol)) and clean
        self.driver.ctx_pop_current()
        return clean

    def end_resources(self) -> bool:
        """Give back what only this class has, with gpu0's context current; returns false if something was refused."""
        self.driver.ctx_push_current(self.contexts[0])
        for semaphore in self.signals.values():
            semaphore.signal(HIGHEST)
        del self.streams["0"]
        clean = all([self.is_idle(stream) for stream in self.streams.values()])  # noqa: C419 all of them
        clean = all([_succeeds(call, *arguments) for call, *arguments in self._ends()]) and clean  # noqa: C419 as above
        self.allocations.clear()
        for address in list(self.files):
            self.unmap_file(address)
        for memory in self.made.values():
            memory.free()
        for semaphore in self.signals.values():
            semaphore.free()
        return clean

    def _ends(self) -> Iterator[tuple[Any, ...]]:
        """Calls that give back what is open, in order."""
        driver = self.driver
        yield (driver.ctx_synchronize,)
        yield from ((driver.ipc_close_mem_handle, address) for address in self.opened_memory)
        yield from ((driver.mem_free, address) for address in self.allocations)
        yield from ((driver.mem_free_async, address) for address in self.pooled)
        yield (driver.ctx_synchronize,)
        yield from ((driver.mem_pool_destroy, pool) for pool in self.pools.values())
        yield from ((driver.mem_free_host, address) for address in self.pinned)
        yield from ((driver.mem_host_unregister, address) for address in self.registered)
        yield from ((driver.destroy_external_memory, each) for each in self.external.values())
        yield from ((driver.destroy_external_semaphore, each) for each in self.semaphores.values())
        yield from ((driver.event_destroy, each) for each in self.events.values())
        yield from ((driver.stream_destroy, each) for each in self.streams.values())
        yield (driver.ctx_pop_current,)


def _succeeds(call: Callable[..., object], *arguments: object) -> bool:
    try:
        call(*arguments)
    except DriverError:
        return False
    return True


def reached(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Poll until a condition holds; false if it still does not after a time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True


class Needs(NamedTuple):
    """Resources of a sequence beside a driver: state of calls outside of the VMM, a second process, an external API."""

    resources: bool = False
    process: bool = False
    maker: bool = False


class Surroundings:
    """Second process and external API, started when a sequence needs one and kept for others.

    `machine` is the one that is simulated, or None on hardware.
    """

    def __init__(self, machine: Machine | None) -> None:
        self._machine = machine
        self._stack = ExitStack()
        self._maker: ExternalApi | None = None
        self._other: Other | None = None
        self._contexts: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.renew()
        self._stack.close()

    def session(self, driver: Driver, contexts: Sequence[int], needs: Needs) -> Session:
        """Session of a new sequence on a driver."""
        if not any(needs):
            return Session(driver, contexts)
        if needs.maker and self._maker is None:
            opened = external_api(simulated=self._machine is not None)(driver.device_get_uuid(0))
            self._maker = self._stack.enter_context(opened)
        session = ResourceSession(driver, contexts, self._maker if needs.maker else None)
        if needs.process:
            session.join(self._session_there())
        return session

    def renew(self) -> None:
        """End the second process; the next session starts another."""
        if self._other:
            self._other.give_up()
            self._other = None

    def _session_there(self) -> ResourceSession:
        if self._other is None:
            self._other = other = Other(dump(self._machine) if self._machine else None)
            self._contexts = [other.device_primary_ctx_retain(each) for each in range(other.device_get_count())]
        return ResourceSession(self._other, self._contexts)
