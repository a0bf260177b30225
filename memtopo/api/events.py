"""Events of a layout: recorded in one process, waited for in another."""

from __future__ import annotations

from typing import SupportsInt

from memtopo.api.errors import Unsuitable
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current


class Event:
    """One event, in the context of its GPU (`device`).

    A stream is its handle as a number (0: the default one), or an object of cuda.core, PyTorch or CuPy. Methods raise
    `DriverError`, and `Unsuitable` once the layout is gone.
    """

    def __init__(self, name: str, device: int, driver: Driver, layout: Layout) -> None:
        self.name, self.device = name, device
        self._driver, self._layout = driver, layout

    def __repr__(self) -> str:
        return f"<event {self.name} of gpu{self.device}>"

    def record(self, stream: object = 0) -> None:
        """Have it happen once the work that is now in a stream is done."""
        event = self._event()
        with current(self._driver, self._layout.contexts[self.device]):
            self._driver.event_record(event, stream_handle(stream))

    def wait(self, stream: object = 0) -> None:
        """Have later work of a stream wait for what was recorded last, in whichever process; returns at once."""
        event = self._event()
        with current(self._driver, self._layout.contexts[self.device]):
            self._driver.stream_wait_event(stream_handle(stream), event)

    def query(self) -> bool:
        """Whether what was recorded last is done; true also where nothing ever was (fact 47)."""
        return self._driver.event_query(self._event())

    def synchronize(self) -> None:
        """Return once what was recorded last is done."""
        event = self._event()
        with current(self._driver, self._layout.contexts[self.device]):
            self._driver.event_synchronize(event)

    def _event(self) -> int:
        if self.name not in self._layout.events:
            raise Unsuitable(f"event {self.name!r} is gone: its layout was taken down")
        return self._layout.events[self.name]


def stream_handle(stream: object) -> int:
    """The handle of a stream, as a number or an object that has it. Raises `Unsuitable`."""
    if isinstance(stream, SupportsInt) and not hasattr(stream, "__cuda_stream__"):
        return int(stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    raise Unsuitable(f"a {type(stream).__name__} is no stream: a handle, or an object with __cuda_stream__, is")
