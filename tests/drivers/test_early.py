"""Contexts that are retained before the spec has been read.

The functions of the bindings are replaced, as in test_cuda_calls.py; tests/gpu has commands on real GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from memtopo.cli.application import Application
from memtopo.cli.bindings import Bindings
from memtopo.driver.types import uuid_text
from memtopo.drivers.cuda import CudaDriver, nvml
from memtopo.drivers.cuda import bindings as structs
from memtopo.drivers.cuda import driver as module
from memtopo.drivers.cuda.early import EarlyStart
from memtopo.drivers.cuda.nvml import GpuReading
from memtopo.machine.cluster import MachineLine
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

ONE_GPU = "chunks: {c: {location: gpu0, size: 2MiB}}"
PROCESSES = "processes: {one: {chunks: {c: {location: gpu0, size: 2MiB}}}}"
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


def test_a_context_is_waited_for_until_it_is_retained(
    references: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, allowed = Event(), Event()
    retain = bindings.cuDevicePrimaryCtxRetain

    def late(device: int) -> tuple[object, int]:
        begun.set()
        allowed.wait()
        answer: tuple[object, int] = retain(device)
        return answer

    monkeypatch.setattr(bindings, "cuDevicePrimaryCtxRetain", late)
    early, taken = started({0}), list[int | None]()
    taker = Thread(target=lambda: taken.append(early.take_context(0)))
    taker.start()
    begun.wait()
    assert not taken
    allowed.set()
    taker.join()
    assert taken == [100]
    assert references == {0: 1}


def test_readings_are_from_before_the_contexts(references: Counter[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other GPUs, and without a start, are of the moment."""

    def readings(uuids: Sequence[str | None]) -> list[GpuReading]:
        return [GpuReading(free=1000 - references.total()) for _ in uuids]

    monkeypatch.setattr(nvml, "readings", readings)
    early = started({0})
    assert early.take_context(0) == 100
    uuid = uuid_text(bytes(16))
    assert [each.free for each in early.readings([uuid, None, "GPU-other"])] == [1000, 999, 999]
    assert [each.free for each in EarlyStart().readings([uuid])] == [999]


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


@pytest.mark.parametrize(("text", "left"), [(ONE_GPU, {0: 1, 2: 0}), (PROCESSES, {0: 0, 2: 0})])
def test_a_run_begins_without_contexts_that_its_layout_does_not_need(
    references: Counter[int], monkeypatch: pytest.MonkeyPatch, text: str, left: dict[int, int]
) -> None:
    """Processes of a layout have contexts of their own."""
    seen: list[dict[int, int]] = []

    class Recorded(Application):
        def _in_process(self, *_: Any) -> Any:
            seen.append(dict(references))

        def _in_processes(self, *_: Any) -> Any:
            return self._in_process()

    monkeypatch.setattr("memtopo.drivers.cuda.early.EARLY_START", started({0, 2}))
    here = MachineLine("local", simulated=False, devices=(), driver="")
    request: Any = replace(run_request(text, invented(GPUS)), machine=here)
    Recorded(request, None, Bindings({}, (), 1.0, False, None), str).run(None)  # type: ignore[arg-type]
    assert seen == [left]
