"""Further drivers with a fault, some of which need the state of the simulator, and runs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memtopo.driver.kernels import Area, KernelDriver, Verified
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access
from memtopo.drivers.sim import SimDriver
from memtopo.run.apply import apply
from memtopo.session.composition import RunRequest
from tests.helpers.failing_driver import Failing
from tests.helpers.faults import GRANULE, Faulty
from tests.helpers.specs import Run

MakesFaulty = Callable[[SimDriver], Faulty]
"""Class of a driver with a fault; that of `Faulty` itself has none."""


class LosesTheLastGranule(Faulty):
    """Loses what is written to the last granule of a chunk that has several."""

    def __init__(self, driver: KernelDriver) -> None:
        self._lost: list[tuple[int, int]] = []
        super().__init__(driver)

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        super().map_chunk(address, size, handle)
        if size > GRANULE:
            self._lost.append((address + size - GRANULE, address + size))

    def memcpy_htod(self, address: int, data: bytes) -> None:
        if not any(low <= address < high for low, high in self._lost):
            self._driver.memcpy_htod(address, data)

    def fill(self, areas: Sequence[Area]) -> None:
        ends = {high for _, high in self._lost}
        cut = [each._replace(size=each.size - GRANULE * (each.address + each.size in ends)) for each in areas]
        self._driver.fill(cut)


class ReadsWronglyOnce(Faulty):
    """Finds a wrong word in the first batch of several areas, and not again."""

    found = False

    def verify(self, areas: Sequence[Area]) -> Verified:
        if self.found or len(areas) == 1:
            return self._driver.verify(areas)
        self.found = True
        return Verified(1, 1, 16, 0xA, 0xB)


class RefusesNothing(SimDriver):
    """Fills memory for any GPU, whatever its access."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        for place in self.access.reach(address, count, 0, Access.NONE, copying=False):
            place.physical.write(address - place.start, bytes([value]) * count)


class SharedMachine(SimDriver):
    """Reports 4 MiB less of free memory at each query, as if another process took it."""

    taken = 0

    def mem_get_info(self) -> tuple[int, int]:
        free, total = super().mem_get_info()
        self.taken += 4 << 20
        return free - self.taken, total


def run_on(driver: SimDriver | Faulty, run_request: RunRequest) -> Run:
    """Apply a request on such a driver, and close it."""
    driver.init()
    failing = Failing(driver, 0)
    ledger = Ledger(failing)
    try:
        return Run(apply(run_request, ledger), ledger, failing)
    finally:
        driver.close()
