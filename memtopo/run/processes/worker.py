"""A worker: one process of a layout, which builds its part as the conductor commands.

If the conductor is gone or silent, the worker takes down what it built and ends by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import get_args

from memtopo.common.clock import RunningClock
from memtopo.common.errors import InternalError, MemtopoError, Stopped, internal_errors
from memtopo.common.signals import TERMINAL
from memtopo.common.spawn import inherited_socket, signal_on_parent_death
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.types import DriverError
from memtopo.executor import StepFailed
from memtopo.run import messages
from memtopo.run.change import attempted
from memtopo.run.messages import Command, FromWorker, HandleAnswer, HandleRequest, ToWorker
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.common_addresses import bring_to
from memtopo.run.processes.gates import Gate, WorkerGates
from memtopo.run.processes.worker_run import WorkerHooks, WrapDriver, planned, prepare
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.exports import LayoutExports

_STARTUP = 60.0
"""Seconds that the conductor has for its first message."""

_INTERVAL = 0.2


class ConductorLost(MemtopoError):
    """The conductor has ended or is silent."""


def main(*descriptors: str, wrap: WrapDriver = lambda _process, driver: driver) -> None:
    """Work until the conductor ends this process's part of the run, or is lost.

    `descriptors` are the numbers of the channel's socket and of the two ends of each of the two gates.
    """
    sock, *ends = descriptors
    gates = [_private(int(end)) for end in ends]
    channel: Channel[ToWorker] = Channel(inherited_socket(sock), get_args(ToWorker))
    Worker(channel, Gate(*gates[:2]), Gate(*gates[2:]), _stop_signal()).work(wrap)


def _private(descriptor: int) -> int:
    os.set_inheritable(descriptor, False)  # noqa: FBT003 the function takes it so
    return descriptor


def _stop_signal() -> Callable[[], int]:
    """Number of a SIGTERM received, or 0: the conductor's, or the system's when the conductor dies.

    Signals of the terminal are handled by the conductor.
    """
    received: list[int] = []
    for number in TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL)  # blocked by the conductor until now
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    if not signal_on_parent_death(signal.SIGTERM):
        received.append(signal.SIGTERM)
    return lambda: received[0] if received else 0


class Worker:
    """The worker's end of the channel; `stopped` returns the number of a signal that requests a stop, or 0."""

    def __init__(self, channel: Channel[ToWorker], unused: Gate, emptied: Gate, stopped: Callable[[], int]) -> None:
        self._channel, self._unused, self._emptied, self._stopped = channel, unused, emptied, stopped
        self._label = ""
        self._run: ProcessRun | None = None
        self._timeout = _STARTUP
        self._answer: Received[HandleAnswer] | None = None

    def work(self, wrap: WrapDriver) -> None:
        """Build, check and take down as commanded, and report."""
        try:
            self._work(wrap)
        except MemtopoError as error:
            self._channel.send(messages.Broken(error.message, error.hint, error.exit_code))
        except Exception as error:  # noqa: BLE001 reported by the conductor; a traceback here would be lost
            self._channel.send(messages.Broken(f"internal error: {type(error).__name__}: {error}", None, 70))
        self._unused.close()
        self._emptied.close()
        self._channel.drain(self._timeout)
        self._channel.close()

    def _work(self, wrap: WrapDriver) -> None:
        start = self._start_message()
        self._label, self._timeout = start.process, start.timeout
        run = prepare(start, WorkerHooks(wrap, self.request_handles, self.alive, self.begin, self._stopped))
        self._channel.send(messages.Ready(run.verification.rounds, run.verification.volume))
        try:
            with run.recording_failure():
                self._follow_commands(run, start)
            if run.failure or run.stopped:
                self._channel.send(messages.Failed(str(run.failure or "interrupted")))
        finally:
            run.take_down(WorkerGates(self._unused, self._emptied, start.timeout, self.alive))
        self._channel.send(messages.Finished(run.report()))

    def _start_message(self) -> messages.Start:
        try:
            received = self._receive()
        except Stopped as error:
            raise ConductorLost("interrupted before anything was built") from error
        if not isinstance(received.message, messages.Start):
            raise InternalError(f"a worker's first message is {type(received.message).__name__}")
        return received.message

    def _follow_commands(self, run: ProcessRun, start: messages.Start) -> None:
        self._run = run
        try:
            while not isinstance(command := self._next_command(), messages.TakeDown):
                if isinstance(command, messages.Start):
                    raise InternalError("a worker was started twice")
                self._channel.send(_answer(run, start, command))
        finally:
            self._run = None

    def request_handles(self, holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        """Handles of a sibling's export; requests of siblings are answered meanwhile. Raises `MemtopoError`."""
        self._channel.send(HandleRequest(self._label, holder, export, first, count))
        while self._answer is None:
            # The only command that may come meanwhile is to take down.
            if self._stopped() or self._receive_command():
                raise Stopped
        answer, self._answer = self._answer, None
        if error := answer.message.error:
            raise MemtopoError(f"{holder} does not give {export}: {error}")
        return answer.handles

    def alive(self, steps: int) -> None:
        """Send a heartbeat with the number of steps done since the last."""
        self._channel.send(messages.StepsDone(steps))

    def begin(self, steps: int) -> None:
        """Send a heartbeat with the number of steps of a phase that begins."""
        self._channel.send(messages.StepsDone(0, begun=steps))

    def _next_command(self) -> Command | messages.Start | messages.TakeDown:
        while True:
            if self._stopped():
                raise Stopped
            try:
                if command := self._receive_command():
                    return command
            except ConductorLost as error:
                raise StepFailed(None, "working with the other processes", error) from error

    def _receive_command(self) -> Command | messages.Start | messages.TakeDown | None:
        """Receive one message, and return it if it is a command; others are handled here."""
        try:
            received = self._receive() if not self._stopped() else None
        except BlockingIOError:
            return None
        if received is None or isinstance(received.message, messages.KeepAlive):
            return None
        if isinstance(received.message, HandleAnswer):
            self._answer = Received(received.message, received.handles)
            return None
        if isinstance(received.message, HandleRequest):
            self._answer_request(received.message)
            return None
        return received.message

    def _receive(self) -> Received[ToWorker]:
        clock = RunningClock()
        while not self._channel.wait(_INTERVAL):
            if self._stopped():
                raise Stopped
            if clock.time() > self._timeout:
                raise ConductorLost(f"no message from the conductor for {self._timeout:g} s")
        received = self._channel.receive()
        if received is None:
            raise ConductorLost("the conductor is gone")
        return received

    def _answer_request(self, request: HandleRequest) -> None:
        """Send handles of this process's exports to a sibling."""
        handles: list[Handle] = []
        try:
            with internal_errors():
                for index in range(request.first, request.first + request.count):
                    handles.append(self._exports().handle(request.export, index))  # noqa: PERF401 a part is sent below
        except MemtopoError as failure:
            if not handles or isinstance(failure, DriverError | InternalError):
                close_handles(handles)
                code = failure.code if isinstance(failure, ExchangeError) else None
                self._channel.send(HandleAnswer(request.requester, failure.message, code))
                return
        # Those before one that is not there, as in a state: the sibling needs only what is.
        self._channel.send(HandleAnswer(request.requester), handles)

    def _exports(self) -> LayoutExports:
        if self._run is None:
            raise MemtopoError("it is not serving")
        return self._run.exports


def _answer(run: ProcessRun, start: messages.Start, command: Command) -> FromWorker:
    """Execute a command. A failure to check or to change leaves the layout as it is, and is the answer.

    Raises `StepFailed` or `Stopped`; `RollbackFailed` after which the layout can only be taken down.
    """
    match command:
        case messages.AgreeOn():
            return bring_to(run.execution, command)
        case messages.Recheck():
            try:
                with internal_errors():
                    return run.execute(command)
            except MemtopoError as error:
                return messages.CheckResult(error=error.message)
        case messages.PlanChange():
            return attempted(lambda: run.plan_change(*planned(start, command), command.in_use))
        case messages.PlanSwitch() | messages.MakeStage(back=False) | messages.CheckChange():
            return attempted(lambda: run.execute(command))
        case _:
            return run.execute(command)
