"""What memtopo asks of a driver: one method per driver call, named after it, no retries, nothing composed.

Addresses, handles, contexts, events and streams are ints; sizes are bytes. Every method raises `DriverError` where the
driver does not return `CUDA_SUCCESS`, and where a number does not fit what the driver takes. VMM methods need no
current context (fact 8), sharing chunks neither (fact 44); those that copy, set or count memory do,
`mem_get_address_range`, and those of allocations and events but for `mem_free`, `event_query` and `event_destroy`
(facts 45 to 47).
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

from memtopo.driver.types import (
    Advice,
    Attribute,
    EventFlags,
    Grant,
    HandleType,
    Location,
    MemAttach,
    MemoryHandleType,
    PeerAttribute,
    Properties,
    RangeAttribute,
    SemaphoreHandleType,
)


class Driver(Protocol):
    """The CUDA driver API, as far as memtopo uses it; two kinds of calls stand in modules of their own."""

    def init(self) -> None:
        """`cuInit(0)`."""

    def driver_get_version(self) -> int:
        """The CUDA version that the driver supports: 13000 for 13.0."""

    def device_get_count(self) -> int:
        """How many GPUs this process may use."""

    def device_get_name(self, device: int) -> str:
        """The product name."""

    def device_get_uuid(self, device: int) -> bytes:
        """16 bytes that name the GPU in every process and API (fact 38)."""

    def device_get_pci_bus_id(self, device: int) -> str:
        """`0000:1b:00.0`."""

    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        """One advertised attribute; not a promise (fact 4)."""

    def device_total_mem(self, device: int) -> int:
        """Bytes of device memory."""

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        """Whether `device` can reach the memory of `peer`."""

    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        """One attribute of the link from `device` to `peer`."""

    def device_primary_ctx_retain(self, device: int) -> int:
        """Retain the device's primary context; wants its own release."""

    def device_primary_ctx_release(self, device: int) -> None:
        """Give one retain back."""

    def device_primary_ctx_get_state(self, device: int) -> bool:
        """Whether the primary context is active."""

    def ctx_push_current(self, context: int) -> None:
        """Make a context current on this thread, above the one that was."""

    def ctx_pop_current(self) -> int:
        """Take the current context off this thread and return it."""

    def ctx_synchronize(self) -> None:
        """Wait until the current context's work is done."""

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes of the current context's device."""

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        """Minimum or recommended granularity of chunks with exactly these properties, in bytes (facts 1, 2)."""

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        """Reserve addresses; `address` is a wish (facts 9 to 11)."""

    def mem_address_free(self, address: int, size: int) -> None:
        """Free exactly one reservation (fact 12)."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        """Create a chunk of physical memory; returns its handle (fact 3)."""

    def mem_release(self, handle: int) -> None:
        """Give one reference to a chunk back (fact 18)."""

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        """Map a whole chunk (facts 13 to 16)."""

    def mem_unmap(self, address: int, size: int) -> None:
        """Unmap whole mappings (fact 17); does not synchronise (fact 18)."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        """Set access for whole mappings without a hole (fact 20)."""

    def mem_get_access(self, address: int, location: Location) -> int:
        """The access flags of a location at an address (fact 22)."""

    def mem_retain_allocation_handle(self, address: int) -> int:
        """The handle mapped at an address, with a reference that wants its own release (fact 18)."""

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        """What a chunk was created with (facts 6, 7)."""

    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        """Base and size of the mapping or allocation around an address that the current context's device may access."""

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        """Share a chunk, as a new file descriptor or as the 64 bytes of a fabric handle (facts 26, 44).

        The descriptor is close-on-exec, and the caller's to close.
        """

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """A new handle to a shared chunk, with a reference of its own (facts 27 to 29, 43).

        A descriptor stays the caller's, and may be closed at once.
        """

    def mem_alloc(self, size: int) -> int:
        """Allocate memory of the current context's device; returns its address (fact 45)."""

    def mem_free(self, address: int) -> None:
        """Free an allocation, by the address that it was given; 0 is none (fact 45)."""

    def ipc_get_mem_handle(self, address: int) -> bytes:
        """64 bytes that name the allocation around an address to other processes (facts 31, 46)."""

    def ipc_open_mem_handle(self, handle: bytes, flags: int = 1) -> int:
        """The address, here, of another process's allocation; each opening wants its own close (fact 46)."""

    def ipc_close_mem_handle(self, address: int) -> None:
        """Give one opening back, by the address that it was given (fact 46)."""

    def event_create(self, flags: EventFlags) -> int:
        """Create an event in the current context (fact 47)."""

    def event_destroy(self, event: int) -> None:
        """Give up an event, created or opened here; others keep theirs."""

    def event_record(self, event: int, stream: int = 0) -> None:
        """Have an event happen once the work that is now in a stream is done."""

    def event_query(self, event: int) -> bool:
        """Whether what was recorded last is done; an event that was never recorded is (fact 47)."""

    def event_synchronize(self, event: int) -> None:
        """Wait until what was recorded last is done."""

    def ipc_get_event_handle(self, event: int) -> bytes:
        """64 bytes that name an interprocess event to other processes (facts 32, 47)."""

    def ipc_open_event_handle(self, handle: bytes) -> int:
        """Another process's event as one here, which wants its own destruction (fact 47)."""

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        """Have later work of a stream wait for what an event recorded last."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        """Fill `count` bytes; needs a current context whose device may write (fact 23)."""

    def memcpy_htod(self, address: int, data: bytes) -> None:
        """Copy bytes to the device; needs a current context whose device may write (fact 23)."""

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        """Copy bytes from the device; needs a current context whose device may read (fact 23)."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        """Allocate managed memory; needs a current context. `SINGLE` is refused here (facts 39, 60)."""

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        """Advise how a managed range is going to be used (fact 60)."""

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        """Have a managed range migrate to a GPU or the host (fact 60)."""

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """What a managed range was advised: 0 or 1, or GPUs by ordinal with `HOST` for the host; without any, empty."""

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        """Say who uses all of an allocation of managed memory: with `SINGLE`, a stream other than 0 alone (fact 60)."""

    def pointer_is_managed(self, address: int) -> bool:
        """Whether an address is in managed memory."""

    def host_write(self, address: int, data: bytes) -> None:
        """The CPU's own store; it dies of SIGSEGV where the CPU may not write (facts 21, 39, 40)."""

    def host_read(self, address: int, count: int) -> bytes:
        """The CPU's own load; it dies of SIGSEGV where the CPU may not read (facts 21, 39, 40)."""

    def stream_create(self, flags: int = 1) -> int:
        """Create a stream of the current context; with 1 it does not wait for stream 0."""

    def stream_destroy(self, stream: int) -> None:
        """Give up a stream; what it still waits for goes on holding its context (fact 58)."""

    def stream_query(self, stream: int) -> bool:
        """Whether all work of a stream is done."""

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        """An object of `size` bytes that another API made; needs the current context of its GPU (facts 53, 55).

        The descriptor is the driver's from then on. Where it is refused, it may be closed and may be open (fact 54).
        """

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        """The address of a part of an object (fact 53)."""

    def destroy_external_memory(self, memory: int) -> None:
        """Give up an object, once. A second time ends the process (fact 57)."""

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        """A semaphore that another API made; needs a current context. The descriptor is the driver's then (fact 54)."""

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Have a stream signal, once its work is done; the value counts for timelines alone (fact 56)."""

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Have a stream wait; nothing ends that but the signal (facts 56, 58)."""

    def destroy_external_semaphore(self, semaphore: int) -> None:
        """Give up a semaphore, once (fact 57). It waits for all that was not signalled yet, for ever (fact 58)."""


_LAUNCHED = ("fill", "verify", "store", "load")
_OTHERS = {
    "pointer_is_managed": "cuPointerGetAttribute",
    "signal_external_semaphore": "cuSignalExternalSemaphoresAsync",
    "wait_external_semaphore": "cuWaitExternalSemaphoresAsync",
    "host_write": "the CPU's store",
    "host_read": "the CPU's load",
}
_SPELT = {"p2p": "P2P", "pci": "PCI", "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD"}


@cache
def call_name(method: str) -> str:
    """The driver call behind a method: `cuMemMap` for `mem_map`, `cuMemcpyHtoD` for `memcpy_htod`.

    It may be a launch, or what the CPU does itself.
    """
    if method in _LAUNCHED:
        return "cuLaunchKernel"
    if method in _OTHERS:
        return _OTHERS[method]
    return "cu" + "".join(_SPELT.get(word) or word.capitalize() for word in method.split("_"))
