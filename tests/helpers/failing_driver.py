"""A driver whose calls fail at a chosen number."""

from __future__ import annotations

from collections.abc import Collection
from functools import wraps
from typing import Any

from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call, Forwarder


class Failing(Forwarder):
    """A driver whose `at`-th call raises `DriverError`.

    Calls are counted from 1, queries included. With `only`, the named methods alone are counted (`{"mem_unmap"}`); with
    `every`, all counted calls from the `at`-th on fail. `calls` is the number of counted calls, `failed` the driver's
    name of the call that failed last. `at` may be set later; 0 lets all calls succeed.
    """

    def __init__(
        self,
        driver: Driver,
        at: int = 0,
        *,
        error: str = "CUDA_ERROR_UNKNOWN",
        only: Collection[str] | None = None,
        every: bool = False,
    ) -> None:
        self.calls = 0
        self.failed: str | None = None
        self.at, self._error, self._only, self._every = at, error, only, every
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        if self._only is not None and method not in self._only:
            return call

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at or (self._every and 0 < self.at < self.calls):
                self.failed = call_name(method)
                raise DriverError(self.failed, self._error, f"made to fail, as call {self.calls}")
            return call(*args, **kwargs)

        return counted
