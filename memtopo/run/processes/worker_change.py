"""A worker's part in changes of the layout: planned with those of all processes, and made stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from memtopo.common.errors import MemtopoError
from memtopo.executor import StepFailed, Stopped
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.transition import Transition
from memtopo.run.apply import Run
from memtopo.run.capacity import require_room
from memtopo.run.change import Change, RollbackFailed, require_declared
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import (
    ChangeCommand,
    ChangeResult,
    EndChange,
    MakeStage,
    PlanSwitch,
    ReadKept,
    TurnBack,
    WriteKept,
)


class WorkerChange:
    """Changes of one process of a layout between its states. A change is planned, then made, then ended."""

    def __init__(self, run: Run, plans: JointPlans) -> None:
        self._run, self._plans = run, plans
        self._target = AWAKE
        self._planned: tuple[Plan, Transition] | None = None
        self._making: Change | None = None
        self._reason = ""

    def answer(self, command: ChangeCommand) -> ChangeResult:
        """Obey a command. Raises `RollbackFailed`, after which the layout can only be taken down."""
        match command:
            case PlanSwitch(state):
                return self._plan(state)
            case MakeStage(back=True):
                return self._roll_back(command)
            case MakeStage():
                return self._advance(command)
            case TurnBack(reason):
                self._reason = reason
                self._change.turn_back()
                self._target = self._run.state
                return ChangeResult()
            case EndChange():
                return self._end()

    def rehearse(self, command: WriteKept | ReadKept) -> None:
        """Write bytes, or check and read them in the state that the layout is in. Raises `StepFailed` or `Stopped`."""
        part = self._run.rehearsed(self._plans.states)
        if isinstance(command, WriteKept):
            part.write(command.states)
        else:
            part.read(command.states, self._run.state)

    def _plan(self, state: str) -> ChangeResult:
        request = self._run.request
        try:
            steps = self._plans.transitions(self._run.state, state)
            self._require_room(steps)
        except StepFailed as failed:
            return ChangeResult(str(failed))
        except MemtopoError as refused:
            return ChangeResult(refused.message, refused.hint)
        plan = self._plans.states[state][request.process]
        self._target, self._planned, self._making = state, (plan, steps[request.process]), None
        return ChangeResult()

    def _require_room(self, steps: Mapping[str, Transition]) -> None:
        """Refuse what does not fit with all processes; each of them has simulated GPUs of its own."""
        request = self._run.request
        own = request.machine.simulated
        needed = steps[request.process] if own else Transition.together(steps.values())
        require_room(self._run.execution, needed, request.machine_facts)

    @property
    def _change(self) -> Change:
        """Change under way, which begins with its first stage."""
        if self._making is None:
            assert self._planned, "a change is made that was not planned"
            self._making = Change(self._run.execution, *self._planned)
        return self._making

    def _advance(self, command: MakeStage) -> ChangeResult:
        try:
            self._make(command)
        except StepFailed as failed:
            return ChangeResult(str(failed))
        except Stopped:
            return ChangeResult("interrupted")
        return ChangeResult()

    def _roll_back(self, command: MakeStage) -> ChangeResult:
        with self._going_back():
            self._make(command)
        return ChangeResult()

    def _check_rollback(self) -> None:
        with self._going_back():
            require_declared(self._run.execution)
        self._reason = ""

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        try:
            yield
        except StepFailed as failed:
            raise RollbackFailed(MemtopoError(self._reason), failed) from failed

    def _make(self, command: MakeStage) -> None:
        with self._run.execution.timed("change", announce=False):
            self._change.advance(command.stage)

    def _end(self) -> ChangeResult:
        touched = self._change.end()
        if self._reason:
            self._check_rollback()
        self._run.state, self._planned, self._making = self._target, None, None
        return ChangeResult(touched=touched)
