"""Run of one process that executes the commands of a conductor, in this process or in a worker, and its changes.

A change is planned, made stage by stage with all processes, then ended or rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from memtopo.common.errors import InternalError, MemtopoError, Stopped
from memtopo.executor import StepFailed, TeardownGates
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.plans.transition import Stage, Transition
from memtopo.run import messages
from memtopo.run.base_run import BaseRun
from memtopo.run.layout_plans import LayoutPlans, Variant, lost, transitions_between
from memtopo.run.messages import ChangeCommand, ChangeResult, Command, Done
from memtopo.run.reports import FindingTally
from memtopo.run.transition import DoesNotFit, RollbackFailed, StagedTransition, require_declared, require_room
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.session.request import RunRequest
from memtopo.sharing.offers import Offer


class ProcessRun(BaseRun):
    """Run of one process. A change is planned, then made or rolled back, then ended."""

    _change: Change | None = None

    def execute(self, command: Command) -> Done | ChangeResult:
        """Execute a command, and return the answer. Raises `StepFailed`, `Stopped`, or `MemtopoError`."""
        if isinstance(command, messages.ChangeCommand):
            return self._execute_change(command)
        if isinstance(command, messages.Recheck):
            return ChangeResult(checks=self.recheck())
        if isinstance(command, messages.Hold):
            self.release_contexts()
            return ChangeResult(offers=tuple(self.exports.offers()))
        self._build_or_verify(command)
        return Done(self.as_declared, self.verification.safe)

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
                self.verification.write_kept(lost(self.plans.states, states))
            case messages.ReadKept(states):
                self._read_kept(states)
            case _:
                raise InternalError(f"a process was sent {type(command).__name__} as a command")

    def _read_kept(self, path: Sequence[str]) -> None:
        """Check every step, and read what all states of a path keep, in the state that the layout is in."""
        self.execution.progress.extend(len(self.execution.plan.steps))
        self.findings.add(self.execution.check())
        self.verification.read_kept(lost(self.plans.states, path, self.variant[0]))
        if self.switched:
            self.findings.include(self.switched, ASPECT)

    def _execute_change(self, command: ChangeCommand) -> ChangeResult:
        if isinstance(command, messages.PlanSwitch):
            self.plan_switch((command.state, self.variant[1]), command.in_use, full=command.check == "full")
            return ChangeResult()
        change = self._change
        if change is None:
            raise InternalError(f"a process was sent {type(command).__name__}, and no change is planned")
        match command:
            case messages.MakeStage(stage, back):
                (change.roll_back if back else change.make)(stage)
            case messages.CheckChange():
                change.check()
            case messages.TurnBack(reason):
                change.start_rollback(reason)
            case messages.EndChange():
                self._change = None
                return change.end()
        return ChangeResult()

    def plan_switch(self, variant: Variant, in_use: Collection[str] = (), *, full: bool = False) -> None:
        """Plan to bring the layout to a variant; nothing is changed yet.

        Importers keep the memory of `in_use` exports. With `full`, kernels verify all bytes that the switch keeps;
        nothing may write them meanwhile. Raises `DoesNotFit`, or `MemtopoError` if there is no such state.
        """
        now, after = self.plans.of(self.variant), self.plans.of(variant)
        label, plan = self.request.process, self.execution.plan
        if plan is now[label]:
            steps = self.plans.transitions(self.variant, variant)
        else:  # built without some resources
            steps = transitions_between({label: plan}, after)
        self._require_room(steps, self.request, in_use)
        self._change = Change(self, Target(self.plans, variant, after[label], steps[label], full))

    def plan_change(
        self,
        request: RunRequest,
        plans: LayoutPlans,
        in_use: Collection[str] = (),
        absent: frozenset[Hashable] = frozenset(),
    ) -> None:
        """Plan to bring the layout, in state awake, to another request, without the resources that are `absent` then.

        The check is that of the request, and new memory is verified by bytes; other bytes are not written, but if the
        check is full, kernels compare them with what they were. `plans` and `in_use` are as in `plan_switch`.
        """
        label, variant = request.process, (AWAKE, absent)
        after = plans.of(variant)
        steps = transitions_between({**self.plans.of(self.variant), label: self.execution.plan}, after)
        self._require_room(steps, request, in_use)
        self._change = Change(
            self, Target(plans, variant, after[label], steps[label], request.check == "full", request)
        )

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


@dataclass(frozen=True, slots=True)
class Target:
    """Variant that the layout is brought to; `request` is that of another spec, if it is changed to one.

    With `full`, fingerprints compare the bytes that the change keeps.
    """

    plans: LayoutPlans
    variant: Variant
    plan: Plan
    steps: Transition
    full: bool
    request: RunRequest | None = None


class Change:
    """Change of a run to a target. `findings` are those of its check, if it was checked."""

    def __init__(self, run: BaseRun, target: Target) -> None:
        self._run, self._target = run, target
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
            making.arrive()
            self._record_held()

    def check(self) -> None:
        """Check the layout after all stages, before the change is ended. Raises `StepFailed` or `Stopped`."""
        run, target = self._run, self._target
        if target.request is None:
            self.findings = run.check_switched(self._kept)
            return
        self.findings = run.check_changed(target.request, target.steps, self._kept)
        self._offers = tuple(run.exports.offers())
        run.suspend(target.request)

    def start_rollback(self, reason: str) -> None:
        """Make the stages those of the rollback. Raises `RollbackFailed`."""
        self._reason = reason
        self.abandon()
        self._run.expect(self._run.request.geometry)
        if self._making:
            with self._rolling_back():
                self._making.turn_back()

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
            return ChangeResult(touched=touched)
        self._recording.close()
        self._run.adopt(self._target.plans, self._target.variant, self._target.request, self.findings)
        return replace(self._presented(), touched=touched, offers=self._offers)

    def abandon(self) -> None:
        """Give back what the change holds besides the layout, which is rolled back or taken down."""
        self._recording.__exit__(Stopped, Stopped(), None)

    def _begin(self) -> StagedTransition:
        run, target = self._run, self._target
        self._kept = Fingerprints.take(run.execution, target.plan) if target.full else None
        self._making = StagedTransition(run.execution, target.plan, target.steps)
        if target.request:
            run.expect(target.request.geometry)
            self._record_held = self._recording.enter_context(run.balance.changing(target.request.geometry.gpus))
        return self._making

    def _advance(self, making: StagedTransition, stage: Stage) -> None:
        with self._run.execution.timed("change", making.count(stage), announce=False):
            making.advance(stage)

    def _presented(self) -> ChangeResult:
        """Results of the check of what the layout was changed to, or why they cannot be shown."""
        if self.findings is None:
            return ChangeResult()
        show = self._run.checks if self._target.request else self.findings.checks
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
