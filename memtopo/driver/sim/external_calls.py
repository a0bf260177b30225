"""The calls of the simulated driver for what another API made, and for streams."""

from __future__ import annotations

from memtopo.driver.sim.calling import Callee, driver_call
from memtopo.driver.sim.contexts import Contexts
from memtopo.driver.sim.external import ExternalMemory
from memtopo.driver.sim.semaphores import Semaphores
from memtopo.driver.sim.streams import Stream, Streams
from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType


class ExternalCalls(Callee):
    """A part of the driver: the protocol `ExternalResources`."""

    _contexts: Contexts
    _external: ExternalMemory
    _semaphores: Semaphores
    _streams: Streams

    @driver_call
    def stream_create(self, flags: int = 1) -> int:
        return self._streams.create(flags, self._contexts.current())

    @driver_call
    def stream_destroy(self, stream: int) -> None:
        self._streams.destroy(stream)

    @driver_call
    def stream_query(self, stream: int) -> bool:
        return self._streams.is_done(stream, None if stream else self._contexts.current())

    @driver_call
    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        return self._external.take(fd, kind, size, self._contexts.current(), dedicated=dedicated)

    @driver_call
    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        self._contexts.current()
        return self._external.map(memory, offset, size)

    @driver_call
    def destroy_external_memory(self, memory: int) -> None:
        self._external.destroy(memory)

    @driver_call
    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        return self._semaphores.take(fd, kind, self._contexts.current())

    @driver_call
    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        self._semaphores.signal(semaphore, value, self._stream(stream))

    @driver_call
    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        self._semaphores.wait(semaphore, value, self._stream(stream))

    @driver_call
    def destroy_external_semaphore(self, semaphore: int) -> None:
        self._semaphores.destroy(semaphore)

    def _stream(self, stream: int) -> Stream:
        return self._streams.get(stream, None if stream else self._contexts.current())
