"""Runs of all processes of a layout in this process, in the order in which the conductor commands its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.drivers.sim import SimDriver
from memtopo.executor import TeardownGates
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.kinds.step import Phase
from memtopo.machine import Machine
from memtopo.planner import Plan
from memtopo.plans.report import Check, Checks, Report
from memtopo.run.apply import ThisProcess
from memtopo.run.layout_plans import WHOLE, Goal, LayoutPlans, built_plan
from memtopo.run.messages import ChangeCommand, ChangeResult, CheckChange, Command, MakeStage, ReadKept, WriteKept
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.ensemble import agree
from memtopo.run.processes.worker import SiblingHandles
from memtopo.run.processes.workers import require_made, require_planned
from memtopo.run.transition import attempted
from memtopo.run.verification.rounds import UNSAFE
from memtopo.session.composition import RunRequest
from tests.helpers.failing_driver import Failing
from tests.helpers.specs import run_request

WrapDriver = Callable[[KernelDriver], KernelDriver]


def apply_together(
    spec: str | Path,
    machine: Machine,
    check: Check = "fast",
    wrap: Mapping[str, WrapDriver] | None = None,
    gates: Callable[[ProcessRun], TeardownGates] | None = None,
) -> dict[str, Report]:
    """Apply a layout of several processes, each on a simulator of its own, and return their reports by label.

    `wrap` wraps the drivers of some processes; `gates` gives each run its gates of the teardown, in which the processes
    go one after another, the last of the spec first. Legacy IPC does not work within one process (fact 31).
    """
    whole = run_request(spec, machine, check)
    with _drivers(whole.geometry, machine) as drivers:
        runs: dict[str, ProcessRun] = {}
        for label, driver in drivers.items():
            wrapper = (wrap or {}).get(label)
            runs[label] = _run(whole, label, wrapper(driver) if wrapper else driver, runs)
        for phase in Phase:
            _each(runs, lambda run, phase=phase: run.build(phase))  # type: ignore[misc]
            if phase is Phase.RESERVE and all(run.failure is None for run in runs.values()):
                _agree(whole.plan.processes, runs)
        _each(runs, ProcessRun.check)
        _verify(runs)
        for run in reversed(runs.values()):
            run.take_down(gates(run) if gates else None)
        return {label: run.report() for label, run in runs.items()}


@contextmanager
def _drivers(geometry: Geometry, machine: Machine) -> Iterator[dict[str, SimDriver]]:
    drivers = {label: SimDriver(machine) for label in geometry.processes}
    try:
        for driver in drivers.values():
            driver.init()
        yield drivers
    finally:
        for driver in drivers.values():
            driver.close()


class Together(ThisProcess):
    """A built layout of several processes, all in this process: their runs, and their conductor.

    `failing` has the wrapper of each driver, by label, whose call with the number `at` fails.
    """

    def __init__(self, whole: RunRequest, drivers: Mapping[str, SimDriver]) -> None:
        self._next = whole
        self.failing = {label: Failing(driver) for label, driver in drivers.items()}
        self.runs: dict[str, ProcessRun] = {}
        self.before: dict[ChangeCommand, Callable[[], None]] = {}
        """Functions to call once before a command of a change."""
        for label, failing in self.failing.items():
            self.runs[label] = _run(whole, label, failing, self.runs)
        super().__init__(self.runs[label])
        self.request, self.plans, self.labels = whole, LayoutPlans(whole.geometry, whole.plan), tuple(self.runs)
        self.build()

    def each(self, command: Command) -> None:
        for run in self.runs.values():
            run.handle(command)
        self.as_declared = all(run.as_declared for run in self.runs.values())
        self.safe = all(run.verification.safe for run in self.runs.values())

    def agree(self) -> None:
        _agree(self.plans.of(WHOLE), self.runs)

    def plan(self, goal: Goal) -> LayoutPlans:
        acts = {label: partial(run.plan, *self._own_goal(label, goal)) for label, run in self.runs.items()}
        require_planned({label: attempted(act) for label, act in acts.items()})
        return LayoutPlans(goal.request.geometry, goal.request.plan) if goal.request else self.plans

    def _own_goal(self, label: str, goal: Goal) -> tuple[Goal, LayoutPlans]:
        if goal.request is None:
            return goal, self.runs[label].plans
        return replace(goal, request=_request(goal.request, label)), _plans(goal.request, label)

    def change_each(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        self.before.pop(command, lambda: None)()
        match command:
            case MakeStage(back=False) | CheckChange():
                require_made(results := self._attempt(command))
                return results
        answers = {label: run.handle(command) for label, run in self.runs.items()}
        return {label: answer for label, answer in answers.items() if isinstance(answer, ChangeResult)}

    def change_to(self, whole: RunRequest) -> Checks:
        """Change all processes to another spec, and return its checks. Raises as `Conductor.change`."""
        self.change(whole)
        return self.checks()

    def write(self) -> None:
        """Write all memory."""
        self.each(WriteKept(()))

    def read(self, path: tuple[str, ...] = ()) -> bool:
        """Check all processes by queries and by the bytes that were written; return whether all is as declared."""
        self.each(ReadKept(path))
        return self.as_declared

    def _attempt(self, command: ChangeCommand) -> dict[str, ChangeResult]:
        self.before.pop(command, lambda: None)()
        return {label: attempted(partial(run.handle, command)) for label, run in self.runs.items()}


@contextmanager
def together(spec: str | Path, machine: Machine, check: Check = "fast") -> Iterator[Together]:
    """A layout of several processes that is built, and taken down at the end, which must leave nothing."""
    whole = run_request(spec, machine, check)
    with _drivers(whole.geometry, machine) as drivers:
        found = Together(whole, drivers)
        yield found
        for failing in found.failing.values():
            failing.at = 0
        for run in reversed(found.runs.values()):
            run.take_down()
        for label, run in found.runs.items():
            report = run.report()
            assert not report.leaks, (label, report.leaks)
            assert run.ledger.empty, label


def _plans(whole: RunRequest, label: str) -> LayoutPlans:
    return LayoutPlans(whole.geometry, whole.plan).built_with(label, built_plan(_request(whole, label)))


def _request(whole: RunRequest, label: str) -> RunRequest:
    return replace(whole.of_process(label), exclusive=False)


def _run(whole: RunRequest, label: str, driver: KernelDriver, runs: Mapping[str, ProcessRun]) -> ProcessRun:
    request = _request(whole, label)

    def served(holder: str, export: str, index: int) -> Handle:
        return runs[holder].exports.handle(export, index)

    def handles(holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        found: list[Handle] = []
        for index in range(first, first + count):
            try:
                found.append(served(holder, export, index))
            except MemtopoError as error:
                if not found or isinstance(error, DriverError):
                    close_handles(found)
                    raise MemtopoError(f"{holder} does not give {export}: {error.message}") from error
                break
        return found

    handle_source = SiblingHandles(request.geometry, handles, HandleSource())
    return ProcessRun(request, Ledger(driver), handle_source=handle_source, plans=_plans(whole, label))


def _agree(plans: Mapping[str, Plan], runs: Mapping[str, ProcessRun]) -> None:
    """Agree on the addresses that processes have in common."""

    def reserved(commands: Mapping[str, Command]) -> Mapping[str, Any]:
        return {label: runs[label].handle(command) for label, command in commands.items()}

    agree(plans, reserved)


def _each(runs: Mapping[str, ProcessRun], do: Callable[[ProcessRun], None]) -> None:
    """Do something in each run, unless one has failed."""
    for run in runs.values():
        if all(each.failure is None for each in runs.values()):
            with run.recording_failure():
                do(run)


def _verify(runs: Mapping[str, ProcessRun]) -> None:
    full = any(run.request.check == "full" for run in runs.values())
    if not all(run.verification.safe for run in runs.values()):
        _each(runs, lambda run: run.verification.skip(UNSAFE))
        return
    for index in range(max(run.verification.rounds for run in runs.values())):
        _each(runs, lambda run, index=index: run.verification.write(index))  # type: ignore[misc]
        if full and index == 0:
            _each(runs, lambda run: run.verification.try_forbidden())
        _each(runs, lambda run, index=index: run.verification.read(index))  # type: ignore[misc]
