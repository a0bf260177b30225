"""SIGINT and SIGTERM set a flag, which is read between steps: an exception out of a handler could lose a handle."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Remembers the first signal while it is entered; later ones cannot break a teardown, since they change nothing."""

    def __init__(self) -> None:
        self._signal = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def signal(self) -> int:
        """The number of the signal that asked to stop, or 0."""
        return self._signal

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number
