"""Death of any process of a layout at any call of a switch: all others take down, and the report names the stage."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.language.names import AWAKE
from memtopo.plans.report import Report
from memtopo.plans.transition import Stage
from tests.helpers.lockstep import together
from tests.run.processes.crash_runs import CrashRun, run_with_crash
from tests.run.processes.test_crashes import survived
from tests.run.processes.test_dead_conductor import lost

SLEEPING = Path(__file__).with_name("sleeping.yaml")
PROCESSES = ("server", "engine")
BLOCKS = 10
"""Blocks of the calls of a process, each of which has every tenth call."""


@cache
def calls(process: str) -> tuple[int, int]:
    """Driver calls of a process before and after it goes to the state of the spec and back, with a check at each."""
    with together(SLEEPING, machine.load("h200x2"), "none") as layout:
        failing = layout.failing[process]
        for run in layout.runs.values():
            run.check()
        layout.write()
        before = failing.calls
        for state in ("asleep", AWAKE):
            layout.switch(state, check="none")
            layout.read()
        return before + 1, failing.calls


def crashed(process: str, call: int, name: str, victim: str = "self") -> CrashRun:
    return run_with_crash(SLEEPING, process, call, name, victim, "h200x2", "rehearse")


def names_stage(report: Report, process: str) -> None:
    """Assert that a report names a stage of a change, or the check after one."""
    assert report.failure
    activities = [f"{process}: {stage}, of a change" for stage in Stage]
    others = [
        f"{process}: {each}"
        for each in ("read, for a rehearsal", "end of a change", "plan of a change", "check of a change")
    ]
    assert report.failure.step in [*activities, *others], report.failure


@pytest.mark.parametrize(("process", "share", "name"), [("server", 0.2, "SIGKILL"), ("engine", 0.35, "SIGSTOP")])
def test_a_worker_that_dies_in_a_switch_is_named_with_its_stage(process: str, share: float, name: str) -> None:
    first, last = calls(process)
    done = crashed(process, first + int(share * (last - first)), name)
    survived(done, process, name)
    assert done.report
    names_stage(done.report, process)


@pytest.mark.exhaustive(seconds=8)
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("process", PROCESSES)
def test_a_worker_may_die_at_any_call_of_a_switch(process: str, name: str, block: int) -> None:
    first, last = calls(process)
    for call in range(first + block, last + 1, BLOCKS):
        done = crashed(process, call, name)
        survived(done, process, name)
        assert done.report
        names_stage(done.report, process)


def test_workers_of_a_conductor_that_dies_in_a_switch_take_down() -> None:
    first, last = calls("server")
    lost(crashed("server", (first + last) // 2, "SIGKILL", "parent"), "SIGKILL")


@pytest.mark.exhaustive(seconds=0.8)
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("process", PROCESSES)
def test_the_conductor_may_die_at_any_call_of_a_switch(process: str, block: int) -> None:
    first, last = calls(process)
    for call in range(first + block, last + 1, BLOCKS):
        lost(crashed(process, call, "SIGKILL", "parent"), "SIGKILL")


def test_a_driver_error_in_a_switch_is_rolled_back_and_named() -> None:
    first, last = calls("engine")
    done = crashed("engine", (first + last) // 2, "CUDA_ERROR_UNKNOWN")
    assert done.report, done.errors
    assert (done.report.outcome, done.report.exit_code) == ("failed", 4)
    assert done.report.failure
    assert "engine: " in done.report.failure.error
    assert "CUDA_ERROR_UNKNOWN" in done.report.failure.error
    assert done.report.failure.error.endswith("as before")
    assert done.report.left
    assert not any(done.report.left.ledger_after.values())
