"""Runs of all processes of a layout in this process, in the order in which the coordinator commands its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.drivers.sim import SimDriver
from memtopo.executor import TeardownGates
from memtopo.geometry import Geometry
from memtopo.kinds.layout import NoHandleSource
from memtopo.kinds.step import Phase
from memtopo.machine import Machine
from memtopo.plans.report import Check, Report
from memtopo.run.apply import Run, built_plan
from memtopo.run.processes.common_addresses import agree, bring_to
from memtopo.run.processes.joint_change import JointState
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import ChangeCommand, ChangeResult, PlanChange
from memtopo.run.processes.worker_change import WorkerChange
from memtopo.run.processes.worker_run import SiblingHandles
from memtopo.run.verification.rounds import UNSAFE
from memtopo.session.request import RunRequest
from tests.helpers.failing_driver import Failing
from tests.helpers.specs import run_request

WrapDriver = Callable[[KernelDriver], KernelDriver]


def apply_together(
    spec: str | Path,
    machine: Machine,
    check: Check = "fast",
    wrap: Mapping[str, WrapDriver] | None = None,
    gates: Callable[[Run], TeardownGates] | None = None,
) -> dict[str, Report]:
    """Apply a layout of several processes, each on a simulator of its own, and return their reports by label.

    `wrap` wraps the drivers of some processes; `gates` gives each run its gates of the teardown, in which the processes
    go one after another, the last of the spec first. Legacy IPC does not work within one process (fact 31).
    """
    whole = run_request(spec, machine, check)
    with _drivers(whole.geometry, machine) as drivers:
        runs: dict[str, Run] = {}
        for label, driver in drivers.items():
            wrapper = (wrap or {}).get(label)
            runs[label] = _run(whole, label, wrapper(driver) if wrapper else driver, runs)
        for phase in Phase:
            _each(runs, lambda run, phase=phase: run.build(phase))  # type: ignore[misc]
            if phase is Phase.RESERVE and all(run.failure is None for run in runs.values()):
                _agree(whole, runs)
        _each(runs, Run.check)
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


class Together:
    """A built layout of several processes, all in this process: their runs, and their joint state.

    `failing` has the wrapper of each driver, by label, whose call with the number `at` fails.
    """

    def __init__(self, whole: RunRequest, drivers: Mapping[str, SimDriver]) -> None:
        self._next = whole
        self.failing = {label: Failing(driver) for label, driver in drivers.items()}
        self.runs: dict[str, Run] = {}
        self._parts: dict[str, WorkerChange] = {}
        self.before: dict[ChangeCommand, Callable[[], None]] = {}
        """Functions to call once before a command of a change."""
        for label, failing in self.failing.items():
            run = self.runs[label] = _run(whole, label, failing, self.runs, self._handle)
            self._parts[label] = WorkerChange(run, self._plans(whole, label), partial(self._planned, label))
        for phase in Phase:
            for run in self.runs.values():
                run.build(phase)
            if phase is Phase.RESERVE:
                _agree(whole, self.runs)
        self.joint = JointState(JointPlans(whole.geometry, whole.plan), self._command_all, lambda: 0)

    def hold(self) -> None:
        """Keep the layout as while it is held, without contexts that only changes need."""
        for run in self.runs.values():
            run.begin_hold()

    def change(self, whole: RunRequest) -> Mapping[str, ChangeResult]:
        """Change all processes to another spec. Returns and raises as `JointState.change`."""
        self._next = whole
        return self.joint.change(JointPlans(whole.geometry, whole.plan), PlanChange("next.yaml", "", whole.check))

    def write(self) -> None:
        """Write all memory."""
        for run in self.runs.values():
            run.rehearsed(self.joint.plans.states).write(())

    def read(self) -> bool:
        """Check all processes by queries and by the bytes that were written; return whether all is as declared."""
        for run in self.runs.values():
            run.rehearsed(self.joint.plans.states).read((), self.joint.state)
        return all(run.as_declared for run in self.runs.values())

    def _handle(self, holder: str, export: str, index: int) -> Handle:
        return self._parts[holder].exports.handle(export, index)

    def _planned(self, label: str, command: PlanChange) -> tuple[RunRequest, JointPlans]:
        del command
        return _request(self._next, label), self._plans(self._next, label)

    def _plans(self, whole: RunRequest, label: str) -> JointPlans:
        plans = JointPlans(whole.geometry, whole.plan)
        return plans.built_with(label, built_plan(_request(whole, label)))

    def _command_all(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        if not isinstance(command, PlanChange):  # which has a dictionary
            self.before.pop(command, lambda: None)()
        return {label: part.answer(command) for label, part in self._parts.items()}


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


def _request(whole: RunRequest, label: str) -> RunRequest:
    return replace(whole.of_process(label), exclusive=False)


def _run(
    whole: RunRequest,
    label: str,
    driver: KernelDriver,
    runs: Mapping[str, Run],
    handle: Callable[[str, str, int], Handle] | None = None,
) -> Run:
    request = _request(whole, label)

    def served(holder: str, export: str, index: int) -> Handle:
        run = runs[holder]
        exports = run.exports_of(run.request.geometry)
        return exports.handle(export, index)

    def handles(holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        found: list[Handle] = []
        for index in range(first, first + count):
            try:
                found.append((handle or served)(holder, export, index))
            except MemtopoError as error:
                if not found or isinstance(error, DriverError):
                    close_handles(found)
                    raise MemtopoError(f"{holder} does not give {export}: {error.message}") from error
                break
        return found

    return Run(request, Ledger(driver), handle_source=SiblingHandles(request.geometry, handles, NoHandleSource()))


def _agree(whole: RunRequest, runs: Mapping[str, Run]) -> None:
    """Agree on the addresses that processes have in common."""
    agree(
        whole.plan.processes,
        lambda commands: {label: bring_to(runs[label].execution, command) for label, command in commands.items()},
    )


def _each(runs: Mapping[str, Run], do: Callable[[Run], None]) -> None:
    """Do something in each run, unless one has failed."""
    for run in runs.values():
        if all(each.failure is None for each in runs.values()):
            with run.recording_failure():
                do(run)


def _verify(runs: Mapping[str, Run]) -> None:
    full = any(run.request.check == "full" for run in runs.values())
    if not all(run.verification.safe for run in runs.values()):
        _each(runs, lambda run: run.verification.skip(UNSAFE))
        return
    for index in range(max(run.verification.rounds for run in runs.values())):
        _each(runs, lambda run, index=index: run.verification.write(index))  # type: ignore[misc]
        if full and index == 0:
            _each(runs, lambda run: run.verification.try_forbidden())
        _each(runs, lambda run, index=index: run.verification.read(index))  # type: ignore[misc]
