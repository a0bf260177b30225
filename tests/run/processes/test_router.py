"""Routing of handles between workers whose ends of the channels are the test's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.driver.handles import Handle
from memtopo.run import messages
from memtopo.run.messages import FromWorker, HandleAnswer, HandleRequest, ToWorker
from memtopo.run.processes.fork_server import SpawnedWorker
from memtopo.run.processes.worker_process import Peers, Router, WorkerProcess
from memtopo.sharing.channel import Channel, Received
from tests.helpers.processes import open_descriptors

LABELS = ("server", "reader", "other")
SECRET = Handle.of(b"s" * 64)
TO_WORKER = [each for each in get_args(ToWorker) if isinstance(each, type)]


class Run:
    """A router, its workers, and the workers' ends of the channels."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerProcess] = {}
        self.ends: dict[str, Channel[Any]] = {}
        for label in LABELS:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            channel = Channel[FromWorker](ours, get_args(FromWorker))
            self.workers[label] = WorkerProcess(label, SpawnedWorker(process), channel, RunningClock())
            self.workers[label].receive(Received(messages.WorkerReady(0, 0)))
            self.ends[label] = Channel(theirs, TO_WORKER)
        self.router = Router(self.workers, Peers())

    def routed(self) -> list[tuple[str, object]]:
        """Messages that have arrived and are not forwarded."""
        return [(worker.label, received and received.message) for worker, received in self.router.receive(0)]

    def heard(self, label: str) -> Received[Any] | None:
        """The next message to a worker; None if there is none."""
        try:
            return self.ends[label].receive()
        except BlockingIOError:
            return None

    def close(self) -> None:
        for label, worker in self.workers.items():
            self.ends[label].close()
            worker.close()
            assert isinstance(worker.process, SpawnedWorker)
            assert worker.process.process.stdin
            worker.process.process.stdin.close()


@pytest.fixture
def run() -> Iterator[Run]:
    before = open_descriptors()
    found = Run()
    yield found
    found.close()
    assert open_descriptors() == before


REQUEST = HandleRequest("reader", "server", "w", 2, 3)


def test_without_messages_the_time_passes(run: Run) -> None:
    """A worker that could be sent something does not end the wait."""
    start = time.monotonic()
    assert list(run.router.receive(0.05)) == []
    assert time.monotonic() - start >= 0.05


def test_a_request_goes_to_its_holder_and_the_answer_with_its_handles_back(run: Run) -> None:
    run.ends["reader"].send(REQUEST)
    assert run.routed() == []
    asked = run.heard("server")
    assert asked
    assert asked.message == REQUEST
    assert (run.workers["server"].busy, run.workers["reader"].busy) == (True, False)
    run.ends["server"].send(HandleAnswer("reader"), [Handle(fd=os.dup(0)), Handle(fd=os.dup(0), offset=512)])
    assert run.routed() == []
    answer = run.heard("reader")
    assert answer
    assert answer.message == HandleAnswer("reader")
    assert [each.offset for each in answer.handles] == [0, 512]
    answer.close()
    assert not run.workers["server"].busy
    assert [run.heard(label) for label in LABELS] == [None] * 3


def test_a_worker_that_waits_for_handles_is_not_busy_until_it_has_them(run: Run) -> None:
    reader = run.workers["reader"]
    reader.command(messages.CheckSteps())
    assert reader.busy
    run.ends["reader"].send(REQUEST)
    run.routed()
    assert not reader.busy
    run.ends["server"].send(HandleAnswer("reader", "no"))
    run.routed()
    assert reader.busy


@pytest.mark.parametrize("holder", ["nobody", "other"])
def test_a_request_of_a_process_that_is_gone_is_answered_at_once(run: Run, holder: str) -> None:
    run.workers["other"].kill("test")
    run.workers["other"].receive(None)
    run.ends["reader"].send(HandleRequest("reader", holder, "w", 0, 1))
    assert run.routed() == []
    answer = run.heard("reader")
    assert answer
    assert answer.message == HandleAnswer("reader", error="it is gone")
    assert not run.workers["reader"].busy


def test_other_messages_are_the_conductors_and_so_is_the_end_of_a_channel(run: Run) -> None:
    run.ends["server"].send(messages.StepsDone(3))
    run.ends["server"].send(messages.WorkerFailed("no memory"))
    run.ends["other"].send(messages.WorkerReady(1, 2))
    assert run.routed() == [
        ("server", messages.StepsDone(3)),
        ("server", messages.WorkerFailed("no memory")),
        ("other", messages.WorkerReady(1, 2)),
    ]
    run.ends["reader"].close()
    ended = []
    for worker, received in run.router.receive(0):
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.receive(received)
        ended.append((worker.label, received))
    assert ended == [("reader", None)]
    assert run.routed() == []


def answering(run: Run, *answers: tuple[HandleAnswer, list[Handle]]) -> Callable[[], None]:
    """A `receive` of the conductor before which the holder answers."""
    remaining = iter(answers)

    def receive() -> None:
        for answer, handles in (next(remaining),):
            run.ends["server"].send(answer, handles)
        assert run.routed() == []

    return receive


def requester(run: Run) -> str:
    """The requester of the conductor's next request, which no process is."""
    with pytest.raises(MemtopoError, match=r"^process server does not give w: no$"):
        run.router.request("server", "w", 0, 1, lambda: _refuse(run))
    return "#1"


def _refuse(run: Run) -> None:
    asked = run.heard("server")
    assert asked
    assert asked.message == HandleRequest("#0", "server", "w", 0, 1)
    assert run.workers["server"].busy
    answering(run, (HandleAnswer("#0", error="no"), []))()


def test_the_conductors_own_request_has_the_handles_of_its_answer(run: Run) -> None:
    label = requester(run)
    found = run.router.request("server", "w", 4, 1, answering(run, (HandleAnswer(label), [SECRET])))
    assert [each.shared for each in found] == [b"s" * 64]
    asked = run.heard("server")
    assert asked
    assert asked.message == HandleRequest(label, "server", "w", 4, 1)
    assert not run.workers["server"].busy


def test_a_refusal_of_the_exchange_keeps_its_code(run: Run) -> None:
    with pytest.raises(ExchangeError, match=r"^process server does not give w: not now$") as raised:
        run.router.request("server", "w", 0, 1, answering(run, (HandleAnswer("#0", "not now", "state"), [])))
    assert raised.value.code == "state"


def test_an_answer_to_an_abandoned_request_is_closed(run: Run) -> None:
    late = (HandleAnswer("#0"), [Handle(fd=os.dup(0))])
    found = run.router
    label = requester(run)
    shared = found.request("server", "w", 0, 1, answering(run, late, (HandleAnswer(label), [Handle(fd=os.dup(0))])))
    assert len(shared) == 1
    for each in shared:
        each.close()


def test_an_answer_to_a_request_that_is_given_up_as_it_comes_is_closed(run: Run) -> None:
    """And is not taken for that of the next request."""

    def give_up() -> None:
        answering(run, (HandleAnswer("#0"), [Handle(fd=os.dup(0))]))()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run.router.request("server", "w", 0, 1, give_up)
    found = run.router.request("server", "w", 0, 1, answering(run, (HandleAnswer("#1"), [SECRET])))
    assert [each.shared for each in found] == [b"s" * 64]


def test_an_answer_that_comes_between_two_requests_is_closed(run: Run) -> None:
    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run.router.request("server", "w", 0, 1, give_up)
    answering(run, (HandleAnswer("#0"), [Handle(fd=os.dup(0))]))()
    found = run.router.request("server", "w", 0, 1, answering(run, (HandleAnswer("#1"), [SECRET])))
    assert [each.shared for each in found] == [b"s" * 64]


class Elsewhere(Peers):
    """Another conductor, which has the process `far`: requests and answers that go there."""

    def __init__(self) -> None:
        self.requests: list[HandleRequest] = []
        self.answers: list[Received[HandleAnswer]] = []

    def forward(self, request: HandleRequest) -> bool:
        self.requests.append(request)
        return True

    def answer(self, answer: Received[HandleAnswer]) -> bool:
        self.answers.append(answer)
        return True


def test_a_request_of_a_process_here_goes_elsewhere_and_the_answer_comes_back(run: Run) -> None:
    elsewhere, reader = Elsewhere(), run.workers["reader"]
    run.router = Router(run.workers, elsewhere)
    reader.command(messages.CheckSteps())
    request = HandleRequest("reader", "far", "w", 0, 1)
    run.ends["reader"].send(request)
    assert run.routed() == []
    assert (elsewhere.requests, reader.busy) == ([request], False)
    run.router.forward_answer(Received(HandleAnswer("reader"), [Handle(fd=os.dup(0))]))
    command, answer = run.heard("reader"), run.heard("reader")
    assert command
    assert answer
    assert command.message == messages.CheckSteps()
    assert (answer.message, len(answer.handles), reader.busy) == (HandleAnswer("reader"), 1, True)
    answer.close()


def test_a_request_from_elsewhere_is_answered_there_also_for_a_process_that_is_gone(run: Run) -> None:
    elsewhere = Elsewhere()
    run.router = Router(run.workers, elsewhere)
    run.workers["other"].kill("test")
    run.workers["other"].receive(None)
    for holder in ("server", "other", "nobody"):
        run.router.forward_request(HandleRequest("far", holder, "w", 0, 1))
    assert [each.message for each in elsewhere.answers] == [HandleAnswer("far", error="it is gone")] * 2
    asked = run.heard("server")
    assert asked
    assert asked.message == HandleRequest("far", "server", "w", 0, 1)
    assert run.workers["server"].busy
    run.ends["server"].send(HandleAnswer("far"), [Handle(fd=os.dup(0))])
    assert run.routed() == []
    answer = elsewhere.answers[-1]
    assert (answer.message, len(answer.handles)) == (HandleAnswer("far"), 1)
    assert not run.workers["server"].busy
    answer.close()


def test_a_request_of_a_process_that_ends_meanwhile_is_an_error(run: Run) -> None:
    def receive() -> None:
        run.workers["server"].kill("test")

    with pytest.raises(MemtopoError, match=r"^process server is gone$"):
        run.router.request("server", "w", 0, 1, receive)
