"""One whole run: build, look, prove, take down, and say what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memtopo import proof
from memtopo.diagnostics import Path
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.executor import Execution, Interrupted, Observation, StepFailed, Teardown
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


@dataclass(slots=True)
class _Run:
    checks: Checks | None = None
    failure: StepFailed | None = None
    interrupted: bool = False
    held_ledger: dict[str, int] = field(default_factory=dict)
    held: Observation | None = None


def apply(job: Job, ledger: Ledger, *, progress: Progress | None = None, stop: Callable[[], int] = lambda: 0) -> Report:
    """Build a plan, check it and take it down. `stop` answers the number of the signal that asks to stop, or 0.

    Never raises for what the driver answers: the report says it. The ledger wraps the driver and is empty before.
    """
    before = ledger.counts()
    execution = Execution(job.plan, ledger, progress=progress, stop=lambda: bool(stop()))
    run = _Run()
    try:
        execution.build()
        run.held_ledger = ledger.counts()
        run.held = execution.observe()
        run.checks = _look(job, execution)
    except StepFailed as failure:
        run.failure = failure
    except Interrupted:
        run.interrupted = True
    finally:
        teardown = execution.take_down()
    if run.failure is None and teardown.failures:
        run.failure = teardown.failures[0]
    left = _left(execution, run, teardown, before, ledger.counts())
    return _report(job, execution, run, teardown, left, stop())


def _look(job: Job, execution: Execution) -> Checks:
    with execution.timed("check", len(job.plan.steps)):
        counter = _Counter()
        counter.take(execution.check())
        proven = proof.prepare(contents(job.geometry), execution.layout)
        try:
            proof.write(proven, execution.driver, execution.layout, execution.stop_here)
            counter.take(proof.read(proven, execution.driver, execution.layout, execution.stop_here))
        except DriverError as error:
            if not counter.different:
                raise StepFailed(None, "proof by bytes", error) from error
            # What was found before says why; bytes cannot be looked at where the access is not as declared.
            unseen = proven.windows - counter.looked_at("bytes")
            counter.not_checked("bytes", unseen, f"the driver said {error.message}")
            return counter.checks()
        if proven.unseen:
            counter.not_checked("bytes", proven.unseen, "no device may write them")
        return counter.checks()


class _Counter:
    def __init__(self) -> None:
        self._looked: dict[str, list[int]] = {}
        self._unlooked: dict[str, tuple[int, str]] = {}
        self._differences: list[Difference] = []
        self.different = 0

    def looked_at(self, aspect: str) -> int:
        return self._looked.get(aspect, [0])[0]

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


def _left(
    execution: Execution, run: _Run, teardown: Teardown, before: dict[str, int], after: dict[str, int]
) -> Left | None:
    if execution.before is None or teardown.after is None:
        return None
    held = run.held or execution.before
    memory = tuple(
        DeviceMemory(f"gpu{device}", free, held.free.get(device, free), teardown.after.free[device])
        for device, free in execution.before.free.items()
    )
    return Left(before, run.held_ledger, after, execution.before.fds, teardown.after.fds, memory)


def _leaks(job: Job, teardown: Teardown, left: Left | None, ledger: Ledger) -> tuple[Leak, ...]:
    leaks = [Leak(leak.what, leak.error, leak.stays, leak.path, job.place(leak.path)) for leak in teardown.leaks]
    if not ledger.empty and not leaks:
        leaks.append(Leak("something that no step owns", "the ledger is not empty"))
    if left and left.fds_after > left.fds_before and not leaks:
        more = left.fds_after - left.fds_before
        leaks.append(Leak(f"{more} file descriptor{'s' * (more > 1)}", "open after taking down"))
    return tuple(leaks)


def _report(job: Job, execution: Execution, run: _Run, teardown: Teardown, left: Left | None, signal: int) -> Report:
    ledger = execution.driver
    assert isinstance(ledger, Ledger)
    leaks = _leaks(job, teardown, left, ledger)
    outcome, exit_code = _outcome(run, leaks, signal)
    return Report(
        name=job.plan.name,
        spec=job.spec,
        machine=job.machine,
        outcome=outcome,
        exit_code=exit_code,
        plan=job.plan.summary(job.picture, job.warnings),
        times=tuple(execution.times),
        checks=run.checks,
        failure=_failure(run.failure, job) if run.failure else None,
        leaks=leaks,
        left=left,
        notes=tuple(_notes(left)),
    )


def _outcome(run: _Run, leaks: tuple[Leak, ...], signal: int) -> tuple[str, int]:
    if leaks:
        return "leaked", 5
    if run.failure:
        return "failed", 4
    if run.interrupted:
        return "interrupted", 128 + signal
    if run.checks and run.checks.different:
        return "different", 6
    return "ok", 0


def _failure(failed: StepFailed, job: Job) -> Failure:
    path = failed.step.path if failed.step else ()
    error = failed.error
    hint = _HINTS.get(error.name)
    return Failure(failed.doing, f"{error.call}: {error.name}", error.reason, path, job.place(path), hint)


def _notes(left: Left | None) -> Iterator[str]:
    for device in left.memory if left else ():
        if device.after != device.before:
            less = device.before - device.after
            word = "less" if less > 0 else "more"
            yield f"{device.device} has {abs(less):,} bytes {word} free than before; another process may use it"
