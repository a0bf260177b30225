"""A child of a probe whose driver hangs or dies in the middle of a call. It is run as a script."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError
from memtopo.machine.probe.child import main

if TYPE_CHECKING:
    from typing import Any as Anything
else:
    Anything = object


class Dying(Anything):  # type: ignore[misc]
    """Forwards every call, except that the one of a name hangs, raises or kills the process."""

    def __init__(self, driver: Any, method: str, how: str) -> None:
        self._driver, self._method, self._how = driver, method, how

    def __getattr__(self, method: str) -> Any:
        return self._end if method == self._method else getattr(self._driver, method)

    def _end(self, *_: object, **__: object) -> Any:
        if self._how == "hang":
            signal.pause()
        if self._how.startswith("CUDA"):
            raise DriverError(call_name(self._method), self._how)
        if self._how == "raise":
            raise RuntimeError("a bug\x1b[2J")
        os.kill(os.getpid(), signal.Signals[self._how])


if __name__ == "__main__":
    main(sys.argv[3], lambda driver: Dying(driver, *sys.argv[1:3]))
