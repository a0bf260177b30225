"""The calls of the simulated driver for events."""

from __future__ import annotations

from memtopo.driver.sim.calling import Callee, driver_call
from memtopo.driver.sim.contexts import Contexts
from memtopo.driver.sim.events import Events
from memtopo.driver.types import EventFlags


class EventCalls(Callee):
    """A part of the driver."""

    _contexts: Contexts
    _events: Events

    def event_records(self, event: int) -> int:
        """How often an open event was recorded, here and by all who share it: what no real driver tells."""
        with self.lock:
            return self._events.records(event)

    @driver_call
    def event_create(self, flags: EventFlags) -> int:
        return self._events.create(flags, self._contexts.current())

    @driver_call
    def event_destroy(self, event: int) -> None:
        self._events.destroy(event)

    @driver_call
    def event_record(self, event: int, stream: int = 0) -> None:
        self._events.record(event, stream, self._contexts.current())

    @driver_call
    def event_query(self, event: int) -> bool:
        self._events.get(event)
        return True

    @driver_call
    def event_synchronize(self, event: int) -> None:
        self._contexts.current()
        self._events.get(event)

    @driver_call
    def ipc_get_event_handle(self, event: int) -> bytes:
        self._contexts.current()
        return self._events.share(event)

    @driver_call
    def ipc_open_event_handle(self, handle: bytes) -> int:
        return self._events.open(handle, self._contexts.current())

    @driver_call
    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        self._contexts.current()
        self._events.wait(event, stream, flags)
