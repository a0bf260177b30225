"""How the simulator's parts say no, before the facade names the call, or that a call must wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError


class Refused(Exception):
    """A rule was broken: the driver's error name, and in a short phrase which rule."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class Outstanding(Exception):
    """The call waits for what somebody else has to do. It has changed nothing, and is made again until it need not."""


def invalid(reason: str) -> Refused:
    """A refusal with `CUDA_ERROR_INVALID_VALUE`, the driver's most common answer."""
    return Refused("CUDA_ERROR_INVALID_VALUE", reason)


def unsupported(reason: str) -> Refused:
    """A refusal with `CUDA_ERROR_NOT_SUPPORTED`."""
    return Refused("CUDA_ERROR_NOT_SUPPORTED", reason)


_SURVIVING = (
    *("mem_create", "mem_address_reserve", "mem_get_access", "mem_unmap", "mem_release", "mem_address_free"),
    *("ctx_push_current", "ctx_pop_current", "device_primary_ctx_retain", "device_primary_ctx_release"),
)
"""What still succeeds in a process that a kernel's forbidden access has ended, beside queries of devices (fact 24)."""


_PAUSE = 0.001  # seconds


class Callee:
    """A driver that takes one call at a time; while `shut` tells an error and its reason, it takes none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shut: tuple[str, str] | None = ("CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised")

    def doomed(self) -> tuple[str, str] | None:
        """An error and its reason, where the process lives on but can do no more than give memory back."""


C = TypeVar("C", bound=Callee)
P = ParamSpec("P")
R = TypeVar("R")


def driver_call(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Make a method a driver call: one at a time, only between init and close, and refused under the driver's name."""
    name = call_name(method.__name__)
    survives = method.__name__ in _SURVIVING or method.__name__.startswith(("device_get", "device_total", "driver_"))

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            with self.lock:
                if self.shut:
                    raise DriverError(name, *self.shut)
                if not survives and (doom := self.doomed()):
                    raise DriverError(name, *doom)
                try:
                    return method(self, *args, **kwargs)
                except Outstanding:
                    pass
                except Refused as refused:
                    raise DriverError(name, refused.name, refused.reason) from None
                except OSError as error:  # no descriptor or memory is left to simulate with
                    raise DriverError(
                        name, "CUDA_ERROR_OPERATING_SYSTEM", f"the simulator: {error.strerror}"
                    ) from error
            time.sleep(_PAUSE)  # without the lock: another thread may be the one that is waited for

    return call
