"""Session: the run of one layout in this process, from building to taking down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from memtopo.api.errors import NotApplied, NotSwitched
from memtopo.api.specs import Planned
from memtopo.common.signals import deferred
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.executor import StepFailed
from memtopo.kinds.events import EventGroup
from memtopo.kinds.layout import HandleSource
from memtopo.plans.report import Checks, PlanSummary, Report
from memtopo.run.apply import Run
from memtopo.run.change import RollbackFailed
from memtopo.run.imports import Imports
from memtopo.run.request import HoldResult, RunRequest
from memtopo.sharing.status import Notice

if TYPE_CHECKING:
    from memtopo.driver.sim import SimDriver


class Session:
    """Run that stays open while a program uses the layout; `noted` adds notes to its report."""

    def __init__(
        self,
        planned: Planned,
        driver: KernelDriver,
        handle_source: HandleSource | None = None,
        noted: Callable[[Report], Report] = lambda report: report,
    ) -> None:
        self.geometry, self.machine = planned.geometry, planned.target.line
        self._planned, self._opened, self._noted = planned, driver, noted
        document = planned.document
        request = RunRequest(
            plan=planned.plan,
            geometry=planned.geometry,
            machine=self.machine,
            spec=document.name,
            position_of=document.position,
            warnings=planned.warnings,
            exclusive=False,
            machine_facts=planned.target.machine,
        )
        self.run = Run(request, Ledger(driver), handle_source=handle_source)
        self.layout = self.run.execution.layout
        self.driver: Driver = self.run.execution.driver
        self.events = {
            group.label(i): group.location_of(i).id
            for group in planned.geometry.of(EventGroup).values()
            for i in range(group.count)
        }
        self._descriptors: set[str] = set()

    @cached_property
    def plan(self) -> PlanSummary:
        """Summary of the plan, with the spec's warnings."""
        return self._planned.plan.summary(warnings=self._planned.warnings)

    @property
    def simulator(self) -> SimDriver | None:
        """The simulator; None on real GPUs."""
        return self._opened if self.machine.simulated else None  # type: ignore[return-value]

    def begin(self, *, verify: bool) -> None:
        """Build the layout, check it by queries and, if requested, `verify` it by reading and writing the memory.

        Raises `NotApplied` after everything was undone; on any other error, everything is undone as well.
        """
        run = self.run
        try:
            with run.recording_failure():
                run.build()
                run.check()
                if verify:
                    run.verify()
        except BaseException:
            self.end()
            raise
        if run.failure or run.stopped or not run.as_declared:
            raise NotApplied(self.end())
        self._descriptors = _descriptors()

    def switch(self, state: str) -> Checks:
        """Bring the layout to a state; return the results of its check. Raises `NotSwitched`."""
        with self._switching(f"the layout is {self.run.state}, as before"):
            return self.run.switch(state)

    def follow(self, imports: Imports, holder: str, notice: Notice) -> None:
        """Let go of imports, or import them again. Raises `NotSwitched` with the imports as they were."""
        with self._switching("the imports are as before"):
            imports.follow(holder, notice)

    @contextmanager
    def _switching(self, after: str) -> Iterator[None]:
        """Raise `NotSwitched` for a failed change, with the condition `after` it."""
        try:
            yield
        except RollbackFailed as failed:
            raise NotSwitched(f"{failed}; the layout can only be taken down") from failed
        except StepFailed as failed:
            raise NotSwitched(f"{failed}; {after}") from failed

    def end(self) -> Report:
        """Wait for the GPUs, take everything down, and return the report. Ctrl-C is raised after that."""
        with deferred():
            return self._end()

    def _end(self) -> Report:
        if self._descriptors:  # descriptors that the program opened in the meantime are not leaks
            self.run.hold(lambda _: HoldResult(descriptors=len(_descriptors() - self._descriptors)))
        try:
            self.run.take_down()
            return self._noted(self.run.report())
        finally:
            if simulator := self.simulator:
                simulator.close()


def uuids(driver: Driver) -> list[str]:
    """UUIDs of this process's GPUs by ordinal, as hex text; they are the same in all processes (fact 38)."""
    return [driver.device_get_uuid(device).hex() for device in range(driver.device_get_count())]


def _descriptors() -> set[str]:
    """Open descriptors with their targets, since numbers are reused."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is already closed
            found.add(f"{fd} {Path('/proc/self/fd', fd).readlink()}")
    return found
