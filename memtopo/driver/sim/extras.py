"""`memtopo.driver.trying.Extras` on the simulator: what kernels and pools do, by bytes."""

from __future__ import annotations

from memtopo.driver.sim.calling import Callee, driver_call
from memtopo.driver.sim.driver import SimDriver
from memtopo.driver.trying import WORD
from memtopo.driver.types import DriverError, HandleType, Location, Properties


class SimExtras(Callee):
    """What trials ask of a simulator that is initialised.

    A pool is a chunk of one granule here: it is created, exported and imported alike, and nothing is taken from it.
    """

    def __init__(self, driver: SimDriver) -> None:
        super().__init__()
        self.lock, self.shut = driver.lock, driver.shut
        self._driver = driver
        self._contexts, self._contents = driver.parts()

    def store(self, address: int, value: int) -> None:
        try:
            self.launch_kernel(address, value)
        except DriverError as error:
            raise DriverError("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", error.reason) from None

    @driver_call
    def launch_kernel(self, address: int, value: int) -> None:
        """A kernel of the current context that stores a word."""
        self._contents.store(self._contexts.current(), address, value.to_bytes(WORD, "little"))

    def meet(self, address: int, value: int) -> bool:
        self._driver.host_write(address, bytes(2 * WORD))
        self.store(address + WORD, value)
        return self._driver.host_read(address + WORD, WORD) == value.to_bytes(WORD, "little")

    def mem_pool_create(self, location: Location, handles: HandleType) -> int:
        properties = Properties(location, handles)
        return self._driver.mem_create(self._driver.mem_get_allocation_granularity(properties), properties)

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType) -> int | bytes:
        return self._driver.mem_export_to_shareable_handle(pool, kind)

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        return self._driver.mem_import_from_shareable_handle(shared, kind)

    def mem_pool_destroy(self, pool: int) -> None:
        self._driver.mem_release(pool)
