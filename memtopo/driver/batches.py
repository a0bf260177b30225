"""Driver calls for many chunks, one after another, until a call fails.

Nothing but the calls stands between the calls: each evicts the caches of the processor, so that the code between two
calls takes several times as long as in a loop of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, starmap
from typing import Any, TypeVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Location, Properties

T = TypeVar("T")


class BatchDriver(ABC):
    """A driver that makes the calls of this module in a loop of its own."""

    @abstractmethod
    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
        """Make calls of a method until one fails; return the answers of those before, and the error."""

    @abstractmethod
    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as the function `copy_each`."""


def each(driver: Driver, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
    """Make calls of a method until one fails; return the answers of those before, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.each(method, arguments)
    return answers(getattr(driver, method), arguments)


def refusal(error: Exception | None) -> DriverError | None:
    """Return the error of a call that the driver refused. Raises any other."""
    if error is not None and not isinstance(error, DriverError):
        raise error
    return error


def create_each(driver: Driver, size: int, properties: Sequence[Properties]) -> tuple[list[int], Exception | None]:
    """Create a chunk of `size` bytes with each of the properties; return the handles, and the error."""
    return each(driver, "mem_create", [(size, one) for one in properties])


def map_each(driver: Driver, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, Exception | None]:
    """Map whole chunks, each given by address, size and handle; return the number of mappings made, and the error."""
    made, error = each(driver, "mem_map", mappings)
    return len(made), error


def release_each(driver: Driver, handles: Sequence[int]) -> tuple[int, Exception | None]:
    """Release handles; return the number of those released, and the error."""
    released, error = each(driver, "mem_release", [*zip(handles)])
    return len(released), error


def unmap_each(driver: Driver, addresses: Sequence[int], size: int) -> tuple[int, Exception | None]:
    """Unmap mappings of `size` bytes at addresses; return the number of those unmapped, and the error."""
    unmapped, error = each(driver, "mem_unmap", [*zip(addresses, repeat(size))])
    return len(unmapped), error


def retain_each(driver: Driver, addresses: Sequence[int]) -> tuple[list[int], Exception | None]:
    """Return handles of the chunks that are mapped at addresses, each with a new reference, and the error."""
    return each(driver, "mem_retain_allocation_handle", [*zip(addresses)])


def properties_each(driver: Driver, handles: Sequence[int]) -> tuple[list[Properties], Exception | None]:
    """Return the properties of chunks by their handles, and the error."""
    return each(driver, "mem_get_allocation_properties_from_handle", [*zip(handles)])


def access_each(driver: Driver, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], Exception | None]:
    """Return the access at each address of each location, and the error."""
    return each(driver, "mem_get_access", queried)


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
