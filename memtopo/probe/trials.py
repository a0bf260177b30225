"""Trials, one function for each way of trying, and the imports that the importing child makes for them.

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
from memtopo.probe.supervisor import VULKAN, ImportAnswer, ImportRequest, SharedObject
from memtopo.probe.trial_table import DMABUF_PCIE, STORE, PlannedTrial

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
            if not _is_vulkan_error(error):
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


def _is_vulkan_error(error: Exception) -> bool:
    """Return whether the package raised it, could not be loaded, or found no such GPU."""
    return isinstance(error, LookupError | OSError | ImportError) or type(error).__module__.startswith("vulkan")


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


def attempt(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Make one trial, and return whether it worked. Raises `DriverError`."""
    return _TRIALS[trial.how](resources, trial)


def _create(resources: TrialResources, trial: PlannedTrial) -> bool:
    with resources.chunk(trial.properties):
        return True


def _use(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Create a chunk with the properties requested, write it, and read it back."""
    with resources.mapped_chunk(trial.properties, [trial.location]) as (address, handle, _):
        resources.fill(trial.device, address, FIRST)
        created = resources.driver.mem_get_allocation_properties_from_handle(handle)
        # A driver may create a chunk without a property that it does not support (fact 41).
        kept = created.flags == trial.properties.flags
        return kept and resources.reads(trial.device, address, FIRST)


def _share(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Export a chunk by each of its handle types, and exchange bytes with the process that imports it."""
    device, handles = trial.device, trial.properties.handles
    with resources.mapped_chunk(trial.properties, [gpu(device)]) as (address, handle, size):
        for kind in (kind for kind in (HandleType.FD, HandleType.FABRIC) if kind in handles):
            resources.fill(device, address, FIRST)
            shared = resources.driver.mem_export_to_shareable_handle(handle, kind)
            imported = resources.import_elsewhere(ImportRequest("chunk", device, kind, size), shared)
            if not (imported and resources.reads(device, address, SECOND)):
                return False
    return True


def _by_gpu(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Store into host memory by a kernel, and read it by the CPU."""
    where, device = trial.location, trial.device
    with resources.mapped_chunk(Properties(where), users(where, device)) as (address, *_):
        resources.driver.host_write(address, bytes(WORD))
        with resources.current(device):
            _store_word(resources, address, FIRST)
        return resources.driver.host_read(address, WORD) == word(FIRST)


def _by_cpu(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Write host memory by the CPU, and read it by a copy in the GPU's context."""
    where, device = trial.location, trial.device
    with resources.mapped_chunk(Properties(where), users(where, device)) as (address, *_):
        resources.driver.host_write(address, word(SECOND))
        read = resources.reads(device, address, SECOND)
        return read and resources.driver.host_read(address, WORD) == word(SECOND)


def _store(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Store into the memory of a peer by a kernel, and read it there: a link may lose stores without an error."""
    owner = trial.location
    with resources.mapped_chunk(Properties(owner), [owner, gpu(trial.device)]) as (address, *_):
        resources.fill(owner.id, address, THIRD)
        with resources.current(trial.device):
            _store_word(resources, address, FIRST)
        return resources.reads(owner.id, address, FIRST)


def _store_word(resources: TrialResources, address: int, value: int) -> None:
    resources.extras.store(address, int.from_bytes(word(value), "little"))


def _managed(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Read managed memory by the GPU after the CPU has written it, and the other way round (fact 39)."""
    driver = resources.driver
    allocate = partial(driver.mem_alloc_managed, BUFFER, types.MemAttach.GLOBAL)
    with resources.made(trial.device, allocate, driver.mem_free) as address:
        driver.host_write(address, word(FIRST))
        read = driver.memcpy_dtoh(address, WORD)
        _store_word(resources, address, SECOND)
        return read == word(FIRST) and driver.host_read(address, WORD) == word(SECOND)


def _concurrent(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Write managed memory by the CPU while a kernel waits for that."""
    allocate = partial(resources.driver.mem_alloc_managed, BUFFER, types.MemAttach.GLOBAL)
    with resources.made(trial.device, allocate, resources.driver.mem_free) as address:
        return resources.extras.meet(address, int.from_bytes(word(FIRST), "little"))


def _pinned(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Exchange bytes between the CPU and the GPU in page-locked memory (fact 74)."""
    allocate = partial(resources.driver.mem_host_alloc, BUFFER, types.HostFlags.PORTABLE | types.HostFlags.DEVICEMAP)
    with resources.made(trial.device, allocate, resources.driver.mem_free_host) as address:
        return _is_seen_by_both(resources, address)


def _registered(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Exchange bytes between the CPU and the GPU in a memfd that is registered (fact 85)."""
    with resources.current(trial.device), ExitStack() as undo:
        fd = os.memfd_create("memtopo-trial", os.MFD_CLOEXEC)
        undo.callback(os.close, fd)
        os.ftruncate(fd, BUFFER)
        address = map_shared(fd, 0, BUFFER, writable=True)
        undo.callback(unmap, address, BUFFER)
        resources.driver.mem_host_register(
            address, BUFFER, types.RegisterFlags.PORTABLE | types.RegisterFlags.DEVICEMAP
        )
        undo.callback(resources.driver.mem_host_unregister, address)
        return _is_seen_by_both(resources, address) and os.pread(fd, WORD, 0) == word(SECOND)


def _is_seen_by_both(resources: TrialResources, address: int) -> bool:
    """Read by the GPU what the CPU has written, by a copy to its memory, and the other way round, by a kernel."""
    driver = resources.driver
    copy = driver.mem_alloc(BUFFER)
    try:
        driver.host_write(address, word(FIRST))
        driver.memcpy_async(copy, driver.mem_host_get_device_pointer(address), WORD)
        read = driver.memcpy_dtoh(copy, WORD)
        _store_word(resources, address, SECOND)
        driver.ctx_synchronize()
        return read == word(FIRST) and driver.host_read(address, WORD) == word(SECOND)
    finally:
        driver.mem_free(copy)


def _ipc(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Exchange bytes with a process that opens memory of `cuMemAlloc` (facts 31, 46)."""
    driver, device = resources.driver, trial.device
    with resources.made(device, partial(driver.mem_alloc, BUFFER), driver.mem_free) as address:
        resources.fill(device, address, FIRST)
        imported = resources.import_elsewhere(ImportRequest("ipc", device), driver.ipc_get_mem_handle(address))
        return imported and resources.reads(device, address, SECOND)


def _ipc_event(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Record an event that another process waits for (facts 32, 47)."""
    driver = resources.driver
    with resources.made(trial.device, partial(driver.event_create, _SHARED_EVENT), driver.event_destroy) as event:
        driver.event_record(event)
        request = ImportRequest("ipc_event", trial.device)
        return resources.import_elsewhere(request, driver.ipc_get_event_handle(event))


def _pool(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Exchange bytes with a process that imports a memory pool, and an allocation of it (fact 82)."""
    driver, kind = resources.driver, trial.method.handles
    with resources.current(trial.device), ExitStack() as undo:
        pool = driver.mem_pool_create(PoolProperties(trial.location, kind))
        undo.callback(driver.mem_pool_destroy, pool)
        if trial.location != gpu(trial.device):
            driver.mem_pool_set_access(pool, (Grant(gpu(trial.device), Access.RW),))
        address = driver.mem_alloc_from_pool_async(BUFFER, pool)
        undo.callback(driver.mem_free, address)
        driver.ctx_synchronize()
        resources.fill(trial.device, address, FIRST)
        shared = driver.mem_pool_export_to_shareable_handle(pool, kind)
        pointer = driver.mem_pool_export_pointer(address).hex()
        imported = resources.import_elsewhere(ImportRequest("pool", trial.device, kind, pointer=pointer), shared)
        return imported and resources.reads(trial.device, address, SECOND)


def _dma_buf(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Export mapped memory as a dma-buf, whose descriptor reports the size (fact 83)."""
    flags = types.DmaBufFlags.PCIE if trial.name == DMABUF_PCIE else types.DmaBufFlags.NONE
    with _exported_dma_buf(resources, trial, flags) as (fd, size, _):
        return os.lseek(fd, 0, os.SEEK_END) == size


def _external_dma_buf(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Import a dma-buf of this GPU's memory as external memory, and exchange bytes (fact 84)."""
    driver, kind = resources.driver, types.MemoryHandleType.DMABUF_FD
    with (
        _exported_dma_buf(resources, trial, types.DmaBufFlags.NONE) as (fd, size, address),
        resources.current(trial.device),
        ExitStack() as undo,
    ):
        resources.fill(trial.device, address, FIRST)
        own = os.dup(fd)
        try:
            object_ = driver.import_external_memory(own, kind, size)
        except DriverError:
            with suppress(OSError):  # the driver may have closed it (fact 54)
                os.close(own)
            raise
        undo.callback(driver.destroy_external_memory, object_)
        mapped = driver.external_memory_get_mapped_buffer(object_, 0, size)
        undo.callback(driver.mem_free, mapped)
        found = resources.reads(trial.device, mapped, FIRST)
        resources.fill(trial.device, mapped, SECOND)
        return found and resources.reads(trial.device, address, SECOND)


@contextmanager
def _exported_dma_buf(
    resources: TrialResources, trial: PlannedTrial, flags: types.DmaBufFlags
) -> Iterator[tuple[int, int, int]]:
    """A dma-buf of a new chunk, with its size and the address of the chunk."""
    with (
        resources.mapped_chunk(trial.properties, [trial.location]) as (address, _, size),
        resources.current(trial.device),
        closing_fd(resources.driver.mem_get_handle_for_address_range(address, size, flags)) as fd,
    ):
        yield fd, size, address


def _external_memory(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Exchange bytes with an external API that allocated the memory on this GPU (fact 35)."""
    with resources.external(trial.device) as external, resources.current(trial.device), ExitStack() as undo:
        memory = external.allocate(BUFFER)
        memory.write(0, word(FIRST))
        object_ = resources.driver.import_external_memory(memory.fd(), types.MemoryHandleType.OPAQUE_FD, memory.whole)
        undo.callback(resources.driver.destroy_external_memory, object_)
        address = resources.driver.external_memory_get_mapped_buffer(object_, 0, BUFFER)
        undo.callback(resources.driver.mem_free, address)
        found = resources.reads(trial.device, address, FIRST)
        resources.fill(trial.device, address, SECOND)
        return found and memory.read(0, WORD) == word(SECOND)


def _external_semaphore(resources: TrialResources, trial: PlannedTrial) -> bool:
    """Signal a timeline and a binary semaphore of an external API in both directions (fact 36)."""
    with resources.external(trial.device) as external, resources.current(trial.device), ExitStack() as undo:
        stream = resources.driver.stream_create()
        undo.callback(resources.driver.stream_destroy, stream)
        kinds = types.SemaphoreHandleType
        pairs = (external.timeline(), kinds.TIMELINE_FD), (external.binary(), kinds.OPAQUE_FD)
        return all(_signals_both_ways(resources, undo, stream, *pair) for pair in pairs)


def _signals_both_ways(
    resources: TrialResources,
    undo: ExitStack,
    stream: int,
    semaphore: ExternalApiSemaphore,
    kind: types.SemaphoreHandleType,
) -> bool:
    driver = resources.driver
    imported = driver.import_external_semaphore(semaphore.fd(), kind)
    undo.callback(driver.destroy_external_semaphore, imported)
    driver.signal_external_semaphore(imported, 1, stream)
    signalled = _is_complete(resources, stream) and semaphore.wait(1, PATIENCE)
    semaphore.signal(2)
    driver.wait_external_semaphore(imported, 2, stream)
    return _is_complete(resources, stream) and signalled


def _is_complete(resources: TrialResources, stream: int) -> bool:
    """Wait for a stream; a wait that no signal ends is ended with the process of the trial (fact 58)."""
    while not resources.driver.stream_query(stream):
        time.sleep(0.001)
    return True


_TRIALS: dict[str, Callable[[TrialResources, PlannedTrial], bool]] = {
    "create": _create,
    "use": _use,
    "share": _share,
    "by_gpu": _by_gpu,
    "by_cpu": _by_cpu,
    STORE: _store,
    "managed": _managed,
    "concurrent": _concurrent,
    "pinned": _pinned,
    "registered": _registered,
    "ipc": _ipc,
    "ipc_event": _ipc_event,
    "pool": _pool,
    "dma_buf": _dma_buf,
    "external_memory": _external_memory,
    "external_dma_buf": _external_dma_buf,
    "external_semaphore": _external_semaphore,
}


def import_shared(resources: TrialResources, request: ImportRequest, handle: Handle) -> ImportAnswer:
    """Import what a trial of another child shares, look for its bytes, and write others."""
    try:
        return ImportAnswer(as_expected=_IMPORTS[request.what](resources, request, handle.shared))
    except DriverError as error:
        return ImportAnswer(error=error.name, call=error.call)


def _import_chunk(resources: TrialResources, request: ImportRequest, shared: int | bytes) -> bool:
    driver = resources.driver
    handle = driver.mem_import_from_shareable_handle(shared, HandleType(request.handle_type))
    with ExitStack() as undo:
        undo.callback(driver.mem_release, handle)
        address = undo.enter_context(resources.mapped(handle, request.size, [gpu(request.device)]))
        return _read_and_write(resources, request.device, address)


def _import_ipc(resources: TrialResources, request: ImportRequest, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    driver = resources.driver
    open_ = partial(driver.ipc_open_mem_handle, shared)
    with resources.made(request.device, open_, driver.ipc_close_mem_handle) as address:
        return _read_and_write(resources, request.device, address)


def _import_ipc_event(resources: TrialResources, request: ImportRequest, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    driver = resources.driver
    open_ = partial(driver.ipc_open_event_handle, shared)
    with resources.made(request.device, open_, driver.event_destroy) as event:
        driver.event_synchronize(event)
        return driver.event_query(event)


def _import_pool(resources: TrialResources, request: ImportRequest, shared: int | bytes) -> bool:
    driver = resources.driver
    with resources.current(request.device), ExitStack() as undo:
        pool = driver.mem_pool_import_from_shareable_handle(shared, HandleType(request.handle_type))
        undo.callback(driver.mem_pool_destroy, pool)
        grant = Grant(gpu(request.device), Access.RW)
        if driver.mem_pool_get_access(pool, grant.location) != Access.RW:
            driver.mem_pool_set_access(pool, (grant,))
        address = driver.mem_pool_import_pointer(pool, bytes.fromhex(request.pointer))
        undo.callback(driver.mem_free, address)
        return _read_and_write(resources, request.device, address)


def _read_and_write(resources: TrialResources, device: int, address: int) -> bool:
    as_expected = resources.reads(device, address, FIRST)
    resources.fill(device, address, SECOND)
    return as_expected


_IMPORTS: dict[SharedObject, Callable[[TrialResources, ImportRequest, int | bytes], bool]] = {
    "chunk": _import_chunk,
    "ipc": _import_ipc,
    "ipc_event": _import_ipc_event,
    "pool": _import_pool,
}
