"""States of several processes on one real GPU: rehearsals, and calls of switches at which a process fails or dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.drivers.target import Target
from memtopo.language import SpecText, read_file
from memtopo.plans.report import Check
from memtopo.run import processes
from tests.helpers.specs import request_of
from tests.run.processes.crash_runs import CrashRun, run_with_crash
from tests.run.processes.test_change_crashes import SLEEPING, calls, names_stage
from tests.run.processes.test_crashes import survived
from tests.run.processes.test_dead_conductor import lost

pytestmark = pytest.mark.gpu
SHARES = (0.15, 0.35, 0.55, 0.75, 0.95)
"""Calls of a switch there and back, as shares of all of them."""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A server of weights and an engine that sleep, both on the first GPU."""
    path = tmp_path / "sleeping.yaml"
    path.write_text(SLEEPING.read_text().replace("gpu1", "gpu0"))
    return path


@pytest.mark.parametrize("check", ["fast", "full"])
def test_states_of_several_processes_are_rehearsed_with_their_bytes(local: Target, spec: Path, check: Check) -> None:
    document = read_file(str(spec))
    request = request_of(document, local, check=check, rehearse=True)
    whole = processes.Ensemble(request, SpecText.of(document), local.machine)
    report = processes.apply(whole)
    assert report.outcome == "ok", report
    assert "rehearse" in [time.phase for time in report.times]
    assert report.left
    assert not any(report.left.ledger_after.values())


def crashed(spec: Path, process: str, share: float, name: str, victim: str = "self") -> CrashRun:
    first, last = calls(process)
    return run_with_crash(spec, process, first + int(share * (last - first)), name, victim, "local", "rehearse")


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("process", ["server", "engine"])
def test_a_worker_that_dies_in_a_switch_is_named_with_its_stage(spec: Path, process: str, share: float) -> None:
    done = crashed(spec, process, share, "SIGKILL")
    survived(done, process, "SIGKILL")
    assert done.report
    names_stage(done.report, process)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("process", ["server", "engine"])
def test_a_failing_call_of_a_switch_is_rolled_back_and_leaves_nothing(spec: Path, process: str, share: float) -> None:
    done = crashed(spec, process, share, "CUDA_ERROR_UNKNOWN")
    assert done.report, done.errors
    assert done.report.outcome in ("failed", "different")
    assert not done.report.leaks
    assert done.report.left
    assert not any(done.report.left.ledger_after.values())


def test_workers_of_a_conductor_that_dies_in_a_switch_take_down(spec: Path) -> None:
    lost(crashed(spec, "server", 0.5, "SIGKILL", "parent"), "SIGKILL")
