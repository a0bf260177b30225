"""Values of driver calls: the constants and structures of `cuda.h`, and arguments and results as JSON and as text."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, IntEnum, IntFlag
from hashlib import blake2b
from itertools import compress
from typing import Any

from msgspec import Struct

from memtopo.common.units import exact
from memtopo.driver import types
from memtopo.driver.types import PROPERTY_FLAGS, AllocationType, Grant, HandleType, Location, PoolProperties, Properties

ADDRESSES = ("address", "destination", "source")
"""Parameters that are addresses."""

OBJECTS: Mapping[str, str] = {
    "handle": "chunk",
    "chunk": "chunk",
    "context": "context",
    "event": "event",
    "stream": "stream",
    "pool": "pool",
    "memory": "external",
    "semaphore": "semaphore",
}
"""Kinds of the objects that parameters of these names are, where their value is a number."""

AT_ADDRESSES = ("range", "buffer", "pinned", "allocation", "managed", "registered")
"""Kinds of objects that are named by their address."""

ADDRESS = "CUdeviceptr"
C_TYPES: Mapping[str, str] = {
    "context": "CUcontext",
    "chunk": "CUmemGenericAllocationHandle",
    "event": "CUevent",
    "stream": "CUstream",
    "pool": "CUmemoryPool",
    "pinned": "void *",
}
"""C types of objects by kind; the others are addresses."""


class Constants(Struct, frozen=True):
    """Constants of an enumeration of `cuda.h`: its C type, empty for macros, and their names by value."""

    type: str
    names: Mapping[int, str]

    def text(self, value: int, namespace: str = "") -> str:
        """Return an expression of a value: a constant, several joined by `|`, or its number."""
        if value in self.names:
            return namespace + self.names[value]
        bits = [namespace + name for bit, name in sorted(self.names.items()) if bit and value & bit == bit]
        known = sum(bit for bit in self.names if bit and value & bit == bit)
        return " | ".join(bits) if bits and known == value else str(int(value))


def _named(type: str, prefix: str, members: type[IntEnum | IntFlag], **renamed: str) -> Constants:
    """Constants of the members of an enumeration, without that of 0 unless it is renamed."""
    every = members.__members__.items()
    return Constants(
        type, {int(each): prefix + renamed.get(name, name) for name, each in every if each or name in renamed}
    )


CONSTANTS: Mapping[type, Constants] = {
    HandleType: _named(
        "CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_", HandleType, NONE="NONE", FD="POSIX_FILE_DESCRIPTOR"
    ),
    types.Access: _named(
        "CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_PROT_", types.Access, NONE="NONE", R="READ", RW="READWRITE"
    ),
    types.LocationKind: _named("CUmemLocationType", "CU_MEM_LOCATION_TYPE_", types.LocationKind, GPU="DEVICE"),
    types.EventFlags: _named("CUevent_flags", "CU_EVENT_", types.EventFlags),
    types.MemAttach: _named("CUmemAttach_flags", "CU_MEM_ATTACH_", types.MemAttach),
    types.Advice: _named("CUmem_advise", "CU_MEM_ADVISE_", types.Advice),
    types.PoolAttribute: _named("CUmemPool_attribute", "CU_MEMPOOL_ATTR_", types.PoolAttribute),
    types.HostFlags: _named("", "CU_MEMHOSTALLOC_", types.HostFlags),
    types.RegisterFlags: _named("", "CU_MEMHOSTREGISTER_", types.RegisterFlags),
    types.DmaBufFlags: Constants("", {1: "CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE"}),
}
"""Names of the numbers of `memtopo.driver.types` in `cuda.h`."""

PLAIN_FLAGS: Mapping[str, Constants] = {
    "stream_create": Constants("CUstream_flags", {1: "CU_STREAM_NON_BLOCKING"}),
    "ipc_open_mem_handle": Constants("CUipcMem_flags", {1: "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"}),
}
"""Constants of the flags of calls that take them as plain numbers."""

LONGEST = 64
"""Elements of a list that are kept: the kernels of a check take thousands of areas."""

HANDLE = "handle:"
"""Beginning of the digest of a handle, which stands in place of its bytes: those give access to the memory."""


def jsonable(value: Any, method: str = "", name: str = "") -> Any:
    """Return a value of a call, or of its parameter `name`, as a value of JSON.

    Sizes, addresses and handles are numbers; flags and enumerations the names of `cuda.h`.
    """
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    if name == "flags" and isinstance(value, int) and value and (constants := PLAIN_FLAGS.get(method)):
        return constants.text(value)
    if constants := CONSTANTS.get(type(value)):
        text = constants.text(int(value))
        return int(value) if text.isdecimal() else text
    if isinstance(value, Enum):
        return str(value.name).lower() if value.name else int(value.value)
    if isinstance(value, list | tuple):
        more = [f"{len(value) - LONGEST:,} more"] if len(value) > LONGEST else []
        return [*(jsonable(each) for each in value[:LONGEST]), *more]
    return value


def digest(handle: bytes) -> str:
    """Return a one-way digest of a handle, by which its export and imports can be paired."""
    return f"{HANDLE}{blake2b(handle, digest_size=8).hexdigest()}"


def shared_handle(handle: Any) -> Any:
    """Return a shareable handle as a value of JSON: its digest, or the number of a descriptor.

    A descriptor of a file, as the simulator has it, is the same in all processes, and has a digest, too.
    """
    if isinstance(handle, int):
        with suppress(OSError):
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode):
                return digest(f"{found.st_dev}:{found.st_ino}".encode())
    return jsonable(handle)


def _properties(value: Properties) -> Mapping[str, Any]:
    return {
        "location": str(value.location),
        "handles": list(value.handles.words),
        **{word: word in value.flags for word in PROPERTY_FLAGS},
    }


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    Properties: _properties,
    PoolProperties: lambda pool: {
        "location": str(pool.location),
        "handles": list(pool.handles.words),
        "max_size": pool.max_size,
    },
    Grant: lambda grant: {"location": str(grant.location), "access": grant.access.word},
    Location: str,
    bytes: digest,
    bytearray: lambda value: digest(bytes(value)),
}


def argument_text(method: str, name: str, value: Any) -> str:
    """Structure of an argument in braces, `{gpu0 rw}`, or another argument with its name, `kind=FABRIC`."""
    match value:
        case Properties() | PoolProperties():
            return f"{{{', '.join((str(value.location), *property_flags(value)))}}}"
        case tuple() if name == "grants":
            return f"{{{', '.join(f'{each.location} {each.access.word}' for each in value)}}}"
    text = constant_text(method, name, value)
    return text if isinstance(value, Location | str) else f"{name}={text}"


def property_flags(value: Properties | PoolProperties) -> Iterator[str]:
    """Fields of properties that are set, besides the location: `compressionType=GENERIC`."""
    if value.handles:
        yield f"requestedHandleTypes={_short(CONSTANTS[HandleType].text(value.handles))}"
    if isinstance(value, PoolProperties):
        if value.max_size:
            yield f"maxSize={exact(value.max_size)}"
        return
    for field, number in map(PROPERTY_FLAGS.__getitem__, value.flags):
        yield f"{field}={_short(number)}"


def _short(constants: str) -> str:
    """Constants without the prefixes that their type implies."""
    for prefix in _PREFIXES:
        constants = constants.replace(prefix, "")
    return constants.replace(" | ", "|")


_PREFIXES = (
    "CU_MEM_HANDLE_TYPE_", "CU_MEM_ACCESS_FLAGS_PROT_", "CU_MEM_LOCATION_TYPE_", "CU_MEM_ATTACH_", "CU_MEM_ADVISE_",
    "CU_MEM_ALLOCATION_COMP_",
    "CU_MEMPOOL_ATTR_", "CU_MEMHOSTALLOC_", "CU_MEMHOSTREGISTER_", "CU_EVENT_", "CU_MEM_RANGE_FLAG_", "CU_STREAM_",
    "CU_IPC_MEM_", "CU_MEM_RANGE_HANDLE_TYPE_",
)  # fmt: skip


def constant_text(method: str, name: str, value: Any) -> str:
    """Value of an argument: a constant, a location, or a number."""
    if isinstance(value, Location | str):
        return _short(str(value))
    constants = PLAIN_FLAGS.get(method) if name == "flags" else None
    constants = constants or CONSTANTS.get(type(value))
    if constants:
        return _short(constants.text(int(value)))
    return value.name.lower() if isinstance(value, Enum) and value.name else str(value)


# Structures of `cuda.h` in memory, whose offsets are the same in every release since 11.3.
# type, requestedHandleTypes, location.type, location.id, win32HandleMetaData,
# allocFlags.compressionType, .gpuDirectRDMACapable, .usage, .reserved
PROPERTIES = struct.Struct("=iiiiQBB6x")
# allocType, handleTypes, location.type, location.id, win32SecurityAttributes, maxSize, usage, reserved
POOL = struct.Struct("=iiiiQQ56x")
LOCATION = struct.Struct("=ii")
ACCESS = struct.Struct("=iii")

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
