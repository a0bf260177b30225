"""The processes of a layout that run in workers or are a user's own: commanded and heard together, and ended.

It makes no driver call that lays out memory. If any process fails, dies or is interrupted, all others take down. The
processes of a run may belong to several conductors, which meet after each command; each makes the same decisions.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, Self

from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, Exit, Failed, MemtopoError, Stopped
from memtopo.common.processes import RunningClock
from memtopo.common.text import enumerated, qualified, signal_name
from memtopo.driver.handles import Handle
from memtopo.driver.types import gpu
from memtopo.executor import StepFailed
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Check, Checks, PhaseTime, Report
from memtopo.run import messages
from memtopo.run.conductor import Aborted, Conductor, conduct, failures
from memtopo.run.layout_plans import WHOLE, Goal, LayoutPlans
from memtopo.run.messages import Addresses, AgreeOn, Answer, ChangeCommand, ChangeResult, Command
from memtopo.run.processes.ensemble import Ensemble, NotStarted, agree, merged_report, startup_limit
from memtopo.run.processes.fork_server import WorkerServer
from memtopo.run.processes.worker_process import Peers, Router, WorkerProcess, launch
from memtopo.session.composition import HoldResult
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.offers import ChangeFailed, Offer
from memtopo.sharing.sockets import reserve_descriptors
from memtopo.sharing.status import LayoutEnd

SPARE = 3.0
"""Seconds beyond the timeout that a worker has for teardown before it is killed."""

_INTERVAL = 0.1
_HEARTBEATS = 4
"""Heartbeats that each worker is sent within the timeout."""
_DRAIN = 1.0
"""Seconds within which a process reads the report of all."""

_START = "start"


class ChangeRefused(MemtopoError):
    """Change that a process did not plan; nothing was changed."""

    exit_code = Exit.FAILED


def apply(
    ensemble: Ensemble,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    hold: Callable[[Workers], HoldResult] | None = None,
    peers: Peers | None = None,
) -> Report:
    """Build in all processes, check, and take down; `hold` is called in between if everything is as declared.

    `stop` returns the number of the signal that requests a stop, or 0. Errors of the run are in the report, not raised.
    `peers` have the processes that the ensemble leaves to other conductors.
    """
    with Workers(ensemble, SafeProgress(progress or Progress()), stop, peers or Peers()) as workers:
        return conduct(workers, hold)


class WorkersFailed(StepFailed):
    """Failures of a change in some processes, after which all are brought back."""

    def __init__(self, failed: str, hint: str | None) -> None:
        error = ChangeFailed(f"{failed}; the layout is as before", broken=False, hint=hint)
        super().__init__(None, "work with the processes", error)
        self._failed = failed

    def __str__(self) -> str:
        return self._failed


class Source(Protocol):
    """Source of the processes of a run, which starts them, or has processes that a user started."""

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        """Return a process that has its first message, and inherits the ends of the gates. Raises `OSError`."""

    def close(self) -> None:
        """End the source, after its processes."""


class Started:
    """Workers that a server forks."""

    def __init__(self, ensemble: Ensemble) -> None:
        driver = "memtopo.drivers.sim" if ensemble.request.machine.simulated else "memtopo.drivers.cuda.driver"
        self._ensemble, self._server = ensemble, WorkerServer(driver, ensemble.variables, ensemble.log)

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        ensemble = self._ensemble
        visible = tuple(location.id for location in ensemble.processes[label].visible)
        worker = launch(label, gates, ensemble.environment(visible), clock, self._server, ensemble.worker)
        worker.channel.send(replace(ensemble.start_message(label, visible), origin=origin))
        return worker

    def close(self) -> None:
        self._server.close()


class Workers(Conductor):
    """The processes of one run, or of its part, from their start until all have ended; by default workers.

    `as_declared` is true as long as no process of the run, elsewhere neither, found a difference. Processes of a user
    take part until the layout is served, and then in what is `attended`; if one leaves, that ends the layout.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        progress: Progress,
        stop: Callable[[], int],
        peers: Peers,
        source: Source | None = None,
    ) -> None:
        request = ensemble.request
        super().__init__(request, LayoutPlans(request.geometry, request.plan), progress, self._stop_signal)
        self._signal = stop
        self.ensemble, self.labels, self._peers = ensemble, ensemble.processes, peers
        self.workers: dict[str, WorkerProcess] = {}
        self._source = source or Started(ensemble)
        self._rounds, self._attended = 0, True
        self.times: list[PhaseTime] = []
        self.interrupted = 0
        self._failed: StepFailed | None = None
        self._first_over: WorkerProcess | None = None
        self._router = Router(self.workers, peers, ensemble.system)
        self._clock = RunningClock(ensemble.system.now)
        self._released = False
        self._origin = time.perf_counter()

    def __enter__(self) -> Self:
        reserve_descriptors(len(self.ensemble.processes) * (IN_FLIGHT + 2))
        try:
            with self._peers.gates() as gates:
                for label in self.ensemble.processes:
                    self.workers[label] = self._source.process(label, gates, self._clock, self._origin)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise NotStarted(len(self.workers), error) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def interval(self) -> float:
        """Seconds within which the workers receive their heartbeats in time."""
        return self.ensemble.timeout / _HEARTBEATS / 2

    @property
    def rounds(self) -> int:
        return max(worker.rounds for worker in self.workers.values())

    @property
    def contexts(self) -> Sequence[str]:
        processes = [self.request.geometry.processes[label] for label in self.labels]
        return sorted(str(gpu(device)) for each in processes for device in each.kept_contexts)

    @property
    def pids(self) -> Mapping[str, int]:
        return {label: worker.process.pid for label, worker in self.workers.items() if not worker.gone}

    @property
    def layout_end(self) -> LayoutEnd | None:
        if not self._free or not (self._over or self._failed or self._left or self._released):
            return None
        ended = {label: worker.process.pid for label, worker in self.workers.items() if worker.ended}
        return LayoutEnd(self._cause() or "it is being released", self._lost, ended, self.pids)

    @property
    def _lost(self) -> bool:
        """True if a process has ended or failed, or the work with all of them has."""
        return bool(self._first_over or self._failed)

    def build(self) -> None:
        with self.timed(_START, len(self.workers)):
            limit = startup_limit(self.ensemble.timeout)
            self._await(lambda: self._receive_of_all(limit))
            self._barrier()
        super().build()

    def each(self, command: Command) -> None:
        self._command(dict.fromkeys(self.workers, command), self._receive_of_all)
        self._barrier()

    def agree(self) -> None:
        def command_each(commands: Mapping[str, AgreeOn]) -> Mapping[str, Addresses]:
            own = {label: command for label, command in commands.items() if label in self.workers}
            found = self._gather(self._command(own, self._receive_of_all))
            every = {label: addresses for part in found for label, addresses in part.items()}
            return {label: every[label] for label in commands}

        agree(self.plans.of(WHOLE), command_each)

    @property
    def _free(self) -> Sequence[WorkerProcess]:
        """Processes of a user."""
        return [worker for worker in self.workers.values() if worker.free]

    def _stop_signal(self) -> int:
        return self._signal() or (signal.SIGTERM if self._left else 0)

    @property
    def _left(self) -> Sequence[str]:
        """Labels of the processes whose programs have left the layout."""
        return [worker.label for worker in self.workers.values() if worker.left]

    @contextmanager
    def attended(self, state: str | None = None, source: str = "") -> Iterator[None]:
        if self._attended or not self._free:
            yield
            return
        self._rounds += 1
        self._attended = True
        for worker in self._free:
            worker.channel.send(messages.Attend(self._rounds, state, source))
        broken, clock = False, RunningClock(self.ensemble.system.now)
        try:
            while absent := [worker.label for worker in self._free if worker.attends < self._rounds]:
                self._receive(min(_INTERVAL, self.interval))
                if self._over or self.stop():
                    raise ExchangeError("state", "the layout is about to be taken down")
                if clock.time() > self.ensemble.timeout:
                    message = f"{enumerated(absent)} did not take part within {self.ensemble.timeout:g} s"
                    raise ExchangeError("changing", f"{message}; nothing was changed", hint="call layout.poll() there")
            yield
        except ChangeFailed as failed:
            broken = failed.broken
            raise
        finally:
            if not broken:  # else some of their memory may be missing, and `TakeDown` follows
                self.resume()

    def resume(self) -> None:
        """Have the processes of a user go on with their programs."""
        self._attended = False
        for worker in self._free:
            worker.channel.send(messages.Resume(self.generation))

    def switch(self, state: str, in_use: Collection[str] = (), *, check: Check = "fast") -> Checks:
        """Bring all processes to a state; processes of a user do not take part in what another one has requested."""
        unchanged = self._free and state == self.state and self._results and check != "full"
        if unchanged and not (found := self.checks()).different:
            return found
        return super().switch(state, in_use, check=check)

    def plan(self, goal: Goal) -> LayoutPlans:
        state, absent = goal.variant
        gone = tuple(self.plans.exports_of(absent))
        command = messages.PlanChange(state, goal.check, tuple(sorted(goal.in_use)), goal.source, gone)
        results = self._change(command)
        if failures(results):
            self._change(messages.Hold())  # without the contexts that the others have retained for their part
        require_planned(results)
        return LayoutPlans(goal.request.geometry, goal.request.plan) if goal.request else self.plans

    def change_each(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        results = self._change(command)
        if not isinstance(command, messages.EndChange):
            require_made(results)
        return results

    @property
    def _over(self) -> bool:
        """True if a process of the run has failed or ended, here or elsewhere."""
        return self._first_over is not None or bool(self._peers.failed)

    def watch(self) -> int:
        """While held: number of the signal that requests a stop, -1 if a process has ended, else 0."""
        for worker in self.workers.values():
            worker.rest()
        self._receive(0.0)
        return -1 if self._over else self.stop()

    def exports(self) -> Mapping[str, tuple[str, Offer]]:
        workers = self.workers.items()
        return {
            qualified(label, each.name): (label, each)
            for label, worker in workers
            if not worker.ended
            for each in worker.offers
        }

    def handle(self, export: str, index: int) -> Handle:
        label, name = self.exporter(export)
        (handle,) = self.request_handles(label, name, index, 1)
        return handle

    def exporter(self, export: str) -> tuple[str, str]:
        label = next(each for each in self.workers if export.startswith(qualified(each, "")))
        return label, export.removeprefix(qualified(label, ""))

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        try:
            yield
        except Aborted:
            pass
        except Stopped:
            self.interrupted = self.stop()
        except StepFailed as failed:
            self._failed = failed
        except (MemtopoError, OSError, ValueError) as error:
            self._failed = StepFailed(None, "work with the processes", error)

    def take_down(self) -> None:
        """Have all processes take down, and receive their reports; a process that takes too long is killed."""
        with self.timed("take down", len(self.workers)):
            cause, self._released = self._cause(), True
            self._peers.leave(cause)
            for worker in self.workers.values():
                worker.take_down(cause, failed=self._lost, lost=self._first_lost)
            deadline = self._clock.time() + 2 * self.ensemble.timeout + SPARE
            self.await_end(partial(self._taken_down, deadline))
        self.progress.end()

    def await_end(self, ended: Callable[[float], bool]) -> None:
        """Wait until `ended` returns true, which receives messages for so many seconds."""
        while not ended(min(_INTERVAL, self.interval)):
            pass

    def _taken_down(self, deadline: float, seconds: float) -> bool:
        """Receive messages for so many seconds, and return whether all have ended; kill workers that are late."""
        if all(worker.gone for worker in self.workers.values()):
            return True
        self._receive(seconds)
        late = self._clock.time() > deadline
        for worker in self.workers.values():
            done = worker.gone or worker.free
            if not done and (late or worker.silent(self.ensemble.timeout + SPARE)):
                worker.kill("did not take down in time")
        return all(worker.gone for worker in self.workers.values())

    @property
    def _first_lost(self) -> tuple[str, int]:
        """Label and number of the first process that has ended or failed; empty if none has."""
        return (first.label, first.process.pid) if (first := self._first_over) else ("", 0)

    def _cause(self) -> str:
        """Reason for which the processes take down, if it is a failure here."""
        if first := self._first_over:
            return first.cause
        if self._failed:
            return str(self._failed.error) or type(self._failed.error).__name__
        if left := self._left:
            return f"{enumerated(left, 'and')} has left"
        return f"interrupted by {signal_name(self.interrupted)}" if self.interrupted else ""

    def report(self) -> Report:
        workers = {worker.label: worker for worker in (self._first_over, *self.workers.values()) if worker}
        report = merged_report(self.request, workers, self.times, self.interrupted, self._failed)
        report = replace(report, notes=(*self.hold_result.notes, *report.notes))
        for worker in self._free:
            worker.channel.send(messages.Ended(report))
            worker.channel.drain(_DRAIN)
        return report

    def ask(self, commands: Mapping[str, Command]) -> Mapping[str, Any]:
        answers = self._command(commands, self._receive_for_caller)
        for label in commands:
            require_answer(label, answers.get(label))
        return answers

    def request_handles(self, holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        """Handles of one process's export, for this process. Raises `MemtopoError`."""
        with self.attended():
            return self._router.request(holder, export, first, count, self._receive_for_caller)

    def _change(self, command: ChangeCommand | messages.Hold) -> Mapping[str, ChangeResult]:
        """Have all processes execute a command of a change. Raises `ChangeFailed` if one has ended or is silent."""

        def require_changeable() -> None:
            if self._over:
                raise ChangeFailed(f"{self._cause() or self._peers.failed}; the layout is taken down", broken=True)

        def receive() -> None:
            self._receive_in_time(self.ensemble.timeout)
            require_changeable()

        results = self._command(dict.fromkeys(self.workers, command), receive)
        require_changeable()
        return results

    def _command(self, commands: Mapping[str, Command], receive: Callable[[], None]) -> dict[str, Any]:
        """Send each process its command, and return the answers once all that have not ended have sent theirs."""
        with self.attended():
            for label, command in commands.items():
                self.workers[label].command(command)
            self._await(receive)
        return {label: each.answer for label, each in self.workers.items() if label in commands and each.answer}

    def _barrier(self) -> None:
        """Wait until all conductors of the run are here, and learn what their processes found."""
        workers = self.workers.values()
        found = self._gather((all(each.as_declared for each in workers), all(each.safe for each in workers)))
        self.as_declared, self.safe = map(all, zip(*found, strict=True))

    def _gather(self, value: Any) -> Sequence[Any]:
        """Wait until all conductors of the run are here, and return the values of all; messages are routed."""
        self._peers.arrive(value)
        while (values := self._peers.arrived()) is None:
            self._receive_of_all()
        return values

    def _await(self, receive: Callable[[], None]) -> None:
        """Receive messages until every worker has sent what is awaited of it, or has ended."""
        while any(worker.owes and not worker.over for worker in self.workers.values()):
            receive()

    def _receive_of_all(self, timeout: float | None = None) -> None:
        """Receive messages. Raises `Aborted` if the run is to end: by a signal, or since a process failed or is silent.

        None may be silent for `timeout` seconds, by default those of the ensemble.
        """
        self._receive_in_time(timeout or self.ensemble.timeout)
        self.interrupted = self.stop()
        if self.interrupted or self._over:
            raise Aborted

    def _receive_for_caller(self) -> None:
        """Receive messages while held. Raises `MemtopoError` if the answer that is waited for will not come."""
        self._receive_in_time(self.ensemble.timeout)
        if self.stop():
            raise MemtopoError("the layout is about to be taken down")

    def _receive_in_time(self, timeout: float) -> None:
        """Receive messages, and kill the workers that were silent for too long."""
        self._receive(min(_INTERVAL, self.interval))
        for worker in self.workers.values():
            if worker.busy and worker.silent(timeout):
                worker.kill(f"was silent for {timeout:g} s")
                self._note_first(worker)

    def _receive(self, seconds: float) -> None:
        """Receive and route messages for so many seconds, and send heartbeats."""
        self._clock.time()
        self.progress.advance(0)
        for worker, received in self._router.receive(seconds):
            work = worker.receive(received)
            self.progress.extend(work.begun, worker.label)
            self.progress.advance(work.steps, worker.label)
            self._note_first(worker)
        for worker in self.workers.values():
            worker.keep_alive(self.ensemble.timeout / _HEARTBEATS)

    def _note_first(self, worker: WorkerProcess) -> None:
        """Keep the first worker that failed or died: failures of the others may follow from it."""
        if (worker.failed or worker.death) and self._first_over is None:
            self._first_over = worker

    @contextmanager
    def timed(self, phase: str, steps: int) -> Iterator[None]:
        """Record the time of a phase, whose progress consists of bytes or of the steps that the workers begin."""
        volumes = {worker.label: worker.volume for worker in self.workers.values()} if phase == "verify" else {}
        if volume := sum(volumes.values()):
            self.progress.volume(phase, volume, volumes)
        elif phase == _START:
            self.progress.phase(phase, steps, dict.fromkeys(self.workers, 1))
        else:
            self.progress.phase(phase, 0, dict.fromkeys(self.workers, 0))
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.times.append(PhaseTime(phase, steps, end - start, start - self._origin, end - self._origin))

    def _close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._source.close()


def require_planned(results: Mapping[str, ChangeResult]) -> None:
    """Raise `ChangeRefused` unless all processes have planned a change."""
    if refused := failures(results):
        raise ChangeRefused(refused, hint=_first_hint(results))


def require_answer(label: str, answer: Answer | None) -> None:
    """Raise `MemtopoError` unless a process has answered without an error."""
    match answer:
        case None:
            raise Failed(f"process {label} has ended")
        case ChangeResult(error=str(error), hint=hint, code=code):
            raise ExchangeError(code, error, hint=hint) if code else Failed(f"{label}: {error}", hint=hint)


def require_made(results: Mapping[str, ChangeResult]) -> None:
    """Raise `WorkersFailed`, by which a change is rolled back, unless all processes have made a part of it."""
    if failed := failures(results):
        raise WorkersFailed(failed, _first_hint(results))


def _first_hint(results: Mapping[str, ChangeResult]) -> str | None:
    return next((each.hint for each in results.values() if each.hint), None)
