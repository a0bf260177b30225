"""Driver calls for many chunks, one after another, until a call fails.

Nothing but the calls stands between the calls: each evicts the caches of the processor, so that the code between two
calls takes several times as long as in a loop of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, starmap
from typing import TypeVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Location, Properties

T = TypeVar("T")


class BatchDriver(ABC):
    """A driver that makes such calls in a loop of its own. Each method is the function of this module of its name."""

    @abstractmethod
    def create_each(self, size: int, properties: Sequence[Properties]) -> tuple[list[int], DriverError | None]: ...

    @abstractmethod
    def map_each(self, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, DriverError | None]: ...

    @abstractmethod
    def release_each(self, handles: Sequence[int]) -> tuple[int, DriverError | None]: ...

    @abstractmethod
    def properties_each(self, handles: Sequence[int]) -> tuple[list[Properties], DriverError | None]: ...

    @abstractmethod
    def access_each(self, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], DriverError | None]: ...

    @abstractmethod
    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None: ...


def create_each(driver: Driver, size: int, properties: Sequence[Properties]) -> tuple[list[int], DriverError | None]:
    """Create a chunk of `size` bytes with each of the properties; return the handles, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.create_each(size, properties)
    return answers(driver.mem_create, zip(repeat(size), properties))


def map_each(driver: Driver, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, DriverError | None]:
    """Map whole chunks, each given by address, size and handle; return the number of mappings made, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.map_each(mappings)
    made, error = answers(driver.mem_map, mappings)
    return len(made), error


def release_each(driver: Driver, handles: Sequence[int]) -> tuple[int, DriverError | None]:
    """Release handles; return the number of those released, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.release_each(handles)
    released, error = answers(driver.mem_release, zip(handles))
    return len(released), error


def properties_each(driver: Driver, handles: Sequence[int]) -> tuple[list[Properties], DriverError | None]:
    """Return the properties of chunks by their handles, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.properties_each(handles)
    return answers(driver.mem_get_allocation_properties_from_handle, zip(handles))


def access_each(driver: Driver, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], DriverError | None]:
    """Return the access at each address of each location, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.access_each(queried)
    return answers(driver.mem_get_access, queried)


def copy_each(driver: Driver, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
    """Copy in a stream, each given by destination, source and bytes, in any order; return the error (fact 89).

    The stream is not 0. After an error, some of the copies may have been made.
    """
    if isinstance(driver, BatchDriver):
        return driver.copy_each(copies, stream)
    return answers(driver.memcpy_async, [(*each, stream) for each in copies])[1]


def answers(call: Callable[..., T], arguments: Iterable[tuple[object, ...]]) -> tuple[list[T], DriverError | None]:
    """Make calls until one fails; return the answers of those before, and the error."""
    found: list[T] = []
    try:
        for answer in starmap(call, arguments):
            found.append(answer)  # noqa: PERF402  # a failure keeps those before it
    except DriverError as error:
        return found, error
    return found, None
