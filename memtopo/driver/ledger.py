"""The ledger: an account of what is open, apart from the lists of those who opened it."""

from __future__ import annotations

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import (
    EventFlags,
    HandleType,
    MemAttach,
    MemoryHandleType,
    Properties,
    SemaphoreHandleType,
)


class Ledger:
    """A driver that hands every call to another one and notes what each successful call opened or closed.

    `reservations`, `mappings` and `allocations` (managed ones, and buffers of external memory, among them) are sizes by
    address, `handles` references by handle, `contexts` retains by device, `opened` openings by address, `events` those
    created or opened, `modules` kernels that are loaded, `external` objects and `semaphores` of another API, `streams`.
    A file descriptor of an exported chunk is the caller's and no driver's, so it is not counted here.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self.reservations: dict[int, int] = {}
        self.handles: dict[int, int] = {}
        self.mappings: dict[int, int] = {}
        self.contexts: dict[int, int] = {}
        self.allocations: dict[int, int] = {}
        self.opened: dict[int, int] = {}
        self.events: set[int] = set()
        self.modules: set[int] = set()
        self.external: set[int] = set()
        self.semaphores: set[int] = set()
        self.streams: set[int] = set()
        self._occurred: set[str] = set()
        self._bind_accounted(driver)
        self._bind_shared(driver)
        self._bind_queries(driver)
        self._bind_rest(driver)
        self._bind_kernels(driver)
        self._bind_managed(driver)
        self._bind_external(driver)

    def counts(self) -> dict[str, int]:
        """How much of each kind is open: references to handles, retains of contexts, openings of memory.

        What stands behind contexts is told of from the first of its kind on.
        """
        common = {
            "reservations": len(self.reservations),
            "handles": sum(self.handles.values()),
            "mappings": len(self.mappings),
            "contexts": sum(self.contexts.values()),
        }
        rare = {
            "allocations": len(self.allocations),
            "opened": sum(self.opened.values()),
            "events": len(self.events),
            "modules": len(self.modules),
            "external": len(self.external),
            "semaphores": len(self.semaphores),
            "streams": len(self.streams),
        }
        return common | {kind: count for kind, count in rare.items() if kind in self._occurred}

    @property
    def empty(self) -> bool:
        """Whether nothing is open."""
        return not any(self.counts().values())

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        reserved = self._reserve(size, alignment, address, flags)
        self.reservations[reserved] = size
        return reserved

    def mem_address_free(self, address: int, size: int) -> None:
        self._free(address, size)
        self.reservations.pop(address, None)

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return _taken(self.handles, self._create(size, properties, flags))

    def mem_release(self, handle: int) -> None:
        self._release(handle)
        _give_back(self.handles, handle)

    def mem_retain_allocation_handle(self, address: int) -> int:
        return _taken(self.handles, self._retain(address))

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        return _taken(self.handles, self._import(shared, kind))

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        self._map(address, size, handle, offset, flags)
        self.mappings[address] = size

    def mem_unmap(self, address: int, size: int) -> None:
        self._unmap(address, size)
        if self.mappings.get(address) == size:
            del self.mappings[address]
        else:
            self._forget(address, address + size)

    def device_primary_ctx_retain(self, device: int) -> int:
        context = self._ctx_retain(device)
        _taken(self.contexts, device)
        return context

    def device_primary_ctx_release(self, device: int) -> None:
        self._ctx_release(device)
        _give_back(self.contexts, device)

    def mem_alloc(self, size: int) -> int:
        return self._allocated(self._alloc(size), size)

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return self._allocated(self._alloc_managed(size, flags), size)

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        return self._allocated(self._map_buffer(memory, offset, size), size)

    def mem_free(self, address: int) -> None:
        self._mem_free(address)
        self.allocations.pop(address, None)

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        address = _taken(self.opened, self._open_mem(handle, flags))
        self._occurred.add("opened")
        return address

    def ipc_close_mem_handle(self, address: int) -> None:
        self._close_mem(address)
        _give_back(self.opened, address)

    def event_create(self, flags: EventFlags) -> int:
        return self._opening(self.events, "events", self._create_event(flags))

    def ipc_open_event_handle(self, handle: bytes) -> int:
        return self._opening(self.events, "events", self._open_event(handle))

    def event_destroy(self, event: int) -> None:
        self._destroy_event(event)
        self.events.discard(event)

    def module_load_data(self) -> int:
        return self._opening(self.modules, "modules", self._load_module())

    def module_unload(self, module: int) -> None:
        self._unload_module(module)
        self.modules.discard(module)

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        return self._opening(self.external, "external", self._import_memory(fd, kind, size, dedicated=dedicated))

    def destroy_external_memory(self, memory: int) -> None:
        self._destroy_memory(memory)
        self.external.discard(memory)

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        return self._opening(self.semaphores, "semaphores", self._import_semaphore(fd, kind))

    def destroy_external_semaphore(self, semaphore: int) -> None:
        self._destroy_semaphore(semaphore)
        self.semaphores.discard(semaphore)

    def stream_create(self, flags: int = 1) -> int:
        return self._opening(self.streams, "streams", self._create_stream(flags))

    def stream_destroy(self, stream: int) -> None:
        self._destroy_stream(stream)
        self.streams.discard(stream)

    def _allocated(self, address: int, size: int) -> int:
        self.allocations[address] = size
        self._occurred.add("allocations")
        return address

    def _opening(self, account: set[int], kind: str, opened: int) -> int:
        account.add(opened)
        self._occurred.add(kind)
        return opened

    def _forget(self, address: int, end: int) -> None:
        """Strike out all mappings from `address` to `end`: those that follow on one another, then any behind a hole."""
        while address < end and (size := self.mappings.pop(address, 0)):
            address += size
        if address < end:
            for start in [start for start in self.mappings if address <= start < end]:
                del self.mappings[start]

    def _bind_accounted(self, driver: KernelDriver) -> None:
        self._reserve = driver.mem_address_reserve
        self._free = driver.mem_address_free
        self._create = driver.mem_create
        self._release = driver.mem_release
        self._retain = driver.mem_retain_allocation_handle
        self._map = driver.mem_map
        self._unmap = driver.mem_unmap
        self._ctx_retain = driver.device_primary_ctx_retain
        self._ctx_release = driver.device_primary_ctx_release

    def _bind_shared(self, driver: KernelDriver) -> None:
        self._import = driver.mem_import_from_shareable_handle
        self._alloc = driver.mem_alloc
        self._mem_free = driver.mem_free
        self._open_mem = driver.ipc_open_mem_handle
        self._close_mem = driver.ipc_close_mem_handle
        self._create_event = driver.event_create
        self._destroy_event = driver.event_destroy
        self._open_event = driver.ipc_open_event_handle

    def _bind_queries(self, driver: KernelDriver) -> None:
        self.driver_get_version = driver.driver_get_version
        self.device_get_count = driver.device_get_count
        self.device_get_name = driver.device_get_name
        self.device_get_uuid = driver.device_get_uuid
        self.device_get_pci_bus_id = driver.device_get_pci_bus_id
        self.device_get_attribute = driver.device_get_attribute
        self.device_total_mem = driver.device_total_mem
        self.device_can_access_peer = driver.device_can_access_peer
        self.device_get_p2p_attribute = driver.device_get_p2p_attribute
        self.device_primary_ctx_get_state = driver.device_primary_ctx_get_state
        self.mem_get_info = driver.mem_get_info
        self.mem_get_allocation_granularity = driver.mem_get_allocation_granularity
        self.mem_get_access = driver.mem_get_access
        self.mem_get_allocation_properties_from_handle = driver.mem_get_allocation_properties_from_handle
        self.mem_get_address_range = driver.mem_get_address_range
        self.ipc_get_mem_handle = driver.ipc_get_mem_handle
        self.ipc_get_event_handle = driver.ipc_get_event_handle
        self.event_query = driver.event_query

    def _bind_rest(self, driver: KernelDriver) -> None:
        self.init = driver.init
        self.ctx_push_current = driver.ctx_push_current
        self.ctx_pop_current = driver.ctx_pop_current
        self.ctx_synchronize = driver.ctx_synchronize
        self.mem_set_access = driver.mem_set_access
        self.mem_export_to_shareable_handle = driver.mem_export_to_shareable_handle
        self.event_record = driver.event_record
        self.event_synchronize = driver.event_synchronize
        self.stream_wait_event = driver.stream_wait_event
        self.memset_d8 = driver.memset_d8
        self.memcpy_htod = driver.memcpy_htod
        self.memcpy_dtoh = driver.memcpy_dtoh

    def _bind_kernels(self, driver: KernelDriver) -> None:
        self._load_module = driver.module_load_data
        self._unload_module = driver.module_unload
        self.fill = driver.fill
        self.verify = driver.verify
        self.store = driver.store
        self.load = driver.load

    def _bind_managed(self, driver: KernelDriver) -> None:
        self._alloc_managed = driver.mem_alloc_managed
        self.mem_advise = driver.mem_advise
        self.mem_prefetch_async = driver.mem_prefetch_async
        self.mem_range_get_attribute = driver.mem_range_get_attribute
        self.stream_attach_mem_async = driver.stream_attach_mem_async
        self.pointer_is_managed = driver.pointer_is_managed
        self.host_write = driver.host_write
        self.host_read = driver.host_read

    def _bind_external(self, driver: KernelDriver) -> None:
        self._create_stream = driver.stream_create
        self._destroy_stream = driver.stream_destroy
        self._import_memory = driver.import_external_memory
        self._map_buffer = driver.external_memory_get_mapped_buffer
        self._destroy_memory = driver.destroy_external_memory
        self._import_semaphore = driver.import_external_semaphore
        self._destroy_semaphore = driver.destroy_external_semaphore
        self.stream_query = driver.stream_query
        self.signal_external_semaphore = driver.signal_external_semaphore
        self.wait_external_semaphore = driver.wait_external_semaphore


def _taken(account: dict[int, int], key: int) -> int:
    account[key] = account.get(key, 0) + 1
    return key


def _give_back(account: dict[int, int], key: int) -> None:
    left = account.get(key, 0) - 1
    if left > 0:
        account[key] = left
    else:
        account.pop(key, None)
