"""The simulator: a driver that follows every rule of `docs/driver-facts.md` on a recorded machine, without a GPU.

Each part has calls with their rules; the driver has the calls that need several. Where it differs from hardware on
purpose is in `docs/simulator.md`, by call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, get_type_hints

from memtopo.driver import wrappers
from memtopo.driver.kernels import WORD
from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import METHODS, BatchDriver
from memtopo.drivers.sim.access import AccessRules, MemoryOperations
from memtopo.drivers.sim.address_space import Reservations
from memtopo.drivers.sim.allocations import SimAllocations
from memtopo.drivers.sim.calls import RefusedCall, driver_call
from memtopo.drivers.sim.chunks import Creation, SimChunks, SimMappings
from memtopo.drivers.sim.devices import SimDevices, SimMemoryBudget
from memtopo.drivers.sim.external import SimImportedMemory, SimSemaphores
from memtopo.drivers.sim.external_api import SimExternalApi
from memtopo.drivers.sim.host_memory import SimManagedMemory, SimPinnedMemory
from memtopo.drivers.sim.kernels import ILLEGAL, SimKernels
from memtopo.drivers.sim.multicast import Broadcast, SimMulticast
from memtopo.drivers.sim.pointers import SimPointers
from memtopo.drivers.sim.process import Context, Contexts, SimEvents, SimProcess, Streams
from memtopo.drivers.sim.sharing import AllocationSharing, ChunkSharing, SharedPools, SimDmaBufs
from memtopo.machine import Machine

__all__ = ["SimDriver", "SimExternalApi", "SimTrialCalls"]

if TYPE_CHECKING:

    class _Calls(  # type: ignore[misc]
        SimDevices, Contexts, Creation, Reservations, SimChunks, SimMappings, SimAllocations, AccessRules,
        MemoryOperations, SimKernels, SimMulticast, ChunkSharing, AllocationSharing, SimDmaBufs, Streams, SimEvents,
        SimManagedMemory, SimPinnedMemory, SharedPools, SimImportedMemory, SimSemaphores
    ):  # fmt: skip
        """Every call with its type."""
else:

    class _Calls:
        """Base of the simulator: at run time the calls are added."""


class SimDriver(BatchDriver, _Calls):  # type: ignore[misc]  # parts have private names of their own
    """A driver without a GPU: a recorded machine, every rule of `docs/driver-facts.md`, and memory that holds bytes.

    Errors have the driver's names and the reason in addition. Close it to free its memory. A call is the method of its
    name of one of the parts; here are calls that need several. The drivers of the processes of one machine share the
    budget of its memory, and the lock of their calls.
    """

    devices: SimDevices
    contexts: Contexts
    creation: Creation
    addresses: Reservations
    chunks: SimChunks
    mappings: SimMappings
    allocations: SimAllocations
    access: AccessRules
    contents: MemoryOperations
    kernels: SimKernels
    multicast: SimMulticast
    sharing: ChunkSharing
    memory_handles: AllocationSharing
    dma_bufs: SimDmaBufs
    streams: Streams
    events: SimEvents
    managed: SimManagedMemory
    pinned: SimPinnedMemory
    pools: SharedPools
    external: SimImportedMemory
    semaphores: SimSemaphores

    def __init__(
        self,
        machine: Machine,
        budget: SimMemoryBudget | None = None,
        lock: threading.Lock | None = None,
        pid: int | None = None,
    ) -> None:
        self.machine, self.lock = machine, lock or threading.Lock()
        self.blocked: tuple[str, str] | None = ("CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised")
        """Error and reason that refuse every call: before `init`, and after `close`."""
        self.closed: tuple[str, str] | None = None
        """Error and reason of every call after `close`; None before."""
        self.process = sim = SimProcess(machine, budget, pid)
        self.devices, self.contexts, self.streams = sim.devices, sim.contexts, sim.streams
        self.creation, self.addresses = Creation(machine), Reservations(machine.address_granularity)
        self.chunks = SimChunks(sim, self.creation)
        self.mappings = SimMappings(self.addresses, self.chunks)
        self.allocations = SimAllocations(sim)
        self.access = AccessRules(sim, self.mappings, self.allocations)
        self.contents = MemoryOperations(sim, self.access, self.allocations)
        self.kernels = SimKernels(sim, self.access)
        self.multicast = SimMulticast(sim, self.creation, self.chunks, self.mappings)
        self.sharing = ChunkSharing(sim, self.creation, self.chunks, self.multicast)
        self.memory_handles = AllocationSharing(sim, self.allocations)
        self.dma_bufs = SimDmaBufs(sim, self.mappings, self.sharing, self.memory_handles)
        self.pools = SharedPools(sim, self.creation, self.allocations)
        self.managed = SimManagedMemory(sim, self.allocations)
        self.pinned = SimPinnedMemory(sim, self.allocations, self.mappings)
        self.external, self.semaphores = SimImportedMemory(sim, self.allocations), SimSemaphores(sim)
        self.events = SimEvents(sim)
        self.pointers = SimPointers(sim.contexts, self.addresses, self.mappings, self.allocations)

    def close(self) -> None:
        """Return all memory to the system; every later call is refused. A second call does nothing."""
        self.blocked = self.closed = ("CUDA_ERROR_DEINITIALIZED", "the driver is closed")
        self.process.budget.end()
        self.process.arena.close()
        self.process.files.close_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        """Descriptor of the memory at an address, and offset in its file of the mapping or allocation around it.

        For mapping the memory into the process; a real driver has no such call. Raises `DriverError`.
        """
        with self.lock:
            found = self.mappings.find(address) or self.allocations.find(address)
            if found is None or isinstance(found.physical, Broadcast):
                raise DriverError("lend", "CUDA_ERROR_INVALID_VALUE", "no memory is mapped or allocated there")
            found.physical.touched |= writable  # so that its pages are copied when it moves, and freed
            return found.physical.fd, found.physical.offset

    memset = driver_call(MemoryOperations.memset, "contents")
    check_copy = driver_call(MemoryOperations.check_copy, "contents")

    def store_by_kernel(self, address: int, data: bytes) -> None:
        """Store bytes as a kernel of the current context does, without loaded kernels. Raises `RefusedCall`."""
        with self.lock:
            self.contents.store_by_kernel(address, data)

    def init(self) -> None:
        """Allow all other calls."""
        if self.closed:
            raise DriverError(call_name("init"), *self.closed)
        self.blocked = None

    def fatal_error(self) -> tuple[str, str] | None:
        """Error and reason after an illegal access by a kernel (fact 24), reported by every later call."""
        return (ILLEGAL, self.kernels.fatal) if self.kernels.fatal else None

    @driver_call
    def device_primary_ctx_retain(self, device: int) -> int:
        if (fatal := self.fatal_error()) and not self.contexts.active(device):
            raise RefusedCall(*fatal)
        return self.contexts.device_primary_ctx_retain(device)

    @driver_call
    def device_primary_ctx_release(self, device: int) -> None:
        self.devices.get(device)
        if self.contexts.is_last(device):
            self.streams.check_done()  # waits of other GPUs delay it too
        self.contexts.release(device)
        if not self.contexts.active(device):
            self._drop(self.contexts.primary(device))

    def ctx_create(self, device: int) -> int:
        """Create a context beside the primary one, and make it current. memtopo never does; programs do."""
        with self.lock:
            if fatal := self.fatal_error():
                raise RefusedCall(*fatal)
            return self.contexts.create(device).handle

    def ctx_destroy(self, context: int) -> None:
        """Destroy such a context, with what is in it."""
        with self.lock:
            found = self.contexts.get(context)
            self.contexts.destroy(found)
            self._drop(found)

    def _drop(self, context: Context) -> None:
        """End what is in a context that has ended."""
        for parts in (
            self.kernels, self.allocations, self.events, self.external, self.semaphores, self.streams
        ):  # fmt: skip
            parts.drop(context)

    @driver_call
    def ctx_synchronize(self) -> None:
        self.streams.check_done(self.contexts.current())
        self.pools.release()

    @driver_call
    def mem_free(self, address: int) -> None:
        found = self.allocations.find(address)
        if address and not found and self.contexts.ctx_get_current():
            self.contexts.current_context()  # which refuses one that was released
        if found and found.kind == "pooled":
            self.pools.free(address)
            return
        self.streams.check_done(None if found is None or found.kind == "managed" else found.device)
        self.allocations.free(address)

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as `memcpy_async` does; many small spans between host memory and chunks in one pass."""
        if type(self).memcpy_async is SimDriver.memcpy_async and self._copied(copies, stream):
            return None
        return wrappers.refusal(wrappers.answers(self.memcpy_async, [(*each, stream) for each in copies])[1])

    def _copied(self, copies: Sequence[tuple[int, int, int]], stream: int) -> bool:
        """Make copies together; return false, with none made, where the single calls have to find what is refused."""
        with self.lock:
            if not copies or self.blocked or self.fatal_error():
                return False
            try:
                return self.contents.transfer(copies, stream)
            except (RefusedCall, OSError):
                return False


_OF_PARTS = METHODS.difference(vars(SimDriver))
for _name, _part in get_type_hints(SimDriver).items():
    for _method in _OF_PARTS.intersection(dir(_part)):
        setattr(SimDriver, _method, driver_call(getattr(_part, _method), _name))


class SimTrialCalls:
    """Trial calls of an initialised simulator."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver

    def store(self, address: int, value: int) -> None:
        try:
            self._driver.store_by_kernel(address, value.to_bytes(WORD, "little"))
        except RefusedCall as refused:
            raise DriverError("cuCtxSynchronize", ILLEGAL, refused.reason) from None

    def meet(self, address: int, value: int) -> bool:
        self._driver.host_write(address, bytes(2 * WORD))
        self.store(address + WORD, value)
        return self._driver.host_read(address + WORD, WORD) == value.to_bytes(WORD, "little")
