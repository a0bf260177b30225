"""The coordinator: starts the workers, sends all of them through the phases together, and merges their reports.

It makes no driver call that lays out memory. If any process fails, dies or is interrupted, all others take down. The
processes of a run may belong to several coordinators, which meet after each command; each makes the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from memtopo.common.clock import RunningClock
from memtopo.common.errors import MemtopoError
from memtopo.common.outcomes import Exit
from memtopo.common.text import signal_name
from memtopo.driver.handles import Handle
from memtopo.executor import SafeProgress
from memtopo.kinds.step import Phase
from memtopo.language.names import AWAKE
from memtopo.plans.progress import NO_PROCESSES, Progress
from memtopo.plans.report import Checks, Failure, PhaseTime, Report
from memtopo.run.processes import messages
from memtopo.run.processes.common_addresses import agree
from memtopo.run.processes.ensemble import Ensemble, NotStarted, startup_limit
from memtopo.run.processes.joint_change import JointState
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import Addresses, AgreeOn, ChangeCommand, ChangeResult, Command
from memtopo.run.processes.peers import Peers
from memtopo.run.processes.reports import merged_checks, merged_report
from memtopo.run.processes.router import Router
from memtopo.run.processes.worker_process import Expected, WorkerProcess, launch
from memtopo.run.rehearsal import paths, stops
from memtopo.run.verification.rounds import UNSAFE
from memtopo.session.request import RunRequest
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.sockets import reserve_descriptors

SPARE = 3.0
"""Seconds beyond the timeout that a worker has for teardown before it is killed."""

_INTERVAL = 0.1
_HEARTBEATS = 4
"""Heartbeats that each worker is sent within the timeout."""
_START = "start"


class _Aborted(Exception):
    """A process failed or died, or the run was interrupted."""


def apply(
    ensemble: Ensemble,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    held: Callable[[Coordinator], list[str]] | None = None,
    peers: Peers | None = None,
) -> Report:
    """Build in all processes, check, and take down; `held` is called in between if everything is as declared.

    `stop` returns the number of the signal that requests a stop, or 0. Errors of the run are in the report, not raised.
    `peers` have the processes that the ensemble leaves to other coordinators.
    """
    with Coordinator(ensemble, SafeProgress(progress or Progress()), stop, peers or Peers()) as coordinator:
        try:
            coordinator.build()
            if ensemble.request.rehearse and coordinator.as_declared:
                coordinator.rehearse()
            if held and coordinator.as_declared:
                coordinator.hold(held)
        except _Aborted:
            pass
        except (MemtopoError, OSError, ValueError) as error:
            coordinator.failure = error
        finally:
            coordinator.take_down()
        return coordinator.report()


class Coordinator:
    """The workers of one run, or of its part, from their start until all have ended.

    `as_declared` is true as long as no process of the run, in other coordinators neither, found a difference.
    """

    def __init__(self, ensemble: Ensemble, progress: Progress, stop: Callable[[], int], peers: Peers) -> None:
        self.ensemble, self._progress, self._stop, self._peers = ensemble, progress, stop, peers
        self.workers: dict[str, WorkerProcess] = {}
        self._server = ensemble.worker_server()
        self.times: list[PhaseTime] = []
        self.interrupted = 0
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self.as_declared = self._safe = True
        self._first_over: WorkerProcess | None = None
        self._router = Router(self.workers, peers)
        self._clock = RunningClock()
        self._origin = time.perf_counter()
        plans = JointPlans(ensemble.request.geometry, ensemble.request.plan)
        self.joint = JointState(plans, self._command_change, stop)

    def __enter__(self) -> Self:
        reserve_descriptors(len(self.ensemble.processes) * (IN_FLIGHT + 2))
        try:
            with self._peers.gates() as gates:
                for label, geometry in self.ensemble.processes.items():
                    self._launch(label, gates, tuple(location.id for location in geometry.visible))
        except OSError as error:
            self._close()
            raise NotStarted(len(self.workers), error) from error
        except BaseException:
            self._close()
            raise
        return self

    def _launch(self, label: str, gates: Sequence[int], visible: tuple[int, ...]) -> None:
        environment, command = self.ensemble.environment(visible), self.ensemble.worker
        self.workers[label] = worker = launch(label, gates, environment, self._clock, self._server, command)
        worker.start(replace(self.ensemble.start_message(label, visible), origin=self._origin))

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def interval(self) -> float:
        """Seconds within which `watch` has to be called again, so that the workers receive their heartbeats in time."""
        return self.ensemble.timeout / _HEARTBEATS / 2

    def build(self) -> None:
        """Have all processes build, check and verify, phase by phase."""
        plans = self.ensemble.request.plan.processes
        used = {phase for plan in plans.values() for phase, steps in plan.phases if steps}
        with self._timed(_START, len(self.workers)):
            self._await(Expected.READY, startup_limit(self.ensemble.timeout))
            self._meet()
        for phase in Phase:
            if phase in used or phase is Phase.RESERVE:
                with self._timed(phase, self._steps(phase)):
                    self._command_all(messages.BuildPhase(phase))
                    if phase is Phase.RESERVE:
                        agree(plans, self._command_addresses)
        with self._timed("check", self._steps()):
            self._command_all(messages.CheckSteps())
        self._verify()

    def _steps(self, *only: Phase) -> int:
        """Number of steps, or of those of some phases, in the processes here."""
        plans = [self.ensemble.request.plan.processes[label] for label in self.workers]
        return sum(len(steps) for plan in plans for phase, steps in plan.phases if not only or phase in only)

    def _verify(self) -> None:
        workers = self.workers.values()
        full = self.ensemble.request.check == "full"
        with self._timed("verify", len(workers), {worker.label: worker.volume for worker in workers}):
            if not self._safe:
                self._command_all(messages.SkipVerification(UNSAFE))
                return
            for index in range(max(worker.rounds for worker in workers)):
                self._command_all(messages.WriteRound(index))
                if full and index == 0:
                    self._command_all(messages.TryForbidden())
                self._command_all(messages.ReadRound(index))

    def rehearse(self) -> None:
        """Have all processes go through the states of the layout and back, and check each."""
        full = self._safe and self.ensemble.request.check == "full"
        with self._timed("rehearse", stops(self.joint.plans.states)):
            for path in paths(self.joint.plans.states):
                self._command_all(messages.WriteKept(path))
                for state in (*path, AWAKE):
                    self.joint.switch(state, check="full" if full else "none")
                    self._command_all(messages.ReadKept(path))

    def hold(self, held: Callable[[Coordinator], list[str]]) -> None:
        """Have all processes keep the layout while `held` runs."""
        self._command_all(messages.Hold())
        self._progress.end()
        self.notes += held(self)
        if self._over:
            raise _Aborted

    @property
    def _over(self) -> bool:
        """True if a process of the run has failed or ended, here or elsewhere."""
        return self._first_over is not None or bool(self._peers.failed)

    def watch(self) -> int:
        """While held: number of the signal that requests a stop, -1 if a process has ended, else 0."""
        self._receive(0.0)
        return -1 if self._over else self._stop()

    def take_down(self) -> None:
        """Have all processes take down, and receive their reports; a process that takes too long is killed."""
        with self._timed("take down", len(self.workers)):
            self._peers.leave(self._cause())
            for worker in self.workers.values():
                worker.take_down()
            deadline = self._clock.time() + 2 * self.ensemble.timeout + SPARE
            while remaining := [worker for worker in self.workers.values() if not worker.gone]:
                self._receive(min(_INTERVAL, self.interval))
                late = self._clock.time() > deadline
                for worker in remaining:
                    if not worker.gone and (late or worker.silent(self.ensemble.timeout + SPARE)):
                        worker.kill("did not take down in time")
        self._progress.end()

    def _cause(self) -> str:
        """Reason for which the processes take down, if it is a failure here."""
        if first := self._first_over:
            return f"process {first.label} {first.death or first.failed or 'ended'} ({first.activity})"
        if self.failure:
            return str(self.failure) or type(self.failure).__name__
        return f"interrupted by {signal_name(self.interrupted)}" if self.interrupted else ""

    def report(self) -> Report:
        """Merge the reports of all workers."""
        workers = {worker.label: worker for worker in (self._first_over, *self.workers.values()) if worker}
        report = merged_report(self.ensemble.request, workers, self.times, self.interrupted)
        if self.failure and report.outcome == "ok":
            message = str(self.failure) or type(self.failure).__name__
            failure = Failure("work with the processes", message, hint=getattr(self.failure, "hint", None))
            exit_code = getattr(self.failure, "exit_code", Exit.FAILED)
            report = replace(report, outcome="failed", exit_code=exit_code, failure=failure)
        return replace(report, notes=(*self.notes, *report.notes))

    def recheck(self) -> Checks:
        """Check all processes once more while they are held. Raises `MemtopoError`."""
        with self.announced("check"):
            for worker in self.workers.values():
                worker.command(messages.Recheck())
            while any(worker.owes(Expected.DONE) for worker in self.workers.values()):
                self._receive_for_caller()
        if errors := [f"{label}: {each.check_error}" for label, each in self.workers.items() if each.check_error]:
            raise MemtopoError("; ".join(errors))
        checks = {label: worker.checks for label, worker in self.workers.items() if worker.checks}
        if len(checks) < len(self.workers):
            raise MemtopoError("a process has ended, and cannot be checked")
        return merged_checks(checks)

    def change(self, request: RunRequest, command: messages.PlanChange) -> Mapping[str, ChangeResult]:
        """Bring all processes to another spec, by its request and its text, as `JointState.change`."""
        results = self.joint.change(JointPlans(request.geometry, request.plan), command)
        self.ensemble = replace(self.ensemble, request=request, text=command.text, settings=command.settings)
        return results

    @contextmanager
    def announced(self, phase: str) -> Iterator[None]:
        """Report the code inside as a phase of a held layout, whose steps are those that the workers begin."""
        self._progress.phase(phase, 0, dict.fromkeys(self.workers, 0))
        try:
            yield
        finally:
            self._progress.end()

    def request_handles(self, holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        """Handles of one process's export, for this process. Raises `MemtopoError`."""
        return self._router.request(holder, export, first, count, self._receive_for_caller)

    def _command_all(self, command: Command) -> None:
        for worker in self.workers.values():
            worker.command(command)
        self._await(Expected.DONE, self.ensemble.timeout)
        self._meet()

    def _command_addresses(self, commands: Mapping[str, AgreeOn]) -> Mapping[str, Addresses]:
        """Have processes reserve ranges where they are asked to, and return the addresses that these have."""
        here = [label for label in commands if label in self.workers]
        for label in here:
            self.workers[label].command(commands[label])
        self._await(Expected.DONE, self.ensemble.timeout)
        found = self._gather({label: self.workers[label].addresses for label in here})
        every = {label: addresses for part in found for label, addresses in part.items()}
        return {label: every[label] for label in commands}

    def _command_change(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        """Have all processes execute a command of a change. Raises `ChangeFailed` if one has ended or is silent."""
        for worker in self.workers.values():
            worker.command(command)
        while any(worker.owes(Expected.DONE) for worker in self.workers.values()) and not self._over:
            self._receive(min(_INTERVAL, self.interval))
            self._kill_silent(self.ensemble.timeout)
        if self._over:
            raise ChangeFailed(f"{self._cause() or self._peers.failed}; the layout is taken down", broken=True)
        return {label: worker.change for label, worker in self.workers.items() if worker.change}

    def _meet(self) -> None:
        """Wait until all coordinators of the run are here, and learn what their processes found."""
        workers = self.workers.values()
        found = self._gather((all(each.as_declared for each in workers), all(each.safe for each in workers)))
        self.as_declared, self._safe = map(all, zip(*found, strict=True))

    def _gather(self, value: Any) -> Sequence[Any]:
        """Wait until all coordinators of the run are here, and return the values of all; messages are routed."""
        self._peers.arrive(value)
        while (values := self._peers.arrived()) is None:
            self._receive(min(_INTERVAL, self.interval))
            self._require_all(self.ensemble.timeout)
        return values

    def _await(self, expected: Expected, timeout: float) -> None:
        """Wait for a message of every worker, none of which may be silent for `timeout` seconds."""
        while any(worker.owes(expected) for worker in self.workers.values()):
            self._receive(min(_INTERVAL, self.interval))
            self._require_all(timeout)

    def _require_all(self, timeout: float) -> None:
        """Raise `_Aborted` if the run is to end: by a signal, or since a process has failed or is silent."""
        if signal := self._stop():
            self.interrupted = signal
            raise _Aborted
        self._kill_silent(timeout)
        if self._over:
            raise _Aborted

    def _receive_for_caller(self) -> None:
        """Receive messages while held. Raises `MemtopoError` if the answer that is waited for will not come."""
        self._receive(min(_INTERVAL, self.interval))
        self._kill_silent(self.ensemble.timeout)
        if self._stop():
            raise MemtopoError("the layout is about to be taken down")

    def _kill_silent(self, timeout: float) -> None:
        for worker in self.workers.values():
            if worker.busy and worker.silent(timeout):
                worker.kill(f"was silent for {timeout:g} s")
                self._note_first(worker)

    def _receive(self, seconds: float) -> None:
        """Receive and route messages for so many seconds, and send heartbeats."""
        self._clock.time()
        self._progress.advance(0)
        for worker, received in self._router.receive(seconds):
            work = worker.receive(received)
            self._progress.extend(work.begun, worker.label)
            self._progress.advance(work.steps, worker.label)
            self._note_first(worker)
        for worker in self.workers.values():
            worker.keep_alive(self.ensemble.timeout / _HEARTBEATS)

    def _note_first(self, worker: WorkerProcess) -> None:
        """Keep the first worker that failed or died: failures of the others may follow from it."""
        if (worker.failed or worker.death) and self._first_over is None:
            self._first_over = worker

    @contextmanager
    def _timed(self, phase: str, steps: int, volumes: Mapping[str, int] = NO_PROCESSES) -> Iterator[None]:
        """Record the time of a phase, whose progress consists of bytes or of the steps that the workers begin."""
        if volume := sum(volumes.values()):
            self._progress.volume(phase, volume, volumes)
        elif phase == _START:
            self._progress.phase(phase, steps, dict.fromkeys(self.workers, 1))
        else:
            self._progress.phase(phase, 0, dict.fromkeys(self.workers, 0))
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.times.append(PhaseTime(phase, steps, end - start, start - self._origin, end - self._origin))

    def _close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._server.close()
