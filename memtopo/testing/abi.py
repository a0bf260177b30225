"""C functions of the driver as a program calls them: how parameters and results of each C type lie in memory."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

from msgspec import Struct

from memtopo.driver import types, values
from memtopo.driver.functions import FUNCTIONS, MEMBERS, SECRETS, Parameter, declared, plain_name
from memtopo.driver.functions import Function as Declared
from memtopo.driver.handles import SECRET_BYTES
from memtopo.driver.protocol import call_name
from memtopo.driver.types import Grant, HandleType, Location, LocationKind, Properties
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
    return values.unpacked_properties(data, _location, types.AllocationType)


@lru_cache(_REMEMBERED)
def _grants_in(data: bytes) -> tuple[Grant, ...]:
    return tuple(Grant(_location(kind, id), types.Access(flags)) for kind, id, flags in values.ACCESS.iter_unpack(data))


def _pool(memory: Memory, pointer: int) -> types.PoolProperties:
    _, handles, place, id, _, size = values.POOL.unpack(memory.read(pointer, values.POOL.size))
    return types.PoolProperties(_location(place, id), HandleType(handles), size)


def _ordinal(word: int) -> Location:
    """Location that a GPU's ordinal or -1 stands for, in versions without locations."""
    number = _i32(word)
    return Location(LocationKind.HOST) if number == _ORDINAL_OF_HOST else Location(LocationKind.GPU, number)


def _external_memory(memory: Memory, pointer: int) -> tuple[int, types.MemoryHandleType, int, bool]:
    kind, fd, size, flags = _EXTERNAL_MEMORY.unpack(memory.read(pointer, _EXTERNAL_MEMORY.size))
    return fd, types.MemoryHandleType(kind), size, bool(flags & 1)


def _external_semaphore(memory: Memory, pointer: int) -> tuple[int, types.SemaphoreHandleType]:
    kind, fd, _ = _EXTERNAL_SEMAPHORE.unpack(memory.read(pointer, _EXTERNAL_SEMAPHORE.size))
    return fd, types.SemaphoreHandleType(kind)


def _multicast(memory: Memory, pointer: int) -> tuple[int, int, HandleType, int]:
    devices, size, handles, flags = _TEAM.unpack(memory.read(pointer, _TEAM.size))
    return devices, size, HandleType(handles), flags


Decode = Callable[..., Any]

# How a parameter of a type is read from its words; of pointers, from the memory first. Others are words as they are.
_VALUES: Mapping[str, Decode] = {
    "u32": _u32,
    "u16": lambda word: word & 0xFFFF,
    "u8": lambda word: word & 0xFF,
    "ordinal": _ordinal,
    "CUstream": lambda word: word if word > _PER_THREAD else 0,
    "CUmemLocation": lambda word: _location(_i32(word), _i32(word >> 32)),
    "CUmemPool_attribute": lambda word: types.PoolAttribute(_i32(word)),
    "CUmemAllocationHandleType": lambda word: HandleType(_i32(word)),
    "CUmem_advise": lambda word: types.Advice(_i32(word)),
    "CUmemAllocationGranularity_flags": lambda word: bool(_i32(word)),
    "CU_MEMHOSTALLOC": lambda word: types.HostFlags(_u32(word)),
    "CU_MEMHOSTREGISTER": lambda word: types.RegisterFlags(_u32(word)),
    "CUevent_flags": lambda word: types.EventFlags(_u32(word)),
    "CUmemAttach_flags": lambda word: types.MemAttach(_u32(word)),
    "CUmemRangeFlags": types.DmaBufFlags,
    **dict.fromkeys(
        ("i32", "CUdevice_attribute", "CUdevice_P2PAttribute", "CUmem_range_attribute", "CUpointer_attribute",
         "CUmemRangeHandleType"), _i32
    ),
}  # fmt: skip
_POINTED: Mapping[str, Decode] = {
    "CUmemAllocationProp*": lambda memory, pointer: _properties_in(memory.read(pointer, values.PROPERTIES.size)),
    "CUmemPoolProps*": _pool,
    "CUmemLocation*": lambda memory, pointer: _location(
        *values.LOCATION.unpack(memory.read(pointer, values.LOCATION.size))
    ),
    **dict.fromkeys(
        ("CUipcMemHandle", "CUipcEventHandle", "CUmemPoolPtrExportData*"),
        lambda memory, pointer: memory.read(pointer, SECRET_BYTES),
    ),
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC*": _external_memory,
    "CUDA_EXTERNAL_MEMORY_BUFFER_DESC*": lambda memory, pointer: _BUFFER.unpack(memory.read(pointer, _BUFFER.size)),
    "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC*": _external_semaphore,
    "CUmulticastObjectProp*": _multicast,
}


# How a result of a type is written to where a parameter points; a shareable handle may be a descriptor.
_RESULTS: Mapping[str, Callable[[Any], bytes]] = {
    "u64": struct.Struct("=Q").pack,
    "u32": struct.Struct("=I").pack,
    "i32": struct.Struct("=i").pack,
    "f32": struct.Struct("=f").pack,
    "CUmemAllocationProp": values.packed_properties,
}

RESULT_BYTES: Mapping[str, int] = {
    "u64": 8, "u32": 4, "i32": 4, "f32": 4, "CUmemAllocationProp": values.PROPERTIES.size, "bytes": 1, "shared": 4,
    "attribute": 4, **dict.fromkeys(SECRETS, SECRET_BYTES),
}  # fmt: skip
"""Bytes of a result by its type, at least."""

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
    """Simulated function: its line of the table of C functions, the method that answers it, and its parameters."""

    declared: Declared
    method: str
    reads: tuple[Parameter, ...]
    results: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        """Name without a version."""
        return self.declared.name

    @property
    def is_noted(self) -> bool:
        """True if the ledger notes what the call opens or closes."""
        return bool(self.declared.opens or self.declared.closes)

    def arguments(self, memory: Memory, words: Sequence[int]) -> dict[str, Any]:
        """Return the arguments by name.

        Raises `ValueError` for a value that no caller may give and a null pointer, and `OSError` for one to no memory.
        """
        found: dict[str, Any] = {}
        for parameter in self.reads:
            found |= _decoded(memory, parameter, words)
        return found

    def refused_arguments(self, memory: Memory, words: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of a call for which `arguments` raises, with `Undecoded` for the wrong ones."""
        found: dict[str, Any] = {}
        for parameter in self.reads:
            try:
                found |= _decoded(memory, parameter, words)
            except (ValueError, OSError):
                found |= dict.fromkeys(MEMBERS.get(parameter.type, (parameter.name,)), Undecoded())
        return found


def _decoded(memory: Memory, parameter: Parameter, words: Sequence[int]) -> Mapping[str, Any]:
    """Argument by the name of its parameter; several for a structure."""
    value, members = _value(memory, parameter, words), MEMBERS.get(parameter.type)
    return dict(zip(members, value, strict=True)) if members else {parameter.name: value}


def _value(memory: Memory, parameter: Parameter, words: Sequence[int]) -> Any:
    word, kind = words[parameter.position], parameter.type
    if decode := _VALUES.get(kind):
        return decode(word)
    if kind == "CUmemAccessDesc*":
        count = words[parameter.position + 1]
        if count > _MOST_GRANTS:
            raise ValueError(f"{count:,} descriptors of access")
        return _grants_in(memory.read(word, count * values.ACCESS.size)) if count else ()
    if kind not in _POINTED:
        return word
    if word:
        return _POINTED[kind](memory, word)
    raise ValueError(f"{parameter.name or kind.strip('*')} is a null pointer")


def packed(kind: str, value: Any) -> bytes:
    """Return a result as its bytes in memory."""
    pack = _RESULTS.get(kind, bytes)
    return pack(value)


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


def functions(methods: Collection[str]) -> Mapping[str, Function]:
    """Simulated functions by exported name, of those that one of the methods answers."""
    by_call, found = {call_name(method): method for method in methods}, {}
    for name in exported():
        symbol, method = name if name in FUNCTIONS else plain_name(name), by_call.get(plain_name(name))
        if method and symbol in FUNCTIONS:
            parameters = declared(symbol).parameters
            results = tuple(each for each in parameters if each.is_result)
            reads = tuple(each for each in parameters if each.is_read and not each.is_result)
            found[name] = Function(declared(symbol), method, reads, results)
    return found


def newest(symbol: str, version: int, names: Collection[str]) -> str | None:
    """Return the newest version of a function as of a version of CUDA, 12020 for 12.2; None if it is not simulated."""
    fitting = [name for name in names if plain_name(name) == symbol and _SINCE.get(name, 0) <= version]
    return max(fitting, key=lambda name: int((re.findall(r"_v(\d+)$", name) or ["0"])[0]), default=None)
