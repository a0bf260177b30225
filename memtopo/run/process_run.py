"""Run of one process of a layout: build, check, changes, teardown and report, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any

from msgspec.structs import replace

from memtopo.common.errors import InternalError, MemtopoError, Stopped, outcome
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext
from memtopo.executor import Execution, StepFailed, Teardown, TeardownGates, failing
from memtopo.kinds.layout import HandleSource, Reservation
from memtopo.kinds.resources import AGREED, common_ranges
from memtopo.kinds.runs import expanded
from memtopo.kinds.step import Phase
from memtopo.language.names import AWAKE
from memtopo.plans import folding
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Checks, Report
from memtopo.plans.transition import Transition
from memtopo.run import messages, saving
from memtopo.run.layout_plans import WHOLE, Absent, Goal, LayoutPlans, Variant, lost, plans_of, transitions_between
from memtopo.run.leaks import ResourceBalance
from memtopo.run.messages import Addresses, Answer, ChangeResult, Command, Done, Lent
from memtopo.run.reports import FindingTally, exit_code, failure, report_on
from memtopo.run.transition import Change, DoesNotFit, attempted, require_declared, require_room
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.run.verification.isolation import check_isolation
from memtopo.run.verification.rounds import Verification
from memtopo.session.composition import HoldResult, RunRequest
from memtopo.sharing.offers import LayoutExports, Offer
from memtopo.storage.pieces import Restored
from memtopo.storage.saved import SavedPart

PlanSource = Callable[[str, Check], tuple[RunRequest, LayoutPlans]]
"""Request of a process and the plans of all, by the source of a spec and its check. Raises `MemtopoError`."""


class ProcessRun:
    """Run of one process, in parts that all processes of a layout go through together, as a conductor commands."""

    offers: tuple[Offer, ...] = ()
    """Exports of the held layout, read before a change was complete, so that no query fails after it."""
    restored = Restored()
    """Pieces whose bytes came back from a folder."""
    stopped = _held = False

    def __init__(
        self,
        request: RunRequest,
        ledger: Ledger,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int] = lambda: 0,
        handle_source: HandleSource | None = None,
        absent: Absent = frozenset(),
        origin: float | None = None,
        context: CallContext | None = None,
        plans: LayoutPlans | None = None,
        plan_source: PlanSource | None = None,
    ) -> None:
        """`origin` is that of the execution's times, and `context` has what the calls of each moment are made for.

        It is built without the resources that are `absent`, and what needs them. `plans` are those of all processes if
        there are several, and `plan_source` plans the spec that a command names.
        """
        self.request, self.ledger, self.context = request, ledger, context
        self.plans = plans or plans_of(request)
        self._plan_source = plan_source
        self.variant: Variant = AWAKE, absent
        plan = self.plans.to_build(request.process, absent)
        self.execution = Execution(plan, ledger, progress=progress, stop=stop, origin=origin, context=context)
        self.execution.layout.name = self.plans.name_of(request.process)
        self.execution.layout.handle_source = handle_source or HandleSource()
        self.execution.layout.timeout = request.timeout
        self.failure: StepFailed | None = None
        self.hold_result = HoldResult()
        self.balance = ResourceBalance(self.execution, ledger, exclusive=request.exclusive)
        self.findings = FindingTally()
        self.switched: FindingTally | None = None
        """Findings of the check of the last change, if it was checked."""
        self._reserved: Mapping[str, Reservation] = {}
        self._rechecking = Lock()
        self._teardown: Teardown | None = None
        self.verification = Verification(request, ledger, self.execution, self.findings)
        self.change: Change | None = None
        self._goal: tuple[Goal, LayoutPlans]

    def handle(self, command: Command) -> Answer:
        """Execute a command, and return the answer. Raises `StepFailed`, `Stopped`, or `MemtopoError`."""
        answer = _ACTS[type(command)](self, command)
        if answer is None and isinstance(command, messages.ChangeCommand):
            return ChangeResult()
        return answer or Done(self.as_declared, self.verification.safe)

    def goal(self, command: messages.PlanChange) -> tuple[Goal, LayoutPlans]:
        """Goal of a change, and the plans of its spec. Raises `MemtopoError`."""
        if not command.source:
            absent = self.plans.resources_of(command.absent)
            return Goal((command.state, absent), command.check, command.in_use), self.plans
        if self._plan_source is None:
            raise InternalError("a process was sent a spec, and has one that it did not read")
        request, plans = self._plan_source(command.source, command.check)
        return Goal(WHOLE, command.check, command.in_use, request), plans

    @property
    def planned_change(self) -> Change:
        """Change that was planned and is not ended."""
        if self.change is None:
            raise InternalError("a process was sent a command of a change, and no change is planned")
        return self.change

    def lend(self, command: messages.Lend) -> Lent:
        """Lend objects of an export, take them back or list them. Raises `MemtopoError`."""
        if command.listed:
            return Lent(tuple(self.exports.lent(command.export)))
        if command.back is None:
            return Lent(tuple(self.exports.lend(command.export, command.count)))
        self.exports.take_back(command.export, command.back)
        return Lent()

    def agree_on(self, addresses: Mapping[str, int]) -> Addresses:
        """Reserve ranges where they are asked for, if they are free there. Raises `StepFailed`."""
        layout = self.execution.layout
        steps = {step.label: step for step in common_ranges(self.execution.plan.items)}
        layout.of(AGREED).update(addresses)
        for label, address in addresses.items():
            if layout.address(label) != address:
                self.execution.act(steps[label], partial(steps[label].relocate, address=address))
        return Addresses({label: layout.address(label) for label in steps})

    def save(self, folder: str, number: str) -> SavedPart:
        """Write the bytes of this process to a folder. Raises `MemtopoError`, `StepFailed` and `Stopped`."""
        try:
            return saving.save(self.execution, self.request, folder, number)
        finally:
            self.suspend(self.request)

    def restore(self, folder: str) -> None:
        """Copy the bytes of a saved folder to the memory of this process. Raises `StepFailed`."""
        with failing("restore of saved bytes"):
            self.restored = saving.restored(self.execution, folder, self.request.process)

    def write_kept(self, states: Sequence[str]) -> None:
        self.verification.rehearse(lost(self.plans.states, states), write=True)

    def read_kept(self, path: Sequence[str]) -> None:
        """Check every step, and read what all states of a path keep, in the state that the layout is in."""
        self.execution.progress.extend(self.execution.plan.number_of_steps)
        self.findings.add(self.execution.check())
        self.verification.rehearse(lost(self.plans.states, path, self.variant[0]), write=False)
        if self.switched:
            self.findings.merge_findings(self.switched, ASPECT)

    def plan(self, goal: Goal, plans: LayoutPlans) -> None:
        """Plan to bring the layout to a goal; `plans` are those of its spec. Nothing is changed yet.

        The check of another spec verifies new memory by bytes. Other bytes are not written, but a full check compares
        them with what they were. Raises `DoesNotFit`, or `MemtopoError` if there is no such state.
        """
        label, plan = self.request.process, self.execution.plan
        now, after = self.plans.of(self.variant), plans.of(goal.variant)
        if plans is self.plans and plan is now[label]:
            steps = plans.transitions(self.variant, goal.variant)
        else:  # of another spec, or built without some resources
            steps = transitions_between({**now, label: plan}, after)
        request, own = goal.request or self.request, steps[label]
        in_use = self.plans.resources_of(goal.in_use) if goal.in_use else frozenset()
        alone = len(steps) == 1 or request.machine.simulated  # each process has simulated GPUs of its own
        if alone and not in_use:
            growth = own.growth  # which the next switch uses again
        else:
            growth = Transition.together({label: own} if alone else steps, in_use).growth
        try:
            self.execution.resume()  # free memory is queried in contexts
            require_room(self.execution, own, growth, request.machine_facts)
        except (DoesNotFit, StepFailed):
            self.suspend(self.request)
            raise
        self._goal = goal, plans
        other = goal.request.geometry if goal.request else None
        self.change = Change(self.execution, after[label], own, self.balance, check=goal.check, other=other)

    def check_change(self) -> None:
        """Check the layout after all stages, before the change is ended: what is new of another spec by bytes, too.

        Raises `StepFailed` or `Stopped`.
        """
        change, (goal, _) = self.planned_change, self._goal
        if goal.request is None:
            change.findings = self.check_switched(change.kept)
            return
        findings = FindingTally()
        self.execution.progress.extend(self.execution.plan.number_of_steps)
        findings.add(self.execution.check())
        with failing("check of holes and ends"):
            check_isolation(findings, goal.request.geometry, self.ledger, self.execution.layout)
        if change.kept:
            findings.merge_findings(change.kept.compared_after(findings), ASPECT)
        verification = Verification(goal.request, self.ledger, self.execution, findings)
        verification.verify_only({step.provides for step in change.steps.do if step.allocates})
        change.findings, change.offers = findings, self.query_exports()
        self.suspend(goal.request)

    def start_rollback(self, reason: str) -> None:
        """Make the stages of the change those of its rollback. Raises `RollbackFailed`."""
        change = self.planned_change
        self.execution.layout.handle_source.expect(self.request.geometry)
        change.start_rollback(reason)

    def end_change(self) -> ChangeResult:
        """End the change, or its rollback, of which all stages are done. Raises `RollbackFailed`."""
        change, self.change = self.planned_change, None
        touched = change.end()
        if change.back:
            with change.rolling_back():
                require_declared(self.execution)
                self.suspend(self.request)
            return ChangeResult(touched=touched)
        goal, self.plans = self._goal
        self.variant, self.switched = goal.variant, change.findings
        if goal.request:
            self.request, self._reserved = goal.request, {**self.execution.layout.ranges}
            self.findings = change.findings or FindingTally()
            self.verification = Verification(goal.request, self.ledger, self.execution, self.findings)
        if change.offers is not None:
            self.offers = change.offers
        # What may fail comes last, since the layout is changed already.
        if change.findings is None:  # without a check, after which contexts are released
            attempted(lambda: self.suspend(self.request))
            return ChangeResult(touched=touched, offers=change.offers)
        show = self.checks if goal.request else change.findings.checks
        return replace(attempted(lambda: ChangeResult(checks=show())), touched=touched, offers=change.offers)

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record a failure or a requested stop for the report, and continue after the block."""
        try:
            yield
        except StepFailed as failure:
            self.failure = failure
        except Stopped:
            self.stopped = True

    def build(self, *only: Phase) -> None:
        """Do every step, or the steps of some phases. Raises `StepFailed` or `Stopped`."""
        self.execution.build(*only)
        self.execution.layout.handle_source.settle()

    def check(self) -> None:
        """Compare every step with the driver's state, unless the check is "none". Raises `StepFailed` or `Stopped`."""
        self.balance.record_held()
        self._reserved = {**self.execution.layout.ranges}
        if self.request.check == "none":
            return
        with self.execution.timed("check", self.execution.plan.number_of_steps) as count:
            try:
                self.findings.add(self.execution.check())
                with failing("check of holes, ends and access"):
                    self.execution.progress.phase("check holes", 0)
                    check_isolation(self.findings, self.request.geometry, self.ledger, self.execution.layout)
                    if self.variant == WHOLE:  # what is absent has no access yet
                        self.execution.progress.phase("check access", 0)
                        self.verification.try_permitted()
            finally:
                count.steps = self.execution.checked

    def suspend(self, request: RunRequest) -> None:
        """Release contexts that the layout of a request does not need while it is held. Raises `StepFailed`."""
        if self._held:
            self.execution.suspend(request.geometry.idle_gpus)

    @property
    def exports(self) -> LayoutExports:
        """Exports of the process: while it is changed, those of the spec to which it is changed."""
        geometry = (self.change and self.change.geometry) or self.request.geometry
        return LayoutExports(geometry, self.execution.layout, self.execution.driver, self.recheck, self.context)

    def query_exports(self) -> tuple[Offer, ...]:
        """Return what the exports offer. Raises `StepFailed`."""
        with failing("query of exports"):
            return tuple(self.exports.offers())

    def recheck(self) -> Checks:
        """Compare every step with the driver's state again, by queries alone; the report leaves the result out.

        Raises `MemtopoError`, since its caller is another program and the run continues.
        """
        try:
            return self.check_switched().checks()
        except (StepFailed, Stopped) as error:
            raise MemtopoError(f"the check was not finished: {str(error) or 'interrupted'}") from error

    def check_switched(self, kept: Fingerprints | None = None) -> FindingTally:
        """Check the layout by queries, and compare what a switch has `kept`. Raises `StepFailed` or `Stopped`."""
        findings = FindingTally()
        with self._rechecking:  # a check of a mapping keeps its handle in the layout meanwhile
            self.execution.progress.extend(self.execution.plan.number_of_steps)
            try:
                findings.add(self.execution.check())
                if kept:
                    findings.merge_findings(kept.compared_after(findings), ASPECT)
            finally:
                self.suspend(self.request)
        return findings

    @property
    def as_declared(self) -> bool:
        return not self.findings.different

    def hold(self) -> ChangeResult:
        """Keep the layout without the contexts that only its changes and checks need. Raises `StepFailed`.

        A context takes some 500 MiB of its GPU, and ends with a fault of any process that shares the GPU's channel.
        """
        self._held = True
        self.suspend(self.request)
        self.offers = self.offers or self.query_exports()
        return ChangeResult(offers=self.offers)

    def take_down(self, gates: TeardownGates | None = None) -> None:
        """Undo everything; `gates` as for `Execution.take_down`."""
        if self.change:
            self.change.abandon()
        self.execution.layout.handle_source.settle()
        self.balance.record_before_teardown()
        self._teardown = self.execution.take_down(gates)
        self.failure = self.failure or next(iter(self._teardown.failures), None)
        if self.request.check != "none":  # each process has simulated GPUs of its own
            own = self.request.machine.simulated
            geometries = [self.request.geometry] if own else self.request.processes_of_node.values()
            left = self.balance.left(self._teardown, self.hold_result.descriptors)
            self.findings.add(self.balance.misplaced(geometries, left))

    def report(self) -> Report:
        """Return the report of the run, after its teardown."""
        request, teardown = self.request, self._teardown
        if teardown is None:
            raise InternalError("a run is reported before it is taken down")
        left = self.balance.left(teardown, self.hold_result.descriptors)
        leaks = self.balance.leaks(teardown, left, request.position_of)
        notes = [*self.hold_result.notes, *(request.notes() if request.siblings is None else ())]
        if self.context and self.context.lost:
            notes.append(self.context.lost)
        notes += saving.notes_on(self.restored)
        notes += self.balance.notes(teardown, left, request.geometry, clean=not leaks)
        signal = self.execution.stop() if self.stopped else None
        codes = [exit_code(self.failure.error)] if self.failure else ()
        # In the order of the plan: a change reserves new ranges after the old ones.
        phases = self.plans.of(WHOLE)[request.process].phases
        reserving = chain.from_iterable(steps for phase, steps in phases if phase is Phase.RESERVE)
        labels = [step.describe().subject for step in expanded(reserving)]
        ranges = {label: self._reserved[label] for label in labels if label in self._reserved}
        return report_on(
            request,
            outcome(leaks, signal=signal, as_declared=self.as_declared, codes=codes),
            times=tuple(self.execution.times),
            checks=None if self.findings.empty else self.checks(),
            failure=failure(self.failure, request) if self.failure else None,
            leaks=leaks,
            left=left,
            notes=tuple(notes),
            placed=tuple(folding.placed(ranges)),
        )

    def checks(self) -> Checks:
        """Results of the checks of the layout as it was built or changed, with the position of each difference."""
        found = self.findings.checks()
        differences = tuple(replace(each, place=self.request.position_of(each.path)) for each in found.differences)
        return replace(found, differences=differences, rates=self.verification.rates)


_ACTS: Mapping[type[Any], Callable[[ProcessRun, Any], Answer | None]] = {
    messages.BuildPhase: lambda run, command: run.build(command.phase),
    messages.AgreeOn: lambda run, command: run.agree_on(command.addresses),
    messages.CheckSteps: lambda run, _: run.check(),
    messages.WriteRound: lambda run, command: run.verification.write(command.index),
    messages.ReadRound: lambda run, command: run.verification.read(command.index),
    messages.TryForbidden: lambda run, _: run.verification.try_forbidden(),
    messages.SkipVerification: lambda run, command: run.verification.skip(command.reason),
    messages.WriteKept: lambda run, command: run.write_kept(command.states),
    messages.ReadKept: lambda run, command: run.read_kept(command.states),
    messages.RestoreBytes: lambda run, command: run.restore(command.folder),
    messages.Hold: lambda run, _: run.hold(),
    messages.Recheck: lambda run, _: ChangeResult(checks=run.recheck()),
    messages.Lend: lambda run, command: run.lend(command),
    messages.SaveBytes: lambda run, command: run.save(command.folder, command.number),
    messages.PlanChange: lambda run, command: run.plan(*run.goal(command)),
    messages.MakeStage: lambda run, command: run.planned_change.make(command.stage),
    messages.CheckChange: lambda run, _: run.check_change(),
    messages.StartRollback: lambda run, command: run.start_rollback(command.reason),
    messages.EndChange: lambda run, _: run.end_change(),
}
"""Act of each command; if it returns none, the answer is `ChangeResult` or `Done`."""
