"""Driver calls for many chunks, one after another, until a call fails.

Nothing but the calls stands between the calls: each evicts the caches of the processor, so that the code between two
calls takes several times as long as in a loop of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, TypeVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError

T = TypeVar("T")


class BatchDriver:
    """A driver that makes the calls of this module in a way of its own."""

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
        """Make calls of a method until one fails; return the answers of those before, and the error."""
        return answers(getattr(self, method), arguments)

    @abstractmethod
    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as the function `copy_each`."""


def call_each(driver: Driver, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
    """Make calls of a method until one fails; return the answers of those before, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.each(method, arguments)
    return answers(getattr(driver, method), arguments)


def refusal(error: Exception | None) -> DriverError | None:
    """Return the error of a call that the driver refused. Raises any other."""
    if error is not None and not isinstance(error, DriverError):
        raise error
    return error


def copy_each(driver: Driver, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
    """Copy in a stream, each given by destination, source and bytes, in any order; return the error (fact 89).

    The stream is not 0. After an error, some of the copies may have been made.
    """
    if isinstance(driver, BatchDriver):
        return driver.copy_each(copies, stream)
    return refusal(answers(driver.memcpy_async, [(*one, stream) for one in copies])[1])


def answers(call: Callable[..., T], arguments: Iterable[tuple[object, ...]]) -> tuple[list[T], Exception | None]:
    """Make calls until one fails; return the answers of those before, and the error."""
    found: list[T] = []
    try:
        for answer in starmap(call, arguments):
            found.append(answer)  # noqa: PERF402  # as this
    except Exception as error:  # noqa: BLE001  # a failure keeps those before it
        return found, error
    return found, None
