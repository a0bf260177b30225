"""Death of a worker at any driver call: the others take down in time, and nothing is left."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from memtopo.machine import dump
from tests.helpers.machines import invented, with_multicast
from tests.run.processes.crash_runs import GRACE, TIMEOUT, CrashRun, run_with_crash

TWO, TEAM, POOLED = (Path(__file__).with_name(f"{name}.yaml") for name in ("two", "team", "pooled"))
Case = tuple[str, int | str, str]
"""Process, driver call, and signal."""

SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP")
STARTUP = 30.0
"""Seconds that starting Python three times may take on a busy machine."""

CALLS = {"server": 82, "reader": 76}
"""Driver calls that an undisturbed run makes at least in each process, checks and teardown included."""

SAMPLE = [
    ("server", 5, "SIGKILL"), ("server", 30, "SIGTERM"), ("server", 60, "SIGSTOP"), ("server", 80, "SIGKILL"),
    ("reader", 12, "SIGSTOP"), ("reader", 25, "SIGKILL"), ("reader", 50, "SIGTERM"), ("reader", 74, "SIGKILL"),
]  # fmt: skip

POOLED_CALLS = {
    "server": (
        "mem_pool_create#1", "mem_pool_create#2", "mem_pool_set_access#1", "mem_alloc_from_pool_async#1",
        "mem_alloc_from_pool_async#3", "mem_host_alloc#1", "mem_pool_export_to_shareable_handle#1",
        "mem_pool_export_pointer#1", "mem_pool_export_pointer#2", "mem_get_handle_for_address_range#1",
        "mem_get_handle_for_address_range#5", "mem_pool_get_access#1", "memset_d8#1", "mem_free_host#1",
        "mem_free_async#1", "mem_free_async#3", "mem_pool_set_access#2", "mem_pool_destroy#1", "mem_pool_destroy#2",
    ),
    "reader": (
        "mem_pool_import_from_shareable_handle#1", "mem_pool_set_access#1", "mem_pool_import_pointer#1",
        "mem_pool_import_pointer#2", "mem_host_alloc#2", "mem_pool_get_access#1", "mem_free#1", "mem_free#2",
        "mem_pool_destroy#1", "mem_free_host#2",
    ),
}  # fmt: skip
"""Calls for pools, dma-bufs and pinned memory, in each phase of a run."""


def any_call(two: Sequence[Case], pooled: Sequence[Case]) -> list[Any]:
    """Cases of both specs, and in full every signal at every call."""
    cases = [(TWO, *case) for case in two] + [(POOLED, *case) for case in pooled]
    calls = [(TWO, process, call) for process, number in CALLS.items() for call in range(1, number + 1)]
    calls += [(POOLED, process, call) for process, names in POOLED_CALLS.items() for call in names]  # type: ignore[misc]
    every = (
        pytest.param(*call, name, marks=pytest.mark.exhaustive(seconds=0.5)) for call, name in product(calls, SIGNALS)
    )
    return [*cases, *every]


POOLED_SAMPLE = [
    ("server", "mem_pool_create#2", "SIGTERM"), ("server", "mem_get_handle_for_address_range#1", "SIGKILL"),
    ("server", "mem_free_async#1", "SIGSTOP"), ("reader", "mem_pool_import_pointer#2", "SIGKILL"),
]  # fmt: skip


def survived(done: CrashRun, process: str, name: str) -> None:
    """Assert that all processes but the victim took down in time, and that the report names it."""
    assert done.seconds < STARTUP + TIMEOUT + GRACE
    assert done.report, done.errors
    report = done.report
    if name == "SIGTERM" and report.outcome == "ok":
        return  # nothing interrupts a teardown
    assert (report.outcome, report.exit_code) == ("failed", 4), report
    assert report.failure
    assert process in report.failure.step
    assert process in report.failure.error
    victim = next(each for each in report.processes if each.name == process)
    if name == "SIGTERM":
        assert victim.outcome == "taken down"
    else:
        assert victim.outcome == "died"
        assert "SIGKILL" in str(victim.lost)
    for other in (each for each in report.processes if each.name != process):
        assert other.outcome == "taken down", report
        if other.left:  # else it had not built anything yet
            assert not any(other.left.ledger_after.values())
            assert other.left.fds_after == other.left.fds_before


@pytest.mark.parametrize(("spec", "process", "call", "name"), any_call(SAMPLE, POOLED_SAMPLE))
def test_a_worker_that_dies_is_named_and_the_others_take_down(
    spec: Path, process: str, call: int | str, name: str
) -> None:
    survived(run_with_crash(spec, process, call, name), process, name)


def test_a_worker_that_waits_for_handles_of_a_stopped_one_is_not_the_silent_one(tmp_path: Path) -> None:
    """Whichever of them stands first in the spec."""
    text = yaml.safe_load(TWO.read_text())
    text["processes"] = dict(reversed(text["processes"].items()))
    spec = tmp_path / "two.yaml"
    spec.write_text(json.dumps(text))
    survived(run_with_crash(spec, "server", "mem_export_to_shareable_handle#2", "SIGSTOP"), "server", "SIGSTOP")


@pytest.mark.parametrize(
    ("call", "name"),
    [("mem_host_register#1", "SIGKILL"), ("memset_d8#1", "SIGTERM"), ("mem_host_unregister#1", "SIGSTOP")],
)
def test_a_worker_that_dies_leaves_a_shared_file_to_the_others(call: str, name: str, tmp_path: Path) -> None:
    """Its registration ends with it; the other process unregisters its own."""
    file = os.memfd_create("memtopo-test", os.MFD_CLOEXEC)
    os.ftruncate(file, 64 << 10)
    os.pwrite(file, b"stays", 0)
    shared = f"f: {{file: /proc/{os.getpid()}/fd/{file}, size: 64KiB}}, p: {{size: 64KiB}}"
    spec = tmp_path / "shared.yaml"
    member = f"{{pinned: {{{shared}}}, events: {{e: {{device: gpu0}}}}, exports: {{e: {{event: e, via: ipc}}}}}}"
    text = f"one: {member}, two: {{pinned: {{{shared}}}, imports: {{e: {{from: one.e}}}}}}"
    spec.write_text(f"memtopo: 1\nname: shared\nprocesses: {{{text}}}\n")
    survived(run_with_crash(spec, "two", call, name), "two", name)
    assert os.pread(file, 5, 0) == b"stays"
    os.close(file)


@pytest.mark.parametrize(
    ("process", "call", "name"),
    [
        ("creator", "multicast_create#1", "SIGKILL"), ("rank.1", "multicast_add_device#1", "SIGKILL"),
        ("rank.0", "multicast_bind_mem#1", "SIGTERM"), ("rank.1", "multicast_unbind#1", "SIGKILL"),
    ],
)  # fmt: skip
def test_a_rank_of_a_team_that_dies_is_named_and_the_others_take_down(
    process: str, call: str, name: str, tmp_path: Path
) -> None:
    """No call waits for it: each phase ends in all processes before the next begins, adding before binding."""
    facts = tmp_path / "works.json"
    facts.write_text(dump(with_multicast(invented(2))))
    survived(run_with_crash(TEAM, process, call, name, machine=str(facts)), process, name)


def test_an_undisturbed_run_is_as_declared_and_leaves_no_file() -> None:
    before = set(os.listdir("/dev/shm"))
    done = run_with_crash(TWO, "nobody", 1, "SIGKILL")
    assert done.report, done.errors
    assert done.report.outcome == "ok", done.report
    assert not [entry for entry in set(os.listdir("/dev/shm")) - before if "memtopo" in entry]
