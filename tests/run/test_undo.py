"""Undo of failed runs: everything is undone, or named as a leak."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import pytest

from memtopo.driver.functions import function
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import METHODS, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.layout import HandleSource
from memtopo.kinds.runs import expanded, reversed_items
from memtopo.machine import Machine
from memtopo.plans.progress import Progress
from memtopo.plans.report import Checks, Report
from memtopo.run import apply
from memtopo.sharing.offers import LayoutExports
from tests.helpers.failing_driver import Failing
from tests.helpers.fault_matrix import LENT
from tests.helpers.lockstep import apply_together
from tests.helpers.machines import invented, with_multicast
from tests.helpers.resource_strategies import shared_file
from tests.helpers.samples import in_sample
from tests.helpers.specs import ROOT, SPECS, run, run_request

ENDING = {method for method in METHODS if function(method).closes}
"""Calls that close what the ledger counts."""
UNDO = {
    *map(call_name, ENDING),
    *("cuMemPoolSetAttribute", "cuMemPoolSetAccess"),
}
"""Calls whose failure may leave something: those that close what the ledger counts, and the undo of settings."""
OF_THE_SYSTEM = "mapped file"
"""Begin of the names of what stays open and is not the driver's, so that the ledger does not have it."""
SAMPLED = 12
SAMPLED_FULLY = 500

RING = """
ranges: {a: {size: 8MiB}, b: {size: 4MiB}}
chunks: {one: {location: gpu0, size: 2MiB}, two: {location: gpu1, size: 2MiB, count: 2}}
map: {a: [one, two, one], b: [{chunk: two, offset: 0}]}
access: {a: {gpu0: rw, gpu1: rw}, b: {gpu0: r}}
"""

TEAM = """
chunks: {part: {location: [gpu0, gpu1], size: 2MiB, count: 2}}
multicast: {team: {devices: gpus, size: 2MiB}}
bind: {team: BOUND}
ranges: {uc: {size: 4MiB}, mc: {size: 2MiB}}
map: {uc: [part], mc: [team]}
access: {uc: {gpus: rw}, mc: {gpus: rw}}
"""

NIC = """
ranges: {kv: {size: 4MiB}, one: {size: 4MiB}}
chunks:
  page: {location: gpu0, size: 2MiB, count: 2}
  w: {location: gpu1, size: 4MiB, handles: fd, parts: {a: 4KiB, b: rest}}
map: {kv: [page], one: [w]}
access: {kv: {gpu0: rw}, one: {gpu1: rw}}
buffers: {b: {location: gpu0, size: 1MiB}}
exports:
  kv: {range: kv, via: dmabuf}
  pages: {chunk: page, via: dmabuf}
  a: {chunk: w, part: a, via: dmabuf}
  w: {chunk: w, via: fd}
  b: {buffer: b, via: dmabuf}
"""

ALLOCATED = "pools: {p: {location: gpu0}}\nallocations: {a: {pool: p, size: 4MiB}}\n"

POOLS = """
pools:
  p: {location: gpus, handles: fd, release_threshold: 2MiB, reuse_allow_opportunistic: false, accessed_by: gpus}
  h: {location: "host:0", handles: fd}
allocations: {a: {pool: p, size: 8MiB, count: 3}, b: {pool: h, size: 1MiB}}
exports: {a: {allocation: a, via: fd}, b: {allocation: b, via: fd}}
"""

HELD = """
chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}
buffers: {b: {location: gpu0, size: 1MiB}}
events: {e: {device: gpu0}}
exports: {c: {chunk: c, via: fd}, b: {buffer: b, via: ipc}, e: {event: e, via: ipc}}
"""

ELASTIC = """
ranges: {heap: {size: 8MiB, elastic: {chunks: page, zero: blank}}}
chunks: {page: {location: gpu0, size: 2MiB, count: {min: 0, max: 4}}, blank: {location: gpu0, size: 2MiB}}
access: {heap: {gpu0: rw}}
"""

PINNED = f"""
pinned:
  p: {{size: 64KiB, count: 2, accessed_by: [gpu0, gpu1]}}
  c: {{size: 64KiB, write_combined: true}}
  f: {{file: /proc/{os.getpid()}/fd/{shared_file()}, size: 32KiB, count: 2, accessed_by: [gpu0, gpu1]}}
"""


def points(calls: int, most: int) -> list[int]:
    """Numbers of the calls that fail: all of them, or at most `most`, evenly spread."""
    if calls <= most:
        return list(range(1, calls + 1))
    return sorted({round(1 + turn * (calls - 1) / (most - 1)) for turn in range(most)})


def fail_everywhere(spec: str | Path, machine: Machine, most: int, but: Collection[str] = ()) -> None:
    """Run a spec once for each of its calls `but` some, which fails, and check what is left."""
    made = run_request(spec, machine)
    calls = run(made, machine).failing.calls
    for at in points(calls, most):
        done = run(made, machine, at=at)
        report = done.report
        if done.failing.failed in but:
            continue
        where = f"call {at} of {calls}, {done.failing.failed}: {report.outcome}, {report.failure}, {report.leaks}"
        assert done.failing.failed, where
        if report.leaks:
            assert report.exit_code == 5, where
            assert done.failing.failed in UNDO, where
            stay = [name for leak in report.leaks for name in leak.stays if not name.startswith(OF_THE_SYSTEM)]
            left_open(done.ledger.counts(), len(report.leaks) + len(stay), where)
        else:
            # The check tries the access to host memory by fills: one that fails is a difference.
            assert report.exit_code == 4 or (report.exit_code, done.failing.failed) == (6, "cuMemsetD8"), where
            assert done.ledger.empty, where


def left_open(counts: dict[str, int], named: int, where: str) -> None:
    assert sum(counts.values()) == named, (where, counts)


@pytest.mark.parametrize("path", in_sample(SPECS), ids=lambda path: path.stem)
def test_a_failure_of_any_call_is_undone_or_named(path: Path) -> None:
    fail_everywhere(path, invented(4), SAMPLED)


def test_a_failure_of_each_call_of_a_small_layout_is_undone_or_named() -> None:
    fail_everywhere(RING, invented(2), 10_000)


@pytest.mark.parametrize("bound", ["[part]", "{range: uc}"])
def test_a_failure_of_each_call_of_a_team_is_undone_or_named(bound: str) -> None:
    fail_everywhere(TEAM.replace("BOUND", bound), with_multicast(invented(2)), 10_000)


def test_a_failure_of_each_call_of_a_layout_with_dma_bufs_is_undone() -> None:
    """A failed pop after an export leaves no descriptor, either."""
    before = len(os.listdir("/proc/self/fd"))
    fail_everywhere(NIC, invented(2), 10_000)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failure_of_a_call_of_memory_pools_is_undone_or_named() -> None:
    """But those that make a context current for a call, without which it is not made."""
    fail_everywhere(POOLS, invented(2), 10_000, but={"cuCtxPushCurrent"})


def test_a_failure_of_each_call_of_pinned_memory_is_undone_or_named() -> None:
    fail_everywhere(PINNED, invented(2), 10_000)


@pytest.mark.parametrize("text", [RING, POOLS, PINNED, HELD], ids=["kernels", "pools", "pinned", "exported"])
def test_a_context_that_cannot_be_popped_leaves_nothing(text: str) -> None:
    """Whatever was done in it before is noted, and is undone or was."""
    machine, pops = invented(2), {"ctx_pop_current"}
    made = run_request(text, machine, "full")
    for at in points(run(made, machine, only=pops).failing.calls, 40):
        done = run(made, machine, at=at, only=pops)
        report = done.report
        assert (report.outcome, report.exit_code, report.leaks) == ("failed", 4, ()), (at, report.leaks, report.failure)
        assert done.ledger.empty, at


def test_the_memory_of_a_check_is_freed_whichever_context_cannot_be_made_current() -> None:
    text = "ranges: {r: {size: 256MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 128}}\nmap: {r: c}\n"
    made, pushes = run_request(f"{text}access: {{r: {{gpu0: rw}}}}", invented(1)), {"ctx_push_current"}
    calls = run(made, invented(1), only=pushes).failing.calls
    assert calls > 3
    for at in range(1, calls + 1):
        assert run(made, invented(1), at=at, only=pushes).ledger.empty, at


def test_what_a_program_could_have_mapped_is_unmapped_chunk_by_chunk_if_it_cannot_be_at_once() -> None:
    machine = invented(1)
    made = run_request(ELASTIC, machine)
    last = run(made, machine, only={"mem_unmap"}).failing.calls
    done = run(made, machine, at=last, only={"mem_unmap"})
    assert (done.report.outcome, done.report.exit_code, done.report.leaks) == ("failed", 4, ())
    assert done.ledger.empty


def test_mappings_of_a_program_that_stay_are_counted() -> None:
    machine = invented(1)
    made = run_request(ELASTIC, machine)
    last = run(made, machine, only={"mem_unmap"}).failing.calls
    done = run(made, machine, at=last, only={"mem_unmap"}, every=True)
    (leak,) = done.report.leaks
    assert (done.report.exit_code, leak.what, leak.stays) == (5, "mappings in heap", ("range heap",))
    assert leak.error.endswith("; 4 of 4 mappings stay")
    assert done.ledger.counts() == {"reservations": 1, "handles": 0, "mappings": 4, "contexts": 0}


@pytest.mark.parametrize("most", [SAMPLED, pytest.param(SAMPLED_FULLY, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("process", ["server", "reader"])
def test_a_failure_of_a_call_with_imported_allocations_is_undone_or_named(process: str, most: int) -> None:
    """In the process that has the pool, and in the one that imports from it."""
    calls = _fails_at(process, 0)[0].calls
    for at in points(calls, most):
        failing, reports = _fails_at(process, at)
        where = f"call {at} of {calls}, {failing.failed}"
        assert max(report.exit_code for report in reports.values()) in {4, 5}, where
        for report in (each for each in reports.values() if each.left):
            assert report.left
            assert bool(report.leaks) == any(report.left.ledger_after.values()), (where, report.leaks)
            assert not report.leaks or failing.failed in {*UNDO, "cuCtxPushCurrent"}, where


def _fails_at(process: str, at: int) -> tuple[Failing, dict[str, Report]]:
    """Driver of a process that fails at a call, and the reports of both processes."""
    made: list[Failing] = []

    def fail(driver: KernelDriver) -> KernelDriver:
        made.append(Failing(driver, at))
        return made[0]

    reports = apply_together(LENT, invented(2), wrap={process: fail})
    return made[0], reports


@pytest.mark.exhaustive(seconds=6)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_failure_of_every_call_is_undone_or_named(path: Path) -> None:
    """Plans over 500 calls have 500 tried, and that of 32,000 a dozen, since a run takes a second."""
    fail_everywhere(path, invented(4), SAMPLED if path.stem == "paged-kv" else SAMPLED_FULLY)


@pytest.mark.parametrize(
    ("text", "method", "at", "stays"),
    [(RING, "mem_unmap", 2, ("range b",)), (RING, "mem_release", 9, ()), (RING, "mem_address_free", 1, ()),
     (RING, "device_primary_ctx_release", 1, ()), (ALLOCATED, "mem_free_async", 1, ("pool p",))],
)  # fmt: skip
def test_a_failed_undo_is_a_leak_with_what_has_to_stay(text: str, method: str, at: int, stays: tuple[str, ...]) -> None:
    machine = invented(2)
    done = run(run_request(text, machine), machine, at=at, only={method})
    assert done.report.exit_code == 5
    assert done.report.outcome == "leaked"
    (leak,) = done.report.leaks
    assert leak.stays == stays
    assert leak.error.endswith(f"CUDA_ERROR_UNKNOWN (made to fail, as call {at})")
    assert sum(done.ledger.counts().values()) == 1 + len(stays)


def test_every_failed_unmap_is_a_leak_of_its_own() -> None:
    machine = invented(2)
    done = run(run_request(RING, machine), machine, at=1, only={"mem_unmap"}, every=True)
    leaks = done.report.leaks
    assert done.report.exit_code == 5
    assert len(leaks) == 6
    assert sorted(stays for leak in leaks for stays in leak.stays) == ["range a", "range b"]
    assert done.ledger.counts()["mappings"] == 6
    assert done.ledger.counts()["handles"] == 0


def test_three_hundred_runs_leave_descriptors_and_memory_unchanged() -> None:
    machine = invented(2)
    made = run_request(RING, machine)
    reports = [run(made, machine).report for _ in range(300)]
    lefts = [report.left for report in reports]
    assert {report.exit_code for report in reports} == {0}
    assert len({left.fds_after for left in lefts if left}) == 1
    assert all(left and left.memory[0].before == left.memory[0].after for left in lefts)


class Breaking(Forwarder):
    """A driver whose second unmap raises an exception that is no driver error."""

    def __init__(self, driver: KernelDriver, error: Exception) -> None:
        super().__init__(driver)
        self.error, self.calls = error, 0

    def mem_unmap(self, address: int, size: int) -> None:
        self.calls += 1
        if self.calls == 2:
            raise self.error
        self._driver.mem_unmap(address, size)


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("a bug"), OSError(24, "too many files")])
def test_exceptions_that_are_no_driver_errors_do_not_stop_the_teardown(error: Exception) -> None:
    machine = invented(2)
    driver = SimDriver(machine)
    driver.init()
    ledger = Ledger(Breaking(driver, error))
    report = apply.apply(run_request(RING, machine), ledger)
    driver.close()
    assert report.exit_code == 5
    (leak,) = report.leaks
    assert leak.stays == ("range b",)
    assert ledger.counts() == {"reservations": 1, "handles": 0, "mappings": 1, "contexts": 0}


class BadHooks(Progress):
    """Progress hooks that raise."""

    def advance(self, steps: int, _process: str = "") -> None:
        raise ValueError(steps)


def test_progress_hooks_that_raise_do_not_affect_the_run() -> None:
    machine = invented(2)
    with SimDriver(machine) as driver:
        driver.init()
        ledger = Ledger(driver)
        report = apply.apply(run_request(ROOT / "specs" / "paged-kv.yaml", machine), ledger, progress=BadHooks())
    assert (report.outcome, ledger.empty) == ("ok", True)


def undo_twice(execution: Execution, failing: Failing) -> None:
    """Undo each step, whose first call that ends something fails, and once more."""
    for step in expanded(reversed_items(execution.done)):
        failing.at = failing.calls + 1
        try:
            execution.act(step, undo=True)
        except StepFailed:
            failing.at = 0
            execution.act(step, undo=True)
        failing.at = 0


class Siblings(HandleSource):
    """Handles of a process in the same interpreter."""

    def __init__(self, exports: LayoutExports) -> None:
        self._exports = exports

    def take(self, holder: str, export: str, index: int) -> Handle:
        del holder
        return self._exports.handle(export, index)


SHARED = """
processes:
  server:
    chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}
    buffers: {b: {location: gpu0, size: 1MiB}}
    events: {e: {device: gpu0}}
    pools: {p: {location: gpu0, handles: fd}}
    allocations: {a: {pool: p, size: 2MiB, count: 2}}
    exports: {c: {chunk: c, via: fd}, b: {buffer: b, via: ipc}, e: {event: e, via: ipc}, a: {allocation: a, via: fd}}
  reader:
    imports: {c: {from: server.c}, b: {from: server.b}, e: {from: server.e}, a: {from: server.a, accessed_by: gpu1}}
    managed: {m: {size: 2MiB, attach: single, prefetch: gpu0}}
"""


@pytest.mark.parametrize(
    "text",
    [RING, TEAM.replace("BOUND", "[part]"), NIC, POOLS, PINNED, SHARED],
    ids=["kernels", "multicast", "dma-bufs", "pools", "pinned", "processes"],
)
def test_an_undo_that_failed_can_be_repeated(text: str) -> None:
    """It has noted nothing as gone that is there still."""
    machine = with_multicast(invented(2))
    made = run_request(text, machine)
    requests = [made.of_process(label) for label in made.geometry.processes] or [made]
    built = list[tuple[Execution, Failing, Ledger]]()
    with ExitStack() as drivers:
        for request in requests:
            driver = drivers.enter_context(SimDriver(machine))
            driver.init()
            failing = Failing(driver, only=ENDING)
            ledger = Ledger(failing)
            execution = Execution(request.plan, ledger)
            if built:
                server, layout = requests[0], built[0][0].layout
                exports = LayoutExports(server.geometry, layout, built[0][1], lambda: Checks((), (), 0))
                execution.layout.handle_source = Siblings(exports)
            execution.build()
            built.append((execution, failing, ledger))
        for execution, failing, ledger in reversed(built):
            undo_twice(execution, failing)
            assert ledger.empty
