"""The driver's structs as memory, so that no enum of the bindings can refuse a number that the driver takes (fact 5).

Offsets are those of `cuda.h`, the same in every release since 11.3.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Protocol, TypeVar

from cuda.bindings import driver

from memtopo.driver.types import AllocationType, Grant, HandleType, Location, LocationKind, Properties

# type, requestedHandleTypes, location.type, location.id, win32HandleMetaData,
# allocFlags.compressionType, .gpuDirectRDMACapable, .usage, .reserved
_PROP = Struct("=iiiiQBBH4x")
_LOCATION = Struct("=ii")
_ACCESS = Struct("=iii")

_COMPRESSION_GENERIC = 1
SHARED_BYTES = 64
"""The size of every handle that is handed to another process as bytes."""


class Record(Protocol):
    """A struct of the bindings."""

    def getPtr(self) -> int: ...  # noqa: N802  # the bindings' name


_Named = TypeVar("_Named", bound=IntEnum)


@lru_cache(maxsize=1024)
def allocation_prop(properties: Properties) -> Record:
    """A `CUmemAllocationProp`, made once for equal properties; nobody writes to it again."""
    kind, number = properties.location
    flags = _COMPRESSION_GENERIC * properties.compressible, int(properties.rdma), 0
    packed = _PROP.pack(properties.type, properties.handles, kind, number, 0, *flags)
    return _filled(driver.CUmemAllocationProp(), packed)


@lru_cache(maxsize=1024)
def access_descriptors(grants: tuple[Grant, ...]) -> list[Record]:
    """A list of `CUmemAccessDesc`, made once for equal grants; nobody writes to it again."""
    return [_filled(driver.CUmemAccessDesc(), _ACCESS.pack(*grant.location, grant.access)) for grant in grants]


@lru_cache(maxsize=1024)
def mem_location(location: Location) -> Record:
    """A `CUmemLocation`, made once for equal locations; nobody writes to it again."""
    return _filled(driver.CUmemLocation(), _LOCATION.pack(*location))


def ipc_mem_handle(data: bytes) -> Record:
    """A `CUipcMemHandle` of 64 bytes."""
    return _filled(driver.CUipcMemHandle(), data)


def ipc_event_handle(data: bytes) -> Record:
    """A `CUipcEventHandle` of 64 bytes."""
    return _filled(driver.CUipcEventHandle(), data)


def shared_bytes(handle: Record) -> bytes:
    """The 64 bytes of a `CUipcMemHandle`, a `CUipcEventHandle` or a `CUmemFabricHandle`."""
    return ctypes.string_at(handle.getPtr(), SHARED_BYTES)


def properties_of(prop: Record) -> Properties:
    """What a `CUmemAllocationProp` says; a number without a name stays a number."""
    return _read(ctypes.string_at(prop.getPtr(), _PROP.size))


@lru_cache(maxsize=1024)
def _read(memory: bytes) -> Properties:
    kind, handles, place, number, _, compression, rdma, _ = _PROP.unpack(memory)
    location = Location(_named(LocationKind, place), number)
    return Properties(location, HandleType(handles), bool(rdma), bool(compression), _named(AllocationType, kind))


def _filled(record: Record, packed: bytes) -> Record:
    ctypes.memmove(record.getPtr(), packed, len(packed))
    return record


def _named(kind: type[_Named], number: int) -> _Named:
    try:
        return kind(number)
    except ValueError:
        return number  # type: ignore[return-value]  # a later driver's kind, or none: better seen than hidden
