"""Liveness of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any


class Heartbeat:
    """Polls of an agent, one at a time, and the seconds for which the last has had no answer.

    Time without a poll does not count: the driver may have handled the end of another agent.
    """

    def __init__(self, poll: Callable[[], Future[Any]], every: float, now: float) -> None:
        self._poll, self._every, self._last_answer = poll, every, now
        self._pending: Future[Any] | None = None
        self._polled: float | None = None

    def answers(self, now: float) -> Iterator[Any]:
        """Yield the answer to the last poll, if there is one, and poll again when the interval is over.

        A poll that failed is repeated.
        """
        if self._pending and self._pending.done():
            if not self._pending.exception():
                self._last_answer, self._polled = now, None
                yield self._pending.result()
            self._pending = None
        if self._pending is None and now - self._last_answer > self._every:
            self._pending = self._poll()
            self._polled = now if self._polled is None else self._polled

    def silence(self, now: float) -> float:
        """Seconds since the first poll that has no answer; 0 if there is none."""
        return 0.0 if self._polled is None else now - self._polled
