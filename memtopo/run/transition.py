"""Transition of a built layout to another plan, or back to the plan that it had, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memtopo.common.errors import MemtopoError, Stopped
from memtopo.executor import Execution, Pace, StepFailed, note_step
from memtopo.kinds.layout import LateError
from memtopo.kinds.step import Step
from memtopo.planner import Plan
from memtopo.plans.transition import Action, Stage, StagedAction, Transition, transition, undo_stage


class RollbackFailed(StepFailed):
    """Failure of a transition whose rollback failed, too: the layout can only be taken down.

    It has the step and the error of the rollback; `failure` is the failure of the transition.
    """

    def __init__(self, failure: BaseException, rollback: StepFailed) -> None:
        action = f"{rollback.action}, to roll back a change ({failure})"
        super().__init__(rollback.step, action, rollback.error, rollback.path)
        self.failure = failure


def make_transition(execution: Execution, plan: Plan, known: Transition | None = None) -> None:
    """Bring a built layout to another plan; the steps that both plans have are not touched.

    `known` is the transition, if it was computed before. Raises `StepFailed` or `Stopped` after the layout was brought
    back to the plan that it had, with new and empty memory in place of what was already released; `RollbackFailed` if
    that is impossible.
    """
    steps = known or transition(execution.plan.steps, plan.steps)
    with execution.timed("change", len(steps.actions), announce=False):
        making = StagedTransition(execution, plan, steps)
        try:
            for stage in Stage:
                making.advance(stage)
        except BaseException as error:
            _roll_back(making, error)
            raise
        making.end()


def _roll_back(making: StagedTransition, failure: BaseException) -> None:
    """Bring the layout back to the plan that it had. Raises `RollbackFailed`."""
    making.turn_back()
    try:
        for stage in Stage:
            making.advance(stage)
    except StepFailed as error:
        raise RollbackFailed(failure, error) from error
    making.end()


class StagedTransition:
    """Transition of the layout of one process: `advance` through all stages, then `end`.

    Raises `StepFailed` if the contexts of a held layout cannot be retained again. After a failure, `turn_back`, and
    advance through all stages again, which then undo what was done and do again what was undone. Processes of one
    layout go through each stage together. A teardown is possible at any time.
    """

    def __init__(self, execution: Execution, plan: Plan, steps: Transition) -> None:
        execution.resume()
        execution.progress.extend(len(steps.actions))
        self._execution, self._old, self._new, self._transition = execution, execution.plan, plan, steps
        self._undone: list[Step] = []
        self._attempted: list[Step] = []
        self._stop = execution.stop
        self._back = False
        # A teardown in between has to find all that exists; undoing what does not exist has no effect.
        execution.done = [*execution.done, *steps.do]

    def advance(self, stage: Stage) -> None:
        """Do and undo the steps of one stage. Raises `StepFailed`, or `Stopped` unless it is rolled back."""
        execution, actions = self._execution, self._transition.stages[stage]
        try:
            for batch in Pace().batches(actions):
                self._take(batch)
                execution.progress.advance(len(batch))
        finally:
            execution.layout.handle_source.settle()

    def arrive(self) -> None:
        """Let the layout have the plan to which all stages brought it, to check it; it can still be turned back."""
        execution = self._execution
        execution.plan = self._old if self._back else self._new
        execution.done = list(execution.plan.steps)  # so that no step is suspended that a stage has undone

    def turn_back(self) -> None:
        """Make the stages those of the rollback: undo what was attempted, and do again what was undone.

        Raises `StepFailed` if contexts that were released after the transition cannot be retained again.
        """
        self._execution.resume()
        back = transition(list(self._present()), self._old.steps)
        self._transition, self._back = Transition.of(self._rollback(back)), True
        self._execution.progress.extend(len(self._transition.actions))
        self._stop = lambda: False
        self._execution.done = [*self._execution.done, *back.do]

    def end(self) -> bool:
        """End the transition: the layout has the new plan, or again the old one. Return true if it touched anything."""
        self.arrive()
        touched = any(not step.repeated for step in (*self._attempted, *self._undone))
        self._execution.generation += touched
        return touched

    def _take(self, actions: Sequence[Action]) -> None:
        """Take actions, in one loop without further calls: a driver call takes 15 to 25 µs."""
        driver, layout, stop = self._execution.driver, self._execution.layout, self._stop
        context = self._execution.context
        undone, attempted = ([], []) if self._back else (self._undone, self._attempted)
        for step, undo in actions:
            if stop():
                raise Stopped
            if context:
                note_step(context, step, undo=undo)
            try:
                if undo:
                    step.undo(driver, layout)
                    undone.append(step)
                else:
                    attempted.append(step)
                    step.do(driver, layout)
            except Exception as error:
                if undo and isinstance(error, LateError):
                    undone.append(step)
                verb = f"undo {step.verb}" if undo else step.verb
                raise StepFailed(step, f"{verb} {step.describe().subject}", error) from error
            finally:
                if context:
                    context.leave()

    def _rollback(self, back: Transition) -> Iterator[StagedAction]:
        """Actions of the rollback. Work that a stage of the transition has begun ends before anything is unmapped."""
        if back.actions or self._attempted:
            settled = (step for step in reversed(self._old.steps) if step.repeated)
            yield from ((Stage.SETTLE, Action(step, undo=True)) for step in settled)
        for step in reversed(self._attempted):
            yield Stage.COPY if step.awaited else undo_stage(step), Action(step, undo=True)
        for stage in (stage for stage in Stage if stage is not Stage.SETTLE):
            yield from ((stage, action) for action in back.stages[stage])

    def _present(self) -> Iterator[Step]:
        """Steps that are in effect after the attempted ones are undone.

        A kept step is taken from the new plan, since its access may have been changed: a failed `cuMemSetAccess` may
        have made some of its grants (fact 62).
        """
        undone = {each.effect for step in self._undone for each in step.parts or (step,) if not each.ends_with_needs}
        gone = {step.provides for step in self._undone if step.provides is not None}
        changed = {step.effect: step for step in self._new.steps} if self._attempted else {}
        for step in self._old.steps:
            if step.effect not in undone and not (step.ends_with_needs and not gone.isdisjoint(step.needs)):
                yield changed.get(step.effect, step)
        made = {step.provides for step in self._attempted}
        for step in self._attempted:
            ends = step.ends_with_needs and not made.isdisjoint(step.needs)
            if step.renews_needs and not step.undo_call and not ends:
                yield step
        if self._undone:
            # What was undone had been copied before.
            yield from (step for step in self._new.steps if step.keeps is not None)


@contextmanager
def all_or_nothing(execution: Execution) -> Iterator[None]:
    """Bring a layout back to the plan that it has now if the code inside fails, and check it by queries.

    Raises `RollbackFailed` if that is impossible.
    """
    plan, stop = execution.plan, execution.stop
    try:
        yield
    except RollbackFailed:
        raise
    except BaseException as failure:
        execution.stop = lambda: False
        try:
            make_transition(execution, plan)
            require_declared(execution)
        except StepFailed as error:
            raise RollbackFailed(failure, error) from error
        except Exception as error:
            raise RollbackFailed(failure, StepFailed(None, "plan of a rollback", error)) from error
        finally:
            execution.stop = stop
        raise


def require_declared(execution: Execution) -> None:
    """Check a layout that was brought back by queries, and raise `StepFailed` for the first difference."""
    execution.progress.extend(len(execution.plan.steps))
    for aspect, subject, expected, observed, path, *_ in execution.check():
        if expected != observed:
            error = MemtopoError(f"{aspect} of {subject} is {observed}, not {expected}")
            raise StepFailed(None, "check after the rollback", error, path)
