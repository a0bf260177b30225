"""The calls of the simulated driver for managed memory, and what the CPU itself does to bytes."""

from __future__ import annotations

from memtopo.driver.sim.access import AccessRules
from memtopo.driver.sim.calling import Callee, driver_call
from memtopo.driver.sim.contents import Contents
from memtopo.driver.sim.contexts import Contexts
from memtopo.driver.sim.managed import Managed
from memtopo.driver.sim.streams import Streams
from memtopo.driver.types import Advice, Location, MemAttach, RangeAttribute


class ManagedCalls(Callee):
    """A part of the driver: the protocol `ManagedMemory`."""

    _access: AccessRules
    _contexts: Contexts
    _contents: Contents
    _managed: Managed
    _streams: Streams

    @driver_call
    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return self._managed.allocate(size, flags, self._contexts.current())

    @driver_call
    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        self._contexts.current()
        self._managed.advise(address, size, advice, location)

    @driver_call
    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        self._contexts.current()
        work = self._managed.prefetch(address, size, location)
        if stream:
            self._streams.add(self._streams.get(stream), work)
        else:
            work()

    @driver_call
    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        self._contexts.current()
        return self._managed.attribute(address, size, attribute)

    @driver_call
    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        self._contexts.current()
        if stream:
            self._streams.get(stream)
        self._managed.attach(stream, address, flags)

    @driver_call
    def pointer_is_managed(self, address: int) -> bool:
        self._contexts.current()
        return self._access.is_managed(address)

    @driver_call
    def host_write(self, address: int, data: bytes) -> None:
        self._contents.host_write(address, data)

    @driver_call
    def host_read(self, address: int, count: int) -> bytes:
        return self._contents.host_read(address, count)
