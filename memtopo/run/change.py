"""Change of a built layout to another plan, or back to the plan that it had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from memtopo.common.garbage_collection import collector_paused
from memtopo.executor import Execution, StepFailed, Stopped
from memtopo.kinds.step import Step
from memtopo.planner import Plan
from memtopo.plans.transition import Action, Transition, transition


class RollbackFailed(StepFailed):
    """Failure of a change whose rollback failed, too: the layout can only be taken down.

    It has the step and the error of the rollback; `failure` is the failure of the change.
    """

    def __init__(self, failure: BaseException, rollback: StepFailed) -> None:
        action = f"{rollback.action}, to roll back a change ({failure})"
        super().__init__(rollback.step, action, rollback.error, rollback.path)
        self.failure = failure


def change(execution: Execution, plan: Plan, known: Transition | None = None) -> None:
    """Bring a built layout to another plan; the steps that both plans have are not touched.

    `known` is the transition, if it was computed before. Raises `StepFailed` or `Stopped` after the layout was brought
    back to the plan that it had, with new and empty memory in place of what was already released; `RollbackFailed` if
    that is impossible.
    """
    _Change(execution, plan, known or transition(execution.plan.steps, plan.steps)).make()


class _Change:
    """One change: the steps undone so far, and the steps attempted."""

    def __init__(self, execution: Execution, plan: Plan, steps: Transition) -> None:
        self._execution, self._old, self._new = execution, execution.plan, plan
        self._transition = steps
        self._undone: list[Step] = []
        self._attempted: list[Step] = []

    def make(self) -> None:
        execution, steps = self._execution, self._transition
        done = execution.done
        # A teardown in between has to find all that exists; undoing what does not exist has no effect.
        execution.done = [*done, *steps.do]
        with execution.timed("change", len(steps.actions)), collector_paused():
            try:
                self._take(steps.actions, execution.stop)
            except BaseException as error:
                self._roll_back(error)
                execution.done = done
                raise
            finally:
                execution.generation += any(not step.repeated for step in (*self._attempted, *self._undone))
        execution.plan, execution.done = self._new, list(self._new.steps)

    def _take(self, actions: Iterable[Action], stop: Callable[[], bool]) -> None:
        """Take actions, in one loop without further calls: a driver call takes 15 to 25 µs."""
        driver, layout = self._execution.driver, self._execution.layout
        undone, attempted = self._undone.append, self._attempted.append
        for step, undo in actions:
            if stop():
                raise Stopped
            try:
                if undo:
                    step.undo(driver, layout)
                    undone(step)
                else:
                    attempted(step)
                    step.do(driver, layout)
            except Exception as error:
                verb = f"undo {step.verb}" if undo else step.verb
                raise StepFailed(step, f"{verb} {step.describe().subject}", error) from error

    def _roll_back(self, failure: BaseException) -> None:
        """Undo what was attempted, and do again what was undone. Raises `RollbackFailed`."""
        undo = [Action(step, undo=True) for step in reversed(self._attempted)]
        back = transition(list(self._present()), self._old.steps)
        try:
            self._take([*undo, *back.actions], stop=lambda: False)
        except StepFailed as error:
            raise RollbackFailed(failure, error) from error

    def _present(self) -> Iterator[Step]:
        """Steps that are in effect after the attempted ones are undone.

        A kept step is taken from the new plan, since its access may have been changed: a failed `cuMemSetAccess` may
        have made some of its grants (fact 62).
        """
        undone = {step.effect for step in self._undone}
        changed = {step.effect: step for step in self._new.steps} if self._attempted else {}
        for step in self._old.steps:
            if step.effect not in undone:
                yield changed.get(step.effect, step)
        yield from (step for step in self._attempted if step.renews_needs and not step.undo_call)
        if self._undone:
            # What was undone had been copied before.
            yield from (step for step in self._new.steps if step.keeps is not None)
