"""Calls of the simulated driver: locking, the driver's error for each refusal, and waiting."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial, wraps
from itertools import starmap
from typing import Concatenate, ParamSpec, TypeVar, cast

from memtopo.driver import batches
from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError


class Refused(Exception):
    """A broken rule of the driver: the error's name, and the rule in a short phrase."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class WouldBlock(Exception):
    """The call has to wait for work that is outstanding. It has changed nothing, and is repeated until it succeeds."""


def invalid(reason: str) -> Refused:
    """Return a refusal with `CUDA_ERROR_INVALID_VALUE`, the driver's most common error."""
    return Refused("CUDA_ERROR_INVALID_VALUE", reason)


def unsupported(reason: str) -> Refused:
    """Return a refusal with `CUDA_ERROR_NOT_SUPPORTED`."""
    return Refused("CUDA_ERROR_NOT_SUPPORTED", reason)


_SURVIVING = (
    *("mem_create", "mem_address_reserve", "mem_get_access", "mem_unmap", "mem_release", "mem_address_free"),
    *("ctx_push_current", "ctx_pop_current", "device_primary_ctx_retain", "device_primary_ctx_release"),
)
"""Calls that still succeed after an illegal access by a kernel, beside queries of devices (fact 24)."""


_PAUSE = 0.001  # seconds


class CallGate:
    """A driver that makes one call at a time, and none while `blocked` has an error and its reason."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocked: tuple[str, str] | None = ("CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised")

    def fatal_error(self) -> tuple[str, str] | None:
        """Return an error and its reason once the process can only release memory; None before."""

    def check_open(self, name: str, *, survives: bool) -> None:
        """Refuse a call before init, after close, and after a fatal error unless it survives one."""
        if self.blocked:
            raise DriverError(name, *self.blocked)
        if not survives and (fatal := self.fatal_error()):
            raise DriverError(name, *fatal)


def driver_error(name: str, error: Refused | OSError) -> DriverError:
    """Error of a call that was refused, or for which no descriptor or memory was left to simulate with."""
    if isinstance(error, Refused):
        return DriverError(name, error.name, error.reason)
    return DriverError(name, "CUDA_ERROR_OPERATING_SYSTEM", f"the simulator: {error.strerror}")


def _survives(method: str) -> bool:
    return method in _SURVIVING or method.startswith(("device_get", "device_total", "driver_"))


C = TypeVar("C", bound=CallGate)
P = ParamSpec("P")
R = TypeVar("R")


def driver_call(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Make a method a driver call: one at a time, between init and close, with errors under the driver's name."""
    name, survives = call_name(method.__name__), _survives(method.__name__)

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with self.lock:
                if self.blocked or not survives:
                    self.check_open(name, survives=survives)
                try:
                    return method(self, *args, **kwargs)
                except WouldBlock:
                    pass
                except Refused as refused:
                    raise driver_error(name, refused) from None
                except OSError as error:
                    raise driver_error(name, error) from error
            time.sleep(_PAUSE)  # without the lock: another thread may be the one that is waited for

    return call


def driver_calls(
    method: Callable[Concatenate[C, P], R],
) -> Callable[[C, Iterable[tuple[object, ...]]], tuple[list[R], DriverError | None]]:
    """Return a function that makes a driver call, which never waits, for each of some arguments until one fails.

    It returns the answers of those before, and the error. A subclass that changes the call changes these as well.
    """
    name, plain = call_name(method.__name__), cast("Callable[..., R]", inspect.unwrap(method))
    survives = _survives(method.__name__)

    def calls(self: C, arguments: Iterable[tuple[object, ...]]) -> tuple[list[R], DriverError | None]:
        if getattr(type(self), method.__name__) is not method:
            return batches.answers(getattr(self, method.__name__), arguments)
        found: list[R] = []
        try:
            with self.lock:
                self.check_open(name, survives=survives)
                for answer in starmap(partial(plain, self), arguments):
                    found.append(answer)  # noqa: PERF402  # a failure keeps those before it
        except DriverError as error:
            return found, error
        except (Refused, OSError) as error:
            return found, driver_error(name, error)
        return found, None

    return calls
