"""Calls of the simulated driver: locking, the driver's error for each refusal, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError


class RefusedCall(Exception):
    """A broken rule of the driver: the error's name, and the rule in a short phrase."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class WouldBlock(Exception):
    """The call has to wait for work that is outstanding. It has changed nothing, and is repeated until it succeeds."""


def invalid(reason: str) -> RefusedCall:
    """Return a refusal with `CUDA_ERROR_INVALID_VALUE`, the driver's most common error."""
    return RefusedCall("CUDA_ERROR_INVALID_VALUE", reason)


def refuse_if(broken: object, reason: str, error: str = "CUDA_ERROR_INVALID_VALUE") -> None:
    """Refuse a call if a rule of the driver is broken."""
    if broken:
        raise RefusedCall(error, reason)


def unsupported(reason: str) -> RefusedCall:
    """Return a refusal with `CUDA_ERROR_NOT_SUPPORTED`."""
    return RefusedCall("CUDA_ERROR_NOT_SUPPORTED", reason)


T = TypeVar("T")


class Numbered(dict[int, T]):
    """Open objects of one kind by their numbers, from `first` on; a number that is not open is refused for a reason."""

    def __init__(self, first: int, reason: str, error: str = "INVALID_VALUE", step: int = 16) -> None:
        super().__init__()
        self._numbers = count(first, step)
        self._error, self._reason = f"CUDA_ERROR_{error}", reason

    def add(self, opened: T) -> int:
        """Add an object; returns its number, which no other object had before."""
        number = next(self._numbers)
        self[number] = opened
        return number

    def remove(self, number: int) -> T:
        """Remove an object, and return it."""
        removed = self[number]
        del self[number]
        return removed

    def __missing__(self, number: int) -> T:
        raise RefusedCall(self._error, self._reason)

    def in_context(self, context: object) -> list[int]:
        """Numbers of the objects in a context."""
        return [number for number, opened in self.items() if getattr(opened, "context", None) == context]


_SURVIVING = (
    *("mem_create", "mem_address_reserve", "mem_map", "mem_set_access", "mem_get_access", "mem_unmap", "mem_release"),
    *("mem_address_free", "mem_export_to_shareable_handle", "mem_get_allocation_granularity"),
    *("ctx_push_current", "ctx_pop_current", "device_primary_ctx_retain", "device_primary_ctx_release"),
)
"""Calls that still succeed after an illegal access by a kernel, beside queries of devices (fact 24)."""


_PAUSE = 0.001  # seconds
NOT_OPEN = "the handle is not open"
PAST_RESERVATION = "the mapping runs past the end of its reservation"

STRICTER: Mapping[tuple[str, str], int] = {
    ("cuMemMap", PAST_RESERVATION): 15,
    ("cuMemMap", NOT_OPEN): 69,
    ("cuMemExportToShareableHandle", NOT_OPEN): 51,
    ("cuMemGetAllocationPropertiesFromHandle", NOT_OPEN): 52,
}
"""Facts on what hardware does instead of a refusal, by call and reason; docs/simulator.md lists all differences.

Reasons that state the behaviour of hardware themselves are not here.
"""


def driver_error(name: str, error: RefusedCall | OSError) -> DriverError:
    """Error of a call that was refused, or for which no descriptor or memory was left to simulate with."""
    if isinstance(error, RefusedCall):
        fact = STRICTER.get((name, error.reason))
        return DriverError(name, error.name, error.reason + (f" (stricter than hardware: fact {fact})" if fact else ""))
    return DriverError(name, "CUDA_ERROR_OPERATING_SYSTEM", f"the simulator: {error.strerror}")


P = ParamSpec("P")
R = TypeVar("R")


def driver_call(method: Callable[Concatenate[Any, P], R], part: str | None = None) -> Callable[Concatenate[Any, P], R]:
    """Make a method of the simulated driver, or of its `part`, a call: one at a time, under the name of the driver.

    It is refused before init, after close, and after a fatal error unless it survives one.
    """
    name = call_name(method.__name__)
    survives = method.__name__ in _SURVIVING or method.__name__.startswith(("device_get", "device_total", "driver_"))

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with self.lock:
                refusal = self.blocked if survives else self.blocked or self.fatal_error()
                if refusal:
                    raise DriverError(name, *refusal)
                try:
                    return method(getattr(self, part) if part else self, *args, **kwargs)
                except WouldBlock:
                    pass
                except RefusedCall as refused:
                    raise driver_error(name, refused) from None
                except OSError as error:
                    raise driver_error(name, error) from error
            time.sleep(_PAUSE)  # without the lock: another thread may be the one that is waited for

    return call
