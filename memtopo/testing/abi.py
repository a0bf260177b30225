"""C functions of the driver as a program calls them: their parameters, and the layouts of structures in `cuda.h`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

from msgspec import Struct

from memtopo.driver import structures
from memtopo.driver.handles import SECRET_BYTES
from memtopo.driver.protocol import call_name
from memtopo.driver.types import (
    Access,
    Advice,
    AllocationType,
    DmaBufFlags,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    MemoryHandleType,
    PoolAttribute,
    PoolProperties,
    Properties,
    RegisterFlags,
    SemaphoreHandleType,
)
from memtopo.native import LIBCUDA


class Memory(Protocol):
    """Memory of a program that makes calls: what parameters point to."""

    def read(self, address: int, count: int) -> bytes:
        """Bytes at an address."""

    def write(self, address: int, data: bytes) -> None:
        """Store bytes at an address."""


# Numbers, as a word of 64 bits has them: the upper half of a narrower one is undefined.


def _u32(word: int) -> int:
    return word & 0xFFFF_FFFF


def _i32(word: int) -> int:
    return ((word & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000


def _location(kind: int, id: int) -> Location:
    if kind not in set(LocationKind):
        raise ValueError(f"{kind} is not a type of a location, such as 1 for a GPU: the structure is not filled in")
    return Location(LocationKind(kind), id if kind in {LocationKind.GPU, LocationKind.HOST_NUMA} else 0)


_EXTERNAL_MEMORY = struct.Struct("=i4xi12xQI")
_EXTERNAL_SEMAPHORE = struct.Struct("=i4xi12xI")
_BUFFER = struct.Struct("=QQ")
_TEAM = struct.Struct("=I4xQQQ")
_ORDINAL_OF_HOST = -1
_PER_THREAD = 2  # CU_STREAM_PER_THREAD, after CU_STREAM_LEGACY
_MOST_GRANTS = 1 << 16
_REMEMBERED = 256
"""Structures whose contents are remembered: a program passes a few of them again and again."""


@lru_cache(_REMEMBERED)
def _properties_in(data: bytes) -> Properties:
    return structures.unpacked_properties(data, _location, AllocationType)


def _grants(memory: Memory, pointer: int, count: int) -> tuple[Grant, ...]:
    if count > _MOST_GRANTS:
        raise ValueError(f"{count:,} descriptors of access")
    return _grants_in(memory.read(pointer, count * structures.ACCESS.size)) if count else ()


@lru_cache(_REMEMBERED)
def _grants_in(data: bytes) -> tuple[Grant, ...]:
    return tuple(Grant(_location(kind, id), Access(flags)) for kind, id, flags in structures.ACCESS.iter_unpack(data))


def _pool(memory: Memory, pointer: int) -> PoolProperties:
    _, handles, place, id, _, size = structures.POOL.unpack(memory.read(pointer, structures.POOL.size))
    return PoolProperties(_location(place, id), HandleType(handles), size)


def _ordinal(word: int) -> Location:
    """Location that a GPU's ordinal or -1 stands for, in versions without locations."""
    number = _i32(word)
    return Location(LocationKind.HOST) if number == _ORDINAL_OF_HOST else Location(LocationKind.GPU, number)


Decode = Callable[..., Any]

# How a parameter of a type is read from its words; of pointers, from the memory first.
_VALUES: Mapping[str, Decode] = {
    "u32": _u32,
    "i32": _i32,
    "u16": lambda word: word & 0xFFFF,
    "u8": lambda word: word & 0xFF,
    "pointer": lambda word: word,
    "ordinal": _ordinal,
    "stream": lambda word: word if word > _PER_THREAD else 0,
    "location": lambda word: _location(_i32(word), _i32(word >> 32)),
    "pool-attribute": lambda word: PoolAttribute(_i32(word)),
    "kind": lambda word: HandleType(_i32(word)),
    "advice": lambda word: Advice(_i32(word)),
    "recommended": lambda word: bool(_i32(word)),
    "host-flags": lambda word: HostFlags(_u32(word)),
    "register-flags": lambda word: RegisterFlags(_u32(word)),
    "event-flags": lambda word: EventFlags(_u32(word)),
    "attach-flags": lambda word: MemAttach(_u32(word)),
    "dma-buf-flags": lambda word: DmaBufFlags(word),
}
_POINTED: Mapping[str, Decode] = {
    "properties": lambda memory, pointer: _properties_in(memory.read(pointer, structures.PROPERTIES.size)),
    "pool-properties": _pool,
    "at-location": lambda memory, pointer: _location(
        *structures.LOCATION.unpack(memory.read(pointer, structures.LOCATION.size))
    ),
    "secret": lambda memory, pointer: memory.read(pointer, SECRET_BYTES),
    "team": lambda memory, pointer: _TEAM.unpack(memory.read(pointer, _TEAM.size)),
    "part": lambda memory, pointer: _BUFFER.unpack(memory.read(pointer, _BUFFER.size)),
}


def external_memory(memory: Memory, pointer: int) -> tuple[int, MemoryHandleType, int, bool]:
    """Descriptor, kind, size in bytes, and dedication of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`."""
    kind, fd, size, flags = _EXTERNAL_MEMORY.unpack(memory.read(pointer, _EXTERNAL_MEMORY.size))
    return fd, MemoryHandleType(kind), size, bool(flags & 1)


def external_semaphore(memory: Memory, pointer: int) -> tuple[int, SemaphoreHandleType]:
    """Descriptor and kind of `CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC`."""
    kind, fd, _ = _EXTERNAL_SEMAPHORE.unpack(memory.read(pointer, _EXTERNAL_SEMAPHORE.size))
    return fd, SemaphoreHandleType(kind)


# How a result of a type is written to where a parameter points.
_RESULTS: Mapping[str, Callable[[Any], bytes]] = {
    "u64": struct.Struct("=Q").pack,
    "u32": struct.Struct("=I").pack,
    "i32": struct.Struct("=i").pack,
    "f32": struct.Struct("=f").pack,
    "properties": structures.packed_properties,
    "bytes": bytes,
}

RESULT_BYTES: Mapping[str, int] = {
    "u64": 8, "u32": 4, "i32": 4, "f32": 4, "properties": structures.PROPERTIES.size, "bytes": 1, "shared": 4
}  # fmt: skip
"""Bytes of a result by its type, at least."""

# Types of parameters by name, where a function does not say another: addresses, sizes and objects have 64 bits.
_TYPES: Mapping[str, str] = {
    "device": "i32", "peer": "i32", "attribute": "i32", "location": "at-location", "properties": "properties",
    "kind": "kind", "advice": "advice", "priority": "i32", "value": "u8", "text": "pointer", "length": "i32",
    "data": "pointer", "stream": "stream", "team": "team", "part": "part", "fd": "i32", "grants": "grants",
}  # fmt: skip

_SIGNATURES: Mapping[str, str] = {
    "cuInit": "flags:u32",
    "cuDriverGetVersion": ">i32",
    "cuDeviceGet": ">i32 device",
    "cuDeviceGetCount": ">i32",
    "cuDeviceGetName": ">bytes length device",
    "cuDeviceGetUuid": ">bytes device",
    "cuDeviceGetPCIBusId": ">bytes length device",
    "cuDeviceGetByPCIBusId": ">i32 text",
    "cuDeviceTotalMem": "> device",
    "cuDeviceGetAttribute": ">i32 attribute device",
    "cuDeviceComputeCapability": ">i32 >i32 device",
    "cuDeviceCanAccessPeer": ">i32 device peer",
    "cuDeviceGetP2PAttribute": ">i32 attribute:i32 device peer",
    "cuDevicePrimaryCtxRetain": "> device",
    "cuDevicePrimaryCtxRelease": "device",
    "cuDevicePrimaryCtxGetState": "device >u32 >i32",
    "cuDevicePrimaryCtxSetFlags": "device flags:u32",
    "cuCtxCreate_v2": "> flags:u32 device",
    "cuCtxCreate_v3": "> _ _ flags:u32 device",
    "cuCtxCreate_v4": "> _ flags:u32 device",
    "cuCtxDestroy": "context",
    "cuCtxPushCurrent": "context",
    "cuCtxPopCurrent": ">?",
    "cuCtxSetCurrent": "context",
    "cuCtxGetCurrent": ">",
    "cuCtxGetDevice": ">i32",
    "cuCtxGetDevice_v2": ">i32 context",
    "cuCtxGetApiVersion": "context >u32",
    "cuCtxGetFlags": ">u32",
    "cuCtxGetStreamPriorityRange": ">?i32 >?i32",
    "cuCtxEnablePeerAccess": "context flags:u32",
    "cuCtxDisablePeerAccess": "context",
    "cuCtxSynchronize": "",
    "cuCtxSynchronize_v2": "context",
    "cuMemGetInfo": ">? >?",
    "cuMemGetAllocationGranularity": "> properties recommended:recommended",
    "cuMemAddressReserve": "> size alignment address flags",
    "cuMemAddressFree": "address size",
    "cuMemCreate": "> size properties flags",
    "cuMemRelease": "handle",
    "cuMemMap": "address size offset handle flags",
    "cuMemUnmap": "address size",
    "cuMemSetAccess": "address size grants",
    "cuMemGetAccess": "> location address",
    "cuMemRetainAllocationHandle": "> address",
    "cuMemGetAllocationPropertiesFromHandle": ">properties handle",
    "cuMemExportToShareableHandle": ">shared handle kind flags",
    "cuMemImportFromShareableHandle": "> shared:pointer kind",
    "cuMemGetHandleForAddressRange": ">shared address size type:i32 flags:dma-buf-flags",
    "cuMemGetAddressRange": ">? >? address",
    "cuMemAlloc": "> size",
    "cuMemFree": "address",
    "cuMemAllocManaged": "> size flags:attach-flags",
    "cuMemAllocHost": "> size",
    "cuMemHostAlloc": "> size flags:host-flags",
    "cuMemHostGetFlags": ">u32 address",
    "cuMemHostGetDevicePointer": "> address flags:u32",
    "cuMemFreeHost": "address",
    "cuMemHostRegister": "address size flags:register-flags",
    "cuMemHostUnregister": "address",
    "cuMemsetD8": "address value count",
    "cuMemsetD16": "address value:u16 count",
    "cuMemsetD32": "address value:u32 count",
    "cuMemsetD8Async": "address value count stream",
    "cuMemsetD16Async": "address value:u16 count stream",
    "cuMemsetD32Async": "address value:u32 count stream",
    "cuMemcpy": "destination source count",
    "cuMemcpyAsync": "destination source count stream",
    "cuMemcpyHtoD": "destination source count",
    "cuMemcpyHtoDAsync": "destination source count stream",
    "cuMemcpyDtoH": "destination source count",
    "cuMemcpyDtoHAsync": "destination source count stream",
    "cuMemcpyDtoD": "destination source count",
    "cuMemcpyDtoDAsync": "destination source count stream",
    "cuMemAllocAsync": "> size stream",
    "cuMemAllocFromPoolAsync": "> size pool stream",
    "cuMemFreeAsync": "address stream",
    "cuMemPoolCreate": "> properties:pool-properties",
    "cuMemPoolDestroy": "pool",
    "cuMemPoolSetAttribute": "pool attribute:pool-attribute value:pointer",
    "cuMemPoolGetAttribute": "pool attribute:pool-attribute value:pointer",
    "cuMemPoolSetAccess": "pool grants",
    "cuMemPoolGetAccess": ">u32 pool location",
    "cuMemPoolTrimTo": "pool keep",
    "cuMemPoolExportToShareableHandle": ">shared pool kind flags",
    "cuMemPoolImportFromShareableHandle": "> shared:pointer kind flags",
    "cuMemPoolExportPointer": ">bytes address",
    "cuMemPoolImportPointer": "> pool data:secret",
    "cuDeviceGetDefaultMemPool": "> device",
    "cuDeviceGetMemPool": "> device",
    "cuDeviceSetMemPool": "device pool",
    "cuMemAdvise": "address size advice location:ordinal",
    "cuMemAdvise_v2": "address size advice location:location",
    "cuMemPrefetchAsync": "address size location:ordinal stream",
    "cuMemPrefetchAsync_v2": "address size location:location flags:u32 stream",
    "cuMemRangeGetAttribute": "data length attribute:i32 address size",
    "cuPointerGetAttribute": "data attribute:i32 address",
    "cuPointerGetAttributes": "count:u32 attributes:pointer data address",
    "cuIpcGetMemHandle": ">bytes address",
    "cuIpcOpenMemHandle_v2": "> handle:secret flags:u32",
    "cuIpcCloseMemHandle": "address",
    "cuIpcGetEventHandle": ">bytes event",
    "cuIpcOpenEventHandle": "> handle:secret",
    "cuEventCreate": "> flags:event-flags",
    "cuEventDestroy": "event",
    "cuEventRecord": "event stream",
    "cuEventRecordWithFlags": "event stream flags:u32",
    "cuEventQuery": "event",
    "cuEventElapsedTime": ">f32 start end",
    "cuEventSynchronize": "event",
    "cuStreamCreate": "> flags:u32",
    "cuStreamCreateWithPriority": "> flags:u32 priority",
    "cuStreamGetPriority": "stream >i32",
    "cuStreamGetFlags": "stream >u32",
    "cuStreamGetCtx": "stream >",
    "cuStreamGetCtx_v2": "stream > >",
    "cuStreamGetDevice": "stream >i32",
    "cuStreamIsCapturing": "stream >i32",
    "cuStreamWaitEvent": "stream event flags:u32",
    "cuStreamQuery": "stream",
    "cuStreamSynchronize": "stream",
    "cuStreamDestroy": "stream",
    "cuStreamAttachMemAsync": "stream address _ flags:attach-flags",
    "cuMulticastCreate": "> team",
    "cuMulticastGetGranularity": "> team recommended:recommended",
    "cuMulticastAddDevice": "handle device",
    "cuMulticastBindMem": "handle offset chunk chunk_offset size flags",
    "cuMulticastBindMem_v2": "handle _ offset chunk chunk_offset size flags",
    "cuMulticastBindAddr_v2": "handle _ offset address size flags",
    "cuMulticastBindAddr": "handle offset address size flags",
    "cuMulticastUnbind": "handle device offset size",
    "cuImportExternalMemory": "> described:pointer",
    "cuExternalMemoryGetMappedBuffer": "> memory part",
    "cuDestroyExternalMemory": "memory",
    "cuImportExternalSemaphore": "> described:pointer",
    "cuSignalExternalSemaphoresAsync": "semaphores:pointer described:pointer count:u32 stream",
    "cuWaitExternalSemaphoresAsync": "semaphores:pointer described:pointer count:u32 stream",
    "cuDestroyExternalSemaphore": "semaphore",
}
"""Parameters of functions in order, by the function's name, with its version where another one has other parameters.

`>` is a pointer to a result, `>?` one that may be null, `_` a parameter that is not looked at; the others are
parameters of the protocol's method, or of that of `memtopo.testing.calls`, each with its type if the name does not say
it.
"""

_SINCE: Mapping[str, int] = {
    "cuCtxCreate_v3": 11_040, "cuCtxCreate_v4": 12_050, "cuMemAdvise_v2": 12_020, "cuMemPrefetchAsync_v2": 12_020,
    "cuStreamGetCtx_v2": 12_050, "cuCtxGetDevice_v2": 13_000, "cuCtxSynchronize_v2": 13_000,
    "cuMulticastBindMem_v2": 13_010, "cuMulticastBindAddr_v2": 13_010,
}  # fmt: skip
"""Versions of CUDA since which functions are meant by their names without a version, where older ones differ."""


class Undecoded:
    """Argument that cannot be decoded: a value that no caller may give, or a pointer to no memory."""

    def __str__(self) -> str:
        return "?"


class Function(Struct, frozen=True):
    """C function: its name without a version, the method that answers it, and its parameters in order.

    `reads` has the name of each parameter, the position of its first word, and its type; `results` the position of each
    pointer to a result and its type, `optional` the positions of those that may be null.
    """

    name: str
    method: str
    reads: tuple[tuple[str, int, str], ...]
    results: tuple[tuple[int, str], ...]
    optional: frozenset[int]

    def arguments(self, memory: Memory, words: Sequence[int]) -> dict[str, Any]:
        """Return the arguments by name.

        Raises `ValueError` for a value that no caller may give and a null pointer, and `OSError` for one to no memory.
        """
        return {name: _decoded(memory, name, at, kind, words) for name, at, kind in self.reads}

    def refused_arguments(self, memory: Memory, words: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of a call for which `arguments` raises, with `Undecoded` for the wrong ones."""
        found: dict[str, Any] = {}
        for name, at, kind in self.reads:
            try:
                found[name] = _decoded(memory, name, at, kind, words)
            except (ValueError, OSError):
                found[name] = Undecoded()
        return found


def _decoded(memory: Memory, name: str, at: int, kind: str, words: Sequence[int]) -> Any:
    """Argument of a type that begins with one of the words."""
    word = words[at]
    if kind == "u64":
        return word
    if value := _VALUES.get(kind):
        return value(word)
    if kind == "grants":
        return _grants(memory, word, words[at + 1])
    if word:
        return _POINTED[kind](memory, word)
    raise ValueError(f"{name} is a null pointer")


def packed(kind: str, value: Any) -> bytes:
    """Return a result as its bytes in memory."""
    return _RESULTS[kind](value)


def plain_name(name: str) -> str:
    """Name of a function without its version: `cuMemAlloc` for `cuMemAlloc_v2`."""
    return re.sub(r"_v\d+$", "", name)


@cache
def _names() -> str:
    return next(file for file in LIBCUDA.sources if file.name == "names.h").read_text()


@cache
def exported() -> tuple[str, ...]:
    """Names of the functions of the library, in the order of their numbers."""
    return tuple(re.findall(r"\bX\((cu\w+)\)", _names()))


@cache
def error_numbers() -> Mapping[str, int]:
    """Numbers of errors by name: 1 for `CUDA_ERROR_INVALID_VALUE`."""
    return {name: int(number) for number, name in re.findall(r"\bX\((\d+), (\w+), ", _names())}


@cache
def error_texts() -> Mapping[str, str]:
    """Names of errors by the driver's texts in lower case: `CUDA_ERROR_INVALID_VALUE` for `invalid argument`."""
    found = re.findall(r'\bX\([1-9]\d*, (\w+), "([^"]+)"', _names())
    return {text.lower().removesuffix("."): name for name, text in found}


def _function(name: str, method: str, signature: str) -> Function:
    reads, results, optional, at = [], [], set(), 0
    for each in signature.split():
        parameter, _, kind = each.partition(":")
        if each.startswith(">"):
            results.append((at, each.lstrip(">?") or "u64"))
            optional |= {at} if "?" in each else set()
        elif each != "_":
            reads.append((parameter, at, kind or _TYPES.get(parameter, "u64")))
        at += 2 if parameter == "grants" else 1
    return Function(plain_name(name), method, tuple(reads), tuple(results), frozenset(optional))


def functions(methods: Collection[str]) -> Mapping[str, Function]:
    """Simulated functions by exported name, of those that one of the methods answers."""
    by_call = {call_name(method): method for method in methods}
    found = {}
    for name in exported():
        plain = plain_name(name)
        signature = _SIGNATURES.get(name, _SIGNATURES.get(plain))
        if signature is not None and plain in by_call:
            found[name] = _function(name, by_call[plain], signature)
    return found


def newest(symbol: str, version: int, names: Collection[str]) -> str | None:
    """Return the newest version of a function as of a version of CUDA, 12020 for 12.2; None if it is not simulated."""
    fitting = [name for name in names if plain_name(name) == symbol and _SINCE.get(name, 0) <= version]
    return max(fitting, key=lambda name: int((re.findall(r"_v(\d+)$", name) or ["0"])[0]), default=None)
