"""The conductor's side of the processes of a layout: how it reaches them, their channels and their states."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Protocol, get_args

from memtopo.common.errors import Exit, on_failure
from memtopo.common.processes import Broken, RunningClock
from memtopo.common.signals import TERMINAL
from memtopo.common.text import ending, process_name
from memtopo.plans.report import Report
from memtopo.run import messages
from memtopo.run.messages import Answer, Command, FromWorker, Hold, KeepAlive, TakeDown
from memtopo.run.processes.fork_server import WorkerServer
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.offers import Offer

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
        self._awaits_handles = False
        self._answers_due = 0
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
        return not self.over and (self._answers_due > 0 or (self.owes and not self._awaits_handles))

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

    def request_sent(self) -> None:
        """Note that this worker waits for handles of another one."""
        self._awaits_handles = True

    def answer_due(self) -> None:
        """Note that an answer with handles is due from this worker."""
        self._answers_due += 1
        self._received = self._clock.time()

    def answer_sent(self) -> None:
        """Note that this worker has sent one such answer."""
        self._answers_due -= 1

    def answer_received(self) -> None:
        """Note that this worker has the handles that it waited for."""
        self._awaits_handles, self._received = False, self._clock.time()

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
