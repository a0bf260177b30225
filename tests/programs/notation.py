"""Text of calls of C functions: sizes, locations and properties, and the parameters of each function.

A line is `a0 = cuMemAlloc_v2 2M`, and in the second process `there a0 = cuMemAlloc_v2 2M`. Symbols are the names of
addresses and handles. Their first letter is the kind: a (cuMemAlloc), c (chunk), e (event), f (descriptor), g (handle
of an event), h (handle of memory), k (page-locked), l (pool), m (managed), n (memory of the program), o (opened), p
(primary context), r (reservation), s (stream), v (memory of a pool), x (created context), z (pointer of a pool).
"""

from __future__ import annotations

import struct

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_KINDS = {"none": 0, "gpu": 1, "host": 2, "numa": 3}
_HANDLES = {"fd": 1, "fabric": 8}
_PROPERTIES = struct.Struct("=iiiiQBBH4x")

SIGNATURES = {
    "cuInit": "i", "cuDriverGetVersion": ">i", "cuDeviceGet": ">i i", "cuDeviceGetCount": ">i",
    "cuDeviceTotalMem_v2": ">q i", "cuDeviceGetAttribute": ">i i i", "cuDeviceComputeCapability": ">i >i i",
    "cuDeviceCanAccessPeer": ">i i i", "cuDeviceGetP2PAttribute": ">i i i i", "cuDevicePrimaryCtxRetain": ">h i",
    "cuDevicePrimaryCtxRelease_v2": "i", "cuDevicePrimaryCtxGetState": "i >u >i",
    "cuDevicePrimaryCtxSetFlags_v2": "i i", "cuCtxCreate_v2": ">h i i", "cuCtxDestroy_v2": "q",
    "cuCtxPushCurrent_v2": "q", "cuCtxPopCurrent_v2": ">h", "cuCtxSetCurrent": "q", "cuCtxGetCurrent": ">h",
    "cuCtxGetDevice": ">i", "cuCtxGetDevice_v2": ">i q", "cuCtxGetApiVersion": "q >u", "cuCtxGetFlags": ">u",
    "cuCtxGetStreamPriorityRange": ">i >i", "cuCtxSynchronize": "", "cuCtxSynchronize_v2": "q",
    "cuCtxEnablePeerAccess": "q i", "cuCtxDisablePeerAccess": "q", "cuMemGetInfo_v2": ">_ >q",
    "cuMemGetAllocationGranularity": ">q P i", "cuMemAddressReserve": ">a q q q q", "cuMemAddressFree": "q q",
    "cuMemCreate": ">h q P q", "cuMemRelease": "q", "cuMemMap": "q q q q q", "cuMemUnmap": "q q",
    "cuMemSetAccess": "q q A", "cuMemGetAccess": ">q L q", "cuMemRetainAllocationHandle": ">h q",
    "cuMemGetAllocationPropertiesFromHandle": ">P q", "cuMemExportToShareableHandle": ">d q i q",
    "cuMemImportFromShareableHandle": ">h d i", "cuMemGetAddressRange_v2": ">a >q q", "cuMemAlloc_v2": ">a q",
    "cuMemFree_v2": "q", "cuMemAllocManaged": ">a q i", "cuMemAllocHost_v2": ">a q", "cuMemHostAlloc": ">a q i",
    "cuMemHostGetFlags": ">u q", "cuMemHostGetDevicePointer_v2": ">a q i", "cuMemFreeHost": "q",
    "cuMemHostRegister_v2": "q q i", "cuMemHostUnregister": "q", "cuMemsetD8_v2": "q i q", "cuMemsetD16_v2": "q i q",
    "cuMemsetD32_v2": "q i q", "cuMemsetD8Async": "q i q q", "cuMemsetD32Async": "q i q q", "cuMemcpyDtoD_v2": "q q q",
    "cuMemcpyDtoDAsync_v2": "q q q q", "cuMemcpy": "q q q", "cuMemcpyAsync": "q q q q", "cuMemcpyHtoD_v2": "q x",
    "cuMemAllocAsync": ">a q q", "cuMemAllocFromPoolAsync": ">a q q q",
    "cuMemFreeAsync": "q q", "cuMemPoolCreate": ">h O", "cuMemPoolDestroy": "q", "cuMemPoolSetAccess": "q A",
    "cuMemPoolGetAccess": ">u q L", "cuMemPoolTrimTo": "q q", "cuMemPoolExportToShareableHandle": ">d q i q",
    "cuMemPoolImportFromShareableHandle": ">h d i q", "cuMemPoolExportPointer": ">b q",
    "cuMemPoolImportPointer": ">a q b", "cuMemPoolGetAttribute": "q i >w", "cuMemPoolSetAttribute": "q i Q",
    "cuDeviceGetDefaultMemPool": ">h i", "cuDeviceGetMemPool": ">h i", "cuDeviceSetMemPool": "i q",
    "cuIpcGetMemHandle": ">b q", "cuIpcOpenMemHandle_v2": ">a B i", "cuIpcCloseMemHandle": "q",
    "cuIpcGetEventHandle": ">b q", "cuIpcOpenEventHandle": ">h B", "cuEventCreate": ">h i", "cuEventDestroy_v2": "q",
    "cuEventRecord": "q q", "cuEventRecordWithFlags": "q q i", "cuEventQuery": "q", "cuEventSynchronize": "q",
    "cuEventElapsedTime": ">_ q q", "cuStreamCreate": ">h i", "cuStreamCreateWithPriority": ">h i i",
    "cuStreamGetPriority": "q >i", "cuStreamGetFlags": "q >u", "cuStreamGetCtx": "q >h", "cuStreamGetDevice": "q >i",
    "cuStreamIsCapturing": "q >i", "cuStreamWaitEvent": "q q i", "cuStreamQuery": "q", "cuStreamSynchronize": "q",
    "cuStreamDestroy_v2": "q", "cuMemAdvise_v2": "q q i l", "cuMemPrefetchAsync_v2": "q q l i q",
    "cuStreamAttachMemAsync": "q q q i", "cuPointerGetAttribute": ">p i q",
    "cuDeviceGetName": ">t i i", "cuDeviceGetPCIBusId": ">l i i",
    "cuDeviceGetUuid_v2": ">_ i",
}  # fmt: skip
"""Parameters of functions, in order.

i, q: a number of 32 or 64 bits; Q: a number by its address; d: a descriptor; x: bytes and their count; P: properties of
a chunk; O: properties of a pool; A: access, and the number of descriptions; L, l: a location by its address, by value;
b, B: a handle of 64 bytes by its address, by value. Results: >i, >u, >q: numbers; >h: a handle; >a: an address; >d: a
descriptor; >b: 64 bytes; >P: properties; >w, >p: an attribute of a pool, of a pointer; >t: a text; >l: its length;
>_: not compared.
"""

OPENS: dict[str, tuple[str, int | None]] = {
    "cuMemAlloc_v2": ("allocated", None), "cuMemAllocManaged": ("allocated", None), "cuMemHostAlloc": ("pinned", None),
    "cuMemAllocHost_v2": ("pinned", None), "cuMemHostRegister_v2": ("registered", None),
    "cuMemAllocAsync": ("pooled", None), "cuMemAllocFromPoolAsync": ("pooled", None),
    "cuMemPoolImportPointer": ("pooled", None), "cuIpcOpenMemHandle_v2": ("opened", None), "cuMemMap": ("mapped", 1),
    "cuMemAddressReserve": ("reserved", 0), "cuMemCreate": ("chunk", None),
    "cuMemImportFromShareableHandle": ("chunk", None), "cuMemRetainAllocationHandle": ("chunk", None),
    "cuMemPoolCreate": ("pool", None), "cuMemPoolImportFromShareableHandle": ("pool", None),
    "cuEventCreate": ("event", None), "cuIpcOpenEventHandle": ("event", None), "cuStreamCreate": ("stream", None),
    "cuStreamCreateWithPriority": ("stream", None), "cuCtxCreate_v2": ("context", None),
}  # fmt: skip
"""Kind of what a function opens, and the position of the argument with its size if ending it needs that."""
CLOSING = {
    "opened": "cuIpcCloseMemHandle", "pooled": "cuMemFreeAsync", "allocated": "cuMemFree_v2", "pinned": "cuMemFreeHost",
    "registered": "cuMemHostUnregister", "mapped": "cuMemUnmap", "reserved": "cuMemAddressFree",
    "chunk": "cuMemRelease", "pool": "cuMemPoolDestroy", "event": "cuEventDestroy_v2", "stream": "cuStreamDestroy_v2",
    "context": "cuCtxDestroy_v2",
}  # fmt: skip
"""Functions that end what is open, by kind, in the order in which everything is ended."""
CLOSES = {function: kind for kind, function in CLOSING.items()}
WITH_CONTEXT = {"allocated", "pinned", "registered", "opened", "event", "stream", "pooled"}
"""Kinds that end with the context."""

ADDRESSES, IDS, HANDLES = {3, 4, 11, 19}, {7, 20}, {1: "px", 17: "l"}
"""Attributes of pointers that are addresses, that identify something, and that are handles, with their letters."""


def size_text(size: int) -> str:
    """Return `2M`, `64K` or `1`."""
    for suffix, unit in reversed(UNITS.items()):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def number_of(text: str) -> int:
    """Value of a number, which may have a unit."""
    unit = UNITS.get(text[-1], 1)
    return int(text[:-1] if unit > 1 else text) * unit


def location_of(text: str) -> int:
    """`CUmemLocation` as a number: that of `gpu:0`, `host`, `numa:0` or `none`."""
    kind, _, id = text.partition(":")
    return (int(id or 0) & 0xFFFF_FFFF) << 32 | _KINDS[kind]


def properties_of(text: str) -> bytes:
    """`CUmemAllocationProp` of `gpu:0/fd/rdma`."""
    place, *words = text.split("/")
    handles = sum(_HANDLES.get(word, 0) for word in words)
    where = struct.unpack("=ii", location_of(place).to_bytes(8, "little"))
    return _PROPERTIES.pack(
        1, handles, *where, 0, "compressible" in words, "rdma" in words, 2 * ("decompress" in words)
    )


def properties_text(data: bytes) -> str:
    """Numbers of a `CUmemAllocationProp`."""
    kind, handles, place, id, _, compressible, rdma, usage = _PROPERTIES.unpack(data[: _PROPERTIES.size])
    return f"{kind} {handles} {place} {id} {compressible} {rdma} {usage}"


def access_of(text: str) -> tuple[bytes, int]:
    """`CUmemAccessDesc` of each of `gpu:0=3,host=1`, and their number."""
    grants = [each.split("=") for each in text.split(",")]
    return b"".join(struct.pack("=Qi", location_of(place), int(flags)) for place, flags in grants), len(grants)


def pool_of(text: str) -> bytes:
    """`CUmemPoolProps` of `gpu:0/fd`."""
    place, *words = text.split("/")
    return struct.pack("=iiQQQ56x", 1, int("fd" in words), location_of(place), 0, 0)
