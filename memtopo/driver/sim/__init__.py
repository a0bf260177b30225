"""The simulator: a driver that keeps every rule of `DRIVER_FACTS.md` on a recorded machine, with no GPU."""

from __future__ import annotations

from memtopo.driver.sim.driver import SimDriver

__all__ = ["STRICTER", "SimDriver"]

# Where the simulator refuses on purpose what hardware accepts, by method.
STRICTER = {
    "mem_map": "a mapping that runs past the end of its reservation is refused: hardware lets it land in a"
    " neighbour's addresses (fact 15)",
    "mem_unmap": "a range that runs past the end of what is reserved is refused: hardware looks at its start alone",
    "ctx_push_current": "a context that was released is refused: hardware refuses whatever uses it",
    "driver_get_version": "refused before init like every call: hardware answers it",
    "memcpy_htod": "a copy to host memory that ends the process on hardware is refused (fact 40)",
    "memcpy_dtoh": "likewise a copy from it",
    "mem_create": "a fabric handle that was never tried on the recorded machine is refused (fact 4)",
}
