"""A child of a probe whose driver hangs or dies in the middle of a call."""

from __future__ import annotations

import os
import signal
from typing import Any

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError
from memtopo.probe.child import main
from memtopo.probe.supervisor import FATAL
from tests.helpers.forwarding import ForwardingDriver


class Dying(ForwardingDriver):
    """Forwards every call, except that the one of a name hangs, raises or kills the process.

    No call works after a fatal error.
    """

    def __init__(self, driver: Any, method: str, how: str) -> None:
        super().__init__(driver)
        self._method, self._how, self._over = method, how, False

    def __getattr__(self, method: str) -> Any:
        return self._end if self._over or method == self._method else super().__getattr__(method)

    def _end(self, *_: object, **__: object) -> Any:
        if self._how == "hang":
            signal.pause()
        if self._how.startswith("CUDA"):
            self._over = self._how in FATAL
            raise DriverError(call_name(self._method), self._how)
        if self._how == "raise":
            raise RuntimeError("a bug\x1b[2J")
        os.kill(os.getpid(), signal.Signals[self._how])


def probe_and_die(method: str, how: str, descriptor: str) -> None:
    """Be the child of a probe at a descriptor; end as `how` names it in the first call of a method."""
    main(descriptor, lambda driver: Dying(driver, method, how))
