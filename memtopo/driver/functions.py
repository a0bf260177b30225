"""C functions of the driver: one table, from which everything is derived that depends on their declarations.

Listings and programs get the order of the parameters from it, the CUDA driver the conversion of its arguments, the
ledger what a call opens or closes, captures and simulated programs the types in C.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import METHODS, parameters

DMA_BUF = "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"

MEMORY_FUNCTIONS = {
    "cuMemAddressReserve": ">range size alignment address flags +reservations",
    "cuMemAddressFree": "address size -reservations",
    "cuMemCreate": ">chunk size properties flags +handles",
    "cuMemRelease": "handle -handles",
    "cuMemMap": "address size offset handle flags +mappings",
    "cuMemUnmap": "address size -mappings",
    "cuMemSetAccess": "address size grants",
    "cuMemRetainAllocationHandle": "> address +handles",
    "cuMemExportToShareableHandle": ">shared handle kind flags",
    "cuMemImportFromShareableHandle": ">chunk shared kind +handles",
    "cuMemGetHandleForAddressRange": f">shared address size type={DMA_BUF}:CUmemRangeHandleType flags:CUmemRangeFlags",
    "cuMemAlloc_v2": ">buffer size +allocations",
    "cuMemAllocPitch_v2": ">buffer >pitch width height element:u32",
    "cuMemFree_v2": "address -allocations",
    "cuMemAllocAsync": ">allocation size stream +allocations",
    "cuMemFreeAsync": "address stream -allocations",
    "cuMemAllocFromPoolAsync": ">allocation size pool stream +allocations",
    "cuMemAllocManaged": ">managed size flags:CUmemAttach_flags +allocations",
    "cuMemAllocHost_v2": ">pinned size +pinned",
    "cuMemHostAlloc": ">pinned size flags:CU_MEMHOSTALLOC +pinned",
    "cuMemFreeHost": "address -pinned",
    "cuMemHostRegister_v2": "address size flags:CU_MEMHOSTREGISTER +registered",
    "cuMemHostUnregister": "address -registered",
    "cuMemPoolCreate": ">pool properties:CUmemPoolProps* +pools",
    "cuMemPoolDestroy": "pool -pools",
    "cuMemPoolSetAttribute": "pool attribute:CUmemPool_attribute value:attribute",
    "cuMemPoolGetAttribute": "pool attribute:CUmemPool_attribute >attribute",
    "cuMemPoolSetAccess": "pool grants",
    "cuMemPoolGetAccess": ">u32 pool location",
    "cuMemPoolTrimTo": "pool keep",
    "cuMemPoolExportToShareableHandle": ">shared pool kind flags",
    "cuMemPoolImportFromShareableHandle": ">pool shared kind flags +pools",
    "cuMemPoolExportPointer": ">CUmemPoolPtrExportData address",
    "cuMemPoolImportPointer": ">allocation pool data:CUmemPoolPtrExportData* +allocations",
    "cuDeviceGetDefaultMemPool cuDeviceGetMemPool": "> device",
    "cuDeviceSetMemPool": "device pool",
    "cuMemGetDefaultMemPool cuMemGetMemPool": "> location type:i32",
    "cuMemSetMemPool": "location type:i32 pool",
    "cuMemAdvise_v2": "address size advice location:CUmemLocation",
    "cuMemAdvise": "address size advice location:ordinal",
    "cuMemPrefetchAsync_v2": "address size location:CUmemLocation flags=0:u32 stream",
    "cuMemPrefetchAsync": "address size location:ordinal stream",
    "cuStreamAttachMemAsync": "stream address _=0 flags:CUmemAttach_flags",
    "cuIpcGetMemHandle": ">CUipcMemHandle address",
    "cuIpcOpenMemHandle": ">buffer handle:CUipcMemHandle flags:u32 +opened",
    "cuIpcCloseMemHandle": "address -opened",
    "cuIpcGetEventHandle": ">CUipcEventHandle event",
    "cuIpcOpenEventHandle": ">event handle:CUipcEventHandle +events",
    "cuEventCreate": ">event flags:CUevent_flags +events",
    "cuEventDestroy": "event -events",
    "cuImportExternalMemory": ">external :CUDA_EXTERNAL_MEMORY_HANDLE_DESC* +external",
    "cuExternalMemoryGetMappedBuffer": ">buffer memory :CUDA_EXTERNAL_MEMORY_BUFFER_DESC* +allocations",
    "cuDestroyExternalMemory": "memory -external",
    "cuImportExternalSemaphore": ">semaphore :CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* +semaphores",
    "cuDestroyExternalSemaphore": "semaphore -semaphores",
    "cuMulticastCreate": ">chunk :CUmulticastObjectProp* +handles",
    "cuMulticastAddDevice": "handle device",
    "cuMulticastBindMem": "handle offset chunk chunk_offset size flags +bindings",
    "cuMulticastBindMem_v2": "handle _device:i32 offset chunk chunk_offset size flags +bindings",
    "cuMulticastBindAddr": "handle offset address size flags +bindings",
    "cuMulticastBindAddr_v2": "handle _device:i32 offset address size flags +bindings",
    "cuMulticastUnbind": "handle device offset size -bindings",
    "cuDevicePrimaryCtxRetain": ">context device +contexts",
    "cuDevicePrimaryCtxRelease": "device -contexts",
    "cuDevicePrimaryCtxReset": "device",
    "cuCtxCreate": "> flags:u32 device",
    "cuCtxCreate_v3": "> _ _:i32 flags:u32 device",
    "cuCtxCreate_v4": "> _ flags:u32 device",
    "cuCtxDestroy": "context",
}
"""Functions that change the memory of a process, which captures record; see `FUNCTIONS`."""

OTHER_FUNCTIONS = {
    "cuInit": "flags=0:u32",
    "cuDriverGetVersion cuDeviceGetCount": ">i32",
    "cuDeviceGet": ">i32 device",
    "cuDeviceGetName cuDeviceGetPCIBusId": ">bytes length device",
    "cuDeviceGetUuid": ">bytes device",
    "cuDeviceGetByPCIBusId": ">i32 text",
    "cuDeviceTotalMem": "> device",
    "cuDeviceGetAttribute": ">i32 attribute:CUdevice_attribute device",
    "cuDeviceComputeCapability": ">i32 >i32 device",
    "cuDeviceCanAccessPeer": ">i32 device peer",
    "cuDeviceGetP2PAttribute": ">i32 attribute:CUdevice_P2PAttribute device peer",
    "cuDevicePrimaryCtxGetState": "device >u32 >i32",
    "cuDevicePrimaryCtxSetFlags": "device flags:u32",
    "cuCtxPopCurrent": ">?",
    "cuCtxSetCurrent cuCtxPushCurrent cuCtxDisablePeerAccess": "context",
    "cuCtxGetCurrent": ">",
    "cuCtxGetDevice": ">i32",
    "cuCtxGetDevice_v2": ">i32 context",
    "cuCtxGetApiVersion": "context >u32",
    "cuCtxGetFlags": ">u32",
    "cuCtxGetStreamPriorityRange": ">?i32 >?i32",
    "cuCtxEnablePeerAccess": "context flags:u32",
    "cuCtxSynchronize": "",
    "cuCtxSynchronize_v2": "context",
    "cuMemGetInfo": ">? >?",
    "cuMemGetAllocationGranularity": "> properties recommended:CUmemAllocationGranularity_flags",
    "cuMemGetAccess": "> location address",
    "cuMemGetAllocationPropertiesFromHandle": ">CUmemAllocationProp handle",
    "cuMemGetAddressRange": ">? >? address",
    "cuMemHostGetFlags": ">u32 address",
    "cuMemHostGetDevicePointer": "> address flags=0:u32",
    "cuMemsetD8": "address value count",
    "cuMemsetD16": "address value:u16 count",
    "cuMemsetD32": "address value:u32 count",
    "cuMemsetD8Async": "address value count stream",
    "cuMemsetD16Async": "address value:u16 count stream",
    "cuMemsetD32Async": "address value:u32 count stream",
    "cuMemcpy cuMemcpyHtoD cuMemcpyDtoH cuMemcpyDtoD": "destination source count",
    "cuMemcpyAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync": "destination source count stream",
    "cuMemRangeGetAttribute": "data length attribute:CUmem_range_attribute address size",
    "cuPointerGetAttribute": "data attribute:CUpointer_attribute address",
    "cuPointerGetAttributes": "count:u32 attributes data address",
    "cuEventRecord": "event stream",
    "cuEventRecordWithFlags": "event stream flags:u32",
    "cuEventQuery cuEventSynchronize": "event",
    "cuEventElapsedTime": ">f32 start end",
    "cuStreamCreate": ">stream flags:u32 +streams",
    "cuStreamCreateWithPriority": ">stream flags:u32 priority +streams",
    "cuStreamGetFlags": "stream >u32",
    "cuStreamGetCtx": "stream >",
    "cuStreamGetCtx_v2": "stream > >",
    "cuStreamGetDevice cuStreamIsCapturing cuStreamGetPriority": "stream >i32",
    "cuStreamWaitEvent": "stream event flags:u32",
    "cuStreamQuery cuStreamSynchronize": "stream",
    "cuStreamDestroy": "stream -streams",
    "cuMulticastGetGranularity": "> :CUmulticastObjectProp* recommended:CUmemAllocationGranularity_flags",
    "cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync": "semaphores described count:u32 stream",
    "cuModuleLoadData": "> +modules",
    "cuModuleUnload": "module -modules",
}
"""All other functions."""

FUNCTIONS: Mapping[str, str] = {
    name: line for names, line in (MEMORY_FUNCTIONS | OTHER_FUNCTIONS).items() for name in names.split()
}
"""Parameters of C functions in order, and the account of the ledger that a call adds to (`+`) or removes from (`-`).

A name is that of the parameter in the protocol's method, or in that of `memtopo.testing.calls`. Its type follows where
the name does not imply it: a type of `cuda.h`, or the width of a number. `name=value` is a constant that memtopo
passes; `_` and `_name` are not looked at by the simulator. Behind `>` is a result, by its type or the kind of object
that the call makes; `>?` may be null. Members of a structure (`MEMBERS`) are parameters of the method.

A name without a version stands for all versions without a line of their own. Of several versions, memtopo calls the
first.
"""

NUMBER = "u64"
"""Type of an address, a size, or an object. A `pointer` is read by the method itself."""

_TYPES: Mapping[str, str] = {
    "device": "i32", "peer": "i32", "priority": "i32", "length": "i32", "value": "u8", "stream": "CUstream",
    "location": "CUmemLocation*", "properties": "CUmemAllocationProp*", "grants": "CUmemAccessDesc*",
    "kind": "CUmemAllocationHandleType", "advice": "CUmem_advise", "shared": "shared", "text": "pointer",
    "data": "pointer", "attributes": "pointer", "semaphores": "pointer", "described": "pointer",
}  # fmt: skip
"""Types of parameters by name; others are numbers of 64 bits."""

MEMBERS: Mapping[str, tuple[str, ...]] = {
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC*": ("fd", "kind", "size", "dedicated"),
    "CUDA_EXTERNAL_MEMORY_BUFFER_DESC*": ("offset", "size"),
    "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC*": ("fd", "kind"),
    "CUmulticastObjectProp*": ("devices", "size", "handles", "flags"),
}
"""Structures whose members are parameters of the method, by their type."""

SECRETS = ("CUipcMemHandle", "CUipcEventHandle", "CUmemPoolPtrExportData")
"""Structures that are shareable handles."""

_RESULTS = {"u32", "i32", "f32", "bytes", "attribute", "shared", "CUmemAllocationProp", *SECRETS}
"""Types of results that are no numbers of 64 bits. Another word behind `>` is the kind of object that a number is."""


class Parameter(NamedTuple):
    """Parameter of a C function, or a pointer to a result, whose name is the kind of object that it is.

    `position` is that of its first word in a call, `constant` the value that memtopo passes. `is_read` is false for a
    parameter that the simulator does not look at.
    """

    name: str
    type: str
    position: int
    constant: str = ""
    is_read: bool = True
    is_result: bool = False
    is_optional: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Arguments of the method that it has: one, the members of a structure, or none."""
        if self.is_result or self.constant or not self.is_read:
            return ()
        return MEMBERS.get(self.type) or (self.name,)

    @property
    def words(self) -> int:
        """Words that it takes: a list is followed by its length."""
        return 2 if self.type == "CUmemAccessDesc*" else 1


class Function(Struct, frozen=True):
    """C function: its name in the table, its parameters, and the account of the ledger that it adds to or removes from.

    `makes` is the kind of object that its result is: `range`, `chunk`, or `shared` and `secret` for a shareable handle;
    empty if it is none. `arguments` are those of a listing: arguments of the protocol's method, and constants.
    """

    symbol: str
    parameters: tuple[Parameter, ...] = ()
    opens: str = ""
    closes: str = ""
    makes: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name without a version."""
        return plain_name(self.symbol)

    @property
    def shared_struct(self) -> str:
        """Structure that is the shareable handle which the call makes or opens; empty for none."""
        types = (each.type.removesuffix("*") for each in self.parameters)
        return next((each for each in types if each in SECRETS), "")

    @property
    def has_result(self) -> bool:
        """True if it has a pointer to a result."""
        return any(each.is_result for each in self.parameters)


def plain_name(name: str) -> str:
    """Name of a function without its version: `cuMemAlloc` for `cuMemAlloc_v2`."""
    return re.sub(r"_v\d+$", "", name)


_FIRST_VERSIONS = {plain_name(symbol): symbol for symbol in reversed([*FUNCTIONS])}
"""Names in the table by those without a version."""


@cache
def function(method: str) -> Function:
    """C function of a method of the protocol, or of a call that only programs make.

    A function with other arguments than the method is listed with those of the method.
    """
    name = call_name(method)
    found = declared(_FIRST_VERSIONS[name]) if name in _FIRST_VERSIONS else Function(name)
    own = parameters(method) if method in METHODS else found.arguments
    passed = {name for each in found.parameters for name in each.names}
    return found if found.parameters and passed <= {*own} else replace(found, arguments=own)


def c_name(method: str) -> str:
    """Name of the C function in a program: with its version if the name without is that of another function."""
    found = function(method)
    return found.symbol if found.name in FUNCTIONS else found.name


def declared(symbol: str) -> Function:
    """Function of a line of the table."""
    found: list[Parameter] = []
    accounts, position = {"+": "", "-": ""}, 0
    for word in FUNCTIONS[symbol].split():
        if word[0] in accounts:
            accounts[word[0]] = word[1:]
        else:
            found.append(_parameter(word, position))
            position += found[-1].words
    makes = next((_made(each) for each in found if each.is_result), "")
    arguments = [name for each in found for name in (each.names or (each.constant,)) if name]
    return Function(symbol, tuple(found), accounts["+"], accounts["-"], makes, tuple(arguments))


def _parameter(word: str, position: int) -> Parameter:
    if word[0] == ">":
        kind = word.lstrip(">?")
        name, type_ = ("", kind) if kind in _RESULTS else (kind, NUMBER)
        return Parameter(name, type_, position, is_result=True, is_optional="?" in word)
    declaration, _, type_ = word.partition(":")
    name, _, constant = declaration.partition("=")
    plain = name.removeprefix("_")
    return Parameter(plain, type_ or _TYPES.get(plain, NUMBER), position, constant, is_read=plain == name)


def _made(result: Parameter) -> str:
    if result.type == "shared":
        return "shared"
    return "secret" if result.type in SECRETS else result.name
