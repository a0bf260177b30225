"""Driver calls that memtopo uses: one method per call, named after it, without retries or compound operations.

Addresses, handles, contexts, events and streams are ints; sizes are bytes. Every method raises `DriverError` if the
driver does not return `CUDA_SUCCESS`, or if a number does not fit the driver's parameter.

VMM calls and the export and import of chunks by handles need no current context (facts 8, 44). A current context is
needed by calls that copy, set or count memory, by `mem_get_address_range`, by dma-bufs (fact 83), and by those for
allocations and events except `mem_free`, `event_query` and `event_destroy` (facts 45 to 47). Managed allocations and
buffers mapped from external memory are freed by `mem_free`.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

from memtopo.driver.types import (
    Advice,
    DmaBufFlags,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    MemAttach,
    MemoryHandleType,
    PoolAttribute,
    PoolProperties,
    Properties,
    RangeAttribute,
    RegisterFlags,
    SemaphoreHandleType,
)


class Driver(Protocol):
    """The part of the CUDA driver API that memtopo uses.

    To add a call: a method here and in the simulator, and a line of the table in `functions.py`.
    """

    def init(self) -> None:
        """`cuInit(0)`."""

    def driver_get_version(self) -> int:
        """CUDA version that the driver supports: 13000 for 13.0."""

    def device_get_count(self) -> int:
        """Number of GPUs visible to this process."""

    def device_get_name(self, device: int) -> str:
        """Product name."""

    def device_get_uuid(self, device: int) -> bytes:
        """UUID of 16 bytes, the same in every process and API (fact 38)."""

    def device_get_pci_bus_id(self, device: int) -> str:
        """PCI bus id, such as `0000:1b:00.0`."""

    def device_get_attribute(self, device: int, attribute: int) -> int:
        """Advertised attribute, by its number; not a guarantee (fact 4)."""

    def device_total_mem(self, device: int) -> int:
        """Bytes of device memory."""

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        """Return whether `device` can access the memory of `peer`."""

    def device_get_p2p_attribute(self, attribute: int, device: int, peer: int) -> int:
        """Attribute of the link from `device` to `peer`."""

    def device_primary_ctx_retain(self, device: int) -> int:
        """Retain the device's primary context; each retain needs a release."""

    def device_primary_ctx_release(self, device: int) -> None:
        """Release one retain of the primary context."""

    def device_primary_ctx_get_state(self, device: int) -> bool:
        """Return whether the primary context is active."""

    def ctx_push_current(self, context: int) -> None:
        """Push a context on this thread's stack, which makes it current."""

    def ctx_pop_current(self) -> int:
        """Pop the current context of this thread and return it."""

    def ctx_synchronize(self) -> None:
        """Wait until the current context's work is done."""

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes of the current context's device."""

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        """Minimum or recommended granularity, in bytes, of chunks with exactly these properties (facts 1, 2)."""

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        """Reserve addresses; `address` is a hint (facts 9 to 11)."""

    def mem_address_free(self, address: int, size: int) -> None:
        """Free exactly one reservation (fact 12)."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        """Create a chunk of physical memory; returns its handle (fact 3)."""

    def mem_release(self, handle: int) -> None:
        """Release one reference to a chunk (fact 18)."""

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        """Map a whole chunk (facts 13 to 16)."""

    def mem_unmap(self, address: int, size: int) -> None:
        """Unmap whole mappings (fact 17); does not synchronise (fact 18)."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        """Set access for whole mappings without a hole (facts 20, 63); not atomic if it is refused (fact 62)."""

    def mem_get_access(self, address: int, location: Location) -> int:
        """Access flags of a location at an address (fact 22)."""

    def mem_retain_allocation_handle(self, address: int) -> int:
        """Handle mapped at an address, with a new reference that needs a release (fact 18)."""

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        """Properties of a chunk (facts 6, 7)."""

    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        """Base and size of the mapping or allocation around an address that the current context's device can access."""

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """Export a chunk as a new file descriptor or as a fabric handle of 64 bytes (facts 26, 44).

        The descriptor is close-on-exec and the caller's to close.
        """

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """Import an exported chunk; returns a new handle with a reference of its own (facts 27 to 29, 43).

        A descriptor stays the caller's and may be closed at once.
        """

    def multicast_create(self, devices: int, size: int, handles: HandleType, flags: int = 0) -> int:
        """Create a multicast object for a team of `devices` GPUs, each of which may bind `size` bytes (fact 87).

        Returns a handle for `mem_map`, `mem_export_to_shareable_handle` and `mem_release`. This call and the other
        multicast calls are simulated from the documentation; the CUDA driver refuses them without a call.
        """

    def multicast_add_device(self, handle: int, device: int) -> None:
        """Add a GPU to the team of a multicast object, for as long as the object exists (fact 87)."""

    def multicast_bind_mem(
        self, handle: int, offset: int, chunk: int, chunk_offset: int, size: int, flags: int = 0
    ) -> None:
        """Bind `size` bytes of a chunk to a multicast object; waits until all GPUs of its team are added (fact 87)."""

    def multicast_bind_addr(self, handle: int, offset: int, address: int, size: int, flags: int = 0) -> None:
        """Bind `size` bytes of the chunk that is mapped at an address, as `multicast_bind_mem` does (fact 87)."""

    def multicast_unbind(self, handle: int, device: int, offset: int, size: int) -> None:
        """Unbind what a GPU has bound; offset and size are those of the bind (fact 87)."""

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        """Export mapped or allocated memory as a new dma-buf, in whole pages of the host; returns its descriptor.

        Needs a current context. The descriptor is close-on-exec and the caller's to close; it pins memory (fact 84).
        """

    def mem_alloc(self, size: int) -> int:
        """Allocate memory of the current context's device; returns its address (fact 45)."""

    def mem_free(self, address: int) -> None:
        """Free an allocation by its start address; 0 is ignored (fact 45)."""

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        """Allocate page-locked host memory in the current context; returns its address for CPU and GPUs (fact 74)."""

    def mem_host_get_flags(self, address: int) -> int:
        """Flags of the page-locked memory around an address (fact 74)."""

    def mem_free_host(self, address: int) -> None:
        """Free page-locked memory by its start address; 0 is ignored (fact 74)."""

    def mem_host_register(self, address: int, size: int, flags: RegisterFlags) -> None:
        """Page-lock memory of the process, and map it for the GPUs at its own address (fact 85).

        Needs a current context. The memory has to stay mapped until it is unregistered (fact 86).
        """

    def mem_host_unregister(self, address: int) -> None:
        """End the registration that begins at an address; the memory stays mapped (fact 85)."""

    def mem_host_get_device_pointer(self, address: int) -> int:
        """Address of page-locked memory for the current context's device (facts 74, 85)."""

    def mem_pool_create(self, properties: PoolProperties) -> int:
        """Create a pool for stream-ordered allocations (fact 80)."""

    def mem_pool_destroy(self, pool: int) -> None:
        """Destroy a pool, created or imported; its memory stays until its last allocation is freed (fact 80)."""

    def mem_pool_set_attribute(self, pool: int, attribute: PoolAttribute, value: int) -> None:
        """Set one of the attributes that can be set (fact 80)."""

    def mem_pool_get_attribute(self, pool: int, attribute: PoolAttribute) -> int:
        """Attribute of a pool: 0 or 1, or bytes."""

    def mem_pool_set_access(self, pool: int, grants: tuple[Grant, ...]) -> None:
        """Set the access of locations to all allocations of a pool, earlier ones too (fact 81)."""

    def mem_pool_get_access(self, pool: int, location: Location) -> int:
        """Access flags of a location (fact 81)."""

    def mem_alloc_from_pool_async(self, size: int, pool: int, stream: int = 0) -> int:
        """Allocate memory of a pool in the order of a stream; returns its address at once (fact 80).

        Stream 0 needs a current context. `mem_free` frees it at once, and `mem_free_async` in the order of a stream.
        """

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        """Free an allocation of a pool by its start address, in the order of a stream (fact 80)."""

    def mem_pool_trim_to(self, pool: int, keep: int) -> None:
        """Give back reserved memory that no allocation uses, down to `keep` bytes (fact 80)."""

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """Export a pool as a new file descriptor, which is the caller's to close, or as 64 bytes (fact 82)."""

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType, flags: int = 0) -> int:
        """Import another process's pool, of which nothing can be allocated here (fact 82).

        A descriptor stays the caller's and may be closed at once.
        """

    def mem_pool_export_pointer(self, address: int) -> bytes:
        """64 bytes that name an allocation of a pool to processes that have imported the pool (fact 82)."""

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        """Import one allocation of an imported pool; returns its address here (fact 82).

        Free it with `mem_free` before its exporter does, and do not import it twice in one process.
        """

    def ipc_get_mem_handle(self, address: int) -> bytes:
        """IPC handle of 64 bytes for the allocation around an address (facts 31, 46)."""

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        """Open another process's allocation; returns its address here. Each opening needs a close (fact 46)."""

    def ipc_close_mem_handle(self, address: int) -> None:
        """Close one opening of an allocation, by its start address (fact 46)."""

    def event_create(self, flags: EventFlags) -> int:
        """Create an event in the current context (fact 47)."""

    def event_destroy(self, event: int) -> None:
        """Destroy an event that was created or opened here; other processes keep theirs."""

    def event_record(self, event: int, stream: int = 0) -> None:
        """Record an event in a stream: it completes when all work submitted so far is done."""

    def event_query(self, event: int) -> bool:
        """Return whether the last record has completed; true for an event that was never recorded (fact 47)."""

    def event_synchronize(self, event: int) -> None:
        """Wait until the last record has completed."""

    def ipc_get_event_handle(self, event: int) -> bytes:
        """IPC handle of 64 bytes for an interprocess event (facts 32, 47)."""

    def ipc_open_event_handle(self, handle: bytes) -> int:
        """Open another process's event; the returned event needs its own destruction (fact 47)."""

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        """Make later work of a stream wait for the last record of an event."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        """Fill `count` bytes; the current context's device needs write access (fact 23)."""

    def memcpy_htod(self, address: int, data: bytes) -> None:
        """Copy bytes to the device; the current context's device needs write access (fact 23)."""

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        """Copy bytes from the device; the current context's device needs read access (fact 23)."""

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        """Copy `count` bytes between any two addresses, in order with the other work of the stream."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        """Allocate managed memory; needs a current context. `SINGLE` is refused (facts 39, 60)."""

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        """Advise the driver on the use of a managed range (fact 60)."""

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        """Migrate a managed range to a GPU or the host (fact 60)."""

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """Attribute of a managed range: 0 or 1, or GPUs by ordinal with `HOST` for the host; may be empty."""

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        """Attach a managed allocation to a stream; `SINGLE` needs a stream other than 0 (fact 60)."""

    def pointer_is_managed(self, address: int) -> bool:
        """Return whether an address is in managed memory."""

    def host_write(self, address: int, data: bytes) -> None:
        """Store bytes by the CPU; ends the process with SIGSEGV if the CPU has no write access (facts 21, 39, 40)."""

    def host_read(self, address: int, count: int) -> bytes:
        """Load bytes by the CPU; ends the process with SIGSEGV if the CPU has no read access (facts 21, 39, 40)."""

    def stream_create(self, flags: int = 1) -> int:
        """Create a stream in the current context; with flags 1 it does not wait for stream 0."""

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream; outstanding waits still keep its context busy (fact 58)."""

    def stream_query(self, stream: int) -> bool:
        """Return whether all work of a stream is done."""

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        """Import memory of `size` bytes that an external API allocated; needs a context of its GPU (facts 53, 55).

        Ownership of the descriptor passes to the driver. After an error it may be closed or still open (fact 54).
        """

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        """Map a part of external memory; returns its address (fact 53)."""

    def destroy_external_memory(self, memory: int) -> None:
        """Destroy external memory, once: a second call ends the process (fact 57)."""

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        """Import an external semaphore; needs a current context. The descriptor passes to the driver (fact 54)."""

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Make a stream signal a semaphore after its work so far; only timelines use the value (fact 56)."""

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Make a stream wait for a semaphore; only a signal ends the wait (facts 56, 58)."""

    def destroy_external_semaphore(self, semaphore: int) -> None:
        """Destroy an external semaphore, once (fact 57). Waits for ever for outstanding signals (fact 58)."""


_LAUNCHES = ("fill", "verify", "fingerprint", "store", "load")
_SPECIAL = {
    "pointer_is_managed": "cuPointerGetAttribute",
    "signal_external_semaphore": "cuSignalExternalSemaphoresAsync",
    "wait_external_semaphore": "cuWaitExternalSemaphoresAsync",
    "host_write": "(store by the CPU)",
    "host_read": "(load by the CPU)",
}
_SPELLINGS = {"p2p": "P2P", "pci": "PCI", "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD"}


@cache
def call_name(method: str) -> str:
    """Driver's name of a method's call: `cuMemMap` for `mem_map`, `cuMemcpyHtoD` for `memcpy_htod`.

    For kernels it is the launch, for loads and stores by the CPU a description.
    """
    if method in _LAUNCHES:
        return "cuLaunchKernel"
    if method in _SPECIAL:
        return _SPECIAL[method]
    return "cu" + "".join(_SPELLINGS.get(word) or word.capitalize() for word in method.split("_"))
