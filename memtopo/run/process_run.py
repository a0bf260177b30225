"""Run of one process that executes the commands of a conductor, in this process or in a worker, and its changes.

A change is planned, made stage by stage with all processes, then ended or rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from memtopo.common.errors import InternalError, MemtopoError, Stopped, internal_errors
from memtopo.executor import StepFailed, TeardownGates
from memtopo.plans.report import Checks
from memtopo.plans.transition import Stage, Transition
from memtopo.run import messages
from memtopo.run.base_run import BaseRun
from memtopo.run.layout_plans import Goal, LayoutPlans, lost, transitions_between
from memtopo.run.messages import ChangeCommand, ChangeResult, Command, Done, Lent
from memtopo.run.reports import FindingTally
from memtopo.run.transition import DoesNotFit, RollbackFailed, StagedTransition, require_declared, require_room
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.session.request import RunRequest
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer


class ProcessRun(BaseRun):
    """Run of one process. A change is planned, then made or rolled back, then ended."""

    _change: Change | None = None

    def execute(self, command: Command) -> Done | ChangeResult | Lent:
        """Execute a command, and return the answer. Raises `StepFailed`, `Stopped`, or `MemtopoError`."""
        if isinstance(command, messages.ChangeCommand):
            return self._execute_change(command)
        if isinstance(command, messages.Recheck):
            return ChangeResult(checks=self.recheck())
        if isinstance(command, messages.Hold):
            self.release_contexts()
            return ChangeResult(offers=tuple(self.exports.offers()))
        if isinstance(command, messages.Lend):
            return self._lend(command)
        self._build_or_verify(command)
        return Done(self.as_declared, self.verification.safe)

    def _lend(self, command: messages.Lend) -> Lent:
        """Objects that are lent, after others were given back, or why there are none."""
        try:
            with internal_errors():
                self.exports.take_back(command.export, command.back)
                return Lent(tuple(self.exports.lend(command.export, command.count)))
        except MemtopoError as error:
            return Lent(error=error.message, code=error.code if isinstance(error, ExchangeError) else None)

    def _build_or_verify(self, command: Command) -> None:
        match command:
            case messages.BuildPhase(phase):
                self.build(phase)
            case messages.CheckSteps():
                self.check()
            case messages.WriteRound(index):
                self.verification.write(index)
            case messages.ReadRound(index):
                self.verification.read(index)
            case messages.TryForbidden():
                self.verification.try_forbidden()
            case messages.SkipVerification(reason):
                self.verification.skip(reason)
            case messages.WriteKept(states):
                self.verification.rehearse(lost(self.plans.states, states), write=True)
            case messages.ReadKept(states):
                self._read_kept(states)
            case _:
                raise InternalError(f"a process was sent {type(command).__name__} as a command")

    def _read_kept(self, path: Sequence[str]) -> None:
        """Check every step, and read what all states of a path keep, in the state that the layout is in."""
        self.execution.progress.extend(len(self.execution.plan.steps))
        self.findings.add(self.execution.check())
        self.verification.rehearse(lost(self.plans.states, path, self.variant[0]), write=False)
        if self.switched:
            self.findings.merge_findings(self.switched, ASPECT)

    def _execute_change(self, command: ChangeCommand) -> ChangeResult:
        change = self._change
        if change is None:
            raise InternalError(f"a process was sent {type(command).__name__}, and no change is planned")
        match command:
            case messages.MakeStage(stage, back):
                (change.roll_back if back else change.make)(stage)
            case messages.CheckChange():
                change.check()
            case messages.StartRollback(reason):
                change.start_rollback(reason)
            case messages.EndChange():
                self._change = None
                return change.end()
        return ChangeResult()

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
        self._require_room(steps, goal.request or self.request, goal.in_use)
        self._change = Change(self, goal, plans, steps[label])

    def _require_room(self, steps: Mapping[str, Transition], request: RunRequest, exports: Collection[str]) -> None:
        """Refuse what does not fit with all processes; each of them has simulated GPUs of its own."""
        own, in_use = steps[request.process], self.plans.resources_of(exports) if exports else frozenset()
        if len(steps) == 1 or request.machine.simulated:
            gone = {resource for label, resource in in_use if label == request.process}
            growth = own.growth_beside(gone) if gone else own.growth
        else:
            growth = Transition.together(steps, in_use).growth
        self.execution.resume()  # free memory is queried in contexts
        try:
            require_room(self.execution, own, growth, request.machine_facts)
        except DoesNotFit:
            self.suspend(self.request)
            raise

    def take_down(self, gates: TeardownGates | None = None) -> None:
        if self._change:
            self._change.abandon()
        super().take_down(gates)


_LAST = tuple(Stage)[-1]


class Change:
    """Change of a run to a goal, by the `steps` of a transition. `findings` are those of its check, if it was checked.

    `plans` are those of the goal's spec. With a full check, fingerprints compare the bytes that the change keeps.
    """

    def __init__(self, run: BaseRun, goal: Goal, plans: LayoutPlans, steps: Transition) -> None:
        self._run, self._goal, self._plans, self._steps = run, goal, plans, steps
        self.findings: FindingTally | None = None
        self._making: StagedTransition | None = None
        self._recording = ExitStack()
        self._record_held: Callable[[], None] = lambda: None
        self._kept: Fingerprints | None = None
        self._offers: tuple[Offer, ...] | None = None
        self._reason = ""

    def make(self, stage: Stage) -> None:
        """Do one stage. Raises `StepFailed` or `Stopped`."""
        making = self._making or self._begin()
        self._advance(making, stage)
        if stage is _LAST:  # not in the check, after which other processes release contexts
            making.adopt_new_plan()
            self._record_held()

    def check(self) -> None:
        """Check the layout after all stages, before the change is ended. Raises `StepFailed` or `Stopped`."""
        run, request = self._run, self._goal.request
        if request is None:
            self.findings = run.check_switched(self._kept)
            return
        self.findings = run.check_changed(request, self._steps, self._kept)
        self._offers = tuple(run.exports.offers())
        run.suspend(request)

    def start_rollback(self, reason: str) -> None:
        """Make the stages those of the rollback. Raises `RollbackFailed`."""
        self._reason = reason
        self.abandon()
        self._run.expect(self._run.request.geometry)
        if self._making:
            with self._rolling_back():
                self._making.start_rollback()

    def roll_back(self, stage: Stage) -> None:
        """Do one stage of the rollback. Raises `RollbackFailed`."""
        if self._making:  # else it could not begin
            with self._rolling_back():
                self._advance(self._making, stage)

    def end(self) -> ChangeResult:
        """End the change, or its rollback, of which all stages are done. Raises `RollbackFailed`."""
        touched = self._making is not None and self._making.end()
        if self._reason:
            with self._rolling_back():
                require_declared(self._run.execution)
                self._run.suspend(self._run.request)
            return ChangeResult(touched=touched)
        self._recording.close()
        self._run.adopt(self._plans, self._goal.variant, self._goal.request, self.findings)
        if self.findings is None:  # without a check, after which contexts are released
            attempted(lambda: self._run.suspend(self._run.request))
        return replace(self._presented(), touched=touched, offers=self._offers)

    def abandon(self) -> None:
        """Give back what the change holds besides the layout, which is rolled back or taken down."""
        self._recording.__exit__(Stopped, Stopped(), None)

    def _begin(self) -> StagedTransition:
        run, request = self._run, self._goal.request
        plan = self._plans.of(self._goal.variant)[run.request.process]
        self._kept = Fingerprints.take(run.execution, plan) if self._goal.check == "full" else None
        self._making = StagedTransition(run.execution, plan, self._steps)
        if request:
            run.expect(request.geometry)
            self._record_held = self._recording.enter_context(run.balance.rebaseline(request.geometry.gpus))
        return self._making

    def _advance(self, making: StagedTransition, stage: Stage) -> None:
        with self._run.execution.timed("change", making.count(stage), announce=False):
            making.advance(stage)

    def _presented(self) -> ChangeResult:
        """Results of the check of what the layout was changed to, or why they cannot be shown."""
        if self.findings is None:
            return ChangeResult()
        show = self._run.checks if self._goal.request else self.findings.checks
        found: list[Checks] = []
        result = attempted(lambda: found.append(show()))
        return replace(result, checks=found[0] if found else None)

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        try:
            yield
        except StepFailed as failed:
            raise RollbackFailed(self._reason, failed) from failed
        except Exception as error:
            raise RollbackFailed(self._reason, StepFailed(None, "rollback", error)) from error


def attempted(act: Callable[[], object]) -> ChangeResult:
    """Result of a part of a change that may be refused, or fail and be rolled back. Raises `RollbackFailed`."""
    try:
        act()
    except RollbackFailed:
        raise
    except StepFailed as failed:
        return ChangeResult(str(failed))
    except MemtopoError as refused:
        return ChangeResult(refused.message, refused.hint)
    except Stopped:
        return ChangeResult("interrupted")
    except Exception as error:  # noqa: BLE001 an error of memtopo itself is rolled back as any other
        return ChangeResult(f"internal error: {type(error).__name__}: {error}")
    return ChangeResult()
