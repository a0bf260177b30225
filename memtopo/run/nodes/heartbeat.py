"""Signs of life of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any


class Heartbeat:
    """Questions to an agent, one at a time, and the seconds for which it has not answered.

    Time in which no question was asked does not count: the driver may have been busy with the death of another agent.
    """

    def __init__(self, ask: Callable[[], Future[Any]], every: float, now: float) -> None:
        self._ask, self._every, self._heard = ask, every, now
        self._question: Future[Any] | None = None
        self._asked: float | None = None

    def answers(self, now: float) -> Iterator[Any]:
        """Yield the answer to the last question, if there is one, and ask the next one when its time has come.

        A question that failed is asked again.
        """
        if self._question and self._question.done():
            if not self._question.exception():
                self._heard, self._asked = now, None
                yield self._question.result()
            self._question = None
        if self._question is None and now - self._heard > self._every:
            self._question = self._ask()
            self._asked = now if self._asked is None else self._asked

    def silence(self, now: float) -> float:
        """Seconds since the first question that has no answer; 0 if there is none."""
        return 0.0 if self._asked is None else now - self._asked
