"""The simulator: a driver that follows every rule of `docs/driver-facts.md` on a recorded machine, without a GPU."""

from __future__ import annotations

from memtopo.drivers.sim.driver import SimDriver
from memtopo.drivers.sim.external_api import SimExternalApi, SimTrialCalls

__all__ = ["DOCUMENTED", "LAXER", "STRICTER", "SimDriver", "SimExternalApi", "SimTrialCalls"]

# Differences on purpose where the simulator refuses more than hardware, by method.
STRICTER = {
    "mem_map": "a mapping that runs past the end of its reservation is refused: hardware maps it into"
    " adjacent addresses (fact 15); of a handle that was released too: on hardware the process may die (fact 69)",
    "mem_unmap": "a range that runs past the end of what is reserved is refused: hardware checks its start alone",
    "ctx_push_current": "a context that was released is refused: hardware refuses the calls that use it",
    "driver_get_version": "refused before init like every call: hardware accepts it",
    "memcpy_htod": "a copy to host memory that ends the process on hardware is refused (facts 40, 67)",
    "memcpy_dtoh": "likewise a copy from it, and one of registered memory whose file was shortened (fact 86)",
    "memset_d8": "a fill of registered memory that was unmapped, or whose file was shortened, is refused:"
    " hardware fills the pages that are locked (fact 86)",
    "device_primary_ctx_release": "with the last retain its allocations, opened memory and events are gone, and any use"
    " of them is refused: not tried on hardware",
    "ipc_open_mem_handle": "memory of a process of another pid namespace is refused, as are its events and fabric"
    " handles: not tried on hardware; memory of a gpu that is not visible here, or that the current one cannot access,"
    " is refused: not tried on hardware; of memory that its process has freed, unless it is open here"
    " already: hardware opens whatever its block has now, or refuses it with another error (fact 72)",
    "ipc_close_mem_handle": "refused without a current context: not tried on hardware",
    "ipc_get_event_handle": "refused in the context of another gpu than the event's: on hardware the process may die"
    " (fact 78)",
    "event_synchronize": "refused without a current context: not tried on hardware",
    "event_destroy": "an event that is not open is refused, here and in every call: hardware may end the process",
    "event_record": "refused on a stream that is not open: hardware may end the process",
    "stream_wait_event": "likewise, and with flags; an interprocess event on a stream of another gpu is refused: on"
    " hardware the process dies (fact 76)",
    "mem_address_reserve": "only addresses from 1 TiB to 84 TiB are free (fact 11)",
    "mem_create": "a fabric handle that was never tried on the recorded machine is refused (fact 4)",
    "mem_get_allocation_properties_from_handle": "a handle that was released is refused: on hardware it is answered"
    " (fact 52)",
    "mem_export_to_shareable_handle": "a handle that was released is refused: on hardware the process dies (fact 51)",
    "mem_import_from_shareable_handle": "external memory whose size is no multiple of the granularity is refused:"
    " such was not tried (fact 59)",
    "import_external_memory": "a chunk of the host's memory is refused: not tried on hardware",
    "external_memory_get_mapped_buffer": "of an object that was destroyed it is refused: on hardware the process dies"
    " (fact 57); past the size that was asked for: hardware maps what it has rounded up to (fact 53); of a semaphore"
    " that was imported as memory: not tried on hardware",
    "destroy_external_memory": "a second time it is refused: on hardware the process dies (fact 57)",
    "destroy_external_semaphore": "likewise; and it waits for the outstanding waits of all streams",
    "mem_free": "of managed memory it waits for the outstanding waits of all streams: hardware waits for those of the"
    " GPUs that touched it (fact 58)",
    "signal_external_semaphore": "refused on a stream of another context, and of what was imported as another type than"
    " it is: not tried on hardware",
    "wait_external_semaphore": "likewise",
    "stream_create": "refused with other flags than 1: a stream that waits for stream 0 is not simulated",
    "stream_destroy": "a stream that is not open is refused, here and in every call: hardware may end the process",
    "mem_alloc_managed": "refused where the gpu does not advertise managed memory: not tried on such a gpu",
    "mem_advise": "refused without a current context, and at a gpu that does not advertise concurrent access: neither"
    " was tried",
    "mem_prefetch_async": "likewise",
    "mem_range_get_attribute": "refused without a current context: not tried on hardware",
    "stream_attach_mem_async": "likewise, and inside of an allocation",
    "pointer_is_managed": "likewise without a context",
    "host_write": "where the CPU may not write it is refused: on hardware the process dies of SIGSEGV (facts 21, 40);"
    " likewise past the end of one mapping or allocation, even if more is mapped behind it",
    "host_read": "likewise where it may not read",
    "mem_pool_destroy": "a pool that was destroyed, or never was one, is refused, here and in every call: on hardware"
    " the process may die (facts 80, 82)",
    "mem_free_async": "of other memory than that of pools it is refused: hardware accepts that of cuMemAlloc (fact 80)",
    "mem_pool_export_to_shareable_handle": "a pool whose maximum size is more than there is is refused, as on an H100:"
    " two H200s export it, and the import does not return (fact 82)",
    "mem_pool_import_pointer": "memory of a gpu that is not visible here has no access before it is set: hardware reads"
    " it without (fact 82)",
}

# Calls whose answers come from documentation alone (fact 87): no hardware was tried, so each may differ from it.
DOCUMENTED = {
    "multicast_create": "the reference; a machine needs a record of a trial that worked, which none has",
    "multicast_add_device": "the reference; a gpu that is added twice, or one too many, is refused as INVALID_VALUE",
    "multicast_bind_mem": "the reference; where it says that the call waits until all gpus are added, it is refused; of"
    " 128 objects with bound memory in this process, another bind is OUT_OF_MEMORY, as nccl#2077 saw",
    "multicast_bind_addr": "likewise",
    "multicast_unbind": "the reference; what it leaves undefined is refused; of memory that was freed before, it is"
    " done and an error, as pytorch#163750 saw",
    "multicast_get_granularity": "the granularity of plain chunks, 2 MiB at least",
    "mem_map": "of a multicast object: the reference; only as a whole, and after all gpus are added",
    "mem_set_access": "of a multicast object: as of a chunk of GPU 0",
    "mem_get_allocation_properties_from_handle": "of a multicast object: refused, since the reference has no answer",
    "memset_d8": "at a multicast address: it writes what this process has bound, as PyTorch's copies to one do",
    "memcpy_htod": "likewise",
    "memcpy_dtoh": "at a multicast address: refused, since only multimem instructions read there",
}

# Differences where it accepts more than hardware, since a simulator has the state of its own process alone, by method.
LAXER = {
    "mem_host_register": "a shared mapping of a file on a disk is registered if its file system has no device of its"
    " own, such as overlayfs: hardware refuses it; a page of which only the first byte is registered is locked like any"
    " other: hardware may take another one (fact 85)",
    "mem_address_reserve": "a free address hint is granted to reservations of any size: hardware ignores that of one"
    " that fits into a block of addresses that it has (fact 11)",
    "mem_get_info": "each process has all of the machine's memory: memory of other processes and of external APIs does"
    " not count, nor released memory that others, or descriptors alone, keep (facts 29, 46); and managed memory takes"
    " none (fact 60)",
    "wait_external_semaphore": "copies and fills do not wait for what stream 0 waits for, nor do events (fact 47)",
    "stream_query": "work behind a wait is done when this process next uses or queries a stream",
    "mem_import_from_shareable_handle": "fabric handles, where a machine's record has them, reach processes of the"
    " same user and host: no machine had any that worked (fact 4)",
    "mem_get_handle_for_address_range": "a dma-buf of a part of a chunk or allocation, of several that are shared by"
    " other descriptors as well, of one that is in such a dma-buf, and of memory of pools, has its size, but not the"
    " bytes (fact 83)",
    "ipc_open_mem_handle": "an allocation in the block of a freed one that is open here is opened: hardware refuses it"
    " (fact 72)",
    "event_query": "a record has always completed (fact 47)",
    "host_read": "the CPU reads what a copy has written: of read-mostly memory that was prefetched to a gpu, hardware"
    " read older bytes once in 29 sequences (fact 60)",
    "mem_pool_export_to_shareable_handle": "a pool that was created for fabric, too, is exported as fd: hardware"
    " refused it where fabric is not permitted (fact 82)",
    "fill": "only the first and last 4 KiB of each granule of an area are written",
    "verify": "likewise read; a mismatch between them is not seen, nor counted",
    "fingerprint": "likewise read; other bytes do not count",
}
