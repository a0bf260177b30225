"""Calls that client libraries make besides those of their memory: finalizers, times and functions that they look up."""

from __future__ import annotations

import gc
import time

import pytest
from cuda.bindings import driver, runtime

from memtopo.testing import Simulation
from tests.helpers.client_calls import made, use

INVALID_HANDLE = driver.CUresult.CUDA_ERROR_INVALID_HANDLE


@pytest.fixture(autouse=True)
def context(simulated_gpus: Simulation) -> None:
    use()


class Stream:
    """Stream that a collection of garbage destroys."""

    def __init__(self) -> None:
        self.number = made(driver.cuStreamCreate(1))
        self.itself = self

    def __del__(self) -> None:
        made(driver.cuStreamDestroy(self.number))


@pytest.mark.timeout(30)
def test_a_finalizer_can_call_the_driver_while_a_call_is_answered(simulated_gpus: Simulation) -> None:
    before = gc.get_threshold()
    gc.freeze()  # each collection is of what the test has made
    try:
        for allocations in range(1, 200):  # so that a collection begins at each point of a call
            gc.disable()
            Stream()
            gc.set_threshold(allocations)
            gc.enable()
            made(driver.cuStreamSynchronize(0))
            assert gc.isenabled()
            gc.collect()
    finally:
        gc.set_threshold(*before)
        gc.enable()
        gc.unfreeze()
    assert not simulated_gpus.leaks


@pytest.mark.parametrize("enabled", [False, True])
def test_a_call_leaves_the_collection_of_garbage_as_it_was(*, enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        made(driver.cuStreamSynchronize(0))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_events_have_the_milliseconds_between_their_records() -> None:
    start, end, untimed = (made(driver.cuEventCreate(flags)) for flags in (0, 0, 2))
    made(driver.cuEventRecord(start, 0))
    assert driver.cuEventElapsedTime(start, end) == (INVALID_HANDLE, None)
    time.sleep(0.01)
    for event in (end, untimed):
        made(driver.cuEventRecordWithFlags(event, 0, 0))
    assert 10 <= made(driver.cuEventElapsedTime(start, end)) < 10_000
    assert driver.cuEventElapsedTime(start, untimed) == (INVALID_HANDLE, None)
    for event in (start, end, untimed):
        made(driver.cuEventDestroy(event))


def test_a_refusal_of_the_runtime_names_the_function_that_it_needs(simulated_gpus: Simulation) -> None:
    assert runtime.cudaGetDevice()[0] == runtime.cudaError_t.cudaErrorNotSupported
    assert "the runtime API is not simulated, only the driver API" in simulated_gpus.why()
