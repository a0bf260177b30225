"""A driver whose n-th call fails, for whoever must show that nothing stays then."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any

from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.types import DriverError

if TYPE_CHECKING:
    # To a checker of types it can stand for any driver; its methods are found by name, so that none can be forgotten.
    from typing import Any as Anything
else:
    Anything = object


class Failing(Anything):  # type: ignore[misc]
    """A driver that hands every call to another one, but raises `DriverError` instead of making the `at`-th.

    Calls are counted from 1, queries included; `only` counts just the named methods (`{"mem_unmap"}`), and `every` lets
    all counted calls from the `at`-th on fail. `calls` is how many were counted, `failed` the driver's name of the call
    that failed last.
    """

    def __init__(
        self,
        driver: Driver,
        at: int,
        *,
        error: str = "CUDA_ERROR_UNKNOWN",
        only: Collection[str] | None = None,
        every: bool = False,
    ) -> None:
        self.calls = 0
        self.failed: str | None = None
        self._driver, self._at, self._error, self._only, self._every = driver, at, error, only, every

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._driver, method)
        return call if self._only is not None and method not in self._only else self._counted(method, call)

    def _counted(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at or (self._every and self.calls > self._at):
                self.failed = call_name(method)
                raise DriverError(self.failed, self._error, f"made to fail, as call {self.calls}")
            return call(*args, **kwargs)

        return counted
