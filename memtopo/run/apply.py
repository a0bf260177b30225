"""A layout of one process, built in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from memtopo.common.errors import InternalError
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import gpu
from memtopo.kinds.layout import HandleSource
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Checks, Report
from memtopo.run.base_run import plans_of
from memtopo.run.conductor import Conductor, conduct
from memtopo.run.layout_plans import LayoutPlans, Variant
from memtopo.run.messages import ChangeCommand, ChangeResult, Command
from memtopo.run.process_run import ProcessRun
from memtopo.session.request import HoldResult, RunRequest
from memtopo.sharing.offers import Offer


def apply(
    request: RunRequest,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    handle_source: HandleSource | None = None,
    hold: Callable[[ThisProcess], HoldResult] | None = None,
    context: CallContext | None = None,
) -> Report:
    """Build a plan, check it and take it down.

    `ledger` wraps the driver, and is empty before the run. `stop` returns the number of the signal that requests a
    stop, or 0. `hold` is called with a layout that is as declared; the teardown starts when it returns. Errors of the
    run are not raised but reported. A `context` has what the calls of each moment are made for.
    """
    if request.geometry.processes:
        raise InternalError("a multi-process layout is applied as a layout of one process")
    run = ProcessRun(request, ledger, progress=progress, stop=stop, handle_source=handle_source, context=context)
    return conduct(ThisProcess(run, stop), hold)


class ThisProcess(Conductor):
    """Conductor of a layout of one process, which runs here: a command is a call, and errors are raised as they are."""

    def __init__(self, run: ProcessRun, stop: Callable[[], int] = lambda: 0) -> None:
        super().__init__(run.request, run.plans, run.execution.progress, stop, run.variant)
        self.run, self.labels = run, (run.request.process,)

    @property
    def handle_source(self) -> HandleSource:
        return self.run.execution.layout.handle_source

    @property
    def as_declared(self) -> bool:
        return self.run.as_declared

    @property
    def safe(self) -> bool:
        return self.run.verification.safe

    @property
    def rounds(self) -> int:
        return self.run.verification.rounds

    @property
    def contexts(self) -> Sequence[str]:
        return [str(gpu(device)) for device in sorted(self.run.execution.layout.contexts)]

    def each(self, command: Command) -> None:
        self.run.execute(command)

    def plan_switch(self, variant: Variant, in_use: Collection[str], check: Check) -> None:
        self.run.plan_switch(variant, in_use, full=check == "full")

    def plan_change(
        self,
        request: RunRequest,
        source: str = "",
        in_use: Collection[str] = (),
        absent: frozenset[Hashable] = frozenset(),
    ) -> LayoutPlans:
        del source
        plans = plans_of(request)
        self.run.plan_change(request, plans, in_use, absent)
        return plans

    def change_each(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        result = self.run.execute(command)
        assert isinstance(result, ChangeResult)
        return {self.run.request.process: result}

    def recheck_each(self) -> Mapping[str, Checks]:
        return {self.run.request.process: self.run.recheck()}

    def exports(self) -> Mapping[str, tuple[str, Offer]]:
        return {offer.name: (self.run.request.process, offer) for offer in self.run.exports.offers()}

    def handle(self, export: str, index: int) -> Handle:
        return self.run.exports.handle(export, index)

    @contextmanager
    def timed(self, phase: str, steps: int) -> Iterator[None]:
        if phase == "verify":
            self.progress.phase("list memory", 0)  # of all chunks, and the views that are verified
        if phase != "rehearse":
            yield  # the run records it
            return
        with self.run.execution.timed(phase) as count:
            count.steps = steps
            yield

    def recording_failure(self) -> AbstractContextManager[object]:
        return self.run.recording_failure()

    def take_down(self) -> None:
        self.run.hold_result = self.hold_result
        self.run.take_down()

    def report(self) -> Report:
        return self.run.report()
