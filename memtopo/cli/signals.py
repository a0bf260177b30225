"""SIGINT and SIGTERM set a flag, which is read between steps.

An exception raised by a signal handler could lose a handle.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

from memtopo.common.errors import MemtopoError

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(MemtopoError):
    """The command was interrupted by a signal."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__("interrupted")
        self.exit_code = 128 + number


class Stopper:
    """Records the first signal while entered; later ones have no effect, so that they cannot break a teardown.

    The former handlers are restored on exit. With `ending`, signals are ignored from then on if one was recorded, so
    that none replaces the exit status of the process.
    """

    def __init__(self, *, ending: bool = False) -> None:
        self._ending = ending
        self._signal = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._record) for number in _WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._ending and self._signal else handler)

    def signal(self) -> int:
        """Number of the first signal, or 0."""
        return self._signal

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number
