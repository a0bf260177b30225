"""One layout in this process, from building to taking down."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from memtopo.api.errors import NotApplied
from memtopo.api.specs import Judged
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import HandleSource
from memtopo.plans.report import PlanSummary, Report
from memtopo.run.apply import Job, Kept, Run

if TYPE_CHECKING:
    from memtopo.driver.sim import SimDriver


class Session:
    """A run that is held open for the program around it; `noted` puts more notes into its report."""

    def __init__(
        self,
        judged: Judged,
        driver: KernelDriver,
        handle_source: HandleSource | None = None,
        noted: Callable[[Report], Report] = lambda report: report,
    ) -> None:
        self.geometry, self.machine = judged.geometry, judged.target.line
        self._judged, self._opened, self._noted = judged, driver, noted
        document = judged.document
        job = Job(
            plan=judged.plan,
            geometry=judged.geometry,
            machine=self.machine,
            spec=document.name,
            place=document.location,
            warnings=judged.warnings,
            alone=False,
            facts=judged.target.machine,
        )
        self.run = Run(job, Ledger(driver), handle_source=handle_source)
        self.layout = self.run.execution.layout
        self.driver: Driver = self.run.execution.driver
        self.events = {
            run.label(i): run.place_of(i).id for run in judged.geometry.events.values() for i in range(run.count)
        }
        self._descriptors: set[str] = set()

    @cached_property
    def plan(self) -> PlanSummary:
        """What is carried out."""
        return self._judged.plan.summary(warnings=self._judged.warnings)

    @property
    def simulator(self) -> SimDriver | None:
        """The simulator, where the machine is a simulated one."""
        return self._opened if self.machine.simulated else None  # type: ignore[return-value]

    def begin(self, *, prove: bool) -> None:
        """Build it, ask the driver about it and, where it is to be proven, touch the memory.

        Raises `NotApplied` after everything was undone; whatever else comes up, it is undone as well.
        """
        run = self.run
        try:
            with run.guarded():
                run.build()
                run.check()
                if prove:
                    run.prove()
        except BaseException:
            self.end()
            raise
        if run.failure or run.stopped or not run.as_declared:
            raise NotApplied(self.end())
        self._descriptors = _descriptors()

    def end(self) -> Report:
        """Wait for the GPUs, take everything down, and say what happened."""
        if self._descriptors:  # what the program around it opened meanwhile is its own
            self.run.keep(lambda _: Kept(descriptors=len(_descriptors() - self._descriptors)))
        try:
            self.run.take_down()
            return self._noted(self.run.report())
        finally:
            if simulator := self.simulator:
                simulator.close()


def uuids(driver: Driver) -> list[str]:
    """The UUIDs of this process's GPUs by ordinal, as hex text: what a GPU goes by in every process (fact 38)."""
    return [driver.device_get_uuid(device).hex() for device in range(driver.device_get_count())]


def _descriptors() -> set[str]:
    """The open descriptors, each with what it is of: a number may be used again."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own is closed by now
            found.add(f"{fd} {Path('/proc/self/fd', fd).readlink()}")
    return found
