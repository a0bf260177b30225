"""Symmetric processes on real GPUs: one address in all of them, and imports from one's own kind over legacy IPC."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from memtopo.drivers import target
from memtopo.language import SpecText
from memtopo.plans.report import Report
from memtopo.run import processes
from tests.helpers.reports import tallies
from tests.helpers.specs import document, request_of
from tests.run.processes.crash_runs import run_with_crash
from tests.run.processes.test_common_addresses import COMMON
from tests.run.processes.test_crashes import survived

pytestmark = pytest.mark.gpu

RANKS = """
processes:
  rank:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges:
      heap: {size: 64MiB, same_address: true}
      small: {size: 2MiB, count: 3, same_address: true}
      ring: {size: 64MiB, align: 1GiB, same_address: true}
    chunks:
      part: {location: mine, size: 32MiB, handles: fd, parts: {signal: 4KiB, data: rest}}
      page: {location: mine, size: 2MiB, count: 3}
    buffers: {signal: {location: mine, size: 64KiB}, data: {location: mine, size: 8MiB, count: 2}}
    events: {done: {device: mine}}
    exports:
      part: {chunk: part, via: fd}
      signal: {buffer: signal, via: ipc}
      data: {buffer: data, via: ipc}
      done: {event: done, via: ipc}
    imports:
      every: {from: rank.part}
      sides: {from: rank.part, order: [previous, own]}
      signals: {from: rank.signal}
      all: {from: rank.data, order: own-first}
      dones: {from: rank.done}
    map: {heap: [every], small: [page], ring: [sides]}
    access: {heap: {mine: rw}, small: {mine: rw}, ring: {mine: rw}}
"""


def addresses(report: Report) -> Mapping[str, set[int]]:
    """Addresses of each range in all processes."""
    found: dict[str, set[int]] = {}
    for process in report.processes:
        for each in process.placed:
            found.setdefault(each.first, set()).add(each.address)
    return found


@pytest.mark.parametrize("check", ["fast", "full"])
def test_ranks_on_two_gpus_have_common_addresses_and_their_own_buffers(check: str) -> None:
    local = target.resolve("local")
    if len(local.machine.devices) < 2:
        pytest.skip("needs two GPUs")
    read = document(RANKS)
    report = processes.apply(processes.Ensemble(request_of(read, local, check=check), SpecText.of(read), local.machine))
    assert report.outcome == "ok", report
    assert {*map(len, addresses(report).values())} == {1}
    found = tallies(report.checks)
    assert found["buffer"].as_declared == 2 * (3 + 6)
    assert found["address"].as_declared == 2 * 5
    assert report.left
    assert not any(report.left.ledger_after.values())


def test_processes_on_a_gpu_agree_where_an_address_is_taken_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fact 11."""
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    done = run_with_crash(COMMON, "nobody", 1, "SIGKILL", machine="local")
    assert done.report, done.errors
    assert done.report.outcome == "ok", done.report
    assert len(addresses(done.report)["heap"]) == 1


def test_a_worker_on_a_gpu_may_die_while_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    survived(run_with_crash(COMMON, "pe.1", "mem_address_free#1", "SIGKILL", machine="local"), "pe.1", "SIGKILL")
