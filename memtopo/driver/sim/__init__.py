"""The simulator: a driver that keeps every rule of `docs/driver-facts.md` on a recorded machine, with no GPU."""

from __future__ import annotations

from memtopo.driver.sim.driver import SimDriver
from memtopo.driver.sim.extras import SimExtras

__all__ = ["LAXER", "STRICTER", "SimDriver", "SimExtras"]

# Where the simulator refuses on purpose what hardware accepts, by method.
STRICTER = {
    "mem_map": "a mapping that runs past the end of its reservation is refused: hardware lets it land in a"
    " neighbour's addresses (fact 15)",
    "mem_unmap": "a range that runs past the end of what is reserved is refused: hardware looks at its start alone",
    "ctx_push_current": "a context that was released is refused: hardware refuses whatever uses it",
    "driver_get_version": "refused before init like every call: hardware answers it",
    "memset_d8": "of an allocation it is refused from another device's context, and past the allocation's end: neither"
    " was tried on hardware",
    "memcpy_htod": "a copy to host memory that ends the process on hardware is refused (fact 40); of an allocation, see"
    " memset_d8",
    "memcpy_dtoh": "likewise a copy from it",
    "device_primary_ctx_release": "with the last retain its allocations, opened memory and events are gone, and any use"
    " of them is refused: hardware was not asked",
    "ipc_open_mem_handle": "memory of a gpu that is not visible here, or that the current one cannot access, is"
    " refused: hardware was not asked",
    "ipc_close_mem_handle": "refused without a current context: hardware was not asked",
    "event_synchronize": "likewise",
    "event_destroy": "an event that is not open is refused, here and in every call: hardware may end the process",
    "event_record": "refused on any stream but the default one, since there are no others",
    "stream_wait_event": "likewise, and with flags",
    "mem_create": "a fabric handle that was never tried on the recorded machine is refused (fact 4)",
    "mem_export_to_shareable_handle": "a handle that was released is refused: on hardware the process dies (fact 51)",
}

# Where it accepts what hardware would not, because a simulator knows its own process alone, by method.
LAXER = {
    "mem_get_info": "each process has all of the machine's memory: what others took is not missing, nor what others, or"
    " descriptors alone, still hold of what this one gave up (facts 29, 46)",
    "mem_import_from_shareable_handle": "fabric handles, where a machine says that they work, reach processes of the"
    " same user and host: no machine had any that worked (fact 4)",
    "event_query": "what was recorded is always done (fact 47)",
    "fill": "only the first and last 4 KiB of each granule of an area are written",
    "verify": "likewise read; a mismatch between them is not seen, nor counted",
}
