"""Multi-process layouts on real GPUs: shared memory, crashes, and rounds of hold and attach."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from memtopo.driver.protocol import Driver
from memtopo.drivers import target
from memtopo.language import SpecText, read_file
from memtopo.run import processes
from memtopo.session.composition import Composition
from tests.helpers.holders import until
from tests.helpers.specs import ENSEMBLES
from tests.run.processes.crash_runs import run_with_crash
from tests.run.processes.test_crashes import CALLS, SIGNALS, TWO, survived
from tests.run.processes.test_dead_conductor import lost
from tests.run.processes.test_hold import rounds

pytestmark = pytest.mark.gpu
EVERY = [(process, call) for process, calls in CALLS.items() for call in range(1, calls + 1)]


def _points(step: int, sampled: int) -> list[Any]:
    """Every `step`-th driver call of both processes with a signal each; each `sampled`-th of them runs by default."""
    points = zip(EVERY[::step], cycle(SIGNALS), strict=False)
    return [
        pytest.param(point, name, marks=() if n % sampled == 0 else pytest.mark.exhaustive)
        for n, (point, name) in enumerate(points)
    ]


POINTS = _points(5, sampled=5)
CONDUCTORS = _points(14, sampled=4)


@pytest.mark.parametrize("path", ENSEMBLES, ids=lambda path: path.stem)
def test_every_multi_process_spec_is_built_as_declared(path: Path) -> None:
    """And leaves nothing."""
    local = target.resolve("local")
    document = read_file(path)
    composition = Composition.of(document, local)
    if {fault.code for fault in composition.diagnostics} & {"MT401"}:
        pytest.skip("needs more GPUs")
    report = processes.apply(
        processes.Ensemble(composition.request(machine_facts=None), SpecText.of(document), local.machine)
    )
    assert report.outcome == "ok", report


def free(driver: Driver) -> int:
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    try:
        return driver.mem_get_info()[0]
    finally:
        driver.ctx_pop_current()
        driver.device_primary_ctx_release(0)


@pytest.fixture
def memory_comes_back() -> Iterator[None]:
    """Assert that free memory of the first GPU is unchanged once all processes have ended."""
    driver = target.resolve("local").open()
    before = free(driver)
    yield
    until(lambda: free(driver) == before)


@pytest.mark.usefixtures("memory_comes_back")
@pytest.mark.parametrize(("point", "name"), POINTS, ids=str)
def test_the_other_worker_takes_down_when_a_worker_dies_on_a_gpu(point: tuple[str, int], name: str) -> None:
    """The report names the dead one, and nothing is left, on the GPU either."""
    survived(run_with_crash(TWO, *point, name, machine="local"), point[0], name)


@pytest.mark.usefixtures("memory_comes_back")
@pytest.mark.parametrize(("point", "name"), CONDUCTORS, ids=str)
def test_workers_take_down_when_the_conductor_dies_on_a_gpu(point: tuple[str, int], name: str) -> None:
    """They end by themselves, and their memory is released."""
    lost(run_with_crash(TWO, *point, name, "parent", machine="local"), name)


@pytest.mark.usefixtures("memory_comes_back")
def test_two_hundred_holds_leave_descriptors_processes_and_memory_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    rounds(200, "local")
