"""Clock for limits on the silence of other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_STEP = 0.5
"""Seconds that count between two readings of a `RunningClock`."""


class RunningClock:
    """Monotonic clock without the time for which this process was stopped: by Ctrl-Z, SIGSTOP or a freezer.

    A process that goes on sees only that much time has passed since it last read the clock. Of the time between two
    readings at most `LONGEST_STEP` seconds count, so a wait has to read the clock at least as often. `now` returns
    seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()
        self._time = 0.0

    def time(self) -> float:
        """Return the seconds for which this process ran since the clock was made."""
        before, self._last = self._last, self._now()
        self._time += min(self._last - before, LONGEST_STEP)
        return self._time
