"""Calls of the CUDA driver at its boundary: function, order and values of the arguments as in cuda.h, and results.

The functions of the bindings are replaced by ones that keep what they are given and return an answer. On a GPU the
contract suite finds out what the calls do; here each argument has a number of its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from memtopo.common.errors import Unavailable
from memtopo.driver.types import (
    Access,
    Advice,
    Attribute,
    DmaBufFlags,
    DriverError,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    MemoryHandleType,
    PeerAttribute,
    PoolAttribute,
    PoolProperties,
    Properties,
    RangeAttribute,
    SemaphoreHandleType,
    gpu,
)
from memtopo.drivers.cuda import driver as module
from memtopo.drivers.cuda.driver import CudaDriver

SUCCESS = bindings.CUresult.CUDA_SUCCESS
ADVISE, PREFETCH = (
    next(each for each in (f"{name}_v2", name) if hasattr(bindings, each))
    for name in ("cuMemAdvise", "cuMemPrefetchAsync")
)
GIVEN = bytes(range(64))
PROPERTIES = Properties(Location(LocationKind.HOST_NUMA, 3), HandleType.FD, rdma=True)
PROP = pack("=iiiiQBBH4x", 1, 1, 3, 3, 0, 0, 1, 0)
POOL = pack("=iiiiQQH54x", 1, 1, 3, 3, 0, 64 << 20, 0)
NUMBERS = {
    bindings.CUmemPoolProps: len(POOL),
    bindings.CUmemPoolPtrExportData: 64,
    bindings.CUuuid: 16,
    bindings.CUmemAllocationProp: len(PROP),
    bindings.CUmemLocation: 8,
    bindings.CUmemAccessDesc: 12,
    bindings.CUipcMemHandle: 64,
    bindings.CUipcEventHandle: 64,
    bindings.CUmemFabricHandle: 64,
    bindings.CUDA_EXTERNAL_MEMORY_HANDLE_DESC: 40,
    bindings.CUDA_EXTERNAL_MEMORY_BUFFER_DESC: 24,
    bindings.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC: 32,
    bindings.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS: 8,
    bindings.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS: 8,
}
"""Structs, and how many of their bytes are compared: those before the reserved ones."""


def filled(kind: Callable[[], Any], data: bytes) -> Any:
    """A struct of the bindings with some bytes."""
    struct = kind()
    ctypes.memmove(struct.getPtr(), data, len(data))
    return struct


def plain(value: Any) -> object:
    """An argument as Python's own value: a struct as its bytes, an enum and a handle as a number."""
    if type(value) in NUMBERS:
        return ctypes.string_at(value.getPtr(), NUMBERS[type(value)])
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, bytes | bytearray) else int(value)


def has_libcuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@dataclass
class Call:
    """A call of the driver, what the bindings must be given for it, and the result made of their answer."""

    make: Callable[[CudaDriver], object]
    function: str
    arguments: tuple[object, ...]
    answer: tuple[object, ...] = ()
    result: object = field(default=None)


CALLS = [
    Call(lambda d: d.init(), "cuInit", (0,)),
    Call(lambda d: d.driver_get_version(), "cuDriverGetVersion", (), (12090,), 12090),
    Call(lambda d: d.device_get_count(), "cuDeviceGetCount", (), (3,), 3),
    Call(lambda d: d.device_get_name(2), "cuDeviceGetName", (256, 2), (b"NVIDIA H100\0\0x",), "NVIDIA H100"),
    Call(lambda d: d.device_get_pci_bus_id(2), "cuDeviceGetPCIBusId", (256, 2), (b"0000:0A:00.0\0",), "0000:0a:00.0"),
    Call(lambda d: d.device_get_uuid(2), "get_uuid", (2,), (filled(bindings.CUuuid, GIVEN[:16]),), GIVEN[:16]),
    Call(lambda d: d.device_get_attribute(2, Attribute.DMA_BUF_SUPPORTED), "cuDeviceGetAttribute", (124, 2), (1,), 1),
    Call(lambda d: d.device_total_mem(2), "cuDeviceTotalMem", (2,), (80 << 30,), 80 << 30),
    Call(lambda d: d.device_can_access_peer(2, 5), "cuDeviceCanAccessPeer", (2, 5), (1,), result=True),
    Call(lambda d: d.device_can_access_peer(5, 2), "cuDeviceCanAccessPeer", (5, 2), (0,), result=False),
    Call(
        lambda d: d.device_get_p2p_attribute(PeerAttribute.NATIVE_ATOMIC_SUPPORTED, 2, 5),
        "cuDeviceGetP2PAttribute", (3, 2, 5), (7,), 7,
    ),
    Call(lambda d: d.device_primary_ctx_retain(2), "cuDevicePrimaryCtxRetain", (2,), (4096,), 4096),
    Call(lambda d: d.device_primary_ctx_release(2), "cuDevicePrimaryCtxRelease", (2,)),
    Call(lambda d: d.device_primary_ctx_get_state(2), "cuDevicePrimaryCtxGetState", (2,), (0, 1), result=True),
    Call(lambda d: d.device_primary_ctx_get_state(2), "cuDevicePrimaryCtxGetState", (2,), (1, 0), result=False),
    Call(lambda d: d.ctx_push_current(4096), "cuCtxPushCurrent", (4096,)),
    Call(lambda d: d.ctx_pop_current(), "cuCtxPopCurrent", (), (4096,), 4096),
    Call(lambda d: d.ctx_synchronize(), "cuCtxSynchronize", ()),
    Call(lambda d: d.mem_get_info(), "cuMemGetInfo", (), (5, 9), (5, 9)),
    Call(
        lambda d: d.mem_get_allocation_granularity(PROPERTIES), "cuMemGetAllocationGranularity", (PROP, 0), (2,), 2
    ),
    Call(
        lambda d: d.mem_get_allocation_granularity(PROPERTIES, recommended=True),
        "cuMemGetAllocationGranularity", (PROP, 1), (2,), 2,
    ),
    Call(lambda d: d.mem_address_reserve(8, 4, 3, 2), "cuMemAddressReserve", (8, 4, 3, 2), (4096,), 4096),
    Call(lambda d: d.mem_address_reserve(8), "cuMemAddressReserve", (8, 0, 0, 0), (4096,), 4096),
    Call(lambda d: d.mem_address_free(4096, 8), "cuMemAddressFree", (4096, 8)),
    Call(lambda d: d.mem_create(8, PROPERTIES), "cuMemCreate", (8, PROP, 0), (77,), 77),
    Call(lambda d: d.mem_create(8, PROPERTIES, 5), "cuMemCreate", (8, PROP, 5), (77,), 77),
    Call(lambda d: d.mem_release(77), "cuMemRelease", (77,)),
    Call(lambda d: d.mem_map(4096, 8, 77), "cuMemMap", (4096, 8, 0, 77, 0)),
    Call(lambda d: d.mem_map(4096, 8, 77, 3, 2), "cuMemMap", (4096, 8, 3, 77, 2)),
    Call(lambda d: d.mem_unmap(4096, 8), "cuMemUnmap", (4096, 8)),
    Call(
        lambda d: d.mem_set_access(4096, 8, (Grant(gpu(5), Access.RW), Grant(gpu(2), Access.R))),
        "cuMemSetAccess", (4096, 8, [pack("3i", 1, 5, 3), pack("3i", 1, 2, 1)], 2),
    ),
    Call(lambda d: d.mem_get_access(4096, gpu(5)), "cuMemGetAccess", (pack("2i", 1, 5), 4096), (3,), 3),
    Call(lambda d: d.mem_retain_allocation_handle(4096), "cuMemRetainAllocationHandle", (4096,), (77,), 77),
    Call(
        lambda d: d.mem_get_allocation_properties_from_handle(77),
        "cuMemGetAllocationPropertiesFromHandle", (77,), (filled(bindings.CUmemAllocationProp, PROP),), PROPERTIES,
    ),
    Call(lambda d: d.mem_get_address_range(4100), "cuMemGetAddressRange", (4100,), (4096, 8), (4096, 8)),
    Call(
        lambda d: d.mem_export_to_shareable_handle(77, HandleType.FD),
        "cuMemExportToShareableHandle", (77, 1, 0), (9,), 9,
    ),
    Call(
        lambda d: d.mem_export_to_shareable_handle(77, HandleType.FABRIC, 6),
        "cuMemExportToShareableHandle", (77, 8, 6), (filled(bindings.CUmemFabricHandle, GIVEN),), GIVEN,
    ),
    Call(
        lambda d: d.mem_import_from_shareable_handle(9, HandleType.FD),
        "cuMemImportFromShareableHandle", (9, 1), (77,), 77,
    ),
    Call(
        lambda d: d.mem_import_from_shareable_handle(GIVEN, HandleType.FABRIC),
        "cuMemImportFromShareableHandle", (GIVEN, 8), (77,), 77,
    ),
    Call(
        lambda d: d.mem_get_handle_for_address_range(4096, 8192, DmaBufFlags.PCIE),
        "cuMemGetHandleForAddressRange", (4096, 8192, 1, 1), (9,), 9,
    ),
    Call(lambda d: d.mem_alloc(8), "cuMemAlloc", (8,), (4096,), 4096),
    Call(lambda d: d.mem_free(4096), "cuMemFree", (4096,)),
    Call(lambda d: d.mem_host_alloc(8, HostFlags.PORTABLE), "cuMemHostAlloc", (8, 1), (4096,), 4096),
    Call(lambda d: d.mem_host_get_flags(4096), "cuMemHostGetFlags", (4096,), (3,), 3),
    Call(lambda d: d.mem_free_host(4096), "cuMemFreeHost", (4096,)),
    Call(
        lambda d: d.ipc_get_mem_handle(4096),
        "cuIpcGetMemHandle", (4096,), (filled(bindings.CUipcMemHandle, GIVEN),), GIVEN,
    ),
    Call(lambda d: d.ipc_open_mem_handle(GIVEN), "cuIpcOpenMemHandle", (GIVEN, 1), (4096,), 4096),
    Call(lambda d: d.ipc_open_mem_handle(GIVEN, 0), "cuIpcOpenMemHandle", (GIVEN, 0), (4096,), 4096),
    Call(lambda d: d.ipc_close_mem_handle(4096), "cuIpcCloseMemHandle", (4096,)),
    Call(
        lambda d: d.event_create(EventFlags.INTERPROCESS | EventFlags.DISABLE_TIMING), "cuEventCreate", (6,), (55,), 55
    ),
    Call(lambda d: d.event_destroy(55), "cuEventDestroy", (55,)),
    Call(lambda d: d.event_record(55), "cuEventRecord", (55, 0)),
    Call(lambda d: d.event_record(55, 66), "cuEventRecord", (55, 66)),
    Call(lambda d: d.event_query(55), "cuEventQuery", (55,), (), result=True),
    Call(lambda d: d.event_synchronize(55), "cuEventSynchronize", (55,)),
    Call(
        lambda d: d.ipc_get_event_handle(55),
        "cuIpcGetEventHandle", (55,), (filled(bindings.CUipcEventHandle, GIVEN),), GIVEN,
    ),
    Call(lambda d: d.ipc_open_event_handle(GIVEN), "cuIpcOpenEventHandle", (GIVEN,), (55,), 55),
    Call(lambda d: d.stream_wait_event(66, 55), "cuStreamWaitEvent", (66, 55, 0)),
    Call(lambda d: d.stream_wait_event(66, 55, 1), "cuStreamWaitEvent", (66, 55, 1)),
    Call(lambda d: d.memset_d8(4096, 7, 8), "cuMemsetD8", (4096, 7, 8)),
    Call(lambda d: d.memcpy_htod(4096, b"abc"), "cuMemcpyHtoD", (4096, b"abc", 3)),
    Call(lambda d: d.memcpy_dtoh(4096, 3), "cuMemcpyDtoH", (bytes(3), 4096, 3), (), bytes(3)),
    Call(lambda d: d.memcpy_async(4096, 8192, 3), "cuMemcpyAsync", (4096, 8192, 3, 0)),
    Call(lambda d: d.memcpy_async(4096, 8192, 3, 66), "cuMemcpyAsync", (4096, 8192, 3, 66)),
    Call(lambda d: d.mem_alloc_managed(8, MemAttach.HOST), "cuMemAllocManaged", (8, 2), (4096,), 4096),
    Call(
        lambda d: d.mem_advise(4096, 8, Advice.SET_ACCESSED_BY, gpu(2)), ADVISE, (4096, 8, 5, pack("2i", 1, 2))
    ),
    Call(lambda d: d.mem_prefetch_async(4096, 8, gpu(2)), PREFETCH, (4096, 8, pack("2i", 1, 2), 0, 0)),
    Call(lambda d: d.mem_prefetch_async(4096, 8, gpu(2), 66), PREFETCH, (4096, 8, pack("2i", 1, 2), 0, 66)),
    Call(
        lambda d: d.mem_range_get_attribute(4096, 8, RangeAttribute.READ_MOSTLY),
        "cuMemRangeGetAttribute", (4, 1, 4096, 8), (1,), (1,),
    ),
    Call(
        lambda d: d.mem_range_get_attribute(4096, 8, RangeAttribute.PREFERRED_LOCATION),
        "cuMemRangeGetAttribute", (4, 2, 4096, 8), (-2,), (),
    ),
    Call(
        lambda d: d.mem_range_get_attribute(4096, 8, RangeAttribute.ACCESSED_BY),
        "cuMemRangeGetAttribute", (256, 3, 4096, 8), ([5, -1, -2, -2],), (5, -1),
    ),
    Call(
        lambda d: d.stream_attach_mem_async(66, 4096, MemAttach.SINGLE), "cuStreamAttachMemAsync", (66, 4096, 0, 4)
    ),
    Call(lambda d: d.pointer_is_managed(4096), "cuPointerGetAttribute", (8, 4096), (1,), result=True),
    Call(lambda d: d.pointer_is_managed(4096), "cuPointerGetAttribute", (8, 4096), (0,), result=False),
    Call(lambda d: d.stream_create(), "cuStreamCreate", (1,), (66,), 66),
    Call(lambda d: d.stream_create(0), "cuStreamCreate", (0,), (66,), 66),
    Call(lambda d: d.stream_destroy(66), "cuStreamDestroy", (66,)),
    Call(lambda d: d.stream_query(66), "cuStreamQuery", (66,), (), result=True),
    Call(
        lambda d: d.import_external_memory(9, MemoryHandleType.DMABUF_FD, 8),
        "cuImportExternalMemory", (pack("=iiiiQQII", 9, 0, 9, 0, 0, 8, 0, 0),), (88,), 88,
    ),
    Call(
        lambda d: d.import_external_memory(7, MemoryHandleType.OPAQUE_FD, 8, dedicated=True),
        "cuImportExternalMemory", (pack("=iiiiQQII", 1, 0, 7, 0, 0, 8, 1, 0),), (88,), 88,
    ),
    Call(
        lambda d: d.external_memory_get_mapped_buffer(88, 3, 8),
        "cuExternalMemoryGetMappedBuffer", (88, pack("=QQII", 3, 8, 0, 0)), (4096,), 4096,
    ),
    Call(lambda d: d.destroy_external_memory(88), "cuDestroyExternalMemory", (88,)),
    Call(
        lambda d: d.import_external_semaphore(7, SemaphoreHandleType.TIMELINE_FD),
        "cuImportExternalSemaphore", (pack("=iiiiQII", 9, 0, 7, 0, 0, 0, 0),), (99,), 99,
    ),
    Call(
        lambda d: d.signal_external_semaphore(99, 3, 66),
        "cuSignalExternalSemaphoresAsync", ([99], [pack("=Q", 3)], 1, 66),
    ),
    Call(
        lambda d: d.wait_external_semaphore(99, 3, 66),
        "cuWaitExternalSemaphoresAsync", ([99], [pack("=Q", 3)], 1, 66),
    ),
    Call(lambda d: d.destroy_external_semaphore(99), "cuDestroyExternalSemaphore", (99,)),
    Call(
        lambda d: d.mem_pool_create(PoolProperties(Location(LocationKind.HOST_NUMA, 3), HandleType.FD, 64 << 20)),
        "cuMemPoolCreate", (POOL,), (111,), 111,
    ),
    Call(lambda d: d.mem_pool_destroy(111), "cuMemPoolDestroy", (111,)),
    Call(
        lambda d: d.mem_pool_set_attribute(111, PoolAttribute.RELEASE_THRESHOLD, 1 << 40),
        "cuMemPoolSetAttribute", (111, 4, 1 << 40),
    ),
    Call(
        lambda d: d.mem_pool_set_attribute(111, PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC, 0),
        "cuMemPoolSetAttribute", (111, 2, 0),
    ),
    Call(
        lambda d: d.mem_pool_set_attribute(111, PoolAttribute.USED_MEM_CURRENT, 1 << 40),
        "cuMemPoolSetAttribute", (111, 7, 1 << 40),
    ),
    Call(
        lambda d: d.mem_pool_get_attribute(111, PoolAttribute.USED_MEM_CURRENT),
        "cuMemPoolGetAttribute", (111, 7), (5,), 5,
    ),
    Call(
        lambda d: d.mem_pool_set_access(111, (Grant(gpu(5), Access.RW), Grant(gpu(2), Access.NONE))),
        "cuMemPoolSetAccess", (111, [pack("3i", 1, 5, 3), pack("3i", 1, 2, 0)], 2),
    ),
    Call(lambda d: d.mem_pool_get_access(111, gpu(5)), "cuMemPoolGetAccess", (111, pack("2i", 1, 5)), (3,), 3),
    Call(
        lambda d: d.mem_alloc_from_pool_async(8, 111, 66), "cuMemAllocFromPoolAsync", (8, 111, 66), (4096,), 4096
    ),
    Call(lambda d: d.mem_free_async(4096, 66), "cuMemFreeAsync", (4096, 66)),
    Call(lambda d: d.mem_pool_trim_to(111, 8), "cuMemPoolTrimTo", (111, 8)),
    Call(
        lambda d: d.mem_pool_export_to_shareable_handle(111, HandleType.FABRIC, 2),
        "cuMemPoolExportToShareableHandle", (111, 8, 2), (filled(bindings.CUmemFabricHandle, GIVEN),), GIVEN,
    ),
    Call(
        lambda d: d.mem_pool_import_from_shareable_handle(7, HandleType.FD, 2),
        "cuMemPoolImportFromShareableHandle", (7, 1, 2), (111,), 111,
    ),
    Call(
        lambda d: d.mem_pool_import_from_shareable_handle(GIVEN, HandleType.FABRIC),
        "cuMemPoolImportFromShareableHandle", (GIVEN, 8, 0), (111,), 111,
    ),
    Call(
        lambda d: d.mem_pool_export_pointer(4096),
        "cuMemPoolExportPointer", (4096,), (filled(bindings.CUmemPoolPtrExportData, GIVEN),), GIVEN,
    ),
    Call(
        lambda d: d.mem_pool_import_pointer(111, GIVEN), "cuMemPoolImportPointer", (111, GIVEN), (4096,), 4096
    ),
]  # fmt: skip


def replaced(monkeypatch: pytest.MonkeyPatch, call: Call, status: object = SUCCESS) -> list[tuple[object, ...]]:
    """Replace a function of the bindings by one that keeps its arguments, in a list that is returned."""
    kept: list[tuple[object, ...]] = []

    def function(*arguments: object) -> tuple[object, ...]:
        kept.append(tuple(plain(each) for each in arguments))
        return status, *call.answer

    function.__name__ = call.function
    monkeypatch.setattr(module if hasattr(module, call.function) else bindings, call.function, function)
    return kept


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.function)
def test_a_call_has_the_arguments_of_its_function_in_order(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    kept = replaced(monkeypatch, call)
    result = call.make(CudaDriver())
    assert kept == [call.arguments]
    assert (result, type(result)) == (call.result, type(call.result))


@pytest.mark.skipif(has_libcuda(), reason="asks what happens where there is no driver")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.function)
def test_the_bindings_take_the_arguments_of_every_call(call: Call) -> None:
    """They convert the arguments first, and then miss the driver."""
    with pytest.raises(Unavailable):
        call.make(CudaDriver())


def test_bytes_that_the_driver_copies_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(into: bytearray, address: int, count: int) -> tuple[object]:
        into[:] = bytes([address, count, 7])
        return (SUCCESS,)

    monkeypatch.setattr(bindings, "cuMemcpyDtoH", copy)
    assert CudaDriver().memcpy_dtoh(5, 3) == bytes([5, 3, 7])


@pytest.mark.parametrize("function", ["cuEventQuery", "cuStreamQuery"])
def test_only_a_status_of_not_ready_means_unfinished_work(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    (call,) = [each for each in CALLS if each.function == function]
    replaced(monkeypatch, call, bindings.CUresult.CUDA_ERROR_NOT_READY)
    assert call.make(CudaDriver()) is False
    replaced(monkeypatch, call, bindings.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS"):
        call.make(CudaDriver())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.function)
def test_a_refusal_of_every_call_is_its_error(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replaced(monkeypatch, call, bindings.CUresult.CUDA_ERROR_NOT_PERMITTED)
    with pytest.raises(DriverError) as refused:
        call.make(CudaDriver())
    assert (refused.value.call, refused.value.name) == (call.function, "CUDA_ERROR_NOT_PERMITTED")


def test_the_descriptor_of_a_pool_is_closed_on_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike the driver's own (fact 82)."""
    with Path(os.devnull).open() as file:
        os.set_inheritable(file.fileno(), True)
        monkeypatch.setattr(bindings, "cuMemPoolExportToShareableHandle", lambda *_: (SUCCESS, file.fileno()))
        assert CudaDriver().mem_pool_export_to_shareable_handle(111, HandleType.FD) == file.fileno()
        assert not os.get_inheritable(file.fileno())


@pytest.mark.parametrize("size", [-1, 1 << 64])
def test_a_maximum_size_that_does_not_fit_is_refused(size: int) -> None:
    with pytest.raises(DriverError, match=r"cuMemPoolCreate: CUDA_ERROR_INVALID_VALUE"):
        CudaDriver().mem_pool_create(PoolProperties(gpu(0), HandleType.FD, size))
