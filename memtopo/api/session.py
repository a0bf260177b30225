"""Session: the run of one layout in this process, from building to taking down."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from memtopo.api.errors import NotApplied, NotChanged, NotSwitched, Unsuitable, require_tried, valid
from memtopo.api.specs import Params, SpecLike, plan_spec
from memtopo.common.signals import deferred
from memtopo.diagnostics.messages import not_awake
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.kinds.ipc import EventGroup
from memtopo.kinds.layout import HandleSource, current
from memtopo.kinds.resources import AWAITED
from memtopo.language.names import AWAKE
from memtopo.plans.report import Check, Checks, PlanSummary, Report
from memtopo.run.apply import ThisProcess
from memtopo.run.imports import OutsideImports
from memtopo.run.process_run import ProcessRun
from memtopo.run.transition import DoesNotFit, RollbackFailed
from memtopo.session.composition import Composition
from memtopo.session.request import HoldResult
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.status import Notice

if TYPE_CHECKING:
    from memtopo.drivers.sim import SimDriver


class Session:
    """Run that stays open while a program uses the layout; `noted` adds notes to its report.

    `handles_for` returns the source of imports for the geometry that a layout without imports is changed to. `absent`
    resources are not there at first.
    """

    def __init__(
        self,
        planned: Composition,
        driver: KernelDriver,
        handle_source: HandleSource | None = None,
        noted: Callable[[Report], Report] = lambda report: report,
        handles_for: Callable[[Geometry], HandleSource | None] = lambda _geometry: None,
        absent: frozenset[Hashable] = frozenset(),
    ) -> None:
        self.machine = planned.target.line
        self._planned, self._opened, self._noted = planned, driver, noted
        self._handles_for = handles_for
        request = planned.request(exclusive=False)
        self._signals = deferred()
        stop, ledger = self._interruptible, Ledger(driver)
        self.run = ProcessRun(request, ledger, stop=stop, handle_source=handle_source, absent=absent)
        self.conductor = ThisProcess(self.run, stop)
        self.layout = self.run.execution.layout
        self.driver: Driver = self.run.execution.driver
        self._descriptors: set[tuple[str, str]] = set()

    @property
    def geometry(self) -> Geometry:
        """Geometry of the spec that the layout has now."""
        return self._planned.geometry

    @property
    def events(self) -> Mapping[str, int]:
        """GPU of each event."""
        groups = self.geometry.of(EventGroup).values()
        return {group.label(i): group.location_of(i).id for group in groups for i in range(group.count)}

    @property
    def imported(self) -> HolderHandles | None:
        """Source of the imports from holders; None if there are none."""
        source = self.layout.handle_source
        return source if isinstance(source, HolderHandles) else None

    @property
    def plan(self) -> PlanSummary:
        """Summary of the plan, with the spec's warnings."""
        return self._planned.plan.summary(warnings=self._planned.warnings, params=self._planned.document.values)

    @property
    def simulator(self) -> SimDriver | None:
        """The simulator; None on real GPUs."""
        return self._opened if self.machine.simulated else None  # type: ignore[return-value]

    def begin(self, *, verify: bool) -> None:
        """Build the layout, check it by queries and, if requested, `verify` it by reading and writing the memory.

        Raises `NotApplied` after everything was undone; on any other error, everything is undone as well. Handlers of
        signals are called between steps, so that what a step has made is noted before one raises KeyboardInterrupt.
        """
        run = self.run
        try:
            with self._signals, run.recording_failure():
                self.conductor.build()
                self.conductor.check()
                if verify:
                    self.conductor.verify()
            self._descriptors = descriptors()
        except BaseException:
            self.end()
            raise
        if run.failure or not run.as_declared:
            raise NotApplied(self.end())

    def _interruptible(self) -> int:
        """Call the handlers of signals that were received while the layout is built; the run itself is not stopped."""
        self._signals.handle()
        return 0

    def synchronize(self) -> None:
        """Wait for the work of all GPUs. Raises `DriverError`."""
        for context in self.layout.contexts.values():
            with current(self.driver, context):
                self.driver.ctx_synchronize()

    def switch(self, state: str) -> Checks:
        """Bring the layout to a state; return the results of its check. Raises `NotSwitched`."""
        with self._changing(NotSwitched, f"the layout is {self.conductor.state}, as before"):
            return self.conductor.switch(state)

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        """Bring the layout to another spec; return the results of its check. Raises `InvalidSpec` and `NotChanged`."""
        run = self.run
        if not self.conductor.whole:
            message, _ = not_awake(self.geometry.name, self.conductor.state)
            hint = "switch('awake') first" if self.conductor.state != AWAKE else "poll() until its imports are back"
            raise Unsuitable(f"{message}, without some memory", hint=hint)
        planned = valid(plan_spec(spec, self._planned.target, params).after(self.geometry))
        require_tried(planned)
        request = planned.request(run.request, check=check)
        if type(self.layout.handle_source) is HandleSource:
            self.layout.handle_source = self._handles_for(planned.geometry) or self.layout.handle_source
        with self._changing(NotChanged, "the layout is as before"):
            self.conductor.change(request)
        self._planned = planned
        return self.conductor.checks()

    @contextmanager
    def awaiting(self, stream: int | None, device: int | None) -> Iterator[None]:
        """Let changes in the code inside wait for one stream of a GPU, by default of the only one that is used.

        Raises `Unsuitable` for a GPU that is not used, and for none of several ones.
        """
        if stream is None:
            yield
            return
        gpus = self.geometry.gpus
        if device is None and len(gpus) > 1:
            raise Unsuitable("the layout uses several GPUs", hint="name the GPU of the stream: device='gpu0'")
        chosen = gpus[0] if device is None and gpus else device
        if chosen not in gpus:
            raise Unsuitable(f"the layout does not use gpu{chosen}" if gpus else "the layout uses no GPU")
        self.layout.of(AWAITED)[chosen] = stream
        try:
            yield
        finally:
            self.layout.of(AWAITED).clear()

    def change_imports(self, imports: OutsideImports, planned: Composition) -> None:
        """Bring the layout to other imports, unverified. Raises `NotSwitched` with the imports as they were."""
        with self._changing(NotSwitched, "the imports are as before"):
            imports.change(planned.request(self.run.request))
        self._planned = planned

    def follow(self, imports: OutsideImports, holder: str, notice: Notice) -> None:
        """Let go of imports, or import them again. Raises `NotSwitched` with the imports as they were."""
        with self._changing(NotSwitched, "the imports are as before"):
            imports.follow(holder, notice)

    @contextmanager
    def _changing(self, error: type[NotChanged | NotSwitched], after: str) -> Iterator[None]:
        """Raise an `error` for a failed change, with the condition `after` it."""
        try:
            yield
        except RollbackFailed as failed:
            raise error(f"{failed}; the layout can only be taken down") from failed
        except (StepFailed, DoesNotFit) as failed:
            raise error(f"{failed}; {after}") from failed

    def end(self) -> Report:
        """Wait for the GPUs, take everything down, and return the report. Ctrl-C is raised after that."""
        with deferred():
            return self._end()

    def _end(self) -> Report:
        if self._descriptors:  # descriptors that the program opened in the meantime are not leaks
            self.conductor.hold_result = HoldResult(descriptors=len(descriptors() - self._descriptors))
        try:
            self.conductor.take_down()
            return self._noted(self.run.report())
        finally:
            if simulator := self.simulator:
                simulator.close()


def uuids(driver: Driver) -> list[str]:
    """UUIDs of this process's GPUs by ordinal, as hex text; they are the same in all processes (fact 38)."""
    return [driver.device_get_uuid(device).hex() for device in range(driver.device_get_count())]


def descriptors() -> set[tuple[str, str]]:
    """Open descriptors with their targets, since numbers are reused."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is already closed
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))  # noqa: PTH115 a tenth of the time
    return found
