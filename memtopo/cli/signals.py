"""SIGINT and SIGTERM set a flag, which is read between steps: an exception out of a handler could lose a handle."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

from memtopo.common.errors import MemtopoError

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(MemtopoError):
    """A signal asked to stop, and nothing is left to do but to say so."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__("interrupted")
        self.exit_code = 128 + number


class Stopper:
    """Remembers the first signal while it is entered; later ones cannot break a teardown, since they change nothing.

    Afterwards the handlers are as before; with `ending`, once a signal came, more of them are ignored for good, so that
    none can take the exit status from a process that has nothing left to do.
    """

    def __init__(self, *, ending: bool = False) -> None:
        self._ending = ending
        self._signal = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._ending and self._signal else handler)

    def signal(self) -> int:
        """The number of the signal that asked to stop, or 0."""
        return self._signal

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number
