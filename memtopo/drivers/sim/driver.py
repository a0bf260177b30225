"""The simulated driver: its parts, each of which has calls with their rules, and the calls that need several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Self

from memtopo.driver import batches
from memtopo.driver.batches import BatchDriver
from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError, Location, Properties
from memtopo.drivers.sim.access import AccessRules, MemoryOperations
from memtopo.drivers.sim.address_space import AllocationBlocks, Reservations
from memtopo.drivers.sim.allocations import SimAllocations
from memtopo.drivers.sim.calls import CallGate, RefusedCall, driver_call, with_calls_of
from memtopo.drivers.sim.chunks import Creation, SimChunks, SimMappings
from memtopo.drivers.sim.devices import Contexts, SimDevices, SimMemoryBudget
from memtopo.drivers.sim.events import SimEvents, Streams
from memtopo.drivers.sim.external import SimImportedMemory, SimSemaphores
from memtopo.drivers.sim.host_memory import SimManagedMemory, SimPinnedMemory
from memtopo.drivers.sim.kernels import ILLEGAL, SimKernels
from memtopo.drivers.sim.multicast import Broadcast, SimMulticast
from memtopo.drivers.sim.physical import Arena
from memtopo.drivers.sim.shared_files import Files
from memtopo.drivers.sim.sharing import AllocationSharing, ChunkSharing, SharedPools, SimDmaBufs
from memtopo.machine import Machine

if TYPE_CHECKING:

    class _Calls(  # type: ignore[misc]
        SimDevices, Contexts, Creation, Reservations, SimChunks, SimMappings, SimAllocations, AccessRules,
        MemoryOperations, SimKernels, SimMulticast, ChunkSharing, AllocationSharing, SimDmaBufs, Streams, SimEvents,
        SimManagedMemory, SimPinnedMemory, SharedPools, SimImportedMemory, SimSemaphores
    ):  # fmt: skip
        """Every call with its type."""
else:

    class _Calls:
        """Base of the simulator: at run time `with_calls_of` adds the calls."""


@with_calls_of(
    _devices=SimDevices,
    _contexts=Contexts,
    _creation=Creation,
    _addresses=Reservations,
    _chunks=SimChunks,
    _mappings=SimMappings,
    _allocations=SimAllocations,
    _access=AccessRules,
    _contents=MemoryOperations,
    _kernels=SimKernels,
    _multicast=SimMulticast,
    _sharing=ChunkSharing,
    _memory_handles=AllocationSharing,
    _dma_bufs=SimDmaBufs,
    _streams=Streams,
    _events=SimEvents,
    _managed=SimManagedMemory,
    _pinned=SimPinnedMemory,
    _pools=SharedPools,
    _external=SimImportedMemory,
    _semaphores=SimSemaphores,
)
class SimDriver(CallGate, BatchDriver, _Calls):  # type: ignore[misc]  # parts have private names of their own
    """A driver without a GPU: a recorded machine, every rule of `docs/driver-facts.md`, and memory that holds bytes.

    Errors have the driver's names and the reason in addition. Close it to free its memory. A call is the method of its
    name of one of the parts; here are those that need several.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self._closed: tuple[str, str] | None = None
        self._files = Files()
        self._arena = Arena(self._files)
        budget = SimMemoryBudget(machine)
        blocks = AllocationBlocks(budget)
        self._devices = SimDevices(machine)
        self._contexts = Contexts(self._devices, budget)
        self._streams = Streams(self._contexts)
        self._creation = Creation(machine)
        self._addresses = Reservations(self._creation.address_granule())
        self._chunks = SimChunks(self._creation, budget, self._arena)
        self._mappings = SimMappings(self._addresses, self._chunks)
        self._allocations = SimAllocations(self._contexts, self._streams, blocks, self._arena, len(machine.devices))
        self._access = AccessRules(machine, self._contexts, self._mappings, self._allocations)
        self._contents = MemoryOperations(self._contexts, self._streams, self._access)
        self._kernels = SimKernels(self._contexts, self._streams, self._access, self._creation.address_granule())
        self._managed = SimManagedMemory(machine, self._contexts, self._streams, self._allocations)
        self._pinned = SimPinnedMemory(self._contexts, self._streams, self._allocations)
        self._add_shared_parts(budget, blocks)

    def _add_shared_parts(self, budget: SimMemoryBudget, blocks: AllocationBlocks) -> None:
        """Add the parts whose objects other processes can open."""
        machine, devices, contexts, allocations = self.machine, self._devices, self._contexts, self._allocations
        creation, streams, arena, files = self._creation, self._streams, self._arena, self._files
        self._events = SimEvents(devices, contexts, streams, files)
        self._multicast = SimMulticast(machine, devices, creation, self._chunks, self._mappings, files)
        self._sharing = ChunkSharing(devices, creation, self._chunks, arena, files, self._multicast.adopt)
        self._memory_handles = AllocationSharing(devices, contexts, allocations, arena, files)
        self._dma_bufs = SimDmaBufs(
            machine, contexts, self._mappings, allocations, self._sharing, self._memory_handles, arena
        )
        self._pools = SharedPools(machine, devices, streams, creation, budget, blocks, allocations, arena, files)
        self._external = SimImportedMemory(devices, contexts, allocations, files)
        self._semaphores = SimSemaphores(contexts, streams, files)

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

    def store_by_kernel(self, address: int, data: bytes) -> None:
        """Store bytes as a kernel of the current context does, without loaded kernels. Raises `RefusedCall`."""
        with self.lock:
            self._contents.store_by_kernel(address, data)

    def init(self) -> None:
        """Allow all other calls."""
        if self._closed:
            raise DriverError(call_name("init"), *self._closed)
        self.blocked = None

    def fatal_error(self) -> tuple[str, str] | None:
        """Error and reason after an illegal access by a kernel (fact 24), reported by every later call."""
        return (ILLEGAL, self._kernels.fatal) if self._kernels.fatal else None

    def event_records(self, event: int) -> int:
        """Number of records of an open event by all processes that share it; a real driver does not report it."""
        with self.lock:
            return self._events.records(event)

    @driver_call
    def device_primary_ctx_release(self, device: int) -> None:
        self._devices.get(device)
        if self._contexts.is_last(device):
            self._streams.check_done()  # waits of other GPUs delay it too
        self._contexts.release(device)
        if not self._contexts.active(device):
            for parts in (
                self._kernels, self._allocations, self._events, self._external, self._semaphores, self._streams
            ):  # fmt: skip
                parts.drop(device)

    @driver_call
    def ctx_synchronize(self) -> None:
        self._streams.check_done(self._contexts.current())
        self._pools.release()

    @driver_call
    def mem_free(self, address: int) -> None:
        found = self._allocations.find(address)
        if found and found.kind == "pooled":
            self._pools.free(address)
            return
        self._streams.check_done(None if found is None or found.kind == "managed" else found.device)
        self._allocations.free(address)

    def create_each(self, size: int, properties: Sequence[Properties]) -> tuple[list[int], DriverError | None]:
        return self.each(self._chunks.mem_create, zip(repeat(size), properties))

    def map_each(self, mappings: Sequence[tuple[int, int, int]]) -> tuple[int, DriverError | None]:
        made, error = self.each(self._mappings.mem_map, mappings)
        return len(made), error

    def release_each(self, handles: Sequence[int]) -> tuple[int, DriverError | None]:
        released, error = self.each(self._chunks.mem_release, zip(handles))
        return len(released), error

    def properties_each(self, handles: Sequence[int]) -> tuple[list[Properties], DriverError | None]:
        return self.each(self._multicast.mem_get_allocation_properties_from_handle, zip(handles))

    def access_each(self, queried: Sequence[tuple[int, Location]]) -> tuple[list[int], DriverError | None]:
        return self.each(self._access.mem_get_access, queried)

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as `memcpy_async` does; many small spans between host memory and chunks in one pass."""
        if type(self).memcpy_async is SimDriver.memcpy_async and self._copied(copies, stream):
            return None
        return batches.answers(self.memcpy_async, [(*each, stream) for each in copies])[1]

    def _copied(self, copies: Sequence[tuple[int, int, int]], stream: int) -> bool:
        """Make copies together; return false, with none made, where the single calls have to find what is refused."""
        with self.lock:
            if not copies or self.blocked or self.fatal_error():
                return False
            try:
                return self._contents.transfer(copies, stream)
            except (RefusedCall, OSError):
                return False
