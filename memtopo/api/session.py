"""Session: the run of a layout, or of one process of it, in this process, from building to taking down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from memtopo.api.errors import NotApplied, NotChanged, NotSwitched, Unsuitable, require_tried, valid
from memtopo.api.specs import Params, SpecLike, plan_spec
from memtopo.common.errors import message_of
from memtopo.common.signals import deferred
from memtopo.diagnostics.messages import not_awake
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource, current
from memtopo.kinds.resources import AWAITED
from memtopo.language.names import AWAKE
from memtopo.machine import MachineLine
from memtopo.plans.report import Check, Checks, Report
from memtopo.run.apply import ThisProcess
from memtopo.run.imports import OutsideImports
from memtopo.run.layout_plans import Absent, Plans
from memtopo.run.process_run import ProcessRun
from memtopo.run.transition import DoesNotFit, RollbackFailed
from memtopo.session.composition import Composition, HoldResult
from memtopo.sharing.imports import HolderHandles
from memtopo.storage.saved import Saved

if TYPE_CHECKING:
    from memtopo.drivers.sim import SimDriver


IMPORTS_AS_BEFORE = "the imports are as before"


class Session:
    """Run that stays open while a program uses the layout."""

    def __init__(self, machine: MachineLine, run: ProcessRun, opened: KernelDriver, signals: deferred) -> None:
        self.machine, self.run = machine, run
        self._opened, self._signals = opened, signals
        self.layout = run.execution.layout
        self.driver: Driver = run.execution.driver
        self._descriptors: set[tuple[str, str]] = set()

    @property
    def geometry(self) -> Geometry:
        """Geometry of the spec that the layout has now."""
        return self.run.request.geometry

    @property
    def state(self) -> str:
        """Name of the state that the layout is in."""
        return self.run.variant[0]

    @property
    def states(self) -> Mapping[str, Plans]:
        """Plans of all processes by state."""
        return self.run.plans.states

    @property
    def generation(self) -> int:
        """Number of the layout, which a change increments."""
        raise NotImplementedError

    def imports(self, moved: Callable[[], None]) -> OutsideImports | None:
        """Return the imports that follow their holders, None if none do; `moved` is called when mappings have."""
        del moved
        return None

    @property
    def simulator(self) -> SimDriver | None:
        """The simulator; None on real GPUs."""
        return self._opened if self.machine.simulated else None  # type: ignore[return-value]

    def begin(self) -> None:
        """Build the layout and check it.

        Raises `NotApplied` after everything was undone; on any other error, everything is undone as well. Handlers of
        signals are called between steps, so that what a step has made is noted before one raises KeyboardInterrupt.
        """
        try:
            with self._signals, self.run.recording_failure():
                self._build()
            self._descriptors = descriptors()
        except BaseException:
            self.end()
            raise
        if self.run.failure or not self.run.as_declared:
            raise NotApplied(self.end()) from (self.run.failure.error if self.run.failure else None)

    def _build(self) -> None:
        """Build the layout and check it. Raises `StepFailed`, or records what failed."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the work of all GPUs. Raises `DriverError`."""
        for context in self.layout.contexts.values():
            with current(self.driver, context):
                self.driver.ctx_synchronize()

    def switch(self, state: str) -> Checks:
        """Bring the layout to a state; return the results of its check. Raises `NotSwitched`."""
        raise NotImplementedError

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        """Bring the layout to another spec; return the results of its check. Raises `InvalidSpec` and `NotChanged`."""
        raise NotImplementedError

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

    def save(self, folder: str) -> Saved:
        """Save the bytes of the layout to a folder. Raises `MemtopoError`."""
        raise NotImplementedError

    def end(self) -> Report:
        """Wait for the GPUs, take everything down, and return the report. Ctrl-C is raised after that."""
        with deferred():
            # descriptors that the program opened in the meantime are not leaks
            opened = len(descriptors() - self._descriptors) if self._descriptors else 0
            try:
                return self._take_down(HoldResult(descriptors=opened))
            finally:
                if simulator := self.simulator:
                    simulator.close()

    def _take_down(self, held: HoldResult) -> Report:
        """Take everything down, and return the report."""
        raise NotImplementedError


class OwnSession(Session):
    """Run of a layout of this process alone, which is verified if requested; `noted` adds notes to its report.

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
        absent: Absent = frozenset(),
        *,
        verify: bool = True,
        source: str | None = None,
    ) -> None:
        self._target, self._noted, self._handles_for, self._verify = planned.target, noted, handles_for, verify
        request, signals = planned.request(exclusive=False, source=source), deferred()

        def interruptible() -> int:
            """Call the handlers of signals that were received meanwhile; the run itself is not stopped."""
            signals.handle()
            return 0

        run = ProcessRun(request, Ledger(driver), stop=interruptible, handle_source=handle_source, absent=absent)
        self._conductor = ThisProcess(run, interruptible)
        super().__init__(planned.target.line, run, driver, signals)

    @property
    def generation(self) -> int:
        return self._conductor.generation

    def imports(self, moved: Callable[[], None]) -> OutsideImports | None:
        source = self.layout.handle_source
        return OutsideImports(self._conductor, source, moved) if isinstance(source, HolderHandles) else None

    def _build(self) -> None:
        self._conductor.build()
        self._conductor.check()
        if self._verify:  # by reading and writing the memory, but never what is imported
            self._conductor.verify()
        if self.run.request.source and self.run.as_declared:
            self._conductor.restore(self.run.request.source)

    def save(self, folder: str) -> Saved:
        return self._conductor.save(folder)

    def switch(self, state: str) -> Checks:
        with changing(NotSwitched, f"the layout is {self._conductor.state}, as before"):
            return self._conductor.switch(state)

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        conductor = self._conductor
        if not conductor.whole:
            message, _ = not_awake(self.geometry.name, conductor.state)
            hint = "switch('awake') first" if conductor.state != AWAKE else "poll() until its imports are mapped again"
            raise Unsuitable(f"{message}, without some memory", hint=hint)
        planned = valid(plan_spec(spec, self._target, params).after(self.geometry))
        require_tried(planned)
        request = planned.request(self.run.request, check=check)
        if type(self.layout.handle_source) is HandleSource:
            self.layout.handle_source = self._handles_for(planned.geometry) or self.layout.handle_source
        with changing(NotChanged, "the layout is as before"):
            conductor.change(request)
        return conductor.checks()

    def _take_down(self, held: HoldResult) -> Report:
        self._conductor.hold_result = held
        self._conductor.take_down()
        return self._noted(self.run.report())


@contextmanager
def changing(error: type[NotChanged | NotSwitched], after: str) -> Iterator[None]:
    """Raise an `error` for a failed change in the code inside, with the condition `after` it."""
    try:
        yield
    except RollbackFailed as failed:
        raise error(f"{failed}; the layout can only be taken down") from failed
    except (StepFailed, DoesNotFit) as failed:
        raise error(f"{message_of(failed)}; {after}", hint=failed.hint) from failed


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
