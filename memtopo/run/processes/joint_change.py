"""Changes of a layout in all its processes: planned everywhere, made stage by stage, and ended, or rolled back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.common.outcomes import Exit
from memtopo.language.names import AWAKE
from memtopo.plans.report import Check, Checks
from memtopo.plans.transition import Stage
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import (
    ChangeCommand,
    ChangeResult,
    CheckChange,
    EndChange,
    MakeStage,
    PlanChange,
    PlanSwitch,
    TurnBack,
)
from memtopo.sharing.offers import ChangeFailed

CommandAll = Callable[[ChangeCommand], Mapping[str, ChangeResult]]
"""Sends a command to all processes, and returns their results by label. Raises `ChangeFailed` if one has ended."""


class ChangeRefused(MemtopoError):
    """Change that a process did not plan; nothing was changed."""

    exit_code = Exit.FAILED


class JointState:
    """State of a layout of several processes, and its changes.

    `stopped` is called between the stages of a change, and a number other than 0 rolls it back.
    """

    def __init__(self, plans: JointPlans, command_all: CommandAll, stopped: Callable[[], int]) -> None:
        self.plans, self._command_all, self._stopped = plans, command_all, stopped
        self.state = AWAKE
        self.generation = 1

    def plan(self, command: PlanSwitch | PlanChange) -> None:
        """Have all processes plan a change. Raises `ChangeRefused`; nothing is changed yet."""
        results = self._command_all(command)
        if refused := _failures(results):
            raise ChangeRefused(refused, hint=next((each.hint for each in results.values() if each.hint), None))

    def switch(self, state: str, in_use: Collection[str] = (), *, check: Check = "none") -> Mapping[str, Checks]:
        """Bring all processes to a state, while importers outside keep the memory of `in_use` exports.

        Return their checks, which compare every byte that the switch keeps if they are full. Raises `ChangeRefused`
        before anything is changed, and `ChangeFailed`, which names process and call: after all were brought back to the
        state before, or `broken` if a process has ended.
        """
        self.plan(PlanSwitch(state, check, tuple(in_use)))
        results = self._make() if check == "none" else self._make(CheckChange())
        self.state = state
        return checks_of(results)

    def change(self, plans: JointPlans, command: PlanChange) -> Mapping[str, ChangeResult]:
        """Bring all processes to another spec, whose plans these are; `checks_of` has the checks of the results.

        Raises as `switch`.
        """
        self.plan(command)
        results = self._make(CheckChange())
        self.plans = plans
        return results

    def _make(self, *more: ChangeCommand) -> Mapping[str, ChangeResult]:
        """Make the planned change, and return the results of its end. Raises `ChangeFailed`."""
        for command in (*map(MakeStage, Stage), *more):
            failed = _failures(self._command_all(command))
            if failed or self._stopped():
                self._roll_back(failed or "interrupted")
        return self._end()

    def _roll_back(self, failure: str) -> None:
        """Go back through all stages in all processes. Raises `ChangeFailed`."""
        self._command_all(TurnBack(failure))
        for stage in Stage:
            self._command_all(MakeStage(stage, back=True))
        self._end()
        raise ChangeFailed(f"{failure}; the layout is {self.state}, as before", broken=False)

    def _end(self) -> Mapping[str, ChangeResult]:
        results = self._command_all(EndChange())
        self.generation += any(each.touched for each in results.values())
        return results


def _failures(results: Mapping[str, ChangeResult]) -> str:
    """Errors of all processes that have one."""
    return "; ".join(f"{label}: {each.error}" for label, each in results.items() if each.error)


def checks_of(results: Mapping[str, ChangeResult]) -> dict[str, Checks]:
    """Checks of a change that was made, by process. Raises `InternalError` if one cannot show its own."""
    if failed := _failures(results):
        raise InternalError(failed)
    return {label: each.checks for label, each in results.items() if each.checks}
