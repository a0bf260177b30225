"""A worker's part in changes of the layout: planned with those of all processes, and made stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from memtopo.common.errors import InternalError, MemtopoError, Stopped
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.plans.transition import Stage, Transition
from memtopo.run.apply import Run
from memtopo.run.findings import FindingTally
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import (
    ChangeCommand,
    ChangeResult,
    CheckChange,
    EndChange,
    MakeStage,
    PlanChange,
    PlanSwitch,
    ReadKept,
    TurnBack,
    WriteKept,
)
from memtopo.run.states import StatePlans
from memtopo.run.transition import RollbackFailed, StagedTransition, require_declared
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.session.request import RunRequest
from memtopo.sharing.offers import Offer

_LAST = tuple(Stage)[-1]

PlanSpec = Callable[[PlanChange], tuple[RunRequest, JointPlans]]
"""Request of this process, and the plans of all, for another spec. Raises `MemtopoError`."""


@dataclass(frozen=True, slots=True)
class _Target:
    """State that the layout is brought to; `request` is that of another spec, if it is changed to one.

    With `full`, fingerprints compare what is kept.
    """

    plans: JointPlans
    state: str
    plan: Plan
    steps: Transition
    full: bool
    request: RunRequest | None = None


class WorkerChange:
    """Changes of one process of a layout. A change is planned, then made or rolled back, then ended."""

    def __init__(self, run: Run, plans: JointPlans, plan_spec: PlanSpec) -> None:
        self._run, self._plans, self._plan_spec = run, plans, plan_spec
        self._target: _Target | None = None
        self._making: StagedTransition | None = None
        self._changing = ExitStack()
        self._arrived: Callable[[], None] = _ignore
        self._kept: Fingerprints | None = None
        self._findings: FindingTally | None = None
        self._offers: tuple[Offer, ...] | None = None
        self._reason = ""
        self.exports = run.exports_of(run.request.geometry)
        """Exports of the process: while it is changed, those of the spec to which it is changed."""

    def answer(self, command: ChangeCommand) -> ChangeResult:
        """Execute a command. Raises `RollbackFailed`, after which the layout can only be taken down."""
        match command:
            case PlanSwitch():
                return _result(lambda: self._plan_switch(command))
            case PlanChange():
                return _result(lambda: self._plan_change(command))
            case MakeStage(stage, back=False):
                return _result(lambda: self._advance(stage))
            case CheckChange():
                return _result(self._check)
            case TurnBack(reason):
                self._turn_back(reason)
            case MakeStage(stage):
                self._go_back(stage)
            case EndChange():
                return self._end()
        return ChangeResult()

    def rehearse(self, command: WriteKept | ReadKept) -> None:
        """Write bytes, or check and read them in the state that the layout is in. Raises `StepFailed` or `Stopped`."""
        part = self._run.rehearsed(self._plans.states)
        if isinstance(command, WriteKept):
            part.write(command.states)
        else:
            part.read(command.states, self._run.state)
            if self._kept and self._findings:
                self._run.include(self._findings, ASPECT)

    def abandon(self) -> None:
        """Give back what a change under way holds besides the layout, which is then taken down."""
        self._changing.__exit__(Stopped, Stopped(), None)

    def _plan_switch(self, command: PlanSwitch) -> None:
        steps = self._plans.transitions(self._run.state, command.state)
        self._require_room(steps, command.in_use)
        self._aim(self._plans, command.state, steps, full=command.check == "full")

    def _plan_change(self, command: PlanChange) -> None:
        request, plans = self._plan_spec(command)
        steps = self._plans.transitions_to(plans)
        self._require_room(steps, command.in_use)
        self._aim(plans, AWAKE, steps, request, full=command.check == "full")

    def _aim(
        self,
        plans: JointPlans,
        state: str,
        steps: Mapping[str, Transition],
        request: RunRequest | None = None,
        *,
        full: bool,
    ) -> None:
        label = self._run.request.process
        self._target = _Target(plans, state, plans.states[state][label], steps[label], full, request)
        self._making = self._kept = self._findings = self._offers = None
        self._arrived = _ignore

    def _require_room(self, steps: Mapping[str, Transition], exports: Sequence[str]) -> None:
        """Refuse what does not fit with all processes; each of them has simulated GPUs of its own."""
        request, in_use = self._run.request, self._plans.resources_of(exports)
        shared = {request.process: steps[request.process]} if request.machine.simulated else steps
        self._run.require_room_for(Transition.together(shared, in_use), request)

    @property
    def _change(self) -> StagedTransition:
        if self._making is None:
            raise InternalError("a worker was to make a change that was not planned")
        return self._making

    def _advance(self, stage: Stage) -> None:
        if self._making is None:
            self._begin()
        self._timed(lambda: self._change.advance(stage))
        if stage is _LAST:  # not in the check, after which other processes release contexts
            self._change.arrive()
            self._arrived()

    def _begin(self) -> None:
        target, run = self._target, self._run
        if target is None:
            raise InternalError("a worker was to begin a change that was not planned")
        self._kept = Fingerprints.take(run.execution, target.plan) if target.full else None
        self._making = StagedTransition(run.execution, target.plan, target.steps)
        if target.request:
            self._expect(target.request.geometry)
            self._arrived = self._changing.enter_context(run.changing(target.request.geometry.gpus))

    def _check(self) -> None:
        """Check the layout after all stages, before the change is ended."""
        target, run = self._target, self._run
        assert target
        if target.request:
            self._findings = run.check_changed(target.request, target.steps, self._kept)
            self._offers = tuple(self.exports.offers())
            run.suspend(target.request)
            return
        self._findings = run.check_switched(self._kept)

    def _turn_back(self, reason: str) -> None:
        self._reason = reason
        self.abandon()
        self._expect(self._run.request.geometry)
        if self._making:
            with self._going_back():
                self._making.turn_back()

    def _go_back(self, stage: Stage) -> None:
        making = self._making
        if making:  # else it could not begin
            with self._going_back():
                self._timed(lambda: making.advance(stage))

    def _end(self) -> ChangeResult:
        touched = self._making is not None and self._making.end()
        target, reason = self._target, self._reason
        result = ChangeResult(touched=touched)
        if reason:
            with self._going_back():
                require_declared(self._run.execution)
        elif target:
            self._changing.close()
            result = replace(self._adopted(target), touched=touched, offers=self._offers)
        self._target = self._making = None
        self._reason = ""
        return result

    def _adopted(self, target: _Target) -> ChangeResult:
        """Adopt what the layout was changed to, and return the results of its check, or why they cannot be shown."""
        self._run.state, self._plans = target.state, target.plans
        findings = self._findings
        if findings is None:
            return ChangeResult()
        show = findings.checks
        if target.request:
            self._run.adopt(target.request, StatePlans(target.plan, target.request.geometry), findings)
            show = self._run.checks
        found: list[Checks] = []
        result = _result(lambda: found.append(show()))
        return replace(result, checks=found[0] if found else None)

    def _expect(self, geometry: Geometry) -> None:
        self._run.execution.layout.handle_source.expect(geometry)
        self.exports = self._run.exports_of(geometry)

    def _timed(self, act: Callable[[], None]) -> None:
        with self._run.execution.timed("change", announce=False):
            act()

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        try:
            yield
        except StepFailed as failed:
            raise RollbackFailed(MemtopoError(self._reason), failed) from failed


def _ignore() -> None:
    """Do nothing: a switch records nothing anew."""


def _result(act: Callable[[], None]) -> ChangeResult:
    """Result of a part of a change that may be refused, or fail and be rolled back."""
    try:
        act()
    except StepFailed as failed:
        return ChangeResult(str(failed))
    except MemtopoError as refused:
        return ChangeResult(refused.message, refused.hint)
    except Stopped:
        return ChangeResult("interrupted")
    except Exception as error:  # noqa: BLE001 an error of memtopo itself is rolled back as any other
        return ChangeResult(f"internal error: {type(error).__name__}: {error}")
    return ChangeResult()
