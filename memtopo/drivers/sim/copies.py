"""Driver calls that copy simulated memory, one by one and in batches."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.driver import batches
from memtopo.driver.types import DriverError
from memtopo.drivers.sim.access import MemoryOperations
from memtopo.drivers.sim.calls import CallGate, Refused, driver_call
from memtopo.drivers.sim.devices import Contexts
from memtopo.drivers.sim.pools import Pools
from memtopo.drivers.sim.streams import Stream, Streams


class CopyCalls(CallGate):
    """Copies, of which those in a stream are done at once unless work is outstanding before them."""

    _contexts: Contexts
    _contents: MemoryOperations
    _pools: Pools
    _streams: Streams

    @driver_call
    def memcpy_htod(self, address: int, data: bytes) -> None:
        device = self._contexts.current()
        self._pools.check_copy(address)
        self._contents.write(device, address, data)

    @driver_call
    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        device = self._contexts.current()
        self._pools.check_copy(address)
        return self._contents.read(device, address, count)

    @driver_call
    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        found = self._copying(stream)
        self._streams.add(found, self._contents.copy(self._device(found), destination, source, count))

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as `memcpy_async` does; many small spans between host memory and chunks in one pass."""
        if type(self).memcpy_async is CopyCalls.memcpy_async and self._copied(copies, stream):
            return None
        return batches.answers(self.memcpy_async, [(*each, stream) for each in copies])[1]

    def _copied(self, copies: Sequence[tuple[int, int, int]], stream: int) -> bool:
        """Make copies together; return false, with none made, where the single calls have to find what is refused."""
        with self.lock:
            if not copies or self.blocked or self.fatal_error():
                return False
            try:
                found = self._copying(stream)
                return not found.work and self._contents.transfer(self._device(found), copies)
            except (Refused, OSError):
                return False

    def _copying(self, stream: int) -> Stream:
        return self._streams.get(stream, None if stream else self._contexts.current())

    def _device(self, stream: Stream) -> int:
        return self._contexts.current() if self._contexts.any_current() else stream.device
