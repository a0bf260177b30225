"""How a call of `cuda.bindings.driver` is made, and what its status means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memtopo.common.errors import Unavailable
from memtopo.driver.types import DriverError


def call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> tuple[Any, ...]:
    """Make one driver call; its status and what came with it.

    Raises `DriverError` where the status is no success, and `Unavailable` where libcuda, or the function, is missing.
    """
    try:
        answer = function(*arguments)
    except OverflowError as error:  # the driver's parameter cannot hold the number
        raise _refused(function, error) from error
    except (KeyError, ValueError) as error:  # a status that these bindings have no name for
        raise DriverError(function.__name__, "CUDA_ERROR_UNKNOWN", f"cuda-bindings: {error}") from error
    except RuntimeError as error:
        told = f"the NVIDIA driver has no {function.__name__}: {error}"
        raise Unavailable(told, hint="update the driver: virtual memory management came with CUDA 11") from error
    if answer[0]:
        raise DriverError(function.__name__, answer[0].name)
    return answer


def named(kind: Callable[[int], object], number: int, function: Callable[..., object]) -> object:
    """A number as the bindings name it; one that they have no name for is refused as the driver would."""
    try:
        return kind(int(number))
    except ValueError as error:
        raise _refused(function, f"cuda-bindings: {error}") from error


@contextmanager
def fitting(function: Callable[..., object]) -> Iterator[None]:
    """Refuse numbers that a field of a struct for this call cannot hold."""
    try:
        yield
    except OverflowError as error:
        raise _refused(function, error) from error


def _refused(function: Callable[..., object], reason: object) -> DriverError:
    return DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", str(reason))
