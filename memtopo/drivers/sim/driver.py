"""The simulated driver: driver calls for devices, contexts and memory, and the parts with their rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Self

from memtopo.driver import batches
from memtopo.driver.batches import BatchDriver
from memtopo.driver.protocol import call_name
from memtopo.driver.types import (
    Attribute,
    DmaBufFlags,
    DriverError,
    Grant,
    HandleType,
    Location,
    PeerAttribute,
    Properties,
    gpu,
)
from memtopo.drivers.sim.access import AccessRules, MemoryOperations
from memtopo.drivers.sim.address_space import AllocationBlocks, Reservations
from memtopo.drivers.sim.allocations import Allocations
from memtopo.drivers.sim.calls import CallGate, Refused, driver_call, driver_calls, invalid
from memtopo.drivers.sim.chunks import Chunks, Creation, Mappings
from memtopo.drivers.sim.devices import Contexts, Devices, MemoryBudget
from memtopo.drivers.sim.dmabuf import DmaBufs
from memtopo.drivers.sim.events import EventCalls, Events, Stream, Streams
from memtopo.drivers.sim.external import ExternalCalls, ExternalMemory
from memtopo.drivers.sim.ipc import AllocationSharing, ChunkSharing, check_flags
from memtopo.drivers.sim.kernels import KernelCalls, SimKernels
from memtopo.drivers.sim.managed import ManagedCalls, ManagedMemory
from memtopo.drivers.sim.multicast import Broadcast, Multicast, MulticastCalls
from memtopo.drivers.sim.physical import Arena
from memtopo.drivers.sim.pinned import PinnedCalls, PinnedMemory
from memtopo.drivers.sim.pool_sharing import PoolSharing, PoolSharingCalls
from memtopo.drivers.sim.pools import PoolCalls, Pools
from memtopo.drivers.sim.semaphores import Semaphores
from memtopo.drivers.sim.shared_files import Files
from memtopo.machine import Machine


class CopyCalls(CallGate):
    """Copies, of which those in a stream are done at once unless work is outstanding before them."""

    _contexts: Contexts
    _contents: MemoryOperations
    _pools: Pools
    _streams: Streams

    @driver_call
    def memcpy_htod(self, address: int, data: bytes) -> None:
        device = self._contexts.current()
        self._pools.check_copy(address)
        self._contents.write(device, address, data)

    @driver_call
    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        device = self._contexts.current()
        self._pools.check_copy(address)
        return self._contents.read(device, address, count)

    @driver_call
    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        found = self._copying(stream)
        self._streams.add(found, self._contents.copy(self._device(found), destination, source, count))

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as `memcpy_async` does; many small spans between host memory and chunks in one pass."""
        if type(self).memcpy_async is CopyCalls.memcpy_async and self._copied(copies, stream):
            return None
        return batches.answers(self.memcpy_async, [(*each, stream) for each in copies])[1]

    def _copied(self, copies: Sequence[tuple[int, int, int]], stream: int) -> bool:
        """Make copies together; return false, with none made, where the single calls have to find what is refused."""
        with self.lock:
            if not copies or self.blocked or self.fatal_error():
                return False
            try:
                found = self._copying(stream)
                return not found.work and self._contents.transfer(self._device(found), copies)
            except (Refused, OSError):
                return False

    def _copying(self, stream: int) -> Stream:
        return self._streams.get(stream, None if stream else self._contexts.current())

    def _device(self, stream: Stream) -> int:
        return self._contexts.current() if self._contexts.any_current() else stream.device


class SimDriver(
    KernelCalls,
    CopyCalls,
    ManagedCalls,
    PinnedCalls,
    ExternalCalls,
    EventCalls,
    MulticastCalls,
    PoolCalls,
    PoolSharingCalls,
    BatchDriver,
):
    """A driver without a GPU: a recorded machine, every rule of `docs/driver-facts.md`, and memory that holds bytes.

    Errors have the driver's names and the reason in addition. Close it to free its memory.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self._closed: tuple[str, str] | None = None
        self._files = Files()
        self._arena = Arena(self._files)
        self._budget = MemoryBudget(machine)
        self._devices = Devices(machine)
        self._contexts = Contexts(self._budget)
        self._creation = Creation(machine)
        self._addresses = Reservations(self._creation.address_granule())
        self._chunks = Chunks(self._creation, self._budget, self._arena)
        self._mappings = Mappings(self._addresses, self._chunks)
        blocks = AllocationBlocks(self._budget)
        self._allocations = Allocations(blocks, self._arena, len(machine.devices))
        self._access = AccessRules(machine, self._mappings, self._allocations)
        self._contents = MemoryOperations(self._access)
        self._kernels = SimKernels(self._access, self._creation.address_granule())
        self._multicast = Multicast(machine, self._devices, self._creation, self._chunks, self._mappings, self._files)
        self._sharing = ChunkSharing(
            self._devices, self._creation, self._chunks, self._arena, self._files, self._multicast.adopt
        )
        self._memory_handles = AllocationSharing(self._devices, self._allocations, self._arena, self._files)
        self._dma_bufs = DmaBufs(
            machine, self._mappings, self._allocations, self._sharing, self._memory_handles, self._arena
        )
        self._streams = Streams()
        self._events = Events(self._devices, self._streams, self._files)
        self._managed = ManagedMemory(machine, self._allocations)
        self._pinned = PinnedMemory(self._allocations)
        self._pools = Pools(machine, self._devices, self._budget, blocks, self._allocations, self._arena, self._files)
        self._pool_sharing = PoolSharing(machine, self._devices, self._pools, self._files)
        self._external = ExternalMemory(self._devices, self._allocations, self._files)
        self._semaphores = Semaphores(self._streams, self._files)

    def close(self) -> None:
        """Return all memory to the system; every later call is refused. A second call does nothing."""
        self.blocked = self._closed = ("CUDA_ERROR_DEINITIALIZED", "the driver is closed")
        self._arena.close()
        self._files.close_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        """Descriptor of the memory at an address, and offset in its file of the mapping or allocation around it.

        For mapping the memory into the process; a real driver has no such call. Raises `DriverError`.
        """
        with self.lock:
            found = self._mappings.find(address) or self._allocations.find(address)
            if found is None or isinstance(found.physical, Broadcast):
                raise DriverError("lend", "CUDA_ERROR_INVALID_VALUE", "no memory is mapped or allocated there")
            found.physical.touched |= writable  # so that its pages are copied when it moves, and freed
            return found.physical.fd, found.physical.offset

    def resident_bytes(self) -> int:
        """Bytes of the system's memory behind the simulated memory; untouched memory does not count."""
        return self._arena.resident() + self._files.resident()

    def parts(self) -> tuple[Contexts, MemoryOperations]:
        """Contexts and memory operations, which trials use beside the driver calls."""
        return self._contexts, self._contents

    def init(self) -> None:
        """Allow all other calls."""
        if self._closed:
            raise DriverError(call_name("init"), *self._closed)
        self.blocked = None

    @driver_call
    def driver_get_version(self) -> int:
        return self._devices.version()

    @driver_call
    def device_get_count(self) -> int:
        return self._devices.count()

    @driver_call
    def device_get_name(self, device: int) -> str:
        return self._devices.get(device).name

    @driver_call
    def device_get_uuid(self, device: int) -> bytes:
        return self._devices.uuid(device)

    @driver_call
    def device_get_pci_bus_id(self, device: int) -> str:
        return self._devices.bus_id(device)

    @driver_call
    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        return self._devices.attribute(device, attribute)

    @driver_call
    def device_total_mem(self, device: int) -> int:
        return self._devices.get(device).memory_bytes

    @driver_call
    def device_can_access_peer(self, device: int, peer: int) -> bool:
        return self._devices.can_access_peer(device, peer)

    @driver_call
    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        return self._devices.peer_attribute(attribute, device, peer)

    @driver_call
    def device_primary_ctx_retain(self, device: int) -> int:
        self._devices.get(device)
        return self._contexts.retain(device)

    @driver_call
    def device_primary_ctx_release(self, device: int) -> None:
        self._devices.get(device)
        if self._contexts.is_last(device):
            self._streams.check_done()  # waits of other GPUs delay it too
        self._contexts.release(device)
        if not self._contexts.active(device):
            for parts in (self._kernels, self._allocations, self._events, self._external, self._semaphores):
                parts.drop(device)
            self._streams.drop(device)

    @driver_call
    def device_primary_ctx_get_state(self, device: int) -> bool:
        self._devices.get(device)
        return self._contexts.active(device)

    @driver_call
    def ctx_push_current(self, context: int) -> None:
        self._contexts.push(context)

    @driver_call
    def ctx_pop_current(self) -> int:
        return self._contexts.pop()

    @driver_call
    def ctx_synchronize(self) -> None:
        self._streams.check_done(self._contexts.current())
        self._pools.release()

    @driver_call
    def mem_get_info(self) -> tuple[int, int]:
        location = gpu(self._contexts.current())
        return self._budget.free(location), self._budget.total(location)

    @driver_call
    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        return self._creation.granularity(properties, recommended=recommended)

    @driver_call
    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        return self._addresses.reserve(size, alignment, address, flags)

    @driver_call
    def mem_address_free(self, address: int, size: int) -> None:
        self._addresses.check_whole(address, size)
        if self._mappings.any_in(address, size):
            raise invalid("something is mapped inside")
        self._addresses.free(address, size)

    @driver_call
    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return self._chunks.create(size, properties, flags)

    @driver_call
    def mem_release(self, handle: int) -> None:
        self._chunks.release(handle)

    @driver_call
    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        self._mappings.map(address, size, handle, offset, flags)

    @driver_call
    def mem_unmap(self, address: int, size: int) -> None:
        self._mappings.unmap(address, size)

    @driver_call
    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._access.grant(address, size, grants)

    @driver_call
    def mem_get_access(self, address: int, location: Location) -> int:
        return self._access.granted(address, location)

    @driver_call
    def mem_retain_allocation_handle(self, address: int) -> int:
        return self._chunks.retain(self._mappings.around(address).chunk)

    @driver_call
    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        return self._access.address_range(address, self._contexts.current())

    @driver_call
    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        return self._sharing.export(handle, kind, flags)

    @driver_call
    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        return self._sharing.take(shared, kind)

    @driver_call
    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        self._dma_bufs.check(address, size, flags)
        self._contexts.current()
        return self._dma_bufs.export(address, size, flags)

    @driver_call
    def mem_alloc(self, size: int) -> int:
        return self._allocations.take(self._contexts.current(), size)

    @driver_call
    def mem_free(self, address: int) -> None:
        found = self._allocations.find(address)
        if found and found.kind == "pooled":
            self._pools.free(address)
            return
        self._streams.check_done(None if found is None or found.kind == "managed" else found.device)
        self._allocations.free(address)

    @driver_call
    def ipc_get_mem_handle(self, address: int) -> bytes:
        self._contexts.current()
        return self._memory_handles.get(address)

    @driver_call
    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        check_flags(flags)
        return self._memory_handles.open(handle, self._contexts.current())

    @driver_call
    def ipc_close_mem_handle(self, address: int) -> None:
        self._contexts.current()
        self._memory_handles.close(address)

    @driver_call
    def memset_d8(self, address: int, value: int, count: int) -> None:
        self._contents.fill(self._contexts.current(), address, value, count)

    _create_each = driver_calls(mem_create)
    _map_each = driver_calls(mem_map)
    _release_each = driver_calls(mem_release)
    _properties_each = driver_calls(MulticastCalls.mem_get_allocation_properties_from_handle)
    _access_each = driver_calls(mem_get_access)

    def create_each(self, size: int, properties: Sequence[Properties]) -> tuple[list[int], DriverError | None]:
        return self._create_each(zip(repeat(size), properties))

    def map_each(self, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, DriverError | None]:
        made, error = self._map_each(mappings)
        return len(made), error

    def release_each(self, handles: Sequence[int]) -> tuple[int, DriverError | None]:
        released, error = self._release_each(zip(handles))
        return len(released), error

    def properties_each(self, handles: Sequence[int]) -> tuple[list[Properties], DriverError | None]:
        return self._properties_each(zip(handles))

    def access_each(self, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], DriverError | None]:
        return self._access_each(queried)
