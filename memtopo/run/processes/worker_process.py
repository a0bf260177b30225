"""The conductor's side of the processes of a layout: how it reaches them, their states, and their requests for handles.

Each request for handles and each answer passes through the conductor. Those of processes that run elsewhere go to its
peers, and come from them.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count as counter
from typing import Any, Protocol, get_args

from memtopo.common.errors import ExchangeError, Exit, MemtopoError, on_failure
from memtopo.common.processes import Broken, RunningClock
from memtopo.common.signals import TERMINAL
from memtopo.common.text import ending, process_name
from memtopo.driver.handles import Handle
from memtopo.plans.report import Report
from memtopo.run import messages
from memtopo.run.messages import Answer, Command, FromWorker, HandleAnswer, HandleRequest, Hold, KeepAlive, TakeDown
from memtopo.run.processes.fork_server import WorkerServer
from memtopo.run.processes.gates import gate_descriptors
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.offers import Offer
from memtopo.sharing.sockets import SYSTEM, Descriptor, System

_EXIT = 10.0
"""Seconds that a worker's interpreter and driver have to shut down after its last message."""


class Reached(Protocol):
    """A process as the conductor reaches it, besides by its channel: one that it has started, or one of a user."""

    pid: int

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal. Return false for a process of a user, which is not sent any."""

    def end(self, seconds: float) -> int | None:
        """Exit status, of a process that is killed after so many seconds; None for a process of a user."""


class UserProcess:
    """A process that a user started, whose end is that of its channel."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def signal(self, number: signal.Signals) -> bool:
        del number
        return False

    def end(self, seconds: float) -> None:
        del seconds


class WorkerProcess:
    """A worker, or a process of a user in its place.

    `death` is how it ended without a report, `failed` the error that it reported.

    `rounds` is the number of rounds of verification, the same in all workers, `volume` the bytes that this one writes
    and reads in them, and `safe` is false once an access is found that makes it unsafe to have kernels do so. `offers`
    are its exports while it is held, and `answer` is that to the latest command, once it has come; `owes` is true
    until then, at first until it is ready. `clock` measures its silence. A `free` process is one of a user: it executes
    commands at the points that its program chooses, in the round `attends` and before `left`, and takes down when its
    program leaves, however long that takes.
    """

    def __init__(self, label: str, process: Reached, channel: Channel[FromWorker], clock: RunningClock) -> None:
        self.label, self.process, self.channel = label, process, channel
        self.owes = True
        self.free = isinstance(process, UserProcess)
        self.attends = 0
        self.left = False
        self.activity = "starting"
        self.as_declared = True
        self.rounds = self.volume = 0
        self.safe = True
        self.offers: tuple[Offer, ...] = ()
        self.answer: Answer | None = None
        self.report: Report | None = None
        self.failed: str | None = None
        self.hint: str | None = None
        self.exit_code: int = Exit.FAILED
        self.death: str | None = None
        self.killed = False
        """True if the conductor has ended it, in place of an end by itself."""
        self.gone = False
        self.awaits_handles = False
        self.answers_due = 0
        self._clock = clock
        self._received = clock.time()
        self._sent = clock.now()

    @property
    def cause(self) -> str:
        """End or failure of this process, with the number of a user's, and the command that it had not answered."""
        details = [process_name(self.process.pid)] if self.free else []
        details += [self.activity] if self.owes else []
        known = f" ({', '.join(details)})" if details else ""
        return f"process {self.label} {self.death or self.failed or 'ended'}{known}"

    @property
    def ended(self) -> bool:
        """True if it has ended without a report."""
        return self.gone and self.report is None

    @property
    def busy(self) -> bool:
        """True if the next message is due from this worker: it has work to do and waits for no other worker."""
        return not self.over and (self.answers_due > 0 or (self.owes and not self.awaits_handles))

    @property
    def over(self) -> bool:
        """True once it has ended, failed or reported."""
        return self.gone or self.failed is not None or self.death is not None or self.report is not None

    def command(self, command: Command) -> None:
        """Send a command, whose answer is expected from now on."""
        self.owes, self._received, self.answer = True, self._clock.time(), None
        self.activity = command.activity
        self.channel.send(command)

    def rest(self) -> None:
        """Note that it is held, and that all of the last change is done."""
        if not self.owes:
            self.activity = Hold.activity

    def take_down(self, reason: str = "", *, failed: bool = False, lost: tuple[str, int] = ("", 0)) -> None:
        """Send the command to take down, and a signal to interrupt a worker in the middle of many steps.

        `lost` are the label and the number of the process that has ended or failed.
        """
        self._received = self._clock.time()
        self.channel.send(TakeDown(reason, failed, *lost))
        if self.owes and not self.gone:
            self.process.signal(signal.SIGTERM)

    def keep_alive(self, interval: float) -> None:
        """Send a heartbeat, at most one in so many seconds."""
        now = self._clock.now()
        if not self.gone and not self.channel.pending and now - self._sent > interval:
            self._sent = now
            self.channel.send(KeepAlive())

    def receive(self, received: Received[FromWorker] | None) -> messages.StepsDone:
        """Update the state by a message, or None at the end of the channel; return the steps done since the last.

        The start of a worker counts as a step.
        """
        self._received = self._clock.time()
        if received is None:
            self.gone = True
            status = self.process.end(_EXIT)
            if self.report is None and (self.failed is None or status):
                how = "has ended" if status is None else ending(status)
                self.death = f"{self.death} and {how}" if self.death else how
            return messages.StepsDone(0)
        received.close()
        if isinstance(received.message, messages.StepsDone):
            return received.message
        self._update(received.message)
        return messages.StepsDone(int(isinstance(received.message, messages.WorkerReady)))

    def _update(self, message: FromWorker) -> None:
        match message:
            case messages.WorkerReady(rounds, volume):
                self.owes, self.rounds, self.volume = False, rounds, volume
            case _ if isinstance(message, messages.Answer):
                self.owes, self.answer = False, message
                if isinstance(message, messages.Done):
                    self.as_declared, self.safe = self.as_declared and message.as_declared, self.safe and message.safe
                elif isinstance(message, messages.ChangeResult) and message.offers is not None:
                    self.offers = message.offers
            case messages.WorkerFailed(error):
                self.failed = error
            case Broken(error, hint, exit_code):
                self.failed, self.hint, self.exit_code = error, hint, exit_code
            case messages.WorkerFinished(report):
                self.report, self.gone = report, self.free  # its channel stays for the report of all
            case messages.Attending(number):
                self.attends = number
            case messages.Leave():
                self.left = True

    def answer_due(self) -> None:
        """Note that an answer with handles is due from this worker."""
        self.answers_due += 1
        self._received = self._clock.time()

    def answer_received(self) -> None:
        """Note that this worker has the handles that it waited for."""
        self.awaits_handles, self._received = False, self._clock.time()

    def silent(self, seconds: float) -> bool:
        """Return whether no message came from it for so many seconds."""
        return self._clock.time() - self._received > seconds

    def kill(self, reason: str) -> None:
        """End it by SIGKILL, which ends a stopped process too; one of a user counts as lost."""
        self.death = self.death or reason
        self.killed = self.process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the channel, and kill the process if it has not ended."""
        self.channel.close()
        if not self.gone:
            self.process.end(0.0)


def launch(
    label: str,
    gates: Sequence[int],
    environment: Mapping[str, str],
    clock: RunningClock,
    server: WorkerServer,
    command: Sequence[str] = (),
) -> WorkerProcess:
    """Have the server fork a worker that inherits the ends of the gates. Raises `OSError`.

    With a `command`, spawn that in place of memtopo's own worker.
    """
    # Blocked until the worker ignores them: a terminal sends them to the whole process group.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with on_failure(ours.close), theirs:
            process = server.start((theirs.fileno(), *gates), environment, command)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return WorkerProcess(label, process, Channel(ours, get_args(FromWorker)), clock)


class Router:
    """Receives the workers' messages and forwards their requests for handles and the answers.

    Each request of the conductor has a requester of its own, which is no process: an answer that comes after its
    request was abandoned is not taken for that of the next one.
    """

    def __init__(self, workers: Mapping[str, WorkerProcess], peers: Peers, system: System = SYSTEM) -> None:
        self._workers, self._peers, self._system = workers, peers, system
        self._requesters = (f"#{number}" for number in counter())
        self._awaiting: str | None = None
        self._answer: Received[HandleAnswer] | None = None

    def receive(self, seconds: float) -> Iterator[tuple[WorkerProcess, Received[FromWorker] | None]]:
        """Messages that arrive within so many seconds, without forwarded ones; None at a channel's end."""
        workers = [worker for worker in self._workers.values() if not worker.gone]
        channels = [worker.channel for worker in workers]
        self._system.wait([*channels, *self._peers.descriptors], seconds, [each for each in channels if each.pending])
        self._peers.serve(self)
        for worker in workers:
            worker.channel.flush()
            yield from self._drain(worker)

    def forward_request(self, request: HandleRequest) -> None:
        """Forward a request of a process elsewhere; the peers get the answer."""
        holder = self._workers.get(request.holder)
        if holder is None or holder.gone:
            self._peers.answer(Received(HandleAnswer(request.requester, error="it is gone")))
        else:
            self._ask(holder, request)

    def request(
        self, holder: str, export: str, first: int, count: int, receive: Callable[[], None]
    ) -> Sequence[Handle]:
        """Handles for the conductor; `receive` is called until the answer has come. Raises `MemtopoError`."""
        worker = self._workers[holder]
        self._awaiting = next(self._requesters)
        worker.answer_due()
        worker.channel.send(HandleRequest(self._awaiting, holder, export, first, count))
        try:
            while self._answer is None:
                if worker.over:
                    raise MemtopoError(f"process {holder} is gone")
                receive()
            answer, self._answer = self._answer, None
        finally:
            self._awaiting = None
            if self._answer:  # one that came although it is not awaited any more
                self._answer.close()
                self._answer = None
        if error := answer.message.error:
            message, code = f"process {holder} does not give {export}: {error}", answer.message.code
            raise ExchangeError(code, message) if code else MemtopoError(message)
        return answer.handles

    def _drain(self, worker: WorkerProcess) -> Iterator[tuple[WorkerProcess, Received[FromWorker] | None]]:
        while not worker.gone:
            try:
                received = worker.channel.receive()
            except BlockingIOError:
                return
            if received and isinstance(received.message, HandleRequest):
                self._forward(worker, received.message)
            elif received and isinstance(received.message, HandleAnswer):
                worker.answers_due -= 1
                self.forward_answer(Received(received.message, received.handles))
            else:
                yield worker, received

    def _forward(self, requester: WorkerProcess, request: HandleRequest) -> None:
        holder = self._workers.get(request.holder)
        if holder and not holder.gone:
            self._ask(holder, request)
        elif holder or not self._peers.forward(request):
            requester.channel.send(HandleAnswer(requester.label, error="it is gone"))
            return
        requester.awaits_handles = True

    def _ask(self, holder: WorkerProcess, request: HandleRequest) -> None:
        holder.answer_due()
        holder.channel.send(request)

    def forward_answer(self, answer: Received[HandleAnswer]) -> None:
        """Forward an answer, which belongs to this router, to the process that waits for it."""
        requester = self._workers.get(answer.message.requester)
        if requester:
            requester.answer_received()
            requester.channel.send(answer.message, answer.handles)
        elif answer.message.requester == self._awaiting:
            self._answer = answer
        elif not self._peers.answer(answer):
            answer.close()


class Peers:
    """Conductors of the other processes of a run; this class is a run that has none.

    No method blocks. `failed` is the reason for which the run is to end, found elsewhere; empty as long as there is
    none. It may change at any time, and `descriptors` then become readable.
    """

    @property
    def failed(self) -> str:
        return ""

    @property
    def descriptors(self) -> Collection[Descriptor]:
        """Descriptors that are readable when `serve` has something to do."""
        return ()

    def serve(self, router: Router) -> None:
        """Pass on what came from elsewhere."""

    def forward(self, request: HandleRequest) -> bool:
        """Send a request for handles to where its holder runs; false if no peer has it."""
        del request
        return False

    def answer(self, answer: Received[HandleAnswer]) -> bool:
        """Send an answer to where its requester runs; false, and the answer stays the caller's, if no peer has it."""
        del answer
        return False

    def arrive(self, value: Any) -> None:
        """Arrive at the next meeting of all conductors, with a value for all of them."""
        self._value = value

    def arrived(self) -> Sequence[Any] | None:
        """Return the values of all conductors, once all have arrived; None before."""
        return [self._value]

    def gates(self) -> AbstractContextManager[tuple[int, int, int, int]]:
        """Ends of the two gates of the teardown for the workers here, which inherit them in the context."""
        return gate_descriptors()

    def leave(self, cause: str) -> None:
        """Note that the teardown begins here, because of a failure unless `cause` is empty."""
