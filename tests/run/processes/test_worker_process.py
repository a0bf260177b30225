"""State of a worker in the conductor, by its messages, its process and a clock that the test sets."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from memtopo.common.files import closing_fd
from memtopo.common.processes import LONGEST_STEP, Broken, RunningClock
from memtopo.kinds.step import Phase
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, PlanSummary, Report
from memtopo.run import messages
from memtopo.run.messages import FromWorker, ToWorker
from memtopo.run.processes.fork_server import SpawnedWorker, WorkerServer
from memtopo.run.processes.worker_process import UserProcess, WorkerProcess, launch
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.offers import Offer

MACHINE = MachineLine("test", simulated=True, devices=(), driver="13.0")
REPORT = Report("test", None, MACHINE, "ok", 0, PlanSummary("test", (), {}, 0, 0, 0))
BUILD = messages.BuildPhase(Phase.CREATE)


@dataclass
class Pair:
    """A worker's process that waits for its input to end, and the worker's end of the channel."""

    worker: WorkerProcess
    end: Channel[Any]
    moment: list[float]

    def passes(self, seconds: float) -> None:
        """Let time pass, in steps that count."""
        while seconds > 0:
            self.moment[0] += min(seconds, LONGEST_STEP)
            seconds -= LONGEST_STEP
            self.worker.silent(0)

    def says(self, *found: FromWorker) -> None:
        for each in found:
            self.worker.receive(Received(each))

    def heard(self) -> list[object]:
        """Messages that the worker was sent since the last time."""
        found: list[object] = []
        while True:
            try:
                received = self.end.receive()
            except BlockingIOError:
                return found
            assert received
            found.append(received.message)


@pytest.fixture
def program() -> Iterator[tuple[Pair, subprocess.Popen[bytes]]]:
    """A process of a user, and the process itself, which is there until the test ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = Channel[Any](theirs, [each for each in get_args(ToWorker) if isinstance(each, type)])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        channel = Channel[FromWorker](ours, get_args(FromWorker))
        found = WorkerProcess("w", UserProcess(process.pid), channel, RunningClock())
        yield Pair(found, end, []), process
        assert process.poll() is None
        end.close()
        found.close()
        assert process.poll() is None


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    moment = [100.0]
    end = Channel[Any](theirs, [each for each in get_args(ToWorker) if isinstance(each, type)])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        channel = Channel[FromWorker](ours, get_args(FromWorker))
        found = WorkerProcess("w", SpawnedWorker(process), channel, RunningClock(lambda: moment[0]))
        yield Pair(found, end, moment)
        end.close()
        found.close()
        assert process.returncode is not None


def test_a_new_worker_owes_its_readiness(pair: Pair) -> None:
    worker = pair.worker
    assert (worker.owes, worker.busy, worker.over) == (True, True, False)
    assert (worker.activity, worker.as_declared, worker.safe, worker.exit_code) == ("starting", True, True, 4)
    steps = worker.receive(Received(messages.WorkerReady(3, 4096)))
    assert (steps, worker.rounds, worker.volume) == (messages.StepsDone(1), 3, 4096)
    assert (worker.owes, worker.busy) == (False, False)


@pytest.mark.parametrize(
    ("command", "activity"),
    [
        (BUILD, "create"),
        (messages.CheckSteps(), "check"),
        (messages.WriteRound(0), "write"),
        (messages.ReadRound(0), "read"),
        (messages.TryForbidden(), "forbid"),
        (messages.SkipVerification("no reason"), "skip verification"),
        (messages.Recheck(), "recheck"),
        (messages.Hold(), "hold"),
        (messages.EndChange(), "end of a change"),
    ],
)
def test_the_activity_of_a_worker_is_that_of_its_command(pair: Pair, command: messages.Command, activity: str) -> None:
    assert pair.worker.activity == "starting"
    pair.worker.command(command)
    assert pair.worker.activity == activity
    assert pair.heard() == [command]


def test_a_command_is_owed_until_it_is_done(pair: Pair) -> None:
    pair.says(messages.WorkerReady(1, 0))
    pair.worker.command(BUILD)
    assert pair.heard() == [BUILD]
    assert (pair.worker.owes, pair.worker.busy, pair.worker.activity) == (True, True, "create")
    assert pair.worker.receive(Received(messages.StepsDone(7, 9))) == messages.StepsDone(7, 9)
    assert pair.worker.owes
    assert pair.worker.receive(Received(messages.Done(as_declared=True, safe=True))) == messages.StepsDone(0)
    assert not pair.worker.owes
    assert not pair.worker.busy


def test_a_difference_or_an_unsafe_access_stays_known(pair: Pair) -> None:
    for as_declared, safe, expected in (
        (True, True, (True, True)),
        (False, True, (False, True)),
        (True, False, (False, False)),
        (True, True, (False, False)),
    ):
        pair.says(messages.Done(as_declared=as_declared, safe=safe))
        assert (pair.worker.as_declared, pair.worker.safe) == expected


def test_the_result_of_a_recheck_is_forgotten_with_the_next_command(pair: Pair) -> None:
    pair.worker.command(messages.Recheck())
    pair.says(done := messages.ChangeResult(checks=Checks((), (), 0)))
    assert (pair.worker.answer, pair.worker.busy) == (done, False)
    pair.worker.command(messages.Recheck())
    assert (pair.worker.answer, pair.worker.busy) == (None, True)
    pair.says(failed := messages.ChangeResult("it failed"))
    assert pair.worker.answer == failed


def test_exports_stay_offered_until_a_change_names_others_or_none(pair: Pair) -> None:
    weights = Offer("w", "chunk", "fd", 1, 2 << 20, "gpu0")
    for offers, expected in (((weights,), (weights,)), (None, (weights,)), ((), ())):
        pair.says(messages.ChangeResult(offers=offers))
        assert pair.worker.offers == expected


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (messages.WorkerFailed("no memory"), ("no memory", None, 4, None)),
        (Broken("no driver", "install one", 3), ("no driver", "install one", 3, None)),
        (messages.WorkerFinished(REPORT), (None, None, 4, REPORT)),
    ],
)
def test_a_worker_that_failed_or_reported_owes_nothing(
    pair: Pair, message: FromWorker, state: tuple[object, ...]
) -> None:
    pair.worker.command(BUILD)
    pair.says(message)
    worker = pair.worker
    assert (worker.failed, worker.hint, worker.exit_code, worker.report) == state
    assert (worker.over, worker.busy, worker.gone) == (True, False, False)


def test_silence_counts_from_the_last_message_command_or_request(pair: Pair) -> None:
    worker = pair.worker
    begins: list[Callable[[], object]] = [
        lambda: worker.command(BUILD),
        lambda: pair.says(messages.StepsDone(1)),
        worker.answer_due,
        worker.answer_received,
        worker.take_down,
    ]
    for begin in begins:
        pair.passes(5)
        begin()
        pair.passes(3)
        assert (worker.silent(2.5), worker.silent(3.5)) == (True, False)


def test_a_worker_that_waits_for_handles_is_not_busy_unless_others_wait_for_its_own(pair: Pair) -> None:
    worker = pair.worker
    worker.command(BUILD)
    worker.awaits_handles = True
    assert not worker.busy
    worker.answer_due()
    worker.answer_due()
    assert worker.busy
    worker.answers_due -= 1
    assert worker.busy
    worker.answers_due -= 1
    assert not worker.busy
    worker.answer_received()
    assert worker.busy


def test_a_busy_worker_is_told_to_take_down_and_interrupted_by_a_signal(pair: Pair) -> None:
    pair.says(messages.WorkerReady(1, 0))
    pair.worker.command(BUILD)
    pair.worker.take_down()
    assert pair.heard() == [BUILD, messages.TakeDown()]
    pair.worker.receive(None)
    assert pair.worker.death == "was killed by SIGTERM"


def test_a_worker_that_has_nothing_to_do_is_told_to_take_down_without_a_signal(pair: Pair) -> None:
    pair.says(messages.WorkerReady(0, 0))
    pair.worker.take_down()
    assert pair.heard() == [messages.TakeDown()]
    assert isinstance(pair.worker.process, SpawnedWorker)
    assert pair.worker.process.process.stdin
    pair.worker.process.process.stdin.close()
    pair.worker.receive(None)
    assert pair.worker.death == "ended with status 0"


def test_a_worker_begins_with_signals_of_the_terminal_blocked_as_they_are_not_in_the_conductor() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with closing_fd(os.memfd_create("mask")) as file:
            code = "import os, signal; os.write(2, bytes(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
            server = WorkerServer("", {}, file)
            worker = launch("w", (), {}, RunningClock(), server, [sys.executable, "-I", "-S", "-c", code])
            worker.channel.close()
            assert worker.process.end(60.0) == 0
            assert {*os.pread(file, 100, 0)} >= {signal.SIGHUP, signal.SIGINT}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {*before, signal.SIGHUP}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Noted:
    """A process that notes the signals that it is sent, and has ended by itself."""

    pid = 0

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> bool:
        self.signals.append(number)
        return True

    def end(self, seconds: float) -> int:
        del seconds
        return 0


def test_a_worker_that_has_ended_is_sent_no_signal() -> None:
    """Another process may have its number by then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = WorkerProcess("w", process := Noted(), Channel[FromWorker](ours, get_args(FromWorker)), RunningClock())
    theirs.close()
    worker.command(BUILD)
    worker.receive(None)
    worker.take_down()
    worker.close()
    assert (worker.owes, process.signals) == (True, [])


def test_no_heartbeat_is_queued_behind_messages_that_a_worker_does_not_read(pair: Pair) -> None:
    sent = 0
    while not pair.worker.channel.pending:
        pair.worker.channel.send(BUILD)
        sent += 1
    pair.passes(3)
    pair.worker.keep_alive(2)
    heard = pair.heard()
    pair.worker.channel.flush()
    assert [*heard, *pair.heard()] == [BUILD] * sent


def test_a_heartbeat_is_sent_once_an_interval(pair: Pair) -> None:
    pair.passes(2)
    pair.worker.keep_alive(2)
    assert pair.heard() == []
    pair.passes(1)
    pair.worker.keep_alive(2)
    pair.worker.keep_alive(2)
    assert pair.heard() == [messages.KeepAlive()]


def test_a_killed_worker_has_the_reason_and_the_signal(pair: Pair) -> None:
    pair.worker.kill("was silent for 2 s")
    assert (pair.worker.death, pair.worker.over, pair.worker.gone) == ("was silent for 2 s", True, False)
    pair.worker.kill("another reason")
    assert pair.worker.receive(None) == messages.StepsDone(0)
    assert pair.worker.death == "was silent for 2 s and was killed by SIGKILL"
    assert pair.worker.gone


def test_a_process_of_a_user_is_lost_and_never_signalled(program: tuple[Pair, object]) -> None:
    """It has its memory until it ends."""
    pair, _ = program
    worker = pair.worker
    worker.command(BUILD)
    worker.take_down("process a has ended", failed=True)
    assert pair.heard() == [BUILD, messages.TakeDown("process a has ended", failed=True)]
    assert (worker.gone, worker.killed) == (False, False)
    worker.kill("was silent for 2 s")
    assert (worker.death, worker.over, worker.gone, worker.killed) == ("was silent for 2 s", True, False, False)


def test_the_report_of_a_process_of_a_user_is_its_end_and_that_of_its_channel_without_one_is_a_death(
    program: tuple[Pair, object],
) -> None:
    worker = program[0].worker
    worker.receive(None)
    assert (worker.death, worker.gone) == ("has ended", True)
    worker.death, worker.gone = None, False
    program[0].says(messages.Leave(), messages.WorkerFinished(REPORT))
    assert (worker.left, worker.gone, worker.death) == (True, True, None)
    worker.receive(None)
    assert worker.death is None


def test_a_worker_that_was_killed_after_it_had_failed_has_both_reasons(pair: Pair) -> None:
    pair.says(messages.WorkerFailed("no memory"))
    pair.worker.kill("did not take down in time")
    pair.worker.receive(None)
    assert (pair.worker.failed, pair.worker.death) == (
        "no memory",
        "did not take down in time and was killed by SIGKILL",
    )


@pytest.mark.parametrize(
    ("before", "death"),
    [
        ([], "ended with status 0"),
        ([messages.WorkerFailed("no memory")], None),
        ([messages.WorkerFinished(REPORT)], None),
    ],
)
def test_a_worker_that_ends_without_a_report_or_an_error_has_died(
    pair: Pair, before: list[FromWorker], death: str | None
) -> None:
    pair.says(*before)
    assert isinstance(pair.worker.process, SpawnedWorker)
    assert pair.worker.process.process.stdin
    pair.worker.process.process.stdin.close()
    pair.worker.receive(None)
    assert (pair.worker.gone, pair.worker.over, pair.worker.death) == (True, True, death)


def test_files_of_the_drivers_events_go_with_their_process(pair: Pair) -> None:
    """Fact 49: a killed process leaves them behind."""
    pid = pair.worker.process.pid
    own, other = (Path(f"/dev/shm/cuda.shm.{os.geteuid():x}.{each:x}.1") for each in (pid, 1 << 30))
    for each in (own, other):
        each.touch()
    pair.worker.kill("test")
    pair.worker.receive(None)
    assert (own.exists(), other.exists()) == (False, True)
    other.unlink()


_LAUNCHES = """
import signal, sys
from memtopo.common.processes import RunningClock
from memtopo.run.processes.worker_process import launch
from memtopo.run.processes.fork_server import WorkerServer
server = WorkerServer("memtopo.drivers.sim", {"PYTHONPATH": sys.argv[2]}, int(sys.argv[1]))
launch("a", [], {}, RunningClock(), server)
"""


def test_a_worker_ends_with_a_conductor_that_is_killed_while_it_imports(tmp_path: Path) -> None:
    """Its import of pydantic, which begins with a byte to the test and does not end, stands for a slow one."""
    read, write = os.pipe()
    endless = "import os, signal\nsignal.alarm(60)\nos.write(2, b'x')\nsignal.pause()\n"
    (tmp_path / "pydantic.py").write_text(endless)
    command = [sys.executable, "-c", _LAUNCHES, str(write), str(tmp_path)]
    with subprocess.Popen(command, pass_fds=[write]) as conductor, os.fdopen(read, "rb", buffering=0) as end:
        os.close(write)
        assert end.read(1) == b"x"
        conductor.kill()
        assert select.select([end], [], [], 10)[0], "the worker is left"
        assert end.read(1) == b""
