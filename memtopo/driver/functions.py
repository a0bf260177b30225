"""C functions of the driver calls: their parameters in order, what they make, and the constants of `cuda.h`.

This table is the one place that relates a method of the protocol to the C function that it stands for. Listings of
calls, traces, and programs in C and Python are written from it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, IntEnum, IntFlag
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from memtopo.driver.protocol import call_name
from memtopo.driver.types import (
    PROPERTY_FLAGS,
    Access,
    Advice,
    DmaBufFlags,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    PoolAttribute,
    PoolProperties,
    Properties,
    RegisterFlags,
)
from memtopo.driver.wrappers import parameters


class Function(Struct, frozen=True):
    """C function of a call, with its parameters in order.

    A parameter is the result (`&`), the name of a parameter of the protocol's method, or a constant; `arguments` are
    all but the result. `makes` is the kind of object that the result is: `range`, `chunk`; empty if it is none.
    """

    name: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    makes: str = ""


RESULT = "&"
DMA_BUF = "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"

_SIGNATURES = {
    "init": "flags",
    "device_primary_ctx_retain": "& device -> context",
    "device_primary_ctx_release": "device",
    "ctx_push_current": "context",
    "ctx_pop_current": "&",
    "ctx_synchronize": "",
    "mem_address_reserve": "& size alignment address flags -> range",
    "mem_address_free": "address size",
    "mem_create": "& size properties flags -> chunk",
    "mem_release": "handle",
    "mem_map": "address size offset handle flags",
    "mem_unmap": "address size",
    "mem_set_access": "address size grants",
    "mem_export_to_shareable_handle": "& handle kind flags -> shared",
    "mem_import_from_shareable_handle": "& shared kind -> chunk",
    "mem_get_handle_for_address_range": f"& address size {DMA_BUF} flags -> shared",
    "mem_alloc": "& size -> buffer",
    "mem_free": "address",
    "mem_host_alloc": "& size flags -> pinned",
    "mem_free_host": "address",
    "mem_host_register": "address size flags",
    "mem_host_unregister": "address",
    "mem_pool_create": "& properties -> pool",
    "mem_pool_destroy": "pool",
    "mem_pool_set_attribute": "pool attribute value",
    "mem_pool_set_access": "pool grants",
    "mem_alloc_from_pool_async": "& size pool stream -> allocation",
    "mem_free_async": "address stream",
    "mem_pool_export_to_shareable_handle": "& pool kind flags -> shared",
    "mem_pool_import_from_shareable_handle": "& shared kind flags -> pool",
    "mem_pool_export_pointer": "& address -> secret",
    "mem_pool_import_pointer": "& pool data -> allocation",
    "ipc_get_mem_handle": "& address -> secret",
    "ipc_open_mem_handle": "& handle flags -> buffer",
    "ipc_close_mem_handle": "address",
    "ipc_get_event_handle": "& event -> secret",
    "ipc_open_event_handle": "& handle -> event",
    "event_create": "& flags -> event",
    "event_destroy": "event",
    "event_record": "event stream",
    "event_synchronize": "event",
    "stream_create": "& flags -> stream",
    "stream_destroy": "stream",
    "stream_query": "stream",
    "memset_d8": "address value count",
    "memcpy_async": "destination source count stream",
    "mem_alloc_managed": "& size flags -> managed",
    "mem_advise": "address size advice location",
    "mem_prefetch_async": "address size location 0 stream",
    "stream_attach_mem_async": "stream address 0 flags",
    "multicast_create": "& devices size handles flags -> chunk",
    "import_external_memory": "& fd kind size dedicated -> external",
    "external_memory_get_mapped_buffer": "& memory offset size -> buffer",
    "import_external_semaphore": "& fd kind -> semaphore",
}
"""Parameters of the C functions, and what they make. A function without a line has those of the protocol, in order."""

_VERSIONS = {"mem_advise": "cuMemAdvise_v2", "mem_prefetch_async": "cuMemPrefetchAsync_v2"}
"""Functions whose name without a version takes a GPU in place of a location in headers of CUDA 12."""


def _function(method: str, signature: str) -> Function:
    before, _, makes = signature.partition("->")
    names = tuple(before.split())
    return Function(call_name(method), names, tuple(each for each in names if each != RESULT), makes.strip())


FUNCTIONS: Mapping[str, Function] = {method: _function(method, text) for method, text in _SIGNATURES.items()}


def function(method: str) -> Function:
    """C function of a method of the protocol."""
    return FUNCTIONS.get(method) or Function(call_name(method), parameters(method), parameters(method))


def c_name(method: str) -> str:
    """Name of the C function in a program: with its version where that matters."""
    return _VERSIONS.get(method) or function(method).name


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
    Access: _named("CUmemAccess_flags", "CU_MEM_ACCESS_FLAGS_PROT_", Access, NONE="NONE", R="READ", RW="READWRITE"),
    LocationKind: _named("CUmemLocationType", "CU_MEM_LOCATION_TYPE_", LocationKind, GPU="DEVICE"),
    EventFlags: _named("CUevent_flags", "CU_EVENT_", EventFlags),
    MemAttach: _named("CUmemAttach_flags", "CU_MEM_ATTACH_", MemAttach),
    Advice: _named("CUmem_advise", "CU_MEM_ADVISE_", Advice),
    PoolAttribute: _named("CUmemPool_attribute", "CU_MEMPOOL_ATTR_", PoolAttribute),
    HostFlags: _named("", "CU_MEMHOSTALLOC_", HostFlags),
    RegisterFlags: _named("", "CU_MEMHOSTREGISTER_", RegisterFlags),
    DmaBufFlags: Constants("", {1: "CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE"}),
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
