"""Heaps of the C library over the functions of libcuda, in a process that sees the GPUs in another order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo.driver.types import Access, DriverError, Grant, Properties, gpu
from memtopo.driver.wrappers import Renumbered
from memtopo.drivers.cuda.driver import CudaDriver
from memtopo.native.heaps import Budget, NativeHeap
from memtopo.native.tables import AllocationTable
from memtopo.testing import Simulation
from tests.contract.memory import current, reserved

GRANULE, SIZE = 2 << 20, 16 << 20


@pytest.fixture
def driver(simulated_gpus: Simulation) -> Renumbered:
    """A driver whose gpu1 and gpu3 are the first two of the simulation, with the ordinals of all GPUs."""
    del simulated_gpus
    found = Renumbered(CudaDriver(), [3, 1])
    found.init()
    return found


@pytest.fixture
def heap(driver: Renumbered) -> Iterator[NativeHeap]:
    """A heap of gpu3, which gpu1 may read."""
    with current(driver, 3) as context, reserved(driver, SIZE) as base:
        table = AllocationTable.create("layout", "h", SIZE // GRANULE)
        grants = Grant(gpu(3), Access.RW), Grant(gpu(1), Access.R)
        place, properties = (base, SIZE), Properties(gpu(3))
        made = NativeHeap(driver, table, place, GRANULE, properties, grants, context, Budget("h", None))
        yield made
        assert made.end() is None


def test_memory_and_access_of_a_heap_are_of_the_gpus_that_the_process_sees(
    driver: Renumbered, heap: NativeHeap, simulated_gpus: Simulation
) -> None:
    free = [simulated_gpus.free(device) for device in (0, 1)]
    address = heap.allocate(GRANULE)
    assert [simulated_gpus.free(device) for device in (0, 1)] == [free[0] - GRANULE, free[1]]
    assert [driver.mem_get_access(address, gpu(device)) for device in (3, 1)] == [Access.RW, Access.R]


def test_an_allocation_that_libcuda_refuses_has_its_call_and_error_and_leaves_nothing(
    heap: NativeHeap, simulated_gpus: Simulation
) -> None:
    free = simulated_gpus.free()
    for function in ("cuMemCreate", "cuMemMap", "cuMemSetAccess"):
        simulated_gpus.fail(function, "CUDA_ERROR_NOT_PERMITTED")
        with pytest.raises(DriverError) as caught:
            heap.allocate(GRANULE)
        simulated_gpus.clear_faults()
        assert (caught.value.call, caught.value.name) == (function, "CUDA_ERROR_NOT_PERMITTED")
        assert (heap.allocations(), simulated_gpus.free()) == ([], free)
