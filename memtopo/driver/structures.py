"""Structures of `cuda.h` in memory: properties, locations and access.

Offsets are the same in every release since 11.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress
from struct import Struct

from memtopo.driver.types import PROPERTY_FLAGS, AllocationType, Grant, HandleType, Location, PoolProperties, Properties

# type, requestedHandleTypes, location.type, location.id, win32HandleMetaData,
# allocFlags.compressionType, .gpuDirectRDMACapable, .usage, .reserved
PROPERTIES = Struct("=iiiiQBB6x")
# allocType, handleTypes, location.type, location.id, win32SecurityAttributes, maxSize, usage, reserved
POOL = Struct("=iiiiQQ56x")
LOCATION = Struct("=ii")
ACCESS = Struct("=iii")

_FIELDS = ("compressionType", "gpuDirectRDMACapable")
_FLAGS = sorted(PROPERTY_FLAGS, key=lambda word: _FIELDS.index(PROPERTY_FLAGS[word][0]))
"""Properties that are flags, in the order of `allocFlags`."""


def packed_properties(properties: Properties) -> bytes:
    """Return a `CUmemAllocationProp`."""
    kind, number, _ = properties.location
    flags = [word in properties.flags for word in _FLAGS]
    return PROPERTIES.pack(properties.type, properties.handles, kind, number, 0, *flags)


def unpacked_properties(
    data: bytes, location: Callable[[int, int], Location], kind: Callable[[int], AllocationType]
) -> Properties:
    """Decode a `CUmemAllocationProp`; functions decode the type and the number of its location, and its own type."""
    number, handles, place, ordinal, _, *flags = PROPERTIES.unpack(data)
    found = Properties.with_flags(location(place, ordinal), HandleType(handles), [*compress(_FLAGS, flags)])
    return found._replace(type=kind(number))


def packed_pool(properties: PoolProperties) -> bytes:
    """Return a `CUmemPoolProps`."""
    (kind, number, _), handles, size = properties
    return POOL.pack(AllocationType.PINNED, handles, kind, number, 0, size)


def packed_access(grants: Iterable[Grant]) -> bytes:
    """Return a `CUmemAccessDesc` for each grant, one after another."""
    return b"".join(ACCESS.pack(*location[:2], access) for location, access in grants)
