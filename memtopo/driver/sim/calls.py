"""Calls of the simulated driver: locking, the driver's error for each refusal, and waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

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


C = TypeVar("C", bound=CallGate)
P = ParamSpec("P")
R = TypeVar("R")


def driver_call(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Make a method a driver call: one at a time, between init and close, with errors under the driver's name."""
    name = call_name(method.__name__)
    survives = method.__name__ in _SURVIVING or method.__name__.startswith(("device_get", "device_total", "driver_"))

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with self.lock:
                if self.blocked:
                    raise DriverError(name, *self.blocked)
                if not survives and (fatal := self.fatal_error()):
                    raise DriverError(name, *fatal)
                try:
                    return method(self, *args, **kwargs)
                except WouldBlock:
                    pass
                except Refused as refused:
                    raise DriverError(name, refused.name, refused.reason) from None
                except OSError as error:  # no descriptor or memory is left to simulate with
                    raise DriverError(
                        name, "CUDA_ERROR_OPERATING_SYSTEM", f"the simulator: {error.strerror}"
                    ) from error
            time.sleep(_PAUSE)  # without the lock: another thread may be the one that is waited for

    return call
