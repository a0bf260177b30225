"""Events of a layout: recorded in one process, waited for in another."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, SupportsInt

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


class ExternalSemaphore:
    """One semaphore, for the streams of its GPU (`device`).

    A stream is its handle as a number (0: the default one), or an object of cuda.core, PyTorch or CuPy. Values are a
    timeline's, and mean nothing to a binary semaphore. Methods raise `DriverError`, and `Unsuitable` once the layout is
    gone. What is not signalled in the end is waited for for ever: taking the layout down then hangs, and so does
    whatever frees memory of the GPU (fact 58).
    """

    def __init__(self, name: str, device: int, driver: Driver, layout: Layout) -> None:
        self.name, self.device = name, device
        self._driver, self._layout = driver, layout

    def __repr__(self) -> str:
        return f"<semaphore {self.name} of gpu{self.device}>"

    def wait(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Have later work of a stream wait until a timeline is at `value` or above; returns at once."""
        semaphore = self._semaphore()
        with current(self._driver, self._layout.contexts[self.device]):
            self._driver.wait_external_semaphore(semaphore, _whole(value), stream_handle(stream))

    def signal(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Have it signalled once the work that is now in a stream is done; a timeline goes to `value` (fact 56)."""
        semaphore = self._semaphore()
        with current(self._driver, self._layout.contexts[self.device]):
            self._driver.signal_external_semaphore(semaphore, _whole(value), stream_handle(stream))

    def _semaphore(self) -> int:
        if self.name not in self._layout.semaphores:
            raise Unsuitable(f"semaphore {self.name!r} is gone: its layout was taken down")
        return self._layout.semaphores[self.name]


def _whole(value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise Unsuitable(f"{value!r} is no value of a semaphore: a whole number is") from None
