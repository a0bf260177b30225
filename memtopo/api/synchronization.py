"""Events and external semaphores of a layout, for the streams of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import ClassVar, SupportsIndex, SupportsInt

from memtopo.api.errors import Unsuitable
from memtopo.driver.protocol import Driver
from memtopo.kinds.external.steps import SEMAPHORE_HANDLES
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.kinds.layout import Layout, current


class _Synchronizing:
    """Object of a GPU (`device`) that streams of the program wait for."""

    noun: ClassVar[str]

    def __init__(self, name: str, device: int, driver: Driver, layout: Layout) -> None:
        self.name, self.device = name, device
        self._driver, self._layout = driver, layout

    def __repr__(self) -> str:
        return f"<{self.noun} {self.name} of gpu{self.device}>"

    @contextmanager
    def _on_device(self, handles: Mapping[str, int]) -> Iterator[int]:
        """Return the handle of the object, whose context is current in the code inside."""
        handle = self._handle(handles)
        with current(self._driver, self._layout.contexts[self.device]):
            yield handle

    def _handle(self, handles: Mapping[str, int]) -> int:
        if self.name not in handles:
            raise Unsuitable(f"{self.noun} {self.name!r} is gone: its layout was taken down")
        return handles[self.name]


class Event(_Synchronizing):
    """Event in the context of its GPU (`device`).

    A stream is a handle as a number (0 is the default stream), or an object of cuda.core, PyTorch or CuPy. Methods
    raise `DriverError`, and `Unsuitable` after the layout was taken down.
    """

    noun = "event"

    def record(self, stream: object = 0) -> None:
        """Record the event in a stream, after the work that is currently in it."""
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.event_record(event, stream_handle(stream))

    def wait(self, stream: object = 0) -> None:
        """Make later work of a stream wait for the last recording, in any process; return immediately.

        The stream must be of the event's GPU: with another GPU's, the driver ends the process (fact 76).
        """
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.stream_wait_event(stream_handle(stream), event)

    def query(self) -> bool:
        """Return true if the last recording is complete, or if there was none (fact 47)."""
        return self._driver.event_query(self._handle(self._layout.of(EVENT_HANDLES)))

    def synchronize(self) -> None:
        """Wait until the last recording is complete."""
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.event_synchronize(event)


def stream_handle(stream: object) -> int:
    """Return the handle of a stream, which is a number or an object with a handle. Raises `Unsuitable`."""
    if isinstance(stream, SupportsInt) and not hasattr(stream, "__cuda_stream__"):
        return int(stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    raise Unsuitable(f"a {type(stream).__name__} is no stream: pass a handle, or an object with __cuda_stream__")


class ExternalSemaphore(_Synchronizing):
    """External semaphore, for the streams of its GPU (`device`).

    A stream is a handle as a number (0 is the default stream), or an object of cuda.core, PyTorch or CuPy. Values are
    those of a timeline; a binary semaphore ignores them. Methods raise `DriverError`, and `Unsuitable` after the layout
    was taken down. A wait without a signal never ends: taking the layout down then blocks, and so does freeing any
    memory of the GPU (fact 58).
    """

    noun = "semaphore"

    def wait(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Make later work of a stream wait until a timeline is at `value` or above; return immediately."""
        with self._on_device(self._layout.of(SEMAPHORE_HANDLES)) as semaphore:
            self._driver.wait_external_semaphore(semaphore, _whole(value), stream_handle(stream))

    def signal(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Signal the semaphore after the work that is currently in a stream; a timeline is set to `value` (fact 56)."""
        with self._on_device(self._layout.of(SEMAPHORE_HANDLES)) as semaphore:
            self._driver.signal_external_semaphore(semaphore, _whole(value), stream_handle(stream))


def _whole(value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise Unsuitable(f"{value!r} is no value of a semaphore: pass a whole number") from None
