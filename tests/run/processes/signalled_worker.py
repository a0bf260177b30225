"""A worker one of whose driver calls fails, or sends a signal to it or to its parent.

MEMTOPO_CRASH is `PROCESS:CALL:SIGNAL:VICTIM`, the victim being `self` or `parent`; instead of a signal it may have an
error of the driver's, with which that call of the victim fails.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from memtopo.driver.protocol import Driver
from memtopo.run.processes.worker import main
from tests.helpers.failing_driver import Failing


class SignalAtCall:
    """Forwards every call; before the `at`-th, sends a signal."""

    def __init__(self, driver: Driver, at: int, number: signal.Signals, victim: int) -> None:
        self._driver, self._at, self._number, self._victim, self._calls = driver, at, number, victim, 0

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._driver, method)
        if not callable(call):
            return call

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if self._calls == self._at:
                os.kill(self._victim, self._number)
            return call(*args, **kwargs)

        return counted


def wrap(process: str, driver: Driver) -> Any:
    dying, at, name, victim = os.environ["MEMTOPO_CRASH"].split(":")
    if process != dying:
        return driver
    if name.startswith("CUDA_ERROR"):
        return Failing(driver, int(at), error=name)
    return SignalAtCall(driver, int(at), signal.Signals[name], os.getpid() if victim == "self" else os.getppid())


if __name__ == "__main__":
    main(*sys.argv[1:], wrap=wrap)
