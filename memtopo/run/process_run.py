"""Run of one process that executes the commands of a conductor, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from memtopo.common.errors import InternalError
from memtopo.executor import TeardownGates
from memtopo.language.names import AWAKE
from memtopo.plans.transition import Transition
from memtopo.run import messages
from memtopo.run.base_run import BaseRun
from memtopo.run.change import Change, Target
from memtopo.run.layout_plans import LayoutPlans, Variant, lost, transitions_between
from memtopo.run.messages import ChangeCommand, ChangeResult, Command, Done
from memtopo.run.transition import DoesNotFit, require_room
from memtopo.run.verification.fingerprints import ASPECT
from memtopo.session.request import RunRequest


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
