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
from memtopo.driver import types
from memtopo.driver.functions import c_name
from memtopo.driver.handles import SECRET_BYTES
from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.types import DriverError, HandleType
from memtopo.driver.wrappers import METHODS, BatchDriver, EveryCall, defaults, parameters, refusal, returned
from memtopo.drivers.cuda import bindings
from memtopo.drivers.cuda.bindings import call, filled, get_uuid, make_each, mem_location, shared_bytes
from memtopo.drivers.cuda.kernels import CudaKernels

_BYTES = frozenset(each for each in types.PoolAttribute if each >= types.PoolAttribute.RELEASE_THRESHOLD)
"""Attributes that the bindings take as objects of 64 bits, also ones that the driver does not set."""

_TEXT = 256
_ONE = 4  # bytes of an attribute
_EVERY = 4 * 64  # of the attribute that lists GPUs and the host: more than a computer has
_NOWHERE = -2
_BATCHED = cuda.CUDA_VERSION >= 13_000  # noqa: PLR2004
"""Whether the bindings have the function for batches of copies as it is since CUDA 13."""

_DEDICATED = 1  # a flag of CUDA_EXTERNAL_MEMORY_HANDLE_DESC
_NO_MULTICAST = (
    "memtopo makes no multicast calls on GPUs: they were never tried, and other users may share the switch (fact 87)"
)


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

    Here are calls that are made in another way than by their function, with its arguments as they are or `_CONVERTED`.
    """

    def function_addresses(self, symbols: Iterable[str]) -> list[int]:
        """Addresses of functions of libcuda, for code that is not Python."""
        library = ctypes.CDLL("libcuda.so.1")
        return [ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0 for symbol in symbols]

    def error_name(self, status: int) -> str:
        """Name of a status of the driver: `CUDA_ERROR_OUT_OF_MEMORY`."""
        name = call(cuda.cuGetErrorName, cuda.CUresult(status))[1]
        return str(name.decode())

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
        convert = _CONVERTED.get(method)
        given = [convert(*one) for one in arguments] if convert else arguments
        answers, error = make_each(getattr(cuda, call_name(method)), given)
        return list(map(_result(method), answers)), error

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        if not copies:
            return None
        targets, sources, sizes = zip(*copies, strict=True)
        if _BATCHED:
            pointers = [list(map(cuda.CUdeviceptr, each)) for each in (targets, sources)]
            attributes = [bindings.batch_attributes()]
            try:
                call(cuda.cuMemcpyBatchAsync, *pointers, list(sizes), len(sizes), attributes, [0], 1, stream)
            except DriverError as error:
                return error
            except Unavailable:  # the driver is older than the bindings
                pass
            else:
                return None
        return refusal(make_each(cuda.cuMemcpyAsync, zip(targets, sources, sizes, repeat(stream)))[1])

    def device_get_name(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetName, _TEXT, device)[1])

    def device_get_uuid(self, device: int) -> bytes:
        return bytes(call(get_uuid, device)[1].bytes)

    def device_get_pci_bus_id(self, device: int) -> str:
        return _text(call(cuda.cuDeviceGetPCIBusId, _TEXT, device)[1]).lower()

    def device_primary_ctx_get_state(self, device: int) -> bool:
        return bool(call(cuda.cuDevicePrimaryCtxGetState, device)[2])

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        data = bytearray(count)
        call(cuda.cuMemcpyDtoH, data, address, count)
        return bytes(data)

    def host_write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def host_read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(address, count)

    def event_query(self, event: int) -> bool:
        return _is_done(cuda.cuEventQuery, event)

    def stream_query(self, stream: int) -> bool:
        return _is_done(cuda.cuStreamQuery, stream)


def _sized(data: object) -> bytes:
    """Return a shared handle after a check, since the bindings would accept fewer bytes, or a number as a pointer."""
    if not isinstance(data, bytes) or len(data) != SECRET_BYTES:
        raise ValueError(f"a shared handle has {SECRET_BYTES} bytes")
    return data


def _imported(shared: object, kind: HandleType, *flags: int) -> tuple[object, ...]:
    numbered = cuda.CUmemAllocationHandleType(int(kind))
    if kind == HandleType.FABRIC:
        return bytearray(_sized(shared)), numbered, *flags  # bytes: fact 48
    if not isinstance(shared, int) or not 0 <= shared < 1 << 31:
        raise ValueError("not a file descriptor")
    return shared, numbered, *flags


def _exported(exported: int, kind: HandleType, flags: int = 0) -> tuple[object, ...]:
    return exported, cuda.CUmemAllocationHandleType(int(kind)), flags


def _memory(fd: int, kind: types.MemoryHandleType, size: int, *, dedicated: bool = False) -> tuple[object]:
    described = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    described.type = cuda.CUexternalMemoryHandleType(int(kind))
    described.flags = _DEDICATED * dedicated
    described.handle.fd, described.size = fd, size
    return (described,)


def _buffer(memory: int, offset: int, size: int) -> tuple[object, ...]:
    described = cuda.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    described.offset, described.size = offset, size
    return memory, described


def _semaphore(fd: int, kind: types.SemaphoreHandleType) -> tuple[object]:
    described = cuda.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
    described.type = cuda.CUexternalSemaphoreHandleType(int(kind))
    described.handle.fd = fd
    return (described,)


def _fence(parameters: Any, semaphore: int, value: int, stream: int) -> tuple[object, ...]:
    parameters.params.fence.value = value
    return [cuda.CUexternalSemaphore(semaphore)], [parameters], 1, stream


_IS_MANAGED = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
_DMA_BUF = cuda.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

_CONVERTED: Mapping[str, Callable[..., tuple[object, ...]]] = {
    "init": lambda: (0,),
    "device_get_attribute": lambda device, attribute: (cuda.CUdevice_attribute(int(attribute)), device),
    "device_get_p2p_attribute": lambda attribute, *gpus: (cuda.CUdevice_P2PAttribute(int(attribute)), *gpus),
    "mem_get_allocation_granularity": lambda properties, *, recommended=False: (
        bindings.allocation_prop(properties),
        cuda.CUmemAllocationGranularity_flags(int(recommended)),
    ),
    "mem_create": lambda size, properties, flags=0: (size, bindings.allocation_prop(properties), flags),
    "mem_map": lambda address, size, handle, offset=0, flags=0: (address, size, offset, handle, flags),
    "mem_export_to_shareable_handle": _exported,
    "mem_import_from_shareable_handle": _imported,
    "mem_set_access": lambda address, size, grants: (address, size, bindings.access_descriptors(grants), len(grants)),
    "mem_get_access": lambda address, location: (mem_location(location), address),
    "mem_get_handle_for_address_range": lambda address, size, flags=0: (address, size, _DMA_BUF, int(flags)),
    "mem_host_get_device_pointer": lambda address: (address, 0),
    "mem_pool_create": lambda properties: (bindings.pool_props(properties),),
    "mem_pool_set_attribute": lambda pool, attribute, value: (
        pool,
        cuda.CUmemPool_attribute(int(attribute)),
        cuda.cuuint64_t(value) if attribute in _BYTES else value,
    ),
    "mem_pool_get_attribute": lambda pool, attribute: (pool, cuda.CUmemPool_attribute(int(attribute))),
    "mem_pool_set_access": lambda pool, grants: (pool, bindings.access_descriptors(grants), len(grants)),
    "mem_pool_get_access": lambda pool, location: (pool, mem_location(location)),
    "mem_pool_export_to_shareable_handle": _exported,
    "mem_pool_import_from_shareable_handle": lambda shared, kind, flags=0: _imported(shared, kind, flags),
    "mem_pool_import_pointer": lambda pool, data: (pool, filled(cuda.CUmemPoolPtrExportData(), _sized(data))),
    "ipc_open_mem_handle": lambda handle, flags=1: (filled(cuda.CUipcMemHandle(), _sized(handle)), flags),
    "ipc_open_event_handle": lambda handle: (filled(cuda.CUipcEventHandle(), _sized(handle)),),
    "memcpy_htod": lambda address, data: (address, data, len(data)),
    "mem_advise": lambda address, size, advice, location: (
        address,
        size,
        cuda.CUmem_advise(int(advice)),
        mem_location(location),
    ),
    "mem_prefetch_async": lambda address, size, location, stream=0: (address, size, mem_location(location), 0, stream),
    "mem_range_get_attribute": lambda address, size, attribute: (
        _EVERY if attribute == types.RangeAttribute.ACCESSED_BY else _ONE,
        cuda.CUmem_range_attribute(int(attribute)),
        address,
        size,
    ),
    "stream_attach_mem_async": lambda stream, address, flags: (stream, address, 0, int(flags)),  # 0: all of it
    "pointer_is_managed": lambda address: (_IS_MANAGED, address),
    "import_external_memory": _memory,
    "external_memory_get_mapped_buffer": _buffer,
    "import_external_semaphore": _semaphore,
    "signal_external_semaphore": lambda *given: _fence(cuda.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS(), *given),
    "wait_external_semaphore": lambda *given: _fence(cuda.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS(), *given),
}
"""Arguments of functions that are not those of the call, in order.

An error of theirs, such as a number that does not fit, is an invalid value.
"""


def _shared(answer: tuple[Any, ...]) -> int | bytes:
    """A descriptor, or the bytes of a fabric handle."""
    return shared_bytes(answer[1]) if hasattr(answer[1], "getPtr") else int(answer[1])


def _shared_pool(answer: tuple[Any, ...]) -> int | bytes:
    shared = _shared(answer)
    if isinstance(shared, int):
        os.set_inheritable(shared, False)  # noqa: FBT003  # nor is that of a chunk (facts 44, 82)
    return shared


_RESULTS: Mapping[str, Callable[[tuple[Any, ...]], object]] = {
    "None": lambda _: None,
    "int": lambda answer: int(answer[1]),
    "bool": lambda answer: bool(answer[1]),
    "bytes": lambda answer: shared_bytes(answer[1]),
    "tuple[int, int]": lambda answer: tuple(map(int, answer[1:])),
    "tuple[int, ...]": lambda answer: tuple(
        int(each) for each in (answer[1] if isinstance(answer[1], list) else answer[1:]) if each != _NOWHERE
    ),
    "int | bytes": _shared,
    "Properties": lambda answer: bindings.properties_of(answer[1]),
    "mem_pool_export_to_shareable_handle": _shared_pool,
}
"""Result of a call by its type, or by its name, from the status and the results of the function."""


def _result(method: str) -> Callable[[tuple[Any, ...]], object]:
    return _RESULTS.get(method) or _RESULTS[returned(method)]


def _made(method: str) -> Callable[..., object]:
    """Method that gives its arguments to the function of its call."""
    # Bindings for CUDA 12 have two functions of some names; only the second takes a location.
    name = c_name(method) if hasattr(cuda, c_name(method)) else call_name(method)
    convert, names, omitted, result = _CONVERTED.get(method), parameters(method), defaults(method), _result(method)

    @wraps(getattr(Driver, method))
    def made(self: CudaDriver, *arguments: object, **named: object) -> object:
        del self
        function = getattr(cuda, name)
        if convert:
            try:
                arguments = convert(*arguments, **named)
            except (OverflowError, ValueError) as error:
                raise bindings.refused(function, error) from error
        elif len(arguments) < len(names):
            given = {**omitted, **named}
            arguments += tuple(given[name] for name in names[len(arguments) :])
        return result(call(function, *arguments))

    return made


for _method in METHODS.difference(dir(CudaDriver)):
    setattr(CudaDriver, _method, _made(_method))


def _is_done(query: Callable[..., Any], queried: int) -> bool:
    """Return false for an event or a stream whose work is outstanding."""
    try:
        call(query, queried)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_READY":
            raise
        return False
    return True


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")
