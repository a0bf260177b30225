"""One whole run: build, look, prove, take down, and say what happened."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from memtopo import planner
from memtopo.common.errors import InternalError, MemtopoError
from memtopo.diagnostics.model import Path
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.executor import Execution, Peers, StepFailed, Stopped, Teardown
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource, NoHandleSource
from memtopo.kinds.steps import Phase
from memtopo.machine import Machine
from memtopo.output.diagram.model import Diagram
from memtopo.planner import Plan
from memtopo.plans import folding
from memtopo.plans.report import Check, Checks, Failure, Leak, Left, MachineLine, Placed, Progress, Report
from memtopo.run.findings import Counter
from memtopo.run.hints import diagnose
from memtopo.run.leaks import Remnants, descriptors, free_memory
from memtopo.run.verification.isolation import isolation
from memtopo.run.verification.rounds import Proving, Task


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be applied: a plan with the geometry it came from, the machine, and how a path reads as a place.

    `picture` and the spec's `warnings` are for the report. Of a layout of several processes it is one of them, by its
    label, and `siblings` has the geometries of all. `facts` are the machine's, which replicas are built on for a full
    check; without them there are none. `check` is how thoroughly is looked, and `seed` what this run's bytes depend on,
    the same in all processes. `alone` is whether nobody else in this process makes driver calls, whose handles could
    have the values of ours. `timeout` is how many seconds somebody outside has to signal what is waited for.
    """

    plan: Plan
    geometry: Geometry
    machine: MachineLine
    spec: str | None = None
    place: Callable[[Path], str | None] = lambda _path: None
    picture: Diagram | None = None
    warnings: tuple[str, ...] = ()
    process: str = ""
    siblings: Mapping[str, Geometry] | None = None
    facts: Machine | None = None
    check: Check = "fast"
    seed: int = field(default_factory=lambda: secrets.randbits(64))
    alone: bool = True
    timeout: float = 60.0


class Kept(NamedTuple):
    """What became of a layout that somebody held: notes for the report, and descriptors that stay open until then."""

    notes: Sequence[str] = ()
    descriptors: int = 0


def apply(
    job: Job,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    handle_source: HandleSource | None = None,
    held: Callable[[Run], Kept] | None = None,
) -> Report:
    """Build a plan, check it and take it down. `stop` answers the number of the signal that asks to stop, or 0.

    Never raises for what goes wrong on the way: the report says it. The ledger wraps the driver and is empty before.
    `held` is called with what was built and found as declared, and it is taken down when that returns.
    """
    if job.geometry.processes:
        raise InternalError("a layout of several processes is applied as if it were one")
    run = Run(job, ledger, progress=progress, stop=stop, handle_source=handle_source)
    try:
        with run.guarded():
            run.build()
            run.check()
            run.prove()
            if held and run.as_declared:
                run.keep(held)
    finally:
        run.take_down()
    return run.report()


class Run:
    """One process's part of a run, in pieces, so that several processes can go through them together."""

    def __init__(
        self,
        job: Job,
        ledger: Ledger,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int] = lambda: 0,
        handle_source: HandleSource | None = None,
    ) -> None:
        self.job, self.ledger = job, ledger
        plan = planner.with_kernels(job.plan, job.geometry.gpus) if job.check == "full" else job.plan
        self.execution = Execution(plan, ledger, progress=progress, stop=lambda: bool(stop()))
        self.execution.layout.handle_source = handle_source or NoHandleSource()
        self.failure: StepFailed | None = None
        self.stopped = False
        self._signal = stop
        self.execution.layout.patience = job.timeout
        self._remnants = Remnants(self.execution, ledger, job.place, job.alone)
        self._placed: tuple[Placed, ...] = ()
        self._counter = Counter()
        self._teardown: Teardown | None = None
        self._kept = Kept()
        task = Task(job.process, job.geometry, job.siblings, job.check, job.seed, job.machine.simulated, job.facts)
        self.proving = Proving(task, ledger, self.execution, self._counter)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What fails inside, or is interrupted, is noted for the report; teardown is still to come."""
        try:
            yield
        except StepFailed as failure:
            self.failure = failure
        except Stopped:
            self.stopped = True

    def build(self, *only: Phase) -> None:
        """Do every step, or those of some phases. Raises `StepFailed` or `Stopped`."""
        self.execution.build(*only)
        self.execution.layout.handle_source.settle()

    def check(self) -> None:
        """Ask the driver about every step, unless nothing is to be checked. Raises `StepFailed` or `Stopped`."""
        self._remnants.while_held()
        self._placed = tuple(folding.placed(self.execution.layout.ranges))
        if self.job.check == "none":
            return
        with self.execution.timed("check", len(self.job.plan.steps)) as meter:
            try:
                self._counter.take(self.execution.check())
                self._counter.take(isolation(self.job.geometry, self.ledger, self.execution.layout))
            except DriverError as error:
                raise StepFailed(None, "check of holes and ends", error) from error
            finally:
                meter.steps = self.execution.checked

    def prove(self) -> None:
        """All turns of the proof, where there is one process alone. Raises `StepFailed` or `Stopped`."""
        for turn in range(self.proving.turns):
            self.proving.write(turn)
            if turn == 0:
                self.proving.forbid()
            self.proving.read(turn)

    def look(self) -> Checks:
        """Ask the driver about every step once more; queries only, beside what the run itself has counted.

        Raises `MemtopoError`, as whoever asks is no part of the run, which goes on.
        """
        counter = Counter()
        try:
            counter.take(self.execution.check())
        except (StepFailed, Stopped) as error:
            raise MemtopoError(f"the check was not finished: {error or 'interrupted'}") from error
        return counter.checks()

    @property
    def as_declared(self) -> bool:
        """Whether nothing was found that differs from the spec."""
        return not self._counter.different

    def keep(self, held: Callable[[Run], Kept]) -> None:
        """Have somebody do something with what was built. Raises `StepFailed`."""
        try:
            self._kept = held(self)
        except MemtopoError as error:
            raise StepFailed(None, "hold the layout", error) from error

    def take_down(self, peers: Peers | None = None) -> None:
        """Undo everything; `peers` as for `Execution.take_down`."""
        layout = self.execution.layout
        layout.handle_source.settle()
        self._remnants.before_end()
        self._teardown = self.execution.take_down(peers)
        if self.failure is None and self._teardown.failures:
            self.failure = self._teardown.failures[0]

    def report(self) -> Report:
        """What happened, once all is taken down."""
        job, teardown = self.job, self._teardown
        if teardown is None:
            raise InternalError("a run is reported before it is taken down")
        left = self._remnants.left(teardown, self._kept.descriptors)
        leaks = self._remnants.leaks(teardown, left)
        outcome, exit_code = self._outcome(leaks)
        return Report(
            name=job.plan.name,
            spec=job.spec,
            machine=job.machine,
            outcome=outcome,
            exit_code=exit_code,
            plan=job.plan.summary(job.picture, job.warnings),
            times=tuple(self.execution.times),
            checks=None if self._counter.empty else replace(self._counter.checks(), rates=self.proving.rates),
            failure=_failure(self.failure, job) if self.failure else None,
            leaks=leaks,
            left=left,
            notes=(*self._kept.notes, *self._notes(teardown, left, clean=not leaks)),
            check=job.check,
            placed=self._placed,
        )

    def _notes(self, teardown: Teardown, left: Left | None, *, clean: bool) -> Iterator[str]:
        if self.job.siblings is None:
            yield from remarks(self.job)
        yield from self._remnants.owners(self.job.geometry, clean=clean)
        if teardown.missed:
            yield "another process was not through in time; what it imported from here may have been in use"
        yield from free_memory(left, self.job.geometry)
        if not self.job.alone:
            yield from descriptors(left)

    def _outcome(self, leaks: tuple[Leak, ...]) -> tuple[str, int]:
        if leaks:
            return "leaked", 5
        if self.stopped:
            return "interrupted", 128 + self._signal()
        if not self.as_declared:
            # A query that fails later may well fail because of it; the report says both.
            return "different", 6
        if self.failure:
            expected = isinstance(self.failure.error, (MemtopoError, OSError, MemoryError))
            return "failed", 4 if expected and not isinstance(self.failure.error, InternalError) else 70
        return "ok", 0


def _failure(failed: StepFailed, job: Job) -> Failure:
    error, path = failed.error, failed.path
    if isinstance(error, DriverError):
        known = diagnose(error, failed.step.describe() if failed.step else None)
        cause, advice = known or (None, None)
        return Failure(failed.doing, f"{error.call}: {error.name}", error.reason, path, job.place(path), advice, cause)
    if isinstance(error, MemtopoError) and not isinstance(error, InternalError):
        return Failure(failed.doing, error.message, None, path, job.place(path), error.hint)
    return Failure(failed.doing, f"{type(error).__name__}: {error}", None, path, job.place(path))


def remarks(job: Job) -> Iterator[str]:
    """What is to be said of a check, however it goes."""
    if job.check == "full" and job.machine.simulated:
        yield "simulated: the first and last 4 KiB of each granule stand for every byte"
