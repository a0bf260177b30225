"""`memtopo.driver.protocol.Driver` by `cuda.bindings.driver`: one method, one driver call.

The bindings take plain ints for addresses, handles, contexts and devices, and return objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, starmap
from typing import Any

from cuda.bindings import driver as cuda

from memtopo.common.errors import Unavailable
from memtopo.driver.batches import BatchDriver
from memtopo.driver.types import (
    Advice,
    Attribute,
    DmaBufFlags,
    DriverError,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    MemAttach,
    MemoryHandleType,
    PeerAttribute,
    Properties,
    RangeAttribute,
    RegisterFlags,
    SemaphoreHandleType,
)
from memtopo.drivers.cuda.bindings import (
    ERRORS,
    SHARED_BYTES,
    access_descriptors,
    allocation_prop,
    batch_attributes,
    call,
    fitting,
    get_uuid,
    ipc_event_handle,
    ipc_mem_handle,
    mem_location,
    named,
    properties_of,
    shared_bytes,
    unmade,
)
from memtopo.drivers.cuda.kernels import CudaKernels
from memtopo.drivers.cuda.multicast import RefusedMulticast
from memtopo.drivers.cuda.pools import CudaPools

_TEXT = 256
# Bindings for CUDA 12 have both; only the second takes a location.
_advise = getattr(cuda, "cuMemAdvise_v2", cuda.cuMemAdvise)
_prefetch = getattr(cuda, "cuMemPrefetchAsync_v2", cuda.cuMemPrefetchAsync)
_ONE = 4  # bytes of an attribute
_EVERY = 4 * 64  # of the attribute that lists GPUs and the host: more than a computer has
_NOWHERE = -2
_BATCHED = cuda.CUDA_VERSION >= 13_000  # noqa: PLR2004
"""Whether the bindings have the function for batches of copies as it is since CUDA 13."""

_DEDICATED = 1  # a flag of CUDA_EXTERNAL_MEMORY_HANDLE_DESC


class CudaDriver(RefusedMulticast, CudaKernels, CudaPools, BatchDriver):
    """The CUDA driver. Its only state is the loaded kernels.

    `mem_create`, `mem_map` and `mem_release`, which a layout makes for each of thousands of chunks, do without `call`,
    which takes 0.15 µs.
    """

    def create_each(self, size: int, properties: Sequence[Properties]) -> tuple[list[int], DriverError | None]:
        same = len(set(map(id, properties))) == 1
        props = repeat(allocation_prop(properties[0]), len(properties)) if same else map(allocation_prop, properties)
        answers, error = _each(cuda.cuMemCreate, zip(repeat(size), props, repeat(0)))
        return [int(handle) for _, handle in answers], error

    def map_each(self, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, DriverError | None]:
        answers, error = _each(cuda.cuMemMap, [(address, size, 0, handle, 0) for address, size, handle in mappings])
        return len(answers), error

    def release_each(self, handles: Sequence[int]) -> tuple[int, DriverError | None]:
        answers, error = _each(cuda.cuMemRelease, zip(handles))
        return len(answers), error

    def properties_each(self, handles: Sequence[int]) -> tuple[list[Properties], DriverError | None]:
        answers, error = _each(cuda.cuMemGetAllocationPropertiesFromHandle, zip(handles))
        return [properties_of(prop) for _, prop in answers], error

    def access_each(self, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], DriverError | None]:
        answers, error = _each(
            cuda.cuMemGetAccess, [(mem_location(location), address) for address, location in queried]
        )
        return [int(access) for _, access in answers], error

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        if not copies:
            return None
        targets, sources, sizes = zip(*copies, strict=True)
        if _BATCHED:
            pointers = [list(map(cuda.CUdeviceptr, each)) for each in (targets, sources)]
            try:
                call(cuda.cuMemcpyBatchAsync, *pointers, list(sizes), len(sizes), [batch_attributes()], [0], 1, stream)
            except DriverError as error:
                return error
            except Unavailable:  # the driver is older than the bindings
                pass
            else:
                return None
        return _each(cuda.cuMemcpyAsync, zip(targets, sources, sizes, repeat(stream)))[1]

    def init(self) -> None:
        call(cuda.cuInit, 0)

    def driver_get_version(self) -> int:
        return int(call(cuda.cuDriverGetVersion)[1])

    def device_get_count(self) -> int:
        return int(call(cuda.cuDeviceGetCount)[1])

    def device_get_name(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetName, _TEXT, device)[1])

    def device_get_uuid(self, device: int) -> bytes:
        return bytes(call(get_uuid, device)[1].bytes)

    def device_get_pci_bus_id(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetPCIBusId, _TEXT, device)[1]).lower()

    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        function = cuda.cuDeviceGetAttribute
        return int(call(function, named(cuda.CUdevice_attribute, attribute, function), device)[1])

    def device_total_mem(self, device: int) -> int:
        return int(call(cuda.cuDeviceTotalMem, device)[1])

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        return bool(call(cuda.cuDeviceCanAccessPeer, device, peer)[1])

    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        function = cuda.cuDeviceGetP2PAttribute
        return int(call(function, named(cuda.CUdevice_P2PAttribute, attribute, function), device, peer)[1])

    def device_primary_ctx_retain(self, device: int) -> int:
        return int(call(cuda.cuDevicePrimaryCtxRetain, device)[1])

    def device_primary_ctx_release(self, device: int) -> None:
        call(cuda.cuDevicePrimaryCtxRelease, device)

    def device_primary_ctx_get_state(self, device: int) -> bool:
        return bool(call(cuda.cuDevicePrimaryCtxGetState, device)[2])

    def ctx_push_current(self, context: int) -> None:
        call(cuda.cuCtxPushCurrent, context)

    def ctx_pop_current(self) -> int:
        return int(call(cuda.cuCtxPopCurrent)[1])

    def ctx_synchronize(self) -> None:
        call(cuda.cuCtxSynchronize)

    def mem_get_info(self) -> tuple[int, int]:
        _, free, total = call(cuda.cuMemGetInfo)
        return int(free), int(total)

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        option = cuda.CUmemAllocationGranularity_flags(int(recommended))
        return int(call(cuda.cuMemGetAllocationGranularity, allocation_prop(properties), option)[1])

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        return int(call(cuda.cuMemAddressReserve, size, alignment, address, flags)[1])

    def mem_address_free(self, address: int, size: int) -> None:
        call(cuda.cuMemAddressFree, address, size)

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        try:
            status, handle = cuda.cuMemCreate(size, allocation_prop(properties), flags)
        except ERRORS as error:
            raise unmade(cuda.cuMemCreate, error) from error
        if status:
            raise DriverError("cuMemCreate", status.name)
        return int(handle)

    def mem_release(self, handle: int) -> None:
        try:
            (status,) = cuda.cuMemRelease(handle)
        except ERRORS as error:
            raise unmade(cuda.cuMemRelease, error) from error
        if status:
            raise DriverError("cuMemRelease", status.name)

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        try:
            (status,) = cuda.cuMemMap(address, size, offset, handle, flags)
        except ERRORS as error:
            raise unmade(cuda.cuMemMap, error) from error
        if status:
            raise DriverError("cuMemMap", status.name)

    def mem_unmap(self, address: int, size: int) -> None:
        call(cuda.cuMemUnmap, address, size)

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        call(cuda.cuMemSetAccess, address, size, access_descriptors(grants), len(grants))

    def mem_get_access(self, address: int, location: Location) -> int:
        return int(call(cuda.cuMemGetAccess, mem_location(location), address)[1])

    def mem_retain_allocation_handle(self, address: int) -> int:
        return int(call(cuda.cuMemRetainAllocationHandle, address)[1])

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        return properties_of(call(cuda.cuMemGetAllocationPropertiesFromHandle, handle)[1])

    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        _, base, size = call(cuda.cuMemGetAddressRange, address)
        return int(base), int(size)

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        function = cuda.cuMemExportToShareableHandle
        shared = call(function, handle, named(cuda.CUmemAllocationHandleType, kind, function), flags)[1]
        return shared_bytes(shared) if kind == HandleType.FABRIC else int(shared)

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        function = cuda.cuMemImportFromShareableHandle
        numbered = named(cuda.CUmemAllocationHandleType, kind, function)
        if kind == HandleType.FABRIC:
            return int(call(function, bytearray(_sized(shared, function)), numbered)[1])  # bytes are refused (fact 48)
        if not isinstance(shared, int) or not 0 <= shared < 1 << 31:
            raise DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", "that is no file descriptor")
        return int(call(function, shared, numbered)[1])

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        kind = cuda.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return int(call(cuda.cuMemGetHandleForAddressRange, address, size, kind, int(flags))[1])

    def mem_alloc(self, size: int) -> int:
        return int(call(cuda.cuMemAlloc, size)[1])

    def mem_free(self, address: int) -> None:
        call(cuda.cuMemFree, address)

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        return int(call(cuda.cuMemHostAlloc, size, int(flags))[1])

    def mem_host_get_flags(self, address: int) -> int:
        return int(call(cuda.cuMemHostGetFlags, address)[1])

    def mem_free_host(self, address: int) -> None:
        call(cuda.cuMemFreeHost, address)

    def mem_host_register(self, address: int, size: int, flags: RegisterFlags) -> None:
        call(cuda.cuMemHostRegister, address, size, int(flags))

    def mem_host_unregister(self, address: int) -> None:
        call(cuda.cuMemHostUnregister, address)

    def mem_host_get_device_pointer(self, address: int) -> int:
        return int(call(cuda.cuMemHostGetDevicePointer, address, 0)[1])

    def ipc_get_mem_handle(self, address: int) -> bytes:
        return shared_bytes(call(cuda.cuIpcGetMemHandle, address)[1])

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        function = cuda.cuIpcOpenMemHandle
        return int(call(function, ipc_mem_handle(_sized(handle, function)), flags)[1])

    def ipc_close_mem_handle(self, address: int) -> None:
        call(cuda.cuIpcCloseMemHandle, address)

    def event_create(self, flags: EventFlags) -> int:
        return int(call(cuda.cuEventCreate, int(flags))[1])

    def event_destroy(self, event: int) -> None:
        call(cuda.cuEventDestroy, event)

    def event_record(self, event: int, stream: int = 0) -> None:
        call(cuda.cuEventRecord, event, stream)

    def event_query(self, event: int) -> bool:
        try:
            call(cuda.cuEventQuery, event)
        except DriverError as error:
            if error.name != "CUDA_ERROR_NOT_READY":
                raise
            return False
        return True

    def event_synchronize(self, event: int) -> None:
        call(cuda.cuEventSynchronize, event)

    def ipc_get_event_handle(self, event: int) -> bytes:
        return shared_bytes(call(cuda.cuIpcGetEventHandle, event)[1])

    def ipc_open_event_handle(self, handle: bytes) -> int:
        function = cuda.cuIpcOpenEventHandle
        return int(call(function, ipc_event_handle(_sized(handle, function)))[1])

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        call(cuda.cuStreamWaitEvent, stream, event, flags)

    def memset_d8(self, address: int, value: int, count: int) -> None:
        call(cuda.cuMemsetD8, address, value, count)

    def memcpy_htod(self, address: int, data: bytes) -> None:
        call(cuda.cuMemcpyHtoD, address, data, len(data))

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        data = bytearray(count)
        call(cuda.cuMemcpyDtoH, data, address, count)
        return bytes(data)

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        call(cuda.cuMemcpyAsync, destination, source, count, stream)

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return int(call(cuda.cuMemAllocManaged, size, int(flags))[1])

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        call(_advise, address, size, named(cuda.CUmem_advise, advice, _advise), mem_location(location))

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        call(_prefetch, address, size, mem_location(location), 0, stream)

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        function = cuda.cuMemRangeGetAttribute
        room = _EVERY if attribute == RangeAttribute.ACCESSED_BY else _ONE
        value = call(function, room, named(cuda.CUmem_range_attribute, attribute, function), address, size)[1]
        values = value if isinstance(value, list) else [value]
        return tuple(int(each) for each in values if each != _NOWHERE)

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        call(cuda.cuStreamAttachMemAsync, stream, address, 0, int(flags))  # 0 bytes are the whole allocation

    def pointer_is_managed(self, address: int) -> bool:
        attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
        return bool(call(cuda.cuPointerGetAttribute, attribute, address)[1])

    def host_write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def host_read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(address, count)

    def stream_create(self, flags: int = 1) -> int:
        return int(call(cuda.cuStreamCreate, flags)[1])

    def stream_destroy(self, stream: int) -> None:
        call(cuda.cuStreamDestroy, stream)

    def stream_query(self, stream: int) -> bool:
        try:
            call(cuda.cuStreamQuery, stream)
        except DriverError as error:
            if error.name != "CUDA_ERROR_NOT_READY":
                raise
            return False
        return True

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        function = cuda.cuImportExternalMemory
        described = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        described.type = named(cuda.CUexternalMemoryHandleType, kind, function)
        described.flags = _DEDICATED * dedicated
        with fitting(function):
            described.handle.fd, described.size = fd, size
        return int(call(function, described)[1])

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        function = cuda.cuExternalMemoryGetMappedBuffer
        described = cuda.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
        with fitting(function):
            described.offset, described.size = offset, size
        return int(call(function, memory, described)[1])

    def destroy_external_memory(self, memory: int) -> None:
        call(cuda.cuDestroyExternalMemory, memory)

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        function = cuda.cuImportExternalSemaphore
        described = cuda.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
        described.type = named(cuda.CUexternalSemaphoreHandleType, kind, function)
        with fitting(function):
            described.handle.fd = fd
        return int(call(function, described)[1])

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        function = cuda.cuSignalExternalSemaphoresAsync
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS()
        with fitting(function):
            parameters.params.fence.value = value
        call(function, [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream)

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        function = cuda.cuWaitExternalSemaphoresAsync
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS()
        with fitting(function):
            parameters.params.fence.value = value
        call(function, [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream)

    def destroy_external_semaphore(self, semaphore: int) -> None:
        call(cuda.cuDestroyExternalSemaphore, semaphore)


def _sized(data: object, function: Callable[..., object]) -> bytes:
    """Return a shared handle after a check, since the bindings would accept fewer bytes, or a number as a pointer."""
    if not isinstance(data, bytes) or len(data) != SHARED_BYTES:
        raise DriverError(function.__name__, "CUDA_ERROR_INVALID_VALUE", f"a shared handle has {SHARED_BYTES} bytes")
    return data


def _each(
    function: Callable[..., tuple[Any, ...]], calls: Iterable[tuple[object, ...]]
) -> tuple[list[tuple[Any, ...]], DriverError | None]:
    """Make calls until one fails; return the answers of those before, and the error."""
    answers: list[tuple[Any, ...]] = []
    try:
        for answer in starmap(function, calls):
            if answer[0]:
                return answers, DriverError(function.__name__, answer[0].name)
            answers.append(answer)
    except ERRORS as error:
        failure = unmade(function, error)
        if not isinstance(failure, DriverError):
            raise failure from error
        return answers, failure
    return answers, None


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")
