"""A worker: one process of a layout, which builds its part as the conductor commands.

If the conductor is gone or silent, the worker takes down what it built and ends by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

from memtopo.common.errors import ExchangeError, InternalError, MemtopoError, Stopped, internal_errors
from memtopo.common.processes import Broken, RunningClock, inherited_socket, name_process, signal_on_parent_death
from memtopo.common.signals import TERMINAL, received_signal
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext, Recorder
from memtopo.driver.trace import Trace
from memtopo.driver.types import DriverError
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource, LentBlock
from memtopo.language import Document
from memtopo.machine import parse
from memtopo.plans.progress import NO_PROCESSES, Progress
from memtopo.plans.report import Check
from memtopo.run import messages
from memtopo.run.layout_plans import LayoutPlans, built_plan
from memtopo.run.messages import Answer, Command, HandleAnswer, HandleRequest, StartWorker, ToWorker
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.gates import Gate, WorkerGates
from memtopo.run.transition import RollbackFailed, failed
from memtopo.session.composition import Composition, RunRequest
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.imports import CommitWait, HolderHandles
from memtopo.sharing.offers import LayoutExports
from memtopo.sharing.sockets import SYSTEM, System
from memtopo.sharing.wire import parsed_source

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
    read, write, last_read, last_write = map(int, ends)
    for end in (read, write, last_read, last_write):
        os.set_inheritable(end, False)  # noqa: FBT003 the function takes it so
    channel: Channel[ToWorker] = Channel(inherited_socket(sock), get_args(ToWorker))
    name_process("memtopo-worker")
    # The conductor handles those of the terminal; SIGTERM is from it, or from the system when it dies.
    for number in TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL)  # blocked by the conductor until now
    stopped = received_signal(signal.SIGTERM)
    if not signal_on_parent_death(signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
    Worker(channel, (Gate(read, write), Gate(last_read, last_write)), stopped).work(wrap)


class Worker:
    """The worker's end of the channel; `stopped` returns the number of a signal that requests a stop, or 0."""

    conductor = "the conductor"
    """Name of the process that sends commands."""

    def __init__(
        self, channel: Channel[ToWorker], gates: tuple[Gate, Gate], stopped: Callable[[], int], system: System = SYSTEM
    ) -> None:
        self._channel, self._gates, self._stopped, self._system = channel, gates, stopped, system
        self._label = ""
        self._run: ProcessRun | None = None
        self._timeout = _STARTUP
        self._answer: Received[HandleAnswer] | None = None
        self._interrupting: Commanded | None = None
        """Command that has interrupted a request for handles, to be executed next."""

    def work(self, wrap: WrapDriver) -> None:
        """Build, check and take down as commanded, and report."""
        try:
            with internal_errors():  # reported by the conductor; a traceback here would be lost
                self._work(wrap)
        except MemtopoError as error:
            self._channel.send(Broken(error.message, error.hint, error.exit_code))
        self.close()

    def close(self) -> None:
        """Close the gates, and the channel once all is sent."""
        for gate in self._gates:
            gate.close()
        self._channel.drain(self._timeout)
        self._channel.close()

    def _work(self, wrap: WrapDriver) -> None:
        try:
            received = self._receive()
        except Stopped as error:
            raise ConductorLost("interrupted before anything was built") from error
        if not isinstance(received.message, messages.StartWorker):
            raise InternalError(f"a worker's first message is {type(received.message).__name__}")
        start = received.message
        self._label, self._timeout = start.process, start.timeout
        run = self.prepare(start, wrap)
        self._channel.send(messages.WorkerReady(run.verification.rounds, run.verification.volume))
        try:
            with run.recording_failure():
                self._run = run
                try:
                    while not isinstance(command := self._next_command(), messages.TakeDown):
                        if not isinstance(command, messages.Command):
                            raise InternalError(f"a worker was sent {type(command).__name__} after its start")
                        self._channel.send(answer(run, command))
                finally:
                    self._run = None
            if run.failure or run.stopped:
                self._channel.send(messages.WorkerFailed(str(run.failure or "interrupted")))
        finally:
            run.take_down(WorkerGates(*self._gates, start.timeout, self.alive, self._system))
        self._channel.send(messages.WorkerFinished(run.report()))

    def prepare(self, start: StartWorker, wrap: WrapDriver) -> ProcessRun:
        """Plan all processes of the layout, and open the driver of this one. Raises `MemtopoError`."""
        request, plans = planned(start, start.spec.read(), start.check)
        driver = _target(start).open()
        commits = CommitWait(start.timeout, self._advance)
        external = HolderHandles(request.geometry, start.gpus, start.sockets, start.allow_uids, commits, self._system)
        wrapped = wrap(start.process, driver)
        trace = Trace(start.trace, CallContext(), request.about_trace) if start.trace else None
        return ProcessRun(
            request,
            Ledger(Recorder(wrapped, trace) if trace else wrapped),
            progress=_WorkerProgress(self._channel.send),
            stop=self._stopped,
            handle_source=SiblingHandles(request.geometry, self.request_handles, external),
            origin=start.origin,
            context=trace.context if trace else None,  # the trace ends with the process
            plans=plans,
            plan_source=partial(planned_source, start),
        )

    def request_handles(self, holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        """Handles of a sibling's export, between two steps; requests of siblings are answered meanwhile.

        Raises `MemtopoError`.
        """
        self._channel.send(HandleRequest(self._label, holder, export, first, count))
        while self._answer is None:
            # The only command that may come meanwhile is to take down.
            if self._stopped():
                raise Stopped
            if command := self._receive_command():
                self._interrupting = command
                raise Stopped
        answer, self._answer = self._answer, None
        if error := answer.message.error:
            raise MemtopoError(f"{holder} does not give {export}: {error}")
        return answer.handles

    def alive(self, steps: int) -> None:
        """Send a heartbeat with the number of steps done since the last."""
        self._channel.send(messages.StepsDone(steps))

    def _advance(self) -> None:
        """Send a heartbeat without a step. Raises `Stopped`."""
        if self._stopped():
            raise Stopped
        self.alive(0)

    def _next_command(self) -> Commanded:
        while True:
            if self._stopped():
                raise Stopped
            if command := self._interrupting:
                self._interrupting = None
                return command
            try:
                if command := self._receive_command():
                    return command
            except ConductorLost as error:
                raise StepFailed(None, "working with the other processes", error) from error

    def _receive_command(self) -> Commanded | None:
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
        clock = RunningClock(self._system.now)
        while not self._channel.wait(_INTERVAL):
            if self._stopped():
                raise Stopped
            if clock.time() > self._timeout:
                raise ConductorLost(f"no message from {self.conductor} for {self._timeout:g} s")
        received = self._channel.receive()
        if received is None:
            raise ConductorLost(f"{self.conductor} has ended")
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


def answer(run: ProcessRun, command: Command) -> Answer:
    """Have a run handle a command. A failure that leaves the layout as it is, or is rolled back, is the answer.

    Raises other failures, `StepFailed` or `Stopped`, and `RollbackFailed`: the layout can only be taken down.
    """
    try:
        return run.handle(command)
    except RollbackFailed:
        raise
    except Exception as error:
        match command:
            case (
                messages.PlanChange()
                | messages.MakeStage(back=False)
                | messages.CheckChange()
                | messages.Recheck()
                | messages.SaveBytes()
                | messages.Lend()
            ):
                return failed(error)
        raise


Commanded = Command | StartWorker | messages.TakeDown | messages.Participation
"""Messages that are not handled where they are received."""

WrapDriver = Callable[[str, KernelDriver], KernelDriver]
"""Wrapper of a worker's driver, by the label of its process."""

RequestHandles = Callable[[str, str, int, int], Sequence[Handle]]
"""Handles of a holder's export, from an index on, in order. Raises `MemtopoError`."""


def planned(start: StartWorker, document: Document, check: Check) -> tuple[RunRequest, LayoutPlans]:
    """Plan all processes of a spec, and return the request of this one, too. Raises `MemtopoError`."""
    composed = Composition.of(document, _target(start))
    composed = composed.held_part if start.held else composed
    whole = composed.request(check=check, seed=start.seed, timeout=start.timeout, exclusive=start.exclusive)
    request = whole.of_process(start.process)
    return request, LayoutPlans(composed.geometry, composed.plan).built_with(start.process, built_plan(request))


def planned_source(start: StartWorker, source: str, check: Check) -> tuple[RunRequest, LayoutPlans]:
    """Plan all processes of the spec of a source. Raises `MemtopoError`."""
    return planned(start, parsed_source(source).document, check)


def _target(start: StartWorker) -> Target:
    """The machine of this process, with those of the other nodes; the driver is opened for this process alone."""
    machine = parse(start.machine.encode(), start.machine_name)
    nodes = {node: target.recorded(node, parse(text.encode(), node)) for node, text in start.cluster.items()}
    opener = partial(target.open_in_worker, machine, simulated=start.simulated, visible=start.visible)
    return Target(start.machine_name, machine, start.simulated, opener, nodes)


class _WorkerProgress(Progress):
    """Progress reported to the conductor, by messages."""

    def __init__(self, send: Callable[[messages.StepsDone], None]) -> None:
        self._send = send

    def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        del name, processes
        self.extend(steps)

    def extend(self, steps: int, process: str = "") -> None:
        del process
        self._send(messages.StepsDone(0, begun=steps))

    def advance(self, steps: int, process: str = "") -> None:
        del process
        self._send(messages.StepsDone(steps))


class SiblingHandles(HandleSource):
    """Handles that a process imports from its siblings, in batches; handles of other holders come from `external`."""

    def __init__(self, geometry: Geometry, request: RequestHandles, external: HandleSource) -> None:
        self._request, self._external = request, external
        self._counts = _sibling_counts(geometry)
        self._batch: dict[tuple[str, str, int], Handle] = {}

    def expect(self, geometry: Geometry) -> None:
        self._counts = _sibling_counts(geometry)
        self._external.expect(geometry)

    def attach(self, holder: str) -> int:
        return self._external.attach(holder)

    def detach(self, holder: str) -> None:
        self._external.detach(holder)

    def await_handle(self, holder: str, export: str, index: int) -> None:
        if (holder, export) in self._counts and (holder, export, index) not in self._batch:
            self.settle()
            self._fetch(holder, export, index)

    def take(self, holder: str, export: str, index: int) -> Handle:
        if (holder, export) in self._counts:
            return self._batch[holder, export, index]
        return self._external.take(holder, export, index)

    def lend(
        self, holder: str, export: str, count: int, *, key: str | None = None, first: int = 0, epoch: int | None = None
    ) -> tuple[Sequence[LentBlock], int]:
        return self._external.lend(holder, export, count, key=key, first=first, epoch=epoch)

    def give_back(self, holder: str, export: str, blocks: Mapping[int, int]) -> None:
        self._external.give_back(holder, export, blocks)

    def seal(self, holder: str, export: str, blocks: Mapping[int, int], key: str | None) -> None:
        self._external.seal(holder, export, blocks, key)

    def gone(self, holder: str) -> bool:
        return self._external.gone(holder)

    def settle(self) -> None:
        self._external.settle()
        close_handles(self._batch.values())
        self._batch.clear()

    def _fetch(self, holder: str, export: str, first: int) -> None:
        count = min(IN_FLIGHT, self._counts[holder, export] - first)
        handles = self._request(holder, export, first, count)
        if not 1 <= len(handles) <= count:
            close_handles(handles)
            raise InternalError(f"{holder} gave {len(handles)} of {count} handles of {export}")
        self._batch = {(holder, export, first + index): handle for index, handle in enumerate(handles)}


def _sibling_counts(geometry: Geometry) -> dict[tuple[str, str], int]:
    """Number of handles of each export that a process imports from its siblings, by process and export."""
    return {
        (holder, group.origin.export): group.origin.each
        for group in geometry.every
        if group.origin and group.origin.siblings
        for holder in group.origin.holders
    }
