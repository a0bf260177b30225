"""Trials, one method for each way of trying, and the imports that the importing child makes for them.

A trial returns whether it worked, or raises the driver's error. It uses a granule or two and releases them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from memtopo.common.files import closing_fd
from memtopo.common.mapped_files import map_shared, unmap
from memtopo.driver import types
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import WORD, ExternalApi, ExternalApiSemaphore, TrialCalls
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, HandleType, Location, PoolProperties, Properties, gpu
from memtopo.probe.supervisor import VULKAN, ImportAnswer, ImportRequest
from memtopo.probe.trial_table import DMABUF_PCIE, PlannedTrial

FIRST, SECOND, THIRD = 0x5A, 0xA5, 0x3C
"""Bytes written one after another, so that a write that is lost is noticed."""
BUFFER = 64 << 10
PATIENCE = 5.0
"""Seconds to wait for the external API."""

_SHARED_EVENT = types.EventFlags.DISABLE_TIMING | types.EventFlags.INTERPROCESS

ImportElsewhere = Callable[[ImportRequest, Handle], ImportAnswer]
"""Has the importing child answer a request; the descriptors are closed afterwards."""


class TrialResources:
    """A driver with its extras, and contexts that are created once; `opening` is the seconds that took.

    `importer` sends a request to the importing child, `external` opens an external API on the GPU of a UUID.
    """

    def __init__(
        self,
        driver: Driver,
        extras: TrialCalls,
        importer: ImportElsewhere,
        external: Callable[[bytes], ExternalApi] | None = None,
    ) -> None:
        self.driver, self.extras, self._importer, self._external = driver, extras, importer, external
        self._contexts: dict[int, int] = {}
        self.opening = 0.0

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Make a GPU's context current, and create it first if there is none."""
        if device not in self._contexts:
            began = time.monotonic()
            try:
                self._contexts[device] = self.driver.device_primary_ctx_retain(device)
            finally:
                self.opening += time.monotonic() - began
        self.driver.ctx_push_current(self._contexts[device])
        try:
            yield
        finally:
            self.driver.ctx_pop_current()

    @contextmanager
    def external(self, device: int) -> Iterator[ExternalApi]:
        """Open an external API on the same GPU, by its UUID (fact 38). Raises `DriverError` for its errors too."""
        assert self._external
        try:
            with self._external(self.driver.device_get_uuid(device)) as api:
                yield api
        except Exception as error:
            # The package raised it, could not be loaded, or found no such GPU.
            is_of_vulkan = isinstance(error, LookupError | OSError | ImportError)
            if not is_of_vulkan and not type(error).__module__.startswith("vulkan"):
                raise
            raise DriverError(VULKAN, type(error).__name__, str(error)) from error

    def close(self) -> None:
        """Release the contexts."""
        while self._contexts:
            self.driver.device_primary_ctx_release(self._contexts.popitem()[0])

    @contextmanager
    def chunk(self, properties: Properties) -> Iterator[tuple[int, int]]:
        """Create a chunk of one granule; yield its handle and size."""
        size = self.driver.mem_get_allocation_granularity(properties)
        handle = self.driver.mem_create(size, properties)
        with ExitStack() as undo:
            undo.callback(_quietly, self.driver.mem_release, handle)
            yield handle, size

    @contextmanager
    def mapped_chunk(self, properties: Properties, users: Sequence[Location]) -> Iterator[tuple[int, int, int]]:
        """Create a chunk of one granule, and map it; yield its address, its handle and its size."""
        with self.chunk(properties) as (handle, size), self.mapped(handle, size, users) as address:
            yield address, handle, size

    @contextmanager
    def made(self, device: int, make: Callable[[], int], undo: Callable[[int], None]) -> Iterator[int]:
        """Make an object in the context of a GPU; yield it."""
        with self.current(device), ExitStack() as stack:
            made = make()
            stack.callback(undo, made)
            yield made

    @contextmanager
    def mapped(self, handle: int, size: int, users: Sequence[Location]) -> Iterator[int]:
        """Map a chunk with access for some users; yield its address."""
        with ExitStack() as undo:
            address = self.driver.mem_address_reserve(size)
            undo.callback(_quietly, self.driver.mem_address_free, address, size)
            self.driver.mem_map(address, size, handle)
            undo.callback(_quietly, self.driver.mem_unmap, address, size)
            self.driver.mem_set_access(address, size, tuple(Grant(user, Access.RW) for user in users))
            yield address

    def fill(self, device: int, address: int, value: int) -> None:
        """Have a GPU write a word of equal bytes, and wait for it."""
        with self.current(device):
            self.driver.memset_d8(address, value, WORD)
            self.driver.ctx_synchronize()

    def reads(self, device: int, address: int, value: int) -> bool:
        """Return whether a GPU reads such a word."""
        with self.current(device):
            return self.driver.memcpy_dtoh(address, WORD) == word(value)

    def import_elsewhere(self, request: ImportRequest, shared: int | bytes) -> bool:
        """Return whether the importing child finds the bytes of the trial in what is shared; it writes others to it.

        Raises `DriverError` with the call that failed there.
        """
        answer = self._importer(request, Handle.of(shared))
        if answer.error:
            raise DriverError(answer.call or "", answer.error)
        return answer.as_expected


def word(value: int) -> bytes:
    """Word of equal bytes."""
    return bytes([value]) * WORD


def users(location: Location, device: int) -> list[Location]:
    """Users of a trial's memory: the GPU; of host memory also the host."""
    return [gpu(device)] if location.kind == types.LocationKind.GPU else [gpu(device), location]


def _quietly(undo: Callable[..., None], *arguments: int) -> None:
    # What is not released is in the ledger, and is released with the process.
    with suppress(DriverError):
        undo(*arguments)


class Trials(TrialResources):
    """Trials, a method `_try_` for each way of trying, and imports, a method `_import_` for each kind of object."""

    def attempt(self, trial: PlannedTrial) -> bool:
        """Make one trial, and return whether it worked. Raises `DriverError`."""
        make: Callable[[PlannedTrial], bool] = getattr(self, f"_try_{trial.how}")
        return make(trial)

    def _try_create(self, trial: PlannedTrial) -> bool:
        with self.chunk(trial.properties):
            return True

    def _try_use(self, trial: PlannedTrial) -> bool:
        """Create a chunk with the properties requested, write it, and read it back."""
        with self.mapped_chunk(trial.properties, [trial.location]) as (address, handle, _):
            self.fill(trial.device, address, FIRST)
            created = self.driver.mem_get_allocation_properties_from_handle(handle)
            # A driver may create a chunk without a property that it does not support (fact 41).
            kept = created.flags == trial.properties.flags
            return kept and self.reads(trial.device, address, FIRST)

    def _try_share(self, trial: PlannedTrial) -> bool:
        """Export a chunk by each of its handle types, and exchange bytes with the process that imports it."""
        device, handles = trial.device, trial.properties.handles
        with self.mapped_chunk(trial.properties, [gpu(device)]) as (address, handle, size):
            for kind in (kind for kind in (HandleType.FD, HandleType.FABRIC) if kind in handles):
                self.fill(device, address, FIRST)
                shared = self.driver.mem_export_to_shareable_handle(handle, kind)
                imported = self.import_elsewhere(ImportRequest("chunk", device, kind, size), shared)
                if not (imported and self.reads(device, address, SECOND)):
                    return False
        return True

    def _try_by_gpu(self, trial: PlannedTrial) -> bool:
        """Store into host memory by a kernel, and read it by the CPU."""
        where, device = trial.location, trial.device
        with self.mapped_chunk(Properties(where), users(where, device)) as (address, *_):
            self.driver.host_write(address, bytes(WORD))
            with self.current(device):
                self._store_word(address, FIRST)
            return self.driver.host_read(address, WORD) == word(FIRST)

    def _try_by_cpu(self, trial: PlannedTrial) -> bool:
        """Write host memory by the CPU, and read it by a copy in the GPU's context."""
        where, device = trial.location, trial.device
        with self.mapped_chunk(Properties(where), users(where, device)) as (address, *_):
            self.driver.host_write(address, word(SECOND))
            read = self.reads(device, address, SECOND)
            return read and self.driver.host_read(address, WORD) == word(SECOND)

    def _try_store(self, trial: PlannedTrial) -> bool:
        """Store into the memory of a peer by a kernel, and read it there: a link may lose stores without an error."""
        owner = trial.location
        with self.mapped_chunk(Properties(owner), [owner, gpu(trial.device)]) as (address, *_):
            self.fill(owner.id, address, THIRD)
            with self.current(trial.device):
                self._store_word(address, FIRST)
            return self.reads(owner.id, address, FIRST)

    def _store_word(self, address: int, value: int) -> None:
        self.extras.store(address, int.from_bytes(word(value), "little"))

    def _try_managed(self, trial: PlannedTrial) -> bool:
        """Read managed memory by the GPU after the CPU has written it, and the other way round (fact 39)."""
        allocate = partial(self.driver.mem_alloc_managed, BUFFER, types.MemAttach.GLOBAL)
        with self.made(trial.device, allocate, self.driver.mem_free) as address:
            self.driver.host_write(address, word(FIRST))
            read = self.driver.memcpy_dtoh(address, WORD)
            self._store_word(address, SECOND)
            return read == word(FIRST) and self.driver.host_read(address, WORD) == word(SECOND)

    def _try_concurrent(self, trial: PlannedTrial) -> bool:
        """Write managed memory by the CPU while a kernel waits for that."""
        allocate = partial(self.driver.mem_alloc_managed, BUFFER, types.MemAttach.GLOBAL)
        with self.made(trial.device, allocate, self.driver.mem_free) as address:
            return self.extras.meet(address, int.from_bytes(word(FIRST), "little"))

    def _try_pinned(self, trial: PlannedTrial) -> bool:
        """Exchange bytes between the CPU and the GPU in page-locked memory (fact 74)."""
        allocate = partial(self.driver.mem_host_alloc, BUFFER, types.HostFlags.PORTABLE | types.HostFlags.DEVICEMAP)
        with self.made(trial.device, allocate, self.driver.mem_free_host) as address:
            return self._is_seen_by_both(address)

    def _try_registered(self, trial: PlannedTrial) -> bool:
        """Exchange bytes between the CPU and the GPU in a memfd that is registered (fact 85)."""
        with self.current(trial.device), ExitStack() as undo:
            fd = os.memfd_create("memtopo-trial", os.MFD_CLOEXEC)
            undo.callback(os.close, fd)
            os.ftruncate(fd, BUFFER)
            address = map_shared(fd, 0, BUFFER, writable=True)
            undo.callback(unmap, address, BUFFER)
            self.driver.mem_host_register(address, BUFFER, types.RegisterFlags.PORTABLE | types.RegisterFlags.DEVICEMAP)
            undo.callback(self.driver.mem_host_unregister, address)
            return self._is_seen_by_both(address) and os.pread(fd, WORD, 0) == word(SECOND)

    def _is_seen_by_both(self, address: int) -> bool:
        """Read by the GPU what the CPU has written, by a copy to its memory, and the other way round, by a kernel."""
        copy = self.driver.mem_alloc(BUFFER)
        try:
            self.driver.host_write(address, word(FIRST))
            self.driver.memcpy_async(copy, self.driver.mem_host_get_device_pointer(address), WORD)
            read = self.driver.memcpy_dtoh(copy, WORD)
            self._store_word(address, SECOND)
            self.driver.ctx_synchronize()
            return read == word(FIRST) and self.driver.host_read(address, WORD) == word(SECOND)
        finally:
            self.driver.mem_free(copy)

    def _try_ipc(self, trial: PlannedTrial) -> bool:
        """Exchange bytes with a process that opens memory of `cuMemAlloc` (facts 31, 46)."""
        device = trial.device
        with self.made(device, partial(self.driver.mem_alloc, BUFFER), self.driver.mem_free) as address:
            self.fill(device, address, FIRST)
            imported = self.import_elsewhere(ImportRequest("ipc", device), self.driver.ipc_get_mem_handle(address))
            return imported and self.reads(device, address, SECOND)

    def _try_ipc_event(self, trial: PlannedTrial) -> bool:
        """Record an event that another process waits for (facts 32, 47)."""
        create = partial(self.driver.event_create, _SHARED_EVENT)
        with self.made(trial.device, create, self.driver.event_destroy) as event:
            self.driver.event_record(event)
            request = ImportRequest("ipc_event", trial.device)
            return self.import_elsewhere(request, self.driver.ipc_get_event_handle(event))

    def _try_pool(self, trial: PlannedTrial) -> bool:
        """Exchange bytes with a process that imports a memory pool, and an allocation of it (fact 82)."""
        kind = trial.method.handles
        with self.current(trial.device), ExitStack() as undo:
            pool = self.driver.mem_pool_create(PoolProperties(trial.location, kind))
            undo.callback(self.driver.mem_pool_destroy, pool)
            if trial.location != gpu(trial.device):
                self.driver.mem_pool_set_access(pool, (Grant(gpu(trial.device), Access.RW),))
            address = self.driver.mem_alloc_from_pool_async(BUFFER, pool)
            undo.callback(self.driver.mem_free, address)
            self.driver.ctx_synchronize()
            self.fill(trial.device, address, FIRST)
            shared = self.driver.mem_pool_export_to_shareable_handle(pool, kind)
            pointer = self.driver.mem_pool_export_pointer(address).hex()
            imported = self.import_elsewhere(ImportRequest("pool", trial.device, kind, pointer=pointer), shared)
            return imported and self.reads(trial.device, address, SECOND)

    def _try_dma_buf(self, trial: PlannedTrial) -> bool:
        """Export mapped memory as a dma-buf, whose descriptor reports the size (fact 83)."""
        flags = types.DmaBufFlags.PCIE if trial.name == DMABUF_PCIE else types.DmaBufFlags.NONE
        with self._exported_dma_buf(trial, flags) as (fd, size, _):
            return os.lseek(fd, 0, os.SEEK_END) == size

    def _try_external_dma_buf(self, trial: PlannedTrial) -> bool:
        """Import a dma-buf of this GPU's memory as external memory, and exchange bytes (fact 84)."""
        kind = types.MemoryHandleType.DMABUF_FD
        with (
            self._exported_dma_buf(trial, types.DmaBufFlags.NONE) as (fd, size, address),
            self.current(trial.device),
            ExitStack() as undo,
        ):
            self.fill(trial.device, address, FIRST)
            own = os.dup(fd)
            try:
                object_ = self.driver.import_external_memory(own, kind, size)
            except DriverError:
                with suppress(OSError):  # the driver may have closed it (fact 54)
                    os.close(own)
                raise
            undo.callback(self.driver.destroy_external_memory, object_)
            mapped = self.driver.external_memory_get_mapped_buffer(object_, 0, size)
            undo.callback(self.driver.mem_free, mapped)
            found = self.reads(trial.device, mapped, FIRST)
            self.fill(trial.device, mapped, SECOND)
            return found and self.reads(trial.device, address, SECOND)

    @contextmanager
    def _exported_dma_buf(self, trial: PlannedTrial, flags: types.DmaBufFlags) -> Iterator[tuple[int, int, int]]:
        """A dma-buf of a new chunk, with its size and the address of the chunk."""
        with (
            self.mapped_chunk(trial.properties, [trial.location]) as (address, _, size),
            self.current(trial.device),
            closing_fd(self.driver.mem_get_handle_for_address_range(address, size, flags)) as fd,
        ):
            yield fd, size, address

    def _try_external_memory(self, trial: PlannedTrial) -> bool:
        """Exchange bytes with an external API that allocated the memory on this GPU (fact 35)."""
        with self.external(trial.device) as external, self.current(trial.device), ExitStack() as undo:
            memory = external.allocate(BUFFER)
            memory.write(0, word(FIRST))
            object_ = self.driver.import_external_memory(memory.fd(), types.MemoryHandleType.OPAQUE_FD, memory.whole)
            undo.callback(self.driver.destroy_external_memory, object_)
            address = self.driver.external_memory_get_mapped_buffer(object_, 0, BUFFER)
            undo.callback(self.driver.mem_free, address)
            found = self.reads(trial.device, address, FIRST)
            self.fill(trial.device, address, SECOND)
            return found and memory.read(0, WORD) == word(SECOND)

    def _try_external_semaphore(self, trial: PlannedTrial) -> bool:
        """Signal a timeline and a binary semaphore of an external API in both directions (fact 36)."""
        with self.external(trial.device) as external, self.current(trial.device), ExitStack() as undo:
            stream = self.driver.stream_create()
            undo.callback(self.driver.stream_destroy, stream)
            kinds = types.SemaphoreHandleType
            pairs = (external.timeline(), kinds.TIMELINE_FD), (external.binary(), kinds.OPAQUE_FD)
            return all(self._signals_both_ways(undo, stream, *pair) for pair in pairs)

    def _signals_both_ways(
        self, undo: ExitStack, stream: int, semaphore: ExternalApiSemaphore, kind: types.SemaphoreHandleType
    ) -> bool:
        imported = self.driver.import_external_semaphore(semaphore.fd(), kind)
        undo.callback(self.driver.destroy_external_semaphore, imported)
        self.driver.signal_external_semaphore(imported, 1, stream)
        signalled = self._is_complete(stream) and semaphore.wait(1, PATIENCE)
        semaphore.signal(2)
        self.driver.wait_external_semaphore(imported, 2, stream)
        return self._is_complete(stream) and signalled

    def _is_complete(self, stream: int) -> bool:
        """Wait for a stream; a wait that no signal ends is ended with the process of the trial (fact 58)."""
        while not self.driver.stream_query(stream):
            time.sleep(0.001)
        return True

    def import_shared(self, request: ImportRequest, handle: Handle) -> ImportAnswer:
        """Import what a trial of another child shares, look for its bytes, and write others."""
        make: Callable[[ImportRequest, int | bytes], bool] = getattr(self, f"_import_{request.what}")
        try:
            return ImportAnswer(as_expected=make(request, handle.shared))
        except DriverError as error:
            return ImportAnswer(error=error.name, call=error.call)

    def _import_chunk(self, request: ImportRequest, shared: int | bytes) -> bool:
        handle = self.driver.mem_import_from_shareable_handle(shared, HandleType(request.handle_type))
        with ExitStack() as undo:
            undo.callback(self.driver.mem_release, handle)
            address = undo.enter_context(self.mapped(handle, request.size, [gpu(request.device)]))
            return self._read_and_write(request.device, address)

    def _import_ipc(self, request: ImportRequest, shared: int | bytes) -> bool:
        assert isinstance(shared, bytes)
        open_ = partial(self.driver.ipc_open_mem_handle, shared)
        with self.made(request.device, open_, self.driver.ipc_close_mem_handle) as address:
            return self._read_and_write(request.device, address)

    def _import_ipc_event(self, request: ImportRequest, shared: int | bytes) -> bool:
        assert isinstance(shared, bytes)
        open_ = partial(self.driver.ipc_open_event_handle, shared)
        with self.made(request.device, open_, self.driver.event_destroy) as event:
            self.driver.event_synchronize(event)
            return self.driver.event_query(event)

    def _import_pool(self, request: ImportRequest, shared: int | bytes) -> bool:
        with self.current(request.device), ExitStack() as undo:
            pool = self.driver.mem_pool_import_from_shareable_handle(shared, HandleType(request.handle_type))
            undo.callback(self.driver.mem_pool_destroy, pool)
            grant = Grant(gpu(request.device), Access.RW)
            if self.driver.mem_pool_get_access(pool, grant.location) != Access.RW:
                self.driver.mem_pool_set_access(pool, (grant,))
            address = self.driver.mem_pool_import_pointer(pool, bytes.fromhex(request.pointer))
            undo.callback(self.driver.mem_free, address)
            return self._read_and_write(request.device, address)

    def _read_and_write(self, device: int, address: int) -> bool:
        as_expected = self.reads(device, address, FIRST)
        self.fill(device, address, SECOND)
        return as_expected
