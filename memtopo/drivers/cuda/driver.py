"""`memtopo.driver.protocol.Driver` by `cuda.bindings.driver`: one method, one driver call.

The bindings take plain ints for addresses, handles, contexts and devices, and return objects.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import repeat
from typing import Any, NoReturn

from cuda.bindings import driver as cuda

from memtopo.common.errors import Unavailable
from memtopo.driver.batches import BatchDriver
from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.types import (
    Advice,
    Attribute,
    DmaBufFlags,
    DriverError,
    Grant,
    HandleType,
    Location,
    MemAttach,
    MemoryHandleType,
    PeerAttribute,
    PoolAttribute,
    PoolProperties,
    Properties,
    RangeAttribute,
    SemaphoreHandleType,
)
from memtopo.driver.wrappers import METHODS, EveryCall, defaults, parameters
from memtopo.drivers.cuda.bindings import (
    access_descriptors,
    allocation_prop,
    batch_attributes,
    call,
    exported,
    fitting,
    get_uuid,
    imported,
    ipc_event_handle,
    ipc_mem_handle,
    make_each,
    mem_location,
    named,
    pool_pointer,
    pool_props,
    properties_of,
    shared_bytes,
    sized,
)
from memtopo.drivers.cuda.kernels import CudaKernels

_BYTES = frozenset(each for each in PoolAttribute if each >= PoolAttribute.RELEASE_THRESHOLD)
"""Attributes that the bindings take as objects of 64 bits, also those that the driver does not set."""

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
_NO_MULTICAST = "memtopo makes no multicast call on GPUs: it was never tried, and others may share the switch (fact 87)"


def _refused(method: str) -> Callable[..., NoReturn]:
    @wraps(getattr(Driver, method))
    def refused(*arguments: object, **named: object) -> NoReturn:
        del arguments, named
        raise DriverError(call_name(method), "CUDA_ERROR_NOT_SUPPORTED", _NO_MULTICAST)

    return refused


class RefusedMulticast:
    """Multicast calls of the protocol. Each raises `DriverError` without a call of the driver.

    A team of GPUs takes a slot of a switch that others may share (fact 87). Nothing in this package names a multicast
    function of the driver. No trial and no option changes that.
    """


for _method in METHODS:
    if _method.startswith("multicast"):
        setattr(RefusedMulticast, _method, _refused(_method))


class CudaDriver(RefusedMulticast, CudaKernels, BatchDriver, EveryCall):
    """The CUDA driver. Its only state is the loaded kernels.

    A call of `_PLAIN` is made from its function; here are those whose parameters or results differ.
    """

    def function_addresses(self, symbols: Iterable[str]) -> list[int]:
        """Addresses of functions of libcuda, for code that is not Python."""
        library = ctypes.CDLL("libcuda.so.1")
        return [ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0 for symbol in symbols]

    def error_name(self, status: int) -> str:
        """Name of a status of the driver: `CUDA_ERROR_OUT_OF_MEMORY`."""
        name = call(cuda.cuGetErrorName, cuda.CUresult(status))[1]
        return str(name.decode())

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], DriverError | None]:
        given = _GIVEN[method](arguments) if method in _GIVEN else arguments
        answers, error = make_each(getattr(cuda, call_name(method)), given)
        return list(map(_result(method), answers)), error

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
        return make_each(cuda.cuMemcpyAsync, zip(targets, sources, sizes, repeat(stream)))[1]

    def init(self) -> None:
        call(cuda.cuInit, 0)

    def device_get_name(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetName, _TEXT, device)[1])

    def device_get_uuid(self, device: int) -> bytes:
        return bytes(call(get_uuid, device)[1].bytes)

    def device_get_pci_bus_id(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetPCIBusId, _TEXT, device)[1]).lower()

    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        function = cuda.cuDeviceGetAttribute
        return int(call(function, named(cuda.CUdevice_attribute, attribute, function), device)[1])

    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        function = cuda.cuDeviceGetP2PAttribute
        return int(call(function, named(cuda.CUdevice_P2PAttribute, attribute, function), device, peer)[1])

    def device_primary_ctx_get_state(self, device: int) -> bool:
        return bool(call(cuda.cuDevicePrimaryCtxGetState, device)[2])

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        option = cuda.CUmemAllocationGranularity_flags(int(recommended))
        return int(call(cuda.cuMemGetAllocationGranularity, allocation_prop(properties), option)[1])

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return int(call(cuda.cuMemCreate, size, allocation_prop(properties), flags)[1])

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        call(cuda.cuMemMap, address, size, offset, handle, flags)

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        return exported(cuda.cuMemExportToShareableHandle, handle, kind, flags)

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        return imported(cuda.cuMemImportFromShareableHandle, shared, kind)

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType, flags: int = 0) -> int | bytes:
        shared = exported(cuda.cuMemPoolExportToShareableHandle, pool, kind, flags)
        if isinstance(shared, int):
            os.set_inheritable(shared, False)  # noqa: FBT003  # nor is that of a chunk (facts 44, 82)
        return shared

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType, flags: int = 0) -> int:
        return imported(cuda.cuMemPoolImportFromShareableHandle, shared, kind, flags)

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        call(cuda.cuMemSetAccess, address, size, access_descriptors(grants), len(grants))

    def mem_get_access(self, address: int, location: Location) -> int:
        return int(call(cuda.cuMemGetAccess, mem_location(location), address)[1])

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        kind = cuda.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return int(call(cuda.cuMemGetHandleForAddressRange, address, size, kind, int(flags))[1])

    def mem_host_get_device_pointer(self, address: int) -> int:
        return int(call(cuda.cuMemHostGetDevicePointer, address, 0)[1])

    def mem_pool_create(self, properties: PoolProperties) -> int:
        with fitting(cuda.cuMemPoolCreate):
            props = pool_props(properties)
        return int(call(cuda.cuMemPoolCreate, props)[1])

    def mem_pool_set_attribute(self, pool: int, attribute: PoolAttribute, value: int) -> None:
        function = cuda.cuMemPoolSetAttribute
        with fitting(function):
            given = cuda.cuuint64_t(value) if attribute in _BYTES else value
        call(function, pool, named(cuda.CUmemPool_attribute, attribute, function), given)

    def mem_pool_get_attribute(self, pool: int, attribute: PoolAttribute) -> int:
        function = cuda.cuMemPoolGetAttribute
        return int(call(function, pool, named(cuda.CUmemPool_attribute, attribute, function))[1])

    def mem_pool_set_access(self, pool: int, grants: tuple[Grant, ...]) -> None:
        call(cuda.cuMemPoolSetAccess, pool, access_descriptors(grants), len(grants))

    def mem_pool_get_access(self, pool: int, location: Location) -> int:
        return int(call(cuda.cuMemPoolGetAccess, pool, mem_location(location))[1])

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        function = cuda.cuMemPoolImportPointer
        return int(call(function, pool, pool_pointer(sized(data, function)))[1])

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        function = cuda.cuIpcOpenMemHandle
        return int(call(function, ipc_mem_handle(sized(handle, function)), flags)[1])

    def ipc_open_event_handle(self, handle: bytes) -> int:
        function = cuda.cuIpcOpenEventHandle
        return int(call(function, ipc_event_handle(sized(handle, function)))[1])

    def memcpy_htod(self, address: int, data: bytes) -> None:
        call(cuda.cuMemcpyHtoD, address, data, len(data))

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        data = bytearray(count)
        call(cuda.cuMemcpyDtoH, data, address, count)
        return bytes(data)

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

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        function = cuda.cuImportExternalSemaphore
        described = cuda.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
        described.type = named(cuda.CUexternalSemaphoreHandleType, kind, function)
        with fitting(function):
            described.handle.fd = fd
        return int(call(function, described)[1])

    def event_query(self, event: int) -> bool:
        return _is_done(cuda.cuEventQuery, event)

    def stream_query(self, stream: int) -> bool:
        return _is_done(cuda.cuStreamQuery, stream)

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS()
        _use_semaphore(cuda.cuSignalExternalSemaphoresAsync, parameters, semaphore, value, stream)

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        parameters = cuda.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS()
        _use_semaphore(cuda.cuWaitExternalSemaphoresAsync, parameters, semaphore, value, stream)


_PLAIN = (
    "driver_get_version", "device_get_count", "device_total_mem", "device_can_access_peer",
    "device_primary_ctx_retain", "device_primary_ctx_release",
    "ctx_push_current", "ctx_pop_current", "ctx_synchronize",
    "mem_get_info", "mem_address_reserve", "mem_address_free", "mem_release", "mem_unmap",
    "mem_retain_allocation_handle", "mem_get_allocation_properties_from_handle",
    "mem_get_address_range", "mem_alloc", "mem_free", "mem_alloc_managed",
    "mem_host_alloc", "mem_host_get_flags", "mem_free_host", "mem_host_register", "mem_host_unregister",
    "memset_d8", "memcpy_async",
    "mem_pool_destroy", "mem_alloc_from_pool_async", "mem_free_async", "mem_pool_trim_to", "mem_pool_export_pointer",
    "ipc_get_mem_handle", "ipc_close_mem_handle", "event_create", "event_destroy", "event_record",
    "event_synchronize", "ipc_get_event_handle", "stream_wait_event", "stream_create", "stream_destroy",
    "destroy_external_memory", "destroy_external_semaphore",
)  # fmt: skip
"""Calls whose parameters are those of the function, in order; the type of the result is the protocol's."""

_RESULTS: Mapping[str, Callable[[tuple[Any, ...]], object]] = {
    "None": lambda _: None,
    "int": lambda answer: int(answer[1]),
    "bool": lambda answer: bool(answer[1]),
    "bytes": lambda answer: shared_bytes(answer[1]),
    "tuple[int, int]": lambda answer: tuple(map(int, answer[1:])),
    "Properties": lambda answer: properties_of(answer[1]),
}
"""Result of a call by its type, from the status and the results of the function."""


def _result(method: str) -> Callable[[tuple[Any, ...]], object]:
    return _RESULTS[getattr(Driver, method).__annotations__["return"]]


def _creations(arguments: Sequence[tuple[int, Properties]]) -> list[tuple[object, ...]]:
    """Arguments of the function for chunks, most of which have the same properties: to hash them takes long."""
    distinct = {id(properties): properties for _, properties in arguments}
    props = {number: allocation_prop(properties) for number, properties in distinct.items()}
    return [(size, props[id(properties)], 0) for size, properties in arguments]


_GIVEN: Mapping[str, Callable[[Sequence[tuple[Any, ...]]], Sequence[tuple[object, ...]]]] = {
    "mem_create": _creations,
    "mem_map": lambda every: [(address, size, 0, handle, 0) for address, size, handle in every],
    "mem_get_access": lambda every: [(mem_location(location), address) for address, location in every],
}
"""Arguments of the functions of `each`, where they are not those of the calls."""


def _plain(method: str) -> Callable[..., object]:
    """Method that gives its arguments to the function of its call."""
    function, names, omitted = call_name(method), parameters(method), defaults(method)
    result = _result(method)

    @wraps(getattr(Driver, method))
    def made(self: CudaDriver, *arguments: object, **named: object) -> object:
        del self
        if len(arguments) < len(names):
            given = {**omitted, **named}
            arguments += tuple(given[name] for name in names[len(arguments) :])
        return result(call(getattr(cuda, function), *arguments))

    return made


for _method in _PLAIN:
    setattr(CudaDriver, _method, _plain(_method))


def _is_done(query: Callable[..., Any], queried: int) -> bool:
    """Return false for an event or a stream whose work is outstanding."""
    try:
        call(query, queried)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_READY":
            raise
        return False
    return True


def _use_semaphore(function: Callable[..., Any], parameters: Any, semaphore: int, value: int, stream: int) -> None:
    with fitting(function):
        parameters.params.fence.value = value
    call(function, [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream)


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")
