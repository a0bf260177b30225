"""Application of a spec, in this process or its workers: producers, the run, and the holder of its layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from memtopo.common.errors import Stopped
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import gpu
from memtopo.kinds.layout import HandleSource
from memtopo.language import SpecText
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Report
from memtopo.run.conductor import Conductor, conduct
from memtopo.run.layout_plans import Goal, LayoutPlans, plans_of
from memtopo.run.messages import ChangeCommand, ChangeResult, Command, Done
from memtopo.run.process_run import ProcessRun
from memtopo.session.composition import Composition, HoldResult, RunRequest
from memtopo.sharing.offers import Offer

if TYPE_CHECKING:  # imported where it is used: a layout of one process that nobody holds needs none of it
    from memtopo.run.holder import Holder
    from memtopo.sharing.producers import Producers


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
    def rounds(self) -> int:
        return self.run.verification.rounds

    @property
    def contexts(self) -> Sequence[str]:
        return [str(gpu(device)) for device in sorted(self.run.execution.layout.contexts)]

    @property
    def pids(self) -> Mapping[str, int]:
        return {self.run.request.process: os.getpid()}

    def each(self, command: Command) -> None:
        answer = self.run.handle(command)
        if isinstance(answer, Done):
            self.as_declared, self.safe = answer.as_declared, answer.safe

    def plan(self, goal: Goal) -> LayoutPlans:
        plans = plans_of(goal.request) if goal.request else self.plans
        self.run.plan(goal, plans)
        return plans

    def change_each(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        return self.ask(dict.fromkeys(self.labels, command))

    def ask(self, commands: Mapping[str, Command]) -> Mapping[str, Any]:
        return {label: self.run.handle(command) for label, command in commands.items()}

    def exports(self) -> Mapping[str, tuple[str, Offer]]:
        return {offer.name: (self.run.request.process, offer) for offer in self.run.offers or self.run.exports.offers()}

    def handle(self, export: str, index: int) -> Handle:
        return self.run.exports.handle(export, index)

    def exporter(self, export: str) -> tuple[str, str]:
        return self.run.request.process, export

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


class Application(Struct, frozen=True):
    """One application of a spec.

    `stop` returns the number of a signal, or 0. `producers` starts the programs that the layout imports from, if there
    may be some. A holder may be silent for `silence` seconds; `report_wait` is called with the reason of a wait for a
    commit. `progress` begins the progress of the run.
    """

    composition: Composition
    request: RunRequest
    producers: Callable[[], AbstractContextManager[Producers]] | None = None
    allow_uids: Collection[int] = ()
    silence: float = 30.0
    stop: Callable[[], int] = lambda: 0
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(Progress())
    report_wait: Callable[[str], None] = lambda _: None

    def run(self, holder: Holder | None = None) -> Report:
        """Start the producers, and apply; with a `holder` the layout is served before it is taken down."""
        apply_request = self._in_processes if self.request.geometry.processes else self._in_process
        if self.producers is None:
            report = apply_request(holder, {})
        else:
            with self.producers() as producers:
                report = producers.with_notes(apply_request(holder, producers.sockets))
            report = producers.with_survivors(report)
        if holder:
            holder.claim.report_end(report)
        return report

    def _in_process(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        request, context = self.request, None
        with ExitStack() as stack:
            driver: Any = self.composition.target.open()
            if request.machine.simulated:  # its memory is of this process
                stack.callback(driver.close)
            if request.trace is not None:
                from memtopo.driver.trace import traced  # noqa: PLC0415 few runs are traced

                driver, context = stack.enter_context(traced(driver, request.trace, request.about_trace))
            ledger, handles = Ledger(driver), None
            if holder or request.geometry.imports_from_outside:  # a change may bring imports
                from memtopo.sharing.imports import CommitWait, HolderHandles  # noqa: PLC0415 most layouts import nothing from outside

                def raise_if_stopped() -> None:
                    if self.stop():
                        raise Stopped

                gpus = [ledger.device_get_uuid(ordinal).hex() for ordinal in range(ledger.device_get_count())]
                commits = CommitWait(self.silence, raise_if_stopped, self.report_wait)
                handles = HolderHandles(self.request.geometry, gpus, sockets, self.allow_uids, commits)
            return apply(
                request,
                ledger,
                progress=_shared(stack.enter_context(self.progress()), holder),
                stop=self.stop,
                handle_source=handles,
                hold=holder.hold if holder else None,
                context=context,
            )

    def _in_processes(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        from memtopo.run import processes  # noqa: PLC0415 a layout of one process needs no workers

        if self.request.trace:
            from memtopo.driver.trace_files import empty_folder  # noqa: PLC0415 few runs are traced

            empty_folder(self.request.trace)
        ensemble = processes.Ensemble(
            self.request,
            SpecText.of(self.composition.document),
            self.composition.target.machine,
            self.silence,
            sockets,
            tuple(self.allow_uids),
            log=holder.log if holder else None,  # a pipe of the caller would not end while they live
        )
        hold = holder.hold if holder else None
        with self.progress() as shown:
            return processes.apply(ensemble, progress=_shared(shown, holder), stop=self.stop, hold=hold)


def _shared(shown: Progress, holder: Holder | None) -> Progress:
    """Hooks that show the progress of a run here, and to the clients of its holder."""
    return SafeProgress(shown, holder.progress) if holder else shown
