"""Transition of a built layout to another plan, or back, stage by stage, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from memtopo.common.errors import Failed, MemtopoError, Stopped
from memtopo.common.units import rounded
from memtopo.driver.types import Location, LocationKind
from memtopo.executor import Execution, StepFailed, failing, reported
from memtopo.kinds.chunks.pools import LimitPool
from memtopo.kinds.chunks.steps import LENT
from memtopo.kinds.layout import current
from memtopo.kinds.mappings.steps import parts_of
from memtopo.kinds.step import Step
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.planner import Plan
from memtopo.plans.transition import Action, Stage, StagedAction, Transition, transition, undo_stage
from memtopo.run.messages import ChangeResult


class RollbackFailed(StepFailed):
    """Failure of a transition whose rollback failed, too: the layout can only be taken down.

    It has the step and the error of the rollback; `reason` is that of the rollback.
    """

    def __init__(self, reason: str, rollback: StepFailed) -> None:
        action = f"{rollback.action}, to roll back a change ({reason})"
        super().__init__(rollback.step, action, rollback.error, rollback.path)


class StagedTransition:
    """Transition of the layout of one process: `advance` through all stages, then `end`.

    Raises `StepFailed` if the contexts of a held layout cannot be retained again. After a failure, `start_rollback`,
    and advance through all stages again, which then undo what was done and do again what was undone. Processes of one
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
        execution.note(steps.do)

    def advance(self, stage: Stage) -> None:
        """Do and undo the steps of one stage. Raises `StepFailed`, or `Stopped` unless it is rolled back."""
        execution, actions = self._execution, self._transition.stages[stage]
        try:
            for action in reported(actions, execution.progress.advance):
                self._take(action)
        finally:
            execution.layout.handle_source.settle()

    def count(self, stage: Stage) -> int:
        """Return the number of actions of a stage."""
        return len(self._transition.stages[stage])

    def adopt_new_plan(self) -> None:
        """Let the layout have the plan to which all stages brought it, to check it; it can still be rolled back."""
        self._execution.adopt(self._old if self._back else self._new)

    def start_rollback(self) -> None:
        """Make the stages those of the rollback: undo what was attempted, and do again what was undone.

        Raises `StepFailed` if contexts that were released after the transition cannot be retained again.
        """
        self._execution.resume()
        back = transition(list(self._present()), self._old.steps)
        self._transition, self._back = Transition.of(self._rollback(back)), True
        self._execution.progress.extend(len(self._transition.actions))
        self._stop = lambda: False
        self._execution.note(back.do)

    def end(self) -> bool:
        """End the transition: the layout has the new plan, or again the old one. Return true if it touched anything."""
        self.adopt_new_plan()
        self._execution.layout.of(LENT).clear()
        return any(not step.in_change.repeated for step in (*self._attempted, *self._undone))

    def _take(self, action: Action) -> None:
        undone, attempted = ([], []) if self._back else (self._undone, self._attempted)
        if self._stop():
            raise Stopped
        if action.undo:
            self._execution.act(action.step, undo=True, complete=partial(undone.append, action.step))
        else:
            attempted.append(action.step)
            self._execution.act(action.step)

    def _rollback(self, back: Transition) -> Iterator[StagedAction]:
        """Actions of the rollback. Work that a stage of the transition has begun ends before anything is unmapped."""
        if back.actions or self._attempted:
            settled = (step for step in reversed(self._old.steps) if step.in_change.repeated)
            yield from ((Stage.SETTLE, Action(step, undo=True)) for step in settled)
        for step in reversed(self._attempted):
            yield Stage.COPY if step.reading else undo_stage(step), Action(step, undo=True)
        for stage in (stage for stage in Stage if stage is not Stage.SETTLE):
            yield from ((stage, action) for action in back.stages[stage])

    def _present(self) -> Iterator[Step]:
        """Steps that are in effect after the attempted ones are undone.

        A kept step is taken from the new plan, since its access may have been changed: a failed `cuMemSetAccess` may
        have made some of its grants (fact 62).
        """
        undone = {each.effect for step in self._undone for each in parts_of(step) if not each.in_change.ends_with_needs}
        gone = {step.provides for step in self._undone if step.provides is not None}
        changed = {step.effect: step for step in self._new.steps} if self._attempted else {}
        for step in self._old.steps:
            if step.effect not in undone and not (step.in_change.ends_with_needs and not gone.isdisjoint(step.needs)):
                yield changed.get(step.effect, step)
        made = {step.provides for step in self._attempted}
        for step in self._attempted:
            ends = step.in_change.ends_with_needs and not made.isdisjoint(step.needs)
            if step.in_change.renews_needs and not step.undoing.call and not ends:
                yield step
        if self._undone:
            # What was undone had been copied before.
            yield from (step for step in self._new.steps if step.keeps is not None)


def require_declared(execution: Execution) -> None:
    """Check a layout that was rolled back by queries, which no signal stops. Raises `StepFailed` for a difference."""
    execution.progress.extend(execution.plan.number_of_steps)
    stop, execution.stop = execution.stop, lambda: False
    try:
        for found in execution.check():
            if found.expected != found.observed and not found.outside:
                error = MemtopoError(f"{found.aspect} of {found.subject} is {found.observed}, not {found.expected}")
                raise StepFailed(None, "check after the rollback", error, found.path)
    finally:
        execution.stop = stop


class DoesNotFit(Failed):
    """A change that needs more memory than is free, refused before its first call."""


def require_room(
    execution: Execution, steps: Transition, growth: Mapping[Location, int], machine: Machine | None
) -> None:
    """Raise `DoesNotFit`, with the numbers of each location, if a transition needs more memory than is free.

    It needs the `growth` at its peak. GPUs that the layout uses are queried; others, and the host, have what the record
    of the `machine` says. Raises `StepFailed`.
    """
    undone = {step.provides for step in steps.undo}
    limits = (step for step in steps.do if isinstance(step, LimitPool))
    if refusals := [reason for step in limits if (reason := step.refusal(execution.layout, undone))]:
        raise DoesNotFit(f"the change does not fit: {'; '.join(refusals)}", hint="unmap excess chunks")
    if growth and (lacking := list(_lacking(execution, growth, machine))):
        raise DoesNotFit(f"the change does not fit: {'; '.join(lacking)}")


def _lacking(execution: Execution, growth: Mapping[Location, int], machine: Machine | None) -> Iterator[str]:
    for location, size in sorted(growth.items()):
        if location.kind is LocationKind.GPU:
            free = _free(execution, location.id, machine)
            if free is not None and size > free:
                yield _numbers(str(location), size, free)
    if machine:
        yield from lacking_on_host(growth, _used_on_host(execution), machine)


def lacking_on_host(growth: Mapping[Location, int], used: Mapping[Location, int], machine: Machine) -> Iterator[str]:
    """Numbers of the NUMA nodes that lack memory; if none does, those of the whole host if it does."""
    nodes = {node: size - used.get(node, 0) for node, size in machine.node_bytes.items()}
    lacking = [_numbers(str(node), growth[node], free) for node, free in nodes.items() if growth.get(node, 0) > free]
    host = sum(size for location, size in growth.items() if location.kind is not LocationKind.GPU)
    free = machine.host_room - sum(used.values())
    if host > free and not lacking:
        lacking.append(_numbers("the host", host, free))
    yield from lacking


def _numbers(where: str, size: int, free: int) -> str:
    return f"{where} needs {rounded(size)} more than now at its peak, and has {rounded(max(free, 0))} free"


def _free(execution: Execution, device: int, machine: Machine | None) -> int | None:
    """Free bytes of a GPU; None if they are not known."""
    context = execution.layout.contexts.get(device)
    if context is None:
        return machine.devices[device].room - CONTEXT_BYTES if machine else None
    with failing("free memory before a change"), current(execution.driver, context):
        return execution.driver.mem_get_info()[0]


def _used_on_host(execution: Execution) -> Mapping[Location, int]:
    """Bytes that the layout has on the host, by location."""
    used: dict[Location, int] = {}
    for location, size in (step.allocates for step in execution.plan.steps if step.allocates):
        if location.kind is not LocationKind.GPU:
            used[location] = used.get(location, 0) + size
    return used


def attempted(act: Callable[[], object]) -> ChangeResult:
    """Result of a part of a change that may be refused, or fail and be rolled back. Raises `RollbackFailed`."""
    try:
        result = act()
    except RollbackFailed:
        raise
    except Exception as error:  # noqa: BLE001 an error of memtopo itself is rolled back as any other
        return failed(error)
    return result if isinstance(result, ChangeResult) else ChangeResult()


def failed(error: Exception) -> ChangeResult:
    """Result of a part of a change that was refused or has failed."""
    match error:
        case MemtopoError():
            return ChangeResult(error.message, error.hint)
        case StepFailed():
            return ChangeResult(str(error), error.hint)
        case Stopped():
            return ChangeResult("interrupted")
    return ChangeResult(f"internal error: {type(error).__name__}: {error}")
