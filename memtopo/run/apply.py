"""A layout of one process, built in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Self

from memtopo.common.errors import InternalError
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import gpu
from memtopo.kinds.layout import HandleSource
from memtopo.planner import Plan
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Checks, Report
from memtopo.run.base_run import plans_of
from memtopo.run.conductor import Conductor, Parts, conduct
from memtopo.run.layout_plans import LayoutPlans, Variant
from memtopo.run.messages import ChangeCommand, ChangeResult, Command
from memtopo.run.process_run import ProcessRun
from memtopo.run.request import HoldResult, RunRequest
from memtopo.sharing.offers import Offer


def apply(
    request: RunRequest,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    handle_source: HandleSource | None = None,
    hold: Callable[[Conductor[ThisProcess]], HoldResult] | None = None,
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
    return conduct(ThisProcess(run, stop), request, stop=stop, hold=hold)


class ThisProcess(Parts):
    """The only process of a layout, which runs here: commands are calls, and its errors are raised as they are."""

    def __init__(self, run: ProcessRun, stop: Callable[[], int]) -> None:
        self.run, self._stop = run, stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    @property
    def interval(self) -> float:
        return math.inf

    @property
    def labels(self) -> Collection[str]:
        return (self.run.request.process,)

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

    @property
    def handle_source(self) -> HandleSource:
        return self.run.execution.layout.handle_source

    def each(self, command: Command) -> None:
        self.run.execute(command)

    def agree(self, plans: Mapping[str, Plan]) -> None:
        del plans  # it has no other instance

    def plans_of(self, request: RunRequest) -> LayoutPlans:
        return self.run.plans if request is self.run.request else plans_of(request)

    def plan_switch(self, variant: Variant, in_use: Collection[str], check: Check) -> None:
        self.run.plan_switch(variant, in_use, full=check == "full")

    def plan_change(
        self, request: RunRequest, source: str, plans: LayoutPlans, in_use: Collection[str], absent: frozenset[Hashable]
    ) -> None:
        del source
        self.run.plan_change(request, plans, in_use, absent)

    def adopt(self, request: RunRequest, source: str) -> None:
        pass  # the run has done so at the end of the change

    def change(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        result = self.run.execute(command)
        assert isinstance(result, ChangeResult)
        return {self.run.request.process: result}

    def recheck(self) -> Mapping[str, Checks]:
        return {self.run.request.process: self.run.recheck()}

    def exports(self) -> Mapping[str, tuple[str, Offer]]:
        return {offer.name: (self.run.request.process, offer) for offer in self.run.exports.offers()}

    def handle(self, export: str, index: int) -> Handle:
        return self.run.exports.handle(export, index)

    @contextmanager
    def timed(self, phase: str, steps: int) -> Iterator[None]:
        if phase == "verify":
            self.run.execution.progress.phase("list memory", 0)  # of all chunks, and the views that are verified
        if phase != "rehearse":
            yield  # the run records it
            return
        with self.run.execution.timed(phase) as count:
            count.steps = steps
            yield

    def announced(self, phase: str) -> AbstractContextManager[object]:
        return self.run.execution.announced(phase)

    def end_phase(self) -> None:
        self.run.execution.progress.end()

    def recording_failure(self) -> AbstractContextManager[object]:
        return self.run.recording_failure()

    def watch(self) -> int:
        return self._stop()

    def end_hold(self, result: HoldResult) -> None:
        self.run.hold_result = result

    def take_down(self) -> None:
        self.run.take_down()

    def report(self) -> Report:
        return self.run.report()
