"""A worker one of whose driver calls fails, or sends a signal to it or to its parent.

MEMTOPO_CRASH is `PROCESS:CALL:SIGNAL:VICTIM`, the victim being `self` or `parent`; instead of a signal it may have an
error of the driver's, with which that call of the victim fails. A call is a number, or a method with the number of its
call: `mem_address_reserve#2`. In the process MEMTOPO_OCCUPIED, the first address that processes agree on is taken.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from memtopo.driver.protocol import Driver
from memtopo.driver.types import ADDRESS_BLOCK
from memtopo.kinds.resources import FIRST_AGREED
from memtopo.run.processes.worker import main
from tests.helpers.failing_driver import Failing


class SignalAtCall:
    """Forwards every call; before the `at`-th, or the `at`-th of a method, sends a signal."""

    def __init__(self, driver: Driver, at: int, number: signal.Signals, victim: int, only: str = "") -> None:
        self._driver, self._at, self._number, self._victim, self._calls = driver, at, number, victim, 0
        self._only = only

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._driver, method)
        if not callable(call) or self._only not in ("", method):
            return call

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if self._calls == self._at:
                os.kill(self._victim, self._number)
            return call(*args, **kwargs)

        return counted


def wrap(process: str, driver: Driver) -> Any:
    if os.environ.get("MEMTOPO_OCCUPIED") == process:
        driver.mem_address_reserve(ADDRESS_BLOCK, 0, FIRST_AGREED)
    dying, call, name, victim = os.environ["MEMTOPO_CRASH"].split(":")
    method, _, number = call.rpartition("#")
    if process != dying:
        return driver
    if name.startswith("CUDA_ERROR"):
        return Failing(driver, int(number), only={method} if method else None, error=name)
    victim_id = os.getpid() if victim == "self" else os.getppid()
    return SignalAtCall(driver, int(number), signal.Signals[name], victim_id, method)


if __name__ == "__main__":
    main(*sys.argv[1:], wrap=wrap)
