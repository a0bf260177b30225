"""One whole run: build, look, prove, take down, and say what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memtopo import proof
from memtopo.diagnostics import Path
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.errors import InternalError, MemtopoError
from memtopo.executor import Execution, Observation, StepFailed, Stopped, Teardown
from memtopo.geometry import Geometry
from memtopo.picture import Picture
from memtopo.planner import Plan, contents
from memtopo.report import (
    Checks,
    DeviceMemory,
    Difference,
    Failure,
    Finding,
    Leak,
    Left,
    MachineLine,
    Progress,
    Report,
    Tally,
)

SHOWN = 100
"""Differences that a report names; it counts all of them."""

_HINTS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "something else uses the device's memory: nvidia-smi names the processes",
    "CUDA_ERROR_NOT_PERMITTED": "the process lacks a permission: 'memtopo probe' shows what works here",
    "CUDA_ERROR_NOT_SUPPORTED": "the device or driver cannot do this: 'memtopo probe' shows what works here",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be applied: a plan with the geometry it came from, the machine, and how a path reads as a place.

    `picture` and the spec's `warnings` are for the report.
    """

    plan: Plan
    geometry: Geometry
    machine: MachineLine
    spec: str | None = None
    place: Callable[[Path], str | None] = lambda _path: None
    picture: Picture | None = None
    warnings: tuple[str, ...] = ()


def apply(job: Job, ledger: Ledger, *, progress: Progress | None = None, stop: Callable[[], int] = lambda: 0) -> Report:
    """Build a plan, check it and take it down. `stop` answers the number of the signal that asks to stop, or 0.

    Never raises for what goes wrong on the way: the report says it. The ledger wraps the driver and is empty before.
    """
    run = _Run(Execution(job.plan, ledger, progress=progress, stop=lambda: bool(stop())), ledger)
    try:
        run.execution.build()
        run.held_ledger = ledger.counts()
        run.held = run.execution.observe()
        _look(job, run)
    except StepFailed as failure:
        run.failure = failure
    except Stopped:
        run.stopped = True
    finally:
        run.teardown = run.execution.take_down()
    if run.failure is None and run.teardown.failures:
        run.failure = run.teardown.failures[0]
    return _report(job, run, run.teardown, stop())


def _look(job: Job, run: _Run) -> None:
    execution = run.execution
    with execution.timed("check", len(job.plan.steps)) as meter:
        try:
            run.counter.take(execution.check())
            _prove(job, run)
        finally:
            meter.steps = execution.checked


def _prove(job: Job, run: _Run) -> None:
    execution = run.execution
    proven = proof.prepare(contents(job.geometry), execution.layout)
    try:
        proof.write(proven, execution.driver, execution.layout, execution.stop_here)
        run.counter.take(proof.read(proven, execution.driver, execution.layout, execution.stop_here))
    except DriverError as error:
        unseen = proven.windows - run.counter.looked_at("bytes")
        run.counter.not_checked("bytes", unseen, f"the driver said {error.message}")
        raise StepFailed(None, "proof by bytes", error) from error
    if proven.unseen:
        run.counter.not_checked("bytes", proven.unseen, "no device may write them, or read them there")


class _Counter:
    def __init__(self) -> None:
        self._looked: dict[str, list[int]] = {}
        self._unlooked: dict[str, tuple[int, str]] = {}
        self._differences: list[Difference] = []
        self.different = 0

    def looked_at(self, aspect: str) -> int:
        return self._looked.get(aspect, [0])[0]

    @property
    def empty(self) -> bool:
        return not self._looked

    def take(self, findings: Iterator[Finding]) -> None:
        looked = self._looked
        for finding in findings:
            aspect, _, wanted, seen, _ = finding
            counts = looked.get(aspect) or looked.setdefault(aspect, [0, 0])
            counts[0] += 1
            if wanted == seen:
                counts[1] += 1
            else:
                self._differ(finding)

    def not_checked(self, aspect: str, count: int, why: str) -> None:
        self._unlooked[aspect] = (count, why)
        self._looked.setdefault(aspect, [0, 0])

    def checks(self) -> Checks:
        tallies = [
            Tally(aspect, counts[0], counts[1], *self._unlooked.get(aspect, (0, None)))
            for aspect, counts in self._looked.items()
        ]
        return Checks(tuple(tallies), tuple(self._differences), self.different)

    def _differ(self, finding: Finding) -> None:
        self.different += 1
        if len(self._differences) < SHOWN:
            aspect, subject, wanted, seen, path = finding
            self._differences.append(Difference(aspect, subject, _words(wanted), _words(seen), path))


def _words(value: object) -> str:
    return value[:16].hex(" ", 4) if isinstance(value, bytes) else str(value)


@dataclass(slots=True)
class _Run:
    """What is known of a run while it goes on."""

    execution: Execution
    ledger: Ledger
    before: dict[str, int] = field(init=False)
    counter: _Counter = field(default_factory=_Counter)
    failure: StepFailed | None = None
    stopped: bool = False
    held_ledger: dict[str, int] = field(default_factory=dict)
    held: Observation | None = None
    teardown: Teardown | None = None

    def __post_init__(self) -> None:
        self.before = self.ledger.counts()


def _left(run: _Run, teardown: Teardown) -> Left | None:
    before, held, after = run.execution.before, run.held, teardown.after
    if before is None or after is None:
        return None
    memory = tuple(
        DeviceMemory(f"gpu{device}", free, held.free[device] if held else None, after.free[device])
        for device, free in before.free.items()
    )
    return Left(
        run.before, run.held_ledger, run.ledger.counts(), before.fds, held.fds if held else None, after.fds, memory
    )


def _leaks(job: Job, teardown: Teardown, left: Left | None, ledger: Ledger) -> tuple[Leak, ...]:
    leaks = [Leak(leak.what, leak.error, leak.stays, leak.path, job.place(leak.path)) for leak in teardown.leaks]
    if not ledger.empty and not leaks:
        leaks.append(Leak("something that no step owns", "the ledger is not empty"))
    if left and left.fds_after > left.fds_before and not leaks:
        more = left.fds_after - left.fds_before
        leaks.append(Leak(f"{more} file descriptor{'s' * (more > 1)}", "open after taking down"))
    return tuple(leaks)


def _report(job: Job, run: _Run, teardown: Teardown, signal: int) -> Report:
    left = _left(run, teardown)
    leaks = _leaks(job, teardown, left, run.ledger)
    outcome, exit_code = _outcome(run, leaks, signal)
    return Report(
        name=job.plan.name,
        spec=job.spec,
        machine=job.machine,
        outcome=outcome,
        exit_code=exit_code,
        plan=job.plan.summary(job.picture, job.warnings),
        times=tuple(run.execution.times),
        checks=None if run.counter.empty else run.counter.checks(),
        failure=_failure(run.failure, job) if run.failure else None,
        leaks=leaks,
        left=left,
        notes=tuple(_notes(left)),
    )


def _outcome(run: _Run, leaks: tuple[Leak, ...], signal: int) -> tuple[str, int]:
    if leaks:
        return "leaked", 5
    if run.stopped:
        return "interrupted", 128 + signal
    if run.counter.different:
        # A query that fails later may well fail because of it; the report says both.
        return "different", 6
    if run.failure:
        expected = isinstance(run.failure.error, (MemtopoError, OSError, MemoryError))
        return "failed", 4 if expected and not isinstance(run.failure.error, InternalError) else 70
    return "ok", 0


def _failure(failed: StepFailed, job: Job) -> Failure:
    path = failed.step.path if failed.step else ()
    error = failed.error
    if isinstance(error, DriverError):
        hint = _HINTS.get(error.name)
        return Failure(failed.doing, f"{error.call}: {error.name}", error.reason, path, job.place(path), hint)
    return Failure(failed.doing, f"{type(error).__name__}: {error}", None, path, job.place(path))


def _notes(left: Left | None) -> Iterator[str]:
    for device in left.memory if left else ():
        if device.after != device.before:
            less = device.before - device.after
            word = "less" if less > 0 else "more"
            yield f"{device.device} has {abs(less):,} bytes {word} free than before; another process may use it"
