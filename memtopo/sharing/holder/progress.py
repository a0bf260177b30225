"""Notices of the progress of a request that takes long, for the client that waits for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from memtopo.plans.progress import CountedProgress

INTERVAL = 1.0
"""Seconds before the first notice, and between two of them."""


class Receiver(Protocol):
    """A connection that takes messages."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or queue it. Raises `OSError`."""


class ProgressNotices(CountedProgress):
    """Progress of the work of a holder, whose hooks send notices to the clients that wait for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._receivers: tuple[Receiver, ...] = ()
        self._due = 0.0

    @contextmanager
    def to(self, *receivers: Receiver) -> Iterator[None]:
        """Send notices to these clients while the code inside works for them."""
        self._receivers, self._due = receivers, self._clock() + INTERVAL
        try:
            yield
        finally:
            self._receivers = ()

    def advance(self, steps: int, process: str = "") -> None:
        super().advance(steps, process)
        if self._receivers and self._clock() >= self._due:
            self._due = self._clock() + INTERVAL
            self._send()

    def _send(self) -> None:
        state = self.state
        if state is None or state.in_bytes:
            return
        notice = {"notice": "progress", "phase": state.name, "done": state.whole.done, "total": state.whole.total}
        for each in self._receivers:
            with suppress(OSError):  # found when it is answered
                each.send(notice)
