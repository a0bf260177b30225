"""The report of a run from the reports, errors and deaths of its processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.common.errors import UsageError
from memtopo.common.processes import Broken, RunningClock
from memtopo.executor import StepFailed
from memtopo.plans.report import Checks, DeviceMemory, Difference, Failure, Leak, Left, PhaseTime, Rate, Report, Tally
from memtopo.run import messages, processes
from memtopo.run.messages import FromWorker
from memtopo.run.processes.ensemble import merged_report
from memtopo.run.processes.fork_server import SpawnedWorker
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.run.reports import MAX_DIFFERENCES, merged_checks, sum_of_left
from memtopo.session.composition import HoldResult
from memtopo.sharing.channel import Channel, Received
from tests.helpers.machines import invented
from tests.helpers.specs import ensemble, run_request

LABELS = ("a", "b.0", "b.1")
REQUEST = run_request(
    "processes: {a: {events: {e: {device: gpu0}}}, b: {count: 2, events: {e: {device: gpu0}}}}", invented(1)
)
LEFT = Left({"events": 0}, {"events": 1, "contexts": 2}, {"events": 0}, 10, 12, 11)
CHECKS = Checks((Tally("event", 1, 1),), (), 0)
TIMES = [PhaseTime("open", 1, 0.5)]
OK = Report("test", None, REQUEST.machine, "ok", 0, REQUEST.plan.summary(), checks=CHECKS, left=LEFT)
FAILURE = Failure("create e", "cuEventCreate: CUDA_ERROR_UNKNOWN", path=("events", "e"))
FAILED = replace(OK, outcome="failed", exit_code=4, failure=FAILURE)

KILLED = -1
"""Has a process killed by the conductor."""

Merge = Callable[..., Report]


@pytest.fixture
def merge() -> Iterator[Merge]:
    """Merges what the processes a, b.0 and b.1 sent; the number of a signal is how one is killed."""
    workers: list[WorkerProcess] = []

    def merged(
        *found: list[FromWorker | Report | int], first: int = 0, interrupted: int = 0, failed: StepFailed | None = None
    ) -> Report:
        for label, sent in zip(LABELS, found, strict=True):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.close()
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
            worker = WorkerProcess(label, SpawnedWorker(process), Channel(ours, ()), RunningClock())
            workers.append(worker)
            for each in sent:
                if isinstance(each, int):
                    worker.kill("did not take down in time") if each == KILLED else process.send_signal(each)
                    worker.receive(None)
                else:
                    message = messages.WorkerFinished(each) if isinstance(each, Report) else each
                    worker.receive(Received(message))
        order = [workers[first], *workers]
        return merged_report(REQUEST, {each.label: each for each in order}, TIMES, interrupted, failed)

    yield merged
    for each in workers:
        each.close()
        assert isinstance(each.process, SpawnedWorker)
        assert each.process.process.stdin
        each.process.process.stdin.close()


def test_a_run_in_which_all_processes_succeed_is_a_success(merge: Merge) -> None:
    report = merge([OK], [OK], [replace(OK, left=None)])
    assert (report.outcome, report.exit_code, report.failure, report.leaks, report.notes) == ("ok", 0, None, (), ())
    assert (report.name, report.spec, report.machine, report.times) == ("test", "test.yaml", REQUEST.machine, (*TIMES,))
    assert report.checks == Checks((Tally("event", 3, 3),), (), 0)
    assert [(each.name, each.outcome, each.lost, each.checks) for each in report.processes] == [
        (label, "ok", None, CHECKS) for label in LABELS
    ]
    assert len({each.pid for each in report.processes}) == 3


@pytest.mark.parametrize("first", [0, 1], ids=["ended first", "ended second"])
@pytest.mark.parametrize(("simulated", "gpu0"), [(True, (9, 5, 8)), (False, (9, 6, 9))])
def test_what_is_left_is_summed_and_memory_is_what_all_processes_take(
    merge: Merge, gpu0: tuple[int, int, int], first: int, *, simulated: bool
) -> None:
    """Each process has simulated GPUs of its own; other GPUs are the same for all, and the first of the spec counts."""
    ok = replace(OK, machine=replace(OK.machine, simulated=simulated))
    one = replace(LEFT, memory=(DeviceMemory("gpu1", 9, 8, 9), DeviceMemory("gpu0", 9, 6, 9)))
    other = replace(LEFT, fds_held=None, memory=(DeviceMemory("gpu0", 9, 8, 8), DeviceMemory("gpu2", 3, None, 3)))
    report = merge([replace(ok, left=one)], [replace(ok, left=other)], [replace(ok, left=None)], first=first)
    assert report.left == Left(
        {"events": 0}, {"events": 2, "contexts": 4}, {"events": 0}, 20, 12, 22,
        (DeviceMemory("gpu0", *gpu0), DeviceMemory("gpu1", 9, 8, 9), DeviceMemory("gpu2", 3, None, 3)),
    )  # fmt: skip


def test_nothing_is_left_or_checked_that_no_process_reports(merge: Merge) -> None:
    report = merge(*[[replace(OK, left=None, checks=None)]] * 3)
    assert (report.left, report.checks) == (None, None)


def test_memory_that_processes_share_is_that_of_the_first_of_them_in_order_of_its_devices() -> None:
    one, other = DeviceMemory("gpu1", 9, 8, 9), DeviceMemory("gpu1", 7, 6, 7)
    left = sum_of_left([replace(LEFT, memory=(one,)), replace(LEFT, memory=(other, replace(other, device="gpu0")))])
    assert left
    assert left.memory == (replace(other, device="gpu0"), one)


def test_without_any_descriptors_while_held_their_sum_is_unknown(merge: Merge) -> None:
    report = merge(*[[replace(OK, left=replace(LEFT, fds_held=None))]] * 3)
    assert report.left
    assert report.left.fds_held is None


def test_the_failure_of_the_first_process_that_failed_is_that_of_the_run(merge: Merge) -> None:
    report = merge([OK], [FAILED], [messages.WorkerFailed("it was interrupted"), OK], first=1)
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.failure == replace(FAILURE, step="b.0: create e")
    assert [each.outcome for each in report.processes] == ["taken down", "failed", "taken down"]


@pytest.mark.parametrize(
    ("sent", "failure", "exit_code", "outcome"),
    [
        ([Broken("no driver", "install one", 3)],
         Failure("b.0: starting", "no driver", hint="install one"), 3, "failed"),
        ([Broken("a bug", None, 70)], Failure("b.0: starting", "a bug"), 70, "failed"),
        ([Broken("bad", None, 2)], Failure("b.0: starting", "bad"), 4, "failed"),
        ([messages.WorkerFailed("stopped"), OK],
         Failure("b.0: starting", "process b.0 was interrupted, and all took down their parts"), 4, "taken down"),
        ([Broken("stopped", None, 70), OK],
         Failure("b.0: starting", "process b.0 was interrupted, and all took down their parts"), 4, "taken down"),
        ([replace(FAILED, exit_code=70)], replace(FAILURE, step="b.0: create e"), 70, "failed"),
        ([int(signal.SIGKILL)],
         Failure("b.0: starting", "process b.0 was killed by SIGKILL",
                 "its memory was freed with it; the others were stopped and took down their parts"),
         4, "died"),
    ],
)  # fmt: skip
def test_how_a_process_fails_determines_the_failure_and_the_exit_code(
    merge: Merge, sent: list[FromWorker | Report | int], failure: Failure, exit_code: int, outcome: str
) -> None:
    report = merge([OK], sent, [OK], first=1)
    assert (report.outcome, report.exit_code, report.failure) == ("failed", exit_code, failure)
    assert [each.outcome for each in report.processes] == ["taken down", outcome, "taken down"]
    assert report.processes[1].lost == ("was killed by SIGKILL" if outcome == "died" else None)


def test_a_process_that_was_killed_is_the_failure_though_an_import_from_it_failed_first(merge: Merge) -> None:
    report = merge([FAILED], [int(signal.SIGKILL)], [OK], first=0)
    assert report.failure
    assert report.failure.error == "process b.0 was killed by SIGKILL"
    assert [each.outcome for each in report.processes] == ["failed", "died", "taken down"]


def test_a_process_that_the_conductor_kills_after_a_failure_is_not_the_failure(merge: Merge) -> None:
    report = merge([FAILED], [KILLED], [OK], first=0)
    assert report.failure == replace(FAILURE, step="a: create e")
    assert report.processes[1].lost == "did not take down in time and was killed by SIGKILL"


def test_leaks_outweigh_signals_and_these_differences_and_these_failures(merge: Merge) -> None:
    leaks = replace(
        OK, outcome="leaked", exit_code=5, leaks=(Leak("chunk c", "an error", ("range r",), ("chunks", "c")),)
    )
    differs = replace(OK, checks=Checks((), (Difference("bytes", "c", "1", "2"),), 1))
    report = merge([leaks], [differs], [FAILED], interrupted=15)
    assert (report.outcome, report.exit_code) == ("leaked", 5)
    assert report.leaks == (Leak("a: chunk c", "an error", ("range r",), ("chunks", "c")),)


@pytest.mark.parametrize(
    ("leaks", "interrupted", "outcome", "exit_code", "failed"),
    [
        ((), 0, "failed", 2, True),
        ((Leak("chunk c", "an error"),), 0, "leaked", 5, True),
        ((), 15, "interrupted", 143, False),
    ],
)
def test_a_failure_of_no_process_is_that_of_the_run_and_outweighs_no_leak_or_signal(
    merge: Merge, leaks: tuple[Leak, ...], interrupted: int, outcome: str, exit_code: int, failed: bool
) -> None:
    error = StepFailed(None, "work with the processes", UsageError("the socket is taken"))
    report = merge([replace(OK, leaks=leaks)], [OK], [OK], interrupted=interrupted, failed=error)
    assert (report.outcome, report.exit_code) == (outcome, exit_code)
    assert (report.failure and report.failure.error) == ("the socket is taken" if failed else None)


@pytest.mark.parametrize(("interrupted", "outcome", "exit_code"), [(15, "interrupted", 143), (0, "different", 6)])
def test_a_signal_outweighs_a_difference_and_a_difference_a_failure(
    merge: Merge, interrupted: int, outcome: str, exit_code: int
) -> None:
    differs = replace(OK, checks=Checks((), (Difference("bytes", "c", "1", "2"),), 1))
    report = merge([OK], [differs], [FAILED], interrupted=interrupted)
    assert (report.outcome, report.exit_code) == (outcome, exit_code)
    assert (report.failure is None) is bool(interrupted)


def test_processes_of_an_interrupted_run_were_taken_down(merge: Merge) -> None:
    stopped = replace(OK, outcome="interrupted", exit_code=130)
    report = merge([stopped], [OK], [stopped], interrupted=2)
    assert (report.outcome, report.exit_code, report.failure) == ("interrupted", 130, None)
    assert [each.outcome for each in report.processes] == ["taken down"] * 3


def test_differences_are_listed_up_to_the_limit_and_all_are_counted(merge: Merge) -> None:
    many = Checks((), tuple(Difference("bytes", f"c.{each}", "1", "2") for each in range(60)), 70)
    report = merge([replace(OK, checks=many)], [replace(OK, checks=many)], [OK])
    assert report.checks
    assert (len(report.checks.differences), report.checks.different) == (MAX_DIFFERENCES, 140)
    assert [each.subject for each in report.checks.differences[59:61]] == ["a: c.59", "b.0: c.0"]


def test_a_note_of_several_processes_names_them(merge: Merge) -> None:
    report = merge([replace(OK, notes=("x",))], [replace(OK, notes=("x", "y"))], [replace(OK, notes=("y", "z"))])
    assert report.notes == ("a, b.0: x", "b.0, b.1: y", "b.1: z")


HERE = Path(__file__).parent
SPEC = """
processes:
  server:
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    ranges: {w: {size: 4MiB}}
    map: {w: w}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    chunks: {o: {location: gpu1, size: 2MiB, count: 2}}
    ranges: {v: {size: 4MiB}, o: {size: 4MiB}}
    imports: {w: {from: server.w}}
    map: {v: w, o: o}
    access: {v: {gpu0: r}, o: {gpu1: rw}}
"""


def test_checks_of_every_process_are_added() -> None:
    first = Checks(
        (Tally("bytes", 3, 2, 1, "one reason"), Tally("hole", 1, 1)),
        (Difference("bytes", "c", "1", "2", ("chunks", "c")),),
        1,
        (Rate("fill", "gpu0", "gpu0", 10, 1.0),),
    )
    second = Checks(
        (Tally("bytes", 5, 3, 2, "another"), Tally("access", 2, 2, 4, "a third")),
        (Difference("bytes", "d", "3", "4", ("chunks", "d")), Difference("bytes", "e", "5", "6", ("chunks", "e"))),
        2,
        (Rate("fill", "gpu0", "gpu0", 30, 2.0),),
    )
    assert merged_checks({"a": first, "b": second}) == Checks(
        (Tally("bytes", 8, 5, 3, "one reason; another"), Tally("hole", 1, 1), Tally("access", 2, 2, 4, "a third")),
        (
            Difference("bytes", "a: c", "1", "2", ("chunks", "c")),
            Difference("bytes", "b: d", "3", "4", ("chunks", "d")),
            Difference("bytes", "b: e", "5", "6", ("chunks", "e")),
        ),
        3,
        (Rate("fill", "gpu0", "gpu0", 40, 3.0),),
    )


@pytest.mark.parametrize(
    ("process", "fault", "outcome", "named"),
    [
        ("reader", "UnmapsNothing", ("leaked", 5), "reader: range o"),
        ("server", "ExportsAnotherChunk", ("different", 6), "reader: w.0 in v at 0x0 by gpu0"),
    ],
)
def test_a_leak_or_difference_of_any_process_is_of_the_run(
    process: str, fault: str, outcome: tuple[str, int], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout that differs is not held."""
    monkeypatch.setenv("MEMTOPO_FAULT", f"{process}={fault}")
    worker = (sys.executable, "-P", str(HERE / "faulty_worker.py"))
    held: list[str] = []

    def hold(_: object) -> HoldResult:
        held.append("held")
        return HoldResult()

    report = processes.apply(ensemble(SPEC, machine.load("h200x2"), worker=worker), hold=hold)
    assert (report.outcome, report.exit_code) == outcome
    assert report.checks
    assert named in [*(leak.what for leak in report.leaks), *(each.subject for each in report.checks.differences)]
    assert held == ([] if report.checks.different else ["held"])
