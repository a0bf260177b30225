"""Calls of `cuda.bindings.driver` with their status, and the driver's structs.

Structs are written as memory (`driver/values.py`), so that no enum of the bindings refuses a number that the driver
takes (fact 5).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache
from itertools import starmap
from typing import Any, Protocol, TypeVar

from cuda.bindings import driver

from memtopo.common.errors import MemtopoError, Unavailable
from memtopo.driver import types
from memtopo.driver.handles import SECRET_BYTES
from memtopo.driver.types import DriverError, Grant, Location, Properties
from memtopo.driver.values import (
    LOCATION,
    PROPERTIES,
    packed_access,
    packed_pool,
    packed_properties,
    unpacked_properties,
)

# Bindings for CUDA 12 have both; only the second distinguishes the instances of a partitioned GPU.
get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)


def call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> tuple[Any, ...]:
    """Make one driver call; returns its status and results.

    Raises `DriverError` where the status is no success, and `Unavailable` where libcuda, or the function, is missing.
    """
    try:
        answer = function(*arguments)
    except ERRORS as error:
        raise unmade(function, error) from error
    if answer[0]:
        raise DriverError(function.__name__, answer[0].name)
    return answer


ERRORS = (OverflowError, KeyError, ValueError, RuntimeError)
"""Exceptions of the bindings."""


def unmade(function: Callable[..., object], error: Exception) -> MemtopoError:
    """Return the error of a call that the bindings did not make, or whose status they have no name for."""
    match error:
        case OverflowError():  # the driver's parameter cannot hold the number
            return refused(function, error)
        case KeyError() | ValueError():  # a status that these bindings have no name for
            return DriverError(function.__name__, "CUDA_ERROR_UNKNOWN", f"cuda-bindings: {error}")
        case _:
            message = f"the NVIDIA driver has no {function.__name__}: {error}"
            return Unavailable(message, hint="update the driver: virtual memory management requires CUDA 11 or later")


def refused(function: Callable[..., object], reason: object) -> DriverError:
    """Return the error of a call whose arguments are no values of the function's parameters."""
    return DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", str(reason))


class BoundStruct(Protocol):
    """A struct of the bindings."""

    def getPtr(self) -> int: ...  # noqa: N802  # the bindings' name


_Named = TypeVar("_Named", bound=IntEnum)


@lru_cache(maxsize=1024)
def allocation_prop(properties: Properties) -> BoundStruct:
    """A `CUmemAllocationProp`, cached for equal properties; not to be changed."""
    return filled(driver.CUmemAllocationProp(), packed_properties(properties))


@lru_cache(maxsize=1024)
def access_descriptors(grants: tuple[Grant, ...]) -> list[BoundStruct]:
    """A list of `CUmemAccessDesc`, cached for equal grants; not to be changed."""
    return [filled(driver.CUmemAccessDesc(), packed_access([grant])) for grant in grants]


@lru_cache(maxsize=1024)
def mem_location(location: Location) -> BoundStruct:
    """A `CUmemLocation`, cached for equal locations; not to be changed."""
    return filled(driver.CUmemLocation(), LOCATION.pack(*location[:2]))


@lru_cache(maxsize=1)
def batch_attributes() -> BoundStruct:
    """A `CUmemcpyAttributes` for copies whose sources are read in the order of the stream; not to be changed."""
    found = driver.CUmemcpyAttributes()
    found.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    return found  # type: ignore[no-any-return]


def pool_props(properties: types.PoolProperties) -> BoundStruct:
    """A `CUmemPoolProps`. Raises `OverflowError` for a number that does not fit."""
    if not 0 <= properties.max_size < 1 << 64:
        raise OverflowError(f"a size of {properties.max_size}")
    return filled(driver.CUmemPoolProps(), packed_pool(properties))


def shared_bytes(handle: BoundStruct) -> bytes:
    """Return the 64 bytes of a `CUipcMemHandle` or another struct that is passed to another process."""
    return ctypes.string_at(handle.getPtr(), SECRET_BYTES)


def properties_of(prop: BoundStruct) -> Properties:
    """Decode a `CUmemAllocationProp`; a number without a name stays a number."""
    return _read(ctypes.string_at(prop.getPtr(), PROPERTIES.size))


@lru_cache(maxsize=1024)
def _read(memory: bytes) -> Properties:
    return unpacked_properties(
        memory,
        location=lambda kind, number: Location(_named(types.LocationKind, kind), number),
        kind=lambda kind: _named(types.AllocationType, kind),
    )


def filled(record: BoundStruct, packed: bytes) -> BoundStruct:
    """Return a struct after it was filled with bytes."""
    ctypes.memmove(record.getPtr(), packed, len(packed))
    return record


def _named(kind: type[_Named], number: int) -> _Named:
    try:
        return kind(number)
    except ValueError:
        return number  # type: ignore[return-value]  # a later driver's kind, or none: returned as it is


def make_each(
    function: Callable[..., tuple[Any, ...]], calls: Iterable[tuple[object, ...]]
) -> tuple[list[tuple[Any, ...]], Exception | None]:
    """Make calls until one fails; return the answers of those before, and the error."""
    answers: list[tuple[Any, ...]] = []
    try:
        for answer in starmap(function, calls):
            if answer[0]:
                return answers, DriverError(function.__name__, answer[0].name)
            answers.append(answer)
    except ERRORS as error:
        return answers, unmade(function, error)
    return answers, None
