"""Multi-process layouts on the simulator, with real processes and real descriptors."""

from __future__ import annotations

import errno
import os
import select
import signal
from pathlib import Path
from textwrap import dedent

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.common.errors import MemtopoError, UsageError
from memtopo.machine import Trial
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Report
from memtopo.run import processes
from memtopo.run.processes import Workers
from memtopo.run.processes.ensemble import NotStarted, startup_limit
from memtopo.run.processes.worker_process import Peers
from memtopo.session.composition import HoldResult
from tests.helpers.holders import until
from tests.helpers.machines import identified, invented
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import codes, ensemble, server_and_readers
from tests.run.processes.crash_runs import run_with_crash

TWO = Path(__file__).with_name("two.yaml")
MACHINE = machine.load("h200x2")


def apply_processes(text: str) -> Report:
    report = processes.apply(ensemble(dedent(text), MACHINE))
    assert report.outcome == "ok", report
    assert report.left
    assert not any(report.left.ledger_after.values())
    assert report.left.fds_after == report.left.fds_before
    return report


def looked_at(report: Report, aspect: str, process: str | None = None) -> int:
    """Number of checks of an aspect, all of them as declared."""
    checks = report.checks if process is None else {each.name: each.checks for each in report.processes}[process]
    assert checks
    tally = next(each for each in checks.tallies if each.aspect == aspect)
    assert tally.looked_at == tally.as_declared
    return tally.looked_at


@pytest.mark.parametrize("count", [1, 3, 7])
def test_importers_read_what_the_exporter_wrote(count: int) -> None:
    """In two, four and eight processes, at both ends of each chunk"""
    report = apply_processes(server_and_readers(2, count))
    assert looked_at(report, "bytes") == 4 * (count + 1)
    assert looked_at(report, "imported") == 2 * count


def test_an_importer_with_write_access_writes_for_the_exporter() -> None:
    """And events are recorded and waited for in both directions"""
    report = apply_processes(TWO.read_text())
    assert looked_at(report, "bytes", "server") == 2 * (4 + 2)
    assert looked_at(report, "bytes", "reader") == 2 * (4 + 2)
    assert looked_at(report, "event", "server") == 1 + 1
    assert looked_at(report, "event", "reader") == 1 + 1


def test_two_processes_may_import_from_each_other() -> None:
    """All exports are created before the first import"""
    side = """
      {name}:
        ranges: {{both: {{size: 4MiB}}}}
        chunks: {{own: {{location: {gpu}, size: 2MiB, handles: fd}}}}
        exports: {{own: {{chunk: own, via: fd}}}}
        imports: {{other: {{from: {other}.own}}}}
        map: {{both: [own, other]}}
        access: {{both: {{{gpu}: rw}}}}
    """
    left = side.format(name="left", gpu="gpu0", other="right")
    report = apply_processes("    processes:\n" + left + side.format(name="right", gpu="gpu1", other="left"))
    assert looked_at(report, "imported") == 2
    assert looked_at(report, "bytes") == 2 * 2 * 4  # two turns, two processes, two ends of two chunks


def test_a_process_imports_memory_of_a_gpu_that_is_not_visible() -> None:
    report = apply_processes("""
        processes:
          server:
            visible: gpu1
            ranges: {w: {size: 2MiB}}
            chunks: {w: {location: gpu1, size: 2MiB, handles: fd}}
            map: {w: [w]}
            access: {w: {gpu1: rw}}
            exports: {w: {chunk: w, via: fd}}
          reader:
            visible: gpu0
            ranges: {v: {size: 2MiB}}
            imports: {w: {from: server.w}}
            map: {v: [w]}
            access: {v: {gpu0: r}}
    """)
    assert looked_at(report, "access") == 2
    assert looked_at(report, "bytes") == 4


def test_handles_are_routed_in_batches_and_closed() -> None:
    """More handles than a message carries"""
    report = apply_processes(server_and_readers(1000, 3))
    assert looked_at(report, "imported") == 3000
    assert looked_at(report, "bytes") == 4 * 2000
    for each in report.processes:
        assert each.left
        assert each.left.fds_held is not None
        # The simulator needs one descriptor for each chunk that is shared; those under way come on top.
        assert each.left.fds_held <= each.left.fds_before + 1000 + 16


def test_fabric_handles_are_routed_as_bytes() -> None:
    """On a machine where a trial worked; it has not been run on hardware"""
    text = server_and_readers(1, access="gpu0: r", via="fabric")
    assert codes(text, MACHINE) == ["MT404"]
    report = processes.apply(ensemble(text, invented(2, trials={"fabric": Trial(advertised=True, works=True)})))
    assert report.outcome == "ok", report


@pytest.mark.parametrize(("process", "call"), [("server", 12), ("server", 25), ("reader", 10), ("reader", 24)])
def test_a_driver_error_in_one_process_undoes_all(process: str, call: int) -> None:
    done = run_with_crash(TWO, process, call, "CUDA_ERROR_UNKNOWN")
    assert done.report, done.errors
    assert (done.report.outcome, done.report.exit_code) == ("failed", 4), done.report
    assert done.report.failure
    assert process in done.report.failure.step + done.report.failure.error
    assert "CUDA_ERROR_UNKNOWN" in done.report.failure.error
    assert done.report.left
    assert not any(done.report.left.ledger_after.values())


def test_the_timeout_limits_the_start_of_a_process() -> None:
    report = processes.apply(ensemble(TWO, MACHINE, timeout=0.05, worker=("sh", "-c", "kill -STOP $$")))
    assert report.failure
    assert "was silent for 0.5 s" in report.failure.error
    assert [startup_limit(timeout) for timeout in (0.05, 2.0, 30.0, 300.0)] == [0.5, 20.0, 60.0, 300.0]


@pytest.mark.parametrize("timeout", [0.05, 0.5, 30.0])
def test_workers_are_sent_several_heartbeats_within_the_timeout(timeout: float) -> None:
    workers = Workers(ensemble(TWO, MACHINE, timeout=timeout), SafeProgress(Progress()), lambda: 0, Peers())
    assert workers.interval < timeout / 4


def test_a_process_that_the_system_does_not_start_is_an_expected_failure() -> None:
    with pytest.raises(NotStarted, match=r"^process 1 of the layout cannot be started: no such file") as raised:
        processes.apply(ensemble(TWO, MACHINE, worker=("/nonexistent/worker",)))
    assert raised.value.exit_code == 4
    assert "ulimit -u" in str(NotStarted(0, BlockingIOError(errno.EAGAIN, "busy")).hint)


def test_a_worker_that_does_not_start_is_reported() -> None:
    report = processes.apply(ensemble(TWO, MACHINE, worker=("false",)))
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.failure
    assert "ended with status 1" in report.failure.error


def test_visible_gpus_are_given_to_a_real_process_by_uuid_in_their_order(tmp_path: Path) -> None:
    """An ordinal would be another GPU where the order of the driver is another (fact 38)."""
    text = "processes: {p: {visible: [gpu2, gpu0], buffers: {b: {location: gpu0, size: 2MiB}}}}"
    seen = tmp_path / "seen"
    worker = ("/bin/sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES" > "$0"', str(seen))
    made = ensemble(text, identified(["GPU-" + each * 32 for each in "abc"]), worker=worker, timeout=5)
    real = replace(made.request.machine, simulated=False)
    report = processes.apply(replace(made, request=replace(made.request, machine=real)))
    assert report.exit_code == 4
    assert seen.read_text() == f"GPU-{'c' * 32},GPU-{'a' * 32}\n"


def test_an_answer_to_an_abandoned_request_is_not_taken_for_the_next_one() -> None:
    spec = """
        processes:
          server:
            chunks: {small: {location: gpu0, size: 2MiB, handles: fd}, large: {location: gpu0, size: 4MiB, handles: fd}}
            exports: {small: {chunk: small, via: fd}, large: {chunk: large, via: fd}}
    """
    stop: list[int] = []

    def hold(made: Workers) -> HoldResult:
        made.release_contexts()
        before = open_descriptors()
        server = made.workers["server"]
        os.kill(server.process.pid, signal.SIGSTOP)
        stop.append(signal.SIGTERM)
        with pytest.raises(MemtopoError, match="about to be taken down"):
            made.request_handles("server", "small", 0, 1)
        stop.clear()
        os.kill(server.process.pid, signal.SIGCONT)
        until(lambda: select.select([server.channel], [], [], 0.0)[0])
        (handle,) = made.request_handles("server", "large", 0, 1)
        assert handle.fd is not None
        assert os.fstat(handle.fd).st_size == 4 << 20
        handle.close()
        assert open_descriptors() == before
        return HoldResult(["served"])

    report = processes.apply(ensemble(dedent(spec), MACHINE), stop=lambda: stop[0] if stop else 0, hold=hold)
    assert (report.outcome, report.notes[0]) == ("ok", "served"), report


def test_an_error_while_held_is_reported_with_its_hint() -> None:
    def hold(made: Workers) -> HoldResult:
        del made
        raise UsageError("the socket is taken", hint="name another one")

    report = processes.apply(ensemble(TWO.read_text(), MACHINE), hold=hold)
    assert (report.outcome, report.exit_code) == ("failed", UsageError.exit_code)
    assert report.failure
    assert (report.failure.error, report.failure.hint) == ("the socket is taken", "name another one")
    assert report.left
    assert not any(report.left.ledger_after.values())
