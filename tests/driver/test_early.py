"""Contexts that are retained before the spec has been read.

The functions of the bindings are replaced, as in test_cuda_calls.py; tests/gpu has commands on real GPUs.
"""

from __future__ import annotations

from collections import Counter

import pytest
from cuda.bindings import driver as bindings

from memtopo.driver.cuda import CudaDriver
from memtopo.driver.cuda import bindings as structs
from memtopo.driver.cuda import driver as module
from memtopo.driver.cuda.early import EarlyStart

GPUS = 3
FULL = 1


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """References to the context of each GPU; GPU 1 has no memory for one."""
    counted: Counter[int] = Counter()
    done, refused = bindings.CUresult.CUDA_SUCCESS, bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY

    def retain(device: int) -> tuple[object, int]:
        if device == FULL:
            return refused, 0
        counted[device] += 1
        return done, 100 + device

    def release(device: int) -> tuple[object]:
        counted[device] -= 1
        return (done,)

    monkeypatch.setattr(bindings, "cuInit", lambda _: (done,))
    monkeypatch.setattr(bindings, "cuDeviceGetCount", lambda: (done, GPUS))
    monkeypatch.setattr(structs, "get_uuid", lambda _: (done, bindings.CUuuid()))
    monkeypatch.setattr(bindings, "cuDevicePrimaryCtxRetain", retain)
    monkeypatch.setattr(bindings, "cuDevicePrimaryCtxRelease", release)
    return counted


def started(gpus: set[int]) -> EarlyStart:
    early = EarlyStart()
    early.start(lambda: gpus)
    return early


def test_a_context_that_was_retained_early_is_taken_once(references: Counter[int]) -> None:
    early = started({0, 2})
    assert (early.take_context(0), early.take_context(0), early.take_context(2)) == (100, None, 102)
    assert references == {0: 1, 2: 1}


def test_a_refused_context_and_one_of_no_gpu_are_none(references: Counter[int]) -> None:
    early = started({FULL, GPUS, 99})
    assert [early.take_context(device) for device in (0, FULL, GPUS, 99)] == [None] * 4
    assert not references


def test_contexts_that_no_one_needs_are_released(references: Counter[int]) -> None:
    early = started({0, FULL, 2})
    early.release_others({2})
    assert references == {0: 0, 2: 1}
    assert (early.take_context(0), early.take_context(2)) == (None, 102)


def test_nothing_is_retained_without_a_start(references: Counter[int]) -> None:
    early = EarlyStart()
    early.release_others(())
    assert early.take_context(0) is None
    assert not references


def test_the_driver_retains_no_context_again_that_was_retained_early(
    references: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EARLY_START", started({0}))
    driver = CudaDriver()
    assert driver.device_primary_ctx_retain(0) == 100
    assert references == {0: 1}
    assert driver.device_primary_ctx_retain(0) == 100
    assert references == {0: 2}
