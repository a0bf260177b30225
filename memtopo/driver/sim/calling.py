"""What makes a method of the simulator a driver call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from memtopo.driver.names import call_name
from memtopo.driver.sim.refusal import Refused
from memtopo.driver.types import DriverError


class Callee:
    """A driver that takes one call at a time; while `shut` tells an error and its reason, it takes none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shut: tuple[str, str] | None = ("CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised")


C = TypeVar("C", bound=Callee)
P = ParamSpec("P")
R = TypeVar("R")


def driver_call(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Make a method a driver call: one at a time, only between init and close, and refused under the driver's name."""
    name = call_name(method.__name__)

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            if self.shut:
                raise DriverError(name, *self.shut)
            try:
                return method(self, *args, **kwargs)
            except Refused as refused:
                raise DriverError(name, refused.name, refused.reason) from None
            except OSError as error:  # no descriptor or memory is left to simulate with
                raise DriverError(name, "CUDA_ERROR_OPERATING_SYSTEM", f"the simulator: {error.strerror}") from error

    return call
