"""Semaphores of a layout, which another API made."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from memtopo.api.errors import Unsuitable
from memtopo.api.events import stream_handle
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current


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
