"""Calls of a program that are not methods of the driver protocol, or that point to the program's memory."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from memtopo.common.files import closing_fd
from memtopo.common.units import rounded_up
from memtopo.driver import types
from memtopo.driver.handles import SECRET_BYTES
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HandleType, Location, LocationKind, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.address_space import FIRST, HIGHEST, LOWEST, PAGE
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.process import FIRST_CONTEXT, check_capture_flags
from memtopo.testing.abi import Memory

_PAUSE = 0.0005  # seconds
_MOST_DATA = 1 << 20
"""Bytes of an attribute of a range: hundreds of thousands of GPUs."""
_PIECE = 16 << 20
"""Bytes that are copied from or to the program at a time."""
_LAST = 112 << 40
"""End of the addresses of allocations, below those that the kernel chooses for programs."""
_DMA_BUF = 1
_NOWHERE = -2
_API_VERSION = 3020
_SCHEDULING, _MAP_HOST, _FLAGS = 7, 8, 255  # CU_CTX_SCHED_MASK, CU_CTX_MAP_HOST, CU_CTX_FLAGS_MASK
_BYTES = frozenset(each for each in types.PoolAttribute if each >= types.PoolAttribute.RELEASE_THRESHOLD)
_FENCE = struct.Struct("=Q136x")  # the value in parameters of a signal or a wait


class Program(Memory, Protocol):
    """Program that makes calls: its memory, and its descriptors."""

    def check(self, address: int, count: int, *, writable: bool) -> None:
        """Refuse memory with a part that the program cannot use. Raises `OSError`."""

    def opened(self, fd: int) -> int:
        """Return a descriptor here of what a descriptor of the program is; close it. Raises `OSError`."""


class Calls:
    """Calls of one program on the simulator. Methods have the names of the C functions, in the protocol's spelling.

    A call that is not here is the driver's method. Raises `DriverError`, and `RefusedCall` for what is refused here.
    """

    def __init__(self, driver: Driver, sim: SimDriver, program: Program) -> None:
        self._driver, self._sim, self._program = driver, sim, program
        self._default_pools: dict[int, int] = {}
        self._pools: dict[int, int] = {}
        self._priorities: dict[int, tuple[int, int]] = {}
        self._peers: set[tuple[int, int]] = set()
        self._untimed: set[int] = set()
        self._recorded: dict[int, float] = {}

    # Devices and contexts.

    def device_get(self, device: int) -> int:
        """A device is its ordinal."""
        self._driver.device_total_mem(device)
        return device

    def device_get_name(self, length: int, device: int) -> bytes:
        """Name, ended by a zero, in at most `length` bytes."""
        return _text(self._driver.device_get_name(device), length)

    def device_get_pci_bus_id(self, length: int, device: int) -> bytes:
        """PCI bus id, ended by a zero, in at most `length` bytes."""
        return _text(self._driver.device_get_pci_bus_id(device), length)

    def device_get_by_pci_bus_id(self, text: int) -> int:
        """Device with a PCI bus id."""
        wanted = text_at(self._program, text).lower()
        for device in range(self._driver.device_get_count()):
            if self._driver.device_get_pci_bus_id(device).lower() == wanted:
                return device
        raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"no gpu has the bus id {wanted!r}")

    def device_compute_capability(self, device: int) -> tuple[int, int]:
        """Major and minor number."""
        found = self._sim.machine.devices[self.device_get(device)].attributes
        return found.get("COMPUTE_CAPABILITY_MAJOR", 0), found.get("COMPUTE_CAPABILITY_MINOR", 0)

    def device_primary_ctx_get_state(self, device: int) -> tuple[int, int]:
        """Flags and activity of the primary context."""
        state = int(self._driver.device_primary_ctx_get_state(device))
        return self._sim.contexts.flags.get(FIRST_CONTEXT + device, 0), state

    def device_primary_ctx_set_flags(self, flags: int, device: int) -> None:
        """Set the flags of the primary context, which have no effect; those for memory of the host are not set."""
        self.device_get(device)
        _check_flags(flags, _FLAGS & ~_MAP_HOST)
        self._sim.contexts.flags[FIRST_CONTEXT + device] = flags

    def ctx_create(self, flags: int, device: int) -> int:
        """Create a context beside the primary one, and make it current."""
        self.device_get(device)
        _check_flags(flags, _FLAGS)
        context = self._sim.ctx_create(device)
        self._sim.contexts.flags[context] = flags
        return context

    def ctx_destroy(self, context: int) -> None:
        """Destroy a context that `ctx_create` made, with what is in it."""
        refuse_if(not context, "the context is 0")
        self._sim.ctx_destroy(context)

    def ctx_get_current(self) -> int:
        """Context that is current on this thread; 0 for none."""
        return self._sim.contexts.ctx_get_current()

    def ctx_set_current(self, context: int) -> None:
        """Replace the current context of this thread; 0 removes it."""
        self._sim.contexts.ctx_set_current(context)

    def ctx_get_device(self, context: int = 0) -> int:
        """Device of the current context, or of another one, released or not."""
        contexts = self._sim.contexts
        return (contexts.get(context) if context else contexts.selected()).device

    def ctx_get_api_version(self, context: int) -> int:
        """Version of all contexts."""
        if context:
            self._device_of(context)
        else:
            self._sim.contexts.current()
        return _API_VERSION

    def ctx_get_flags(self) -> int:
        """Flags of the current context; a primary one maps memory of the host, too."""
        context = self._sim.contexts.selected()
        if not self._sim.contexts.is_live(context):
            return 0
        is_primary = context == self._sim.contexts.primary(context.device)
        return self._sim.contexts.flags.get(context.handle, 0) | (_MAP_HOST if is_primary else 0)

    def ctx_get_stream_priority_range(self) -> tuple[int, int]:
        """Least and greatest priority."""
        self._sim.contexts.current()
        return 0, -5

    def ctx_synchronize(self, context: int = 0) -> None:
        """Wait for the work of the current context, or of another one."""
        if not context:
            return self._driver.ctx_synchronize()
        self._driver.ctx_push_current(context)
        try:
            self._driver.ctx_synchronize()
        finally:
            self._driver.ctx_pop_current()

    def ctx_enable_peer_access(self, context: int, flags: int) -> None:
        """Enable access of the current device to another one's allocations; it matters to kernels alone."""
        device, peer = self._sim.contexts.current(), self._device_of(context)
        refuse_if(flags, "flags must be 0")
        if not self._driver.device_can_access_peer(device, peer):
            raise RefusedCall(
                "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", f"gpu{device} cannot access the memory of gpu{peer}"
            )
        if (device, peer) in self._peers:
            raise RefusedCall("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", f"gpu{device} has access to gpu{peer}")
        self._peers.add((device, peer))

    def ctx_disable_peer_access(self, context: int) -> None:
        """Disable it."""
        pair = self._sim.contexts.current(), self._device_of(context)
        refuse_if(pair not in self._peers, "the access was not enabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED")
        self._peers.remove(pair)

    def _device_of(self, context: int) -> int:
        found = self._sim.contexts.get(context)
        refuse_if(not self._sim.contexts.is_live(found), "the context was released", "CUDA_ERROR_INVALID_CONTEXT")
        return found.device

    # Memory.

    def mem_host_alloc(self, size: int, flags: types.HostFlags = types.HostFlags.NONE) -> int:
        """Allocate page-locked memory in whole pages, since the program maps it."""
        return self._driver.mem_host_alloc(rounded_up(size, PAGE), flags)

    mem_alloc_host = mem_host_alloc

    def mem_alloc_managed(self, size: int, flags: types.MemAttach) -> int:
        """Allocate managed memory in whole pages, since the program maps it."""
        return self._driver.mem_alloc_managed(rounded_up(size, PAGE), flags)

    def mem_host_get_device_pointer(self, address: int, flags: int) -> int:
        """Address of page-locked memory for the device."""
        self._sim.contexts.current()
        refuse_if(flags, "flags must be 0")
        return self._driver.mem_host_get_device_pointer(address)

    def mem_get_handle_for_address_range(self, address: int, size: int, type: int, flags: Any) -> int:
        """Descriptor of a dma-buf."""
        refuse_if(type != _DMA_BUF, "the handle type must be that of a dma-buf")
        return self._driver.mem_get_handle_for_address_range(address, size, flags)

    def mem_import_from_shareable_handle(self, shared: int, kind: HandleType) -> int:
        """Import a chunk by the descriptor that a pointer is, or by the bytes that it points to."""
        return self._imported(shared, kind, lambda handle: self._driver.mem_import_from_shareable_handle(handle, kind))

    def mem_pool_import_from_shareable_handle(self, shared: int, kind: HandleType, flags: int) -> int:
        """Import a pool in the same way."""
        call = self._driver.mem_pool_import_from_shareable_handle
        return self._imported(shared, kind, lambda handle: call(handle, kind, flags))

    def _imported(self, shared: int, kind: HandleType, make: Callable[[int | bytes], int]) -> int:
        if kind == HandleType.FABRIC:
            return make(self._program.read(shared, SECRET_BYTES))
        return self._with_descriptor(shared, make)

    def _with_descriptor(self, fd: int, make: Callable[[int], int]) -> int:
        closed = None
        try:
            opened = self._program.opened(fd)
        except OSError as error:  # it is refused like a descriptor of anything else (facts 27, 54, 82)
            closed = error.strerror
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        with closing_fd(opened):
            try:
                return make(opened)
            except DriverError as refused:
                reason = f"{refused.reason}: {closed.lower()}" if closed else refused.reason
                raise DriverError(refused.call, refused.name, reason) from refused

    def pointer_get_attribute(self, data: int, attribute: int, address: int) -> None:
        """Attribute of the memory at an address."""
        self._program.write(data, self._sim.pointers.attribute(attribute, address))

    def pointer_get_attributes(self, count: int, attributes: int, data: int, address: int) -> None:
        """Several attributes of the memory at an address."""
        kinds = struct.unpack(f"={count}i", self._program.read(attributes, 4 * count))
        targets = struct.unpack(f"={count}Q", self._program.read(data, 8 * count))
        for target, found in zip(targets, self._sim.pointers.attributes(list(kinds), address), strict=True):
            self._program.write(target, found)

    def mem_range_get_attribute(self, data: int, length: int, attribute: int, address: int, size: int) -> None:
        """Attribute of a managed range, as so many bytes of 32-bit numbers."""
        of, shown = _PARTS_OF_LOCATIONS.get(attribute) or (types.RangeAttribute(attribute), tuple)
        count = length // 4
        if length % 4 or not 0 < length <= _MOST_DATA or (count > 1 and of != types.RangeAttribute.ACCESSED_BY):
            raise invalid("the size of the data is not that of one number, or of several for GPUs with access")
        found = shown(self._driver.mem_range_get_attribute(address, size, of))
        self._program.write(data, struct.pack(f"={count}i", *(*found, *[_NOWHERE] * count)[:count]))

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int, flags: int = 0) -> None:
        """Prefetch a managed range."""
        refuse_if(flags, "flags must be 0")
        self._driver.mem_prefetch_async(address, size, location, stream)

    # Copies and fills. A copy from or to memory of the program that the driver does not know is made at once.

    def memcpy_htod(self, destination: int, source: int, count: int) -> None:
        self._sim.check_copy(destination, count, types.Access.RW)
        self._check_source(source, count)
        for at, size in _pieces(count):
            self._driver.memcpy_htod(destination + at, self._program.read(source + at, size))

    def memcpy_dtoh(self, destination: int, source: int, count: int) -> None:
        self._sim.check_copy(source, count, types.Access.R)
        self._check_destination(destination, count)
        for at, size in _pieces(count):
            self._program.write(destination + at, self._driver.memcpy_dtoh(source + at, size))

    def _check_source(self, address: int, count: int) -> None:
        """Refuse a copy that would fail after a piece; one piece is read whole before it is written."""
        if count > _PIECE:
            self._program.check(address, count, writable=False)

    def _check_destination(self, address: int, count: int) -> None:
        """Refuse a copy that would fail after a page; the write of a page fails whole."""
        if address % PAGE + count > PAGE:
            self._program.check(address, count, writable=True)

    def memcpy_dtod(self, destination: int, source: int, count: int) -> None:
        self._driver.memcpy_async(destination, source, count, 0)

    def memcpy(self, destination: int, source: int, count: int) -> None:
        self.memcpy_async(destination, source, count, 0)

    def memcpy_async(self, destination: int, source: int, count: int, stream: int) -> None:
        if self._is_known(destination) and self._is_known(source):
            return self._driver.memcpy_async(destination, source, count, stream)
        self.stream_synchronize(stream)
        if self._is_known(destination):
            return self.memcpy_htod(destination, source, count)
        if self._is_known(source):
            return self.memcpy_dtoh(destination, source, count)
        self._check_source(source, count)
        self._check_destination(destination, count)
        for at, size in _pieces(count):
            self._program.write(destination + at, self._program.read(source + at, size))
        return None

    memcpy_htod_async = memcpy_dtoh_async = memcpy_dtod_async = memcpy_async

    def _is_known(self, address: int) -> bool:
        """Return whether an address is one of the driver's, or of memory that is registered with it."""
        own = LOWEST <= address < HIGHEST or FIRST <= address < _LAST
        return own or self._sim.allocations.find(address) is not None

    def memset_d8_async(self, address: int, value: int, count: int, stream: int) -> None:
        self._fill(address, bytes([value]), count, stream)

    def memset_d16(self, address: int, value: int, count: int, stream: int = 0) -> None:
        self._fill(address, value.to_bytes(2, "little"), count, stream)

    def memset_d32(self, address: int, value: int, count: int, stream: int = 0) -> None:
        self._fill(address, value.to_bytes(4, "little"), count, stream)

    memset_d16_async, memset_d32_async = memset_d16, memset_d32

    def _fill(self, address: int, element: bytes, count: int, stream: int) -> None:
        self.stream_synchronize(stream)
        self._sim.memset(address, element, count)

    # Pools.

    def init(self, flags: int = 0) -> None:
        """Allow all other calls. Default pools are the first ones, so that their handles are the same each time."""
        refuse_if(flags, "flags must be 0")
        self._driver.init()
        for device in range(self._driver.device_get_count() if not self._default_pools else 0):
            with suppress(DriverError):  # it has no pools
                self._default_pools[device] = self._sim.mem_pool_create(types.PoolProperties(gpu(device)))

    def device_get_default_mem_pool(self, device: int) -> int:
        """Pool that the device has from the beginning."""
        self.device_get(device)
        refuse_if(device not in self._default_pools, f"gpu{device} has no memory pools", "CUDA_ERROR_NOT_SUPPORTED")
        return self._default_pools[device]

    def device_get_mem_pool(self, device: int) -> int:
        """Pool of `mem_alloc_async` on a device."""
        self._check_pool_device(device)
        return self._pools.get(device) or self.device_get_default_mem_pool(device)

    def device_set_mem_pool(self, device: int, pool: int) -> None:
        """Change it."""
        self._check_pool_device(device)
        self._driver.mem_pool_get_access(pool, gpu(device))
        self._pools[device] = pool

    def _check_pool_device(self, device: int) -> None:
        refuse_if(not 0 <= device < self._driver.device_get_count(), f"gpu{device} does not exist")

    def mem_alloc_async(self, size: int, stream: int) -> int:
        """Allocate memory of the pool of the current device."""
        return self._driver.mem_alloc_from_pool_async(
            size, self.device_get_mem_pool(self._sim.contexts.current()), stream
        )

    def mem_pool_destroy(self, pool: int) -> None:
        refuse_if(pool in self._default_pools.values(), "the default pool of a device cannot be destroyed")
        self._driver.mem_pool_destroy(pool)
        self._pools = {device: each for device, each in self._pools.items() if each != pool}

    def mem_pool_set_attribute(self, pool: int, attribute: types.PoolAttribute, value: int) -> None:
        data = self._program.read(value, 8 if attribute in _BYTES else 4)
        self._driver.mem_pool_set_attribute(pool, attribute, int.from_bytes(data, "little"))

    def mem_pool_get_attribute(self, pool: int, attribute: types.PoolAttribute) -> bytes:
        found = self._driver.mem_pool_get_attribute(pool, attribute)
        return found.to_bytes(8 if attribute in _BYTES else 4, "little")

    # Streams and events. Work is done at once, but what waits for an external semaphore.

    def stream_create(self, flags: int, priority: int = 0) -> int:
        """Create a stream; one that waits for stream 0 is made as one that does not."""
        refuse_if(flags not in {0, 1}, "the flags are not a stream's")
        stream = self._driver.stream_create(1)
        self._priorities[stream] = flags, max(-5, min(0, priority))
        return stream

    stream_create_with_priority = stream_create

    def stream_get_priority(self, stream: int) -> int:
        self._sim.streams.get(stream)
        return self._priorities.get(stream, (0, 0))[1]

    def stream_get_flags(self, stream: int) -> int:
        self._sim.streams.get(stream)
        return self._priorities.get(stream, (0, 0))[0]

    def stream_get_ctx(self, stream: int) -> int:
        return self._sim.streams.get(stream).context.handle

    def stream_get_device(self, stream: int) -> int:
        return self._sim.streams.get(stream).context.device

    def stream_is_capturing(self, stream: int) -> int:
        """Return that the stream is not captured: graphs are not simulated."""
        self._sim.streams.get(stream)
        return 0

    def stream_query(self, stream: int) -> None:
        refuse_if(not self._driver.stream_query(stream), "work of the stream is outstanding", "CUDA_ERROR_NOT_READY")

    def stream_synchronize(self, stream: int) -> None:
        while not self._driver.stream_query(stream):
            time.sleep(_PAUSE)

    def event_query(self, event: int) -> None:
        refuse_if(not self._driver.event_query(event), "the event has not completed", "CUDA_ERROR_NOT_READY")

    def event_record(self, event: int, stream: int) -> None:
        self._driver.event_record(event, stream)
        self._recorded[event] = time.monotonic()

    def event_record_with_flags(self, event: int, stream: int, flags: int) -> None:
        check_capture_flags(flags)
        self.event_record(event, stream)

    def event_create(self, flags: types.EventFlags) -> int:
        event = self._driver.event_create(flags)
        if flags & types.EventFlags.DISABLE_TIMING:
            self._untimed.add(event)
        return event

    def event_elapsed_time(self, start: int, end: int) -> float:
        """Milliseconds between the calls that recorded two events."""
        for event in (start, end):
            self.event_query(event)
            if event in self._untimed or event not in self._recorded:
                raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "an event has no timing, or was not recorded")
        return 1000 * (self._recorded[end] - self._recorded[start])

    # Multicast objects and external memory.

    def multicast_get_granularity(self, **given: object) -> int:
        del given
        raise unsupported("the granularity of multicast objects was never measured")

    def import_external_memory(self, fd: int, kind: types.MemoryHandleType, size: int, *, dedicated: bool) -> int:
        call = self._driver.import_external_memory
        # Descriptors of unknown memory are closed, but those of wrong arguments are not (fact 54).
        return self._given(fd, lambda own: call(own, kind, size, dedicated=dedicated), closing="CUDA_ERROR_UNKNOWN")

    def import_external_semaphore(self, fd: int, kind: types.SemaphoreHandleType) -> int:
        return self._given(fd, lambda own: self._driver.import_external_semaphore(own, kind))

    def _given(self, fd: int, make: Callable[[int], int], closing: str = "") -> int:
        """Import by a descriptor that the driver closes, unless it refuses it by another error than `closing`."""

        def given(opened: int) -> int:
            own = os.dup(opened)
            try:
                return make(own)
            except DriverError as error:
                if error.name != closing:
                    os.close(own)
                raise

        return self._with_descriptor(fd, given)

    def signal_external_semaphores_async(self, semaphores: int, described: int, count: int, stream: int) -> None:
        for semaphore, value in self._fences(semaphores, described, count, stream):
            self._driver.signal_external_semaphore(semaphore, value, stream)

    def wait_external_semaphores_async(self, semaphores: int, described: int, count: int, stream: int) -> None:
        for semaphore, value in self._fences(semaphores, described, count, stream):
            self._driver.wait_external_semaphore(semaphore, value, stream)

    def _fences(self, semaphores: int, described: int, count: int, stream: int) -> list[tuple[int, int]]:
        """Semaphores and values, all of which a stream may signal or wait for."""
        numbers = struct.unpack(f"={count}Q", self._program.read(semaphores, 8 * count))
        data = self._program.read(described, _FENCE.size * count)
        found = [(number, value) for number, (value,) in zip(numbers, _FENCE.iter_unpack(data), strict=True)]
        for number, value in found:
            self._sim.semaphores.usable(number, value, self._sim.streams.get(stream))
        return found


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece of a copy."""
    for at in range(0, count, _PIECE):
        yield at, min(_PIECE, count - at)


def _kind_of(processors: tuple[int, ...]) -> tuple[int, ...]:
    """Type of the location that processors are."""
    return tuple(LocationKind.HOST if each == types.HOST else LocationKind.GPU for each in processors) or (0,)


_PARTS_OF_LOCATIONS: Mapping[int, tuple[types.RangeAttribute, Callable[[tuple[int, ...]], tuple[int, ...]]]] = {
    5: (types.RangeAttribute.PREFERRED_LOCATION, _kind_of), 6: (types.RangeAttribute.PREFERRED_LOCATION, tuple),
    7: (types.RangeAttribute.LAST_PREFETCH_LOCATION, _kind_of), 8: (types.RangeAttribute.LAST_PREFETCH_LOCATION, tuple),
}  # fmt: skip
"""Attributes of managed ranges that are the type or the number of a location, which is another attribute."""


def _check_flags(flags: int, known: int) -> None:
    """Refuse flags of a context that are not known, or several of scheduling."""
    if flags & ~known or flags & _SCHEDULING not in {0, 1, 2, 4}:
        raise invalid("the flags are not a context's, or there are several of scheduling")


def _text(text: str, length: int) -> bytes:
    refuse_if(length <= 0, "there is no room for the text")
    return text.encode()[: length - 1] + b"\0"


def text_at(memory: Memory, address: int, most: int = 256) -> str:
    """Return the text, ended by a zero, at an address; of a longer one than `most` bytes these."""
    found = b""
    while not found.endswith(b"\0") and len(found) < most:
        found += memory.read(address + len(found), 1)
    return found.rstrip(b"\0").decode(errors="replace")


METHODS = frozenset(name for name in dir(Calls) if not name.startswith("_"))
"""Calls that are answered here."""
