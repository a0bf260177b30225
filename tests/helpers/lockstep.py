"""Runs of all processes of a layout in this process, in the order in which the coordinator commands its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.sim import SimDriver
from memtopo.executor import TeardownGates
from memtopo.geometry import Geometry
from memtopo.kinds.layout import NoHandleSource
from memtopo.kinds.step import Phase
from memtopo.machine import Machine
from memtopo.plans.report import Check, Report
from memtopo.run.apply import Run
from memtopo.run.processes.worker_run import SiblingHandles
from memtopo.run.request import RunRequest
from memtopo.run.verification.rounds import UNSAFE
from memtopo.sharing.exports import LayoutExports
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


def _run(whole: RunRequest, label: str, driver: KernelDriver, runs: Mapping[str, Run]) -> Run:
    geometry = whole.geometry.processes[label]
    request = replace(
        whole,
        plan=whole.plan.processes[label],
        geometry=geometry,
        process=label,
        siblings=whole.geometry.processes,
        exclusive=False,
    )

    def handles(holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        run = runs[holder]
        served = LayoutExports(run.request.geometry, run.execution.layout, run.execution.driver, run.recheck)
        return [served.handle(export, index) for index in range(first, first + count)]

    return Run(request, Ledger(driver), handle_source=SiblingHandles(geometry, handles, NoHandleSource()))


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
