"""The driver under contract: the simulator, or with --gpu the real one; a test that leaves anything open fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Properties, gpu


@pytest.fixture
def on_hardware(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--gpu"))


@pytest.fixture
def bare(on_hardware: bool) -> Iterator[Driver]:
    """The driver itself, before init."""
    if on_hardware:
        from memtopo.driver.cuda import CudaDriver

        yield CudaDriver()
    else:
        # Not above: a machine with a GPU may lack what the simulator's machines are read with.
        from memtopo.driver.sim import SimDriver
        from tests.machines import invented

        with SimDriver(invented(2)) as simulated:
            yield simulated


@pytest.fixture
def driver(bare: Driver) -> Iterator[Ledger]:
    """An initialised driver under a ledger, which must be empty in the end."""
    ledger = Ledger(bare)
    ledger.init()
    assert ledger.device_get_count() > 0
    yield ledger
    assert ledger.empty, ledger.counts()


@pytest.fixture
def two_gpus(driver: Ledger) -> None:
    if driver.device_get_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def granule(driver: Ledger) -> int:
    """The granularity of a plain chunk on the first GPU."""
    return driver.mem_get_allocation_granularity(Properties(gpu(0)))
