"""Death of the conductor at any driver call of its workers: they take down in time, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.processes.crash_runs import GRACE, TIMEOUT, CrashRun, run_with_crash
from tests.run.processes.test_crashes import STARTUP, any_call

TEARDOWN = {"server": 88, "reader": 72}
"""First of these calls that the teardown makes, which no signal interrupts."""

POOLED_TEARDOWN = {
    "mem_free_host#1", "mem_free_host#2", "mem_free_async#1", "mem_free_async#3", "mem_free#1", "mem_free#2",
    "mem_pool_set_access#2", "mem_pool_destroy#1", "mem_pool_destroy#2",
}  # fmt: skip


def lost(done: CrashRun, name: str, outcomes: tuple[str, ...] = ("interrupted",)) -> None:
    """Assert that the workers of a dead conductor ended by themselves; `run_with_crash` checks that none is left.

    The outcome of a run that SIGTERM reached is one of some `outcomes`.
    """
    assert done.seconds < STARTUP + TIMEOUT + GRACE
    if name == "SIGTERM":
        assert done.report, done.errors
        assert done.report.outcome in outcomes
        ended = {"interrupted": (143, {"taken down"}), "ok": (0, {"ok"})}[done.report.outcome]
        assert (done.report.exit_code, {each.outcome for each in done.report.processes}) == ended
    else:
        assert done.status == -9


def expected(process: str, call: int | str) -> tuple[str, ...]:
    """Outcomes after a signal to the conductor before a call: one in the teardown comes after all checks."""
    if isinstance(call, str):
        return ("interrupted", "ok") if call in POOLED_TEARDOWN else ("interrupted",)
    return ("ok",) if call >= TEARDOWN[process] else ("interrupted",)


DEAD_CONDUCTOR = [
    ("server", 8, "SIGKILL"), ("reader", 40, "SIGKILL"), ("server", 30, "SIGTERM"), ("reader", 20, "SIGSTOP"),
    *((process, call - before, "SIGTERM") for process, call in TEARDOWN.items() for before in (1, 0)),
]  # fmt: skip
POOLED_DEAD_CONDUCTOR = [
    ("server", "mem_pool_export_pointer#1", "SIGKILL"), ("reader", "mem_pool_import_pointer#2", "SIGTERM")
]  # fmt: skip


@pytest.mark.parametrize(("spec", "process", "call", "name"), any_call(DEAD_CONDUCTOR, POOLED_DEAD_CONDUCTOR))
def test_workers_of_a_dead_conductor_take_down(spec: Path, process: str, call: int | str, name: str) -> None:
    lost(run_with_crash(spec, process, call, name, "parent"), name, expected(process, call))
