"""Change of a process: the transition of its layout to another plan, or back, stage by stage, and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from memtopo.common.errors import ExchangeError, Failed, MemtopoError, Stopped
from memtopo.common.units import rounded
from memtopo.driver.types import Location, LocationKind
from memtopo.executor import Execution, StepFailed, failing, reported
from memtopo.geometry import Geometry
from memtopo.kinds.chunks.pools import LimitPool
from memtopo.kinds.chunks.steps import LENT
from memtopo.kinds.layout import current
from memtopo.kinds.mappings.steps import parts_of
from memtopo.kinds.step import Step
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.planner import Plan
from memtopo.plans.report import Check
from memtopo.plans.transition import Action, Stage, StagedAction, Transition, transition, undo_stage
from memtopo.run.leaks import ResourceBalance
from memtopo.run.messages import ChangeResult
from memtopo.run.reports import FindingTally
from memtopo.run.verification.fingerprints import Fingerprints
from memtopo.sharing.offers import Offer


class RollbackFailed(StepFailed):
    """Failure of a transition whose rollback failed, too: the layout can only be taken down.

    It has the step and the error of the rollback; `reason` is that of the rollback.
    """

    def __init__(self, reason: str, rollback: StepFailed) -> None:
        action = f"{rollback.action}, to roll back a change ({reason})"
        super().__init__(rollback.step, action, rollback.error, rollback.path)


class Change:
    """Change of the layout of one process to another plan by the `steps` of a transition: `make` all stages, and `end`.

    After a failure, `start_rollback`, and make all stages again, which then undo what was done and do again what was
    undone. Processes of one layout go through each stage together. A teardown is possible at any time. With a full
    `check`, fingerprints compare the bytes that the change keeps. `other` is the geometry of another spec, if the
    layout is changed to one, which is recorded in the `balance`.
    """

    kept: Fingerprints | None = None
    findings: FindingTally | None = None
    """Findings of the check of the changed layout, if it was checked."""
    offers: tuple[Offer, ...] | None = None
    """Exports of the changed layout, if it is one of another spec."""
    geometry: Geometry | None = None
    """Geometry of another spec, while the process imports and exports by that."""
    back = False
    """True if the stages are those of the rollback."""
    _reason = ""
    _begun = False

    def __init__(
        self,
        execution: Execution,
        plan: Plan,
        steps: Transition,
        balance: ResourceBalance | None = None,
        *,
        check: Check = "none",
        other: Geometry | None = None,
    ) -> None:
        self.steps, self._stages = steps, steps.stages
        self._execution, self._old, self._new = execution, execution.plan, plan
        self._check, self._other, self._balance = check, other, balance
        self._undone: list[Step] = []
        self._attempted: list[Step] = []
        self._recording = ExitStack()
        self._record_held: Callable[[], None] = lambda: None

    def make(self, stage: Stage) -> None:
        """Do and undo the steps of one stage. Raises `StepFailed` or `Stopped`; in a rollback `RollbackFailed`.

        The first stage raises `StepFailed` if the contexts of a held layout cannot be retained again.
        """
        if self.back:
            if self._begun:
                with self.rolling_back():
                    self._advance(stage)
            return
        if not self._begun:
            self._begin()
        self._advance(stage)
        if stage is tuple(Stage)[-1]:  # not in the check, after which other processes release contexts
            self._execution.adopt(self._new)
            self._record_held()

    def _begin(self) -> None:
        execution, other = self._execution, self._other
        self.kept = Fingerprints.take(execution, self._new) if self._check == "full" else None
        execution.resume()
        execution.progress.extend(len(self.steps.actions))
        execution.note(self.steps.do)
        self._begun = True
        if other:
            execution.layout.handle_source.expect(other)
            self.geometry = other
        if other and self._balance:
            self._record_held = self._recording.enter_context(self._balance.rebaseline(other.gpus))

    def _advance(self, stage: Stage) -> None:
        execution, actions, back = self._execution, self._stages[stage], self.back
        with execution.timed("change", len(actions), announce=False):
            try:
                for step, undo in reported(actions, execution.progress.advance):
                    if back:
                        execution.act(step, undo=undo)
                        continue
                    execution.raise_if_stopped()
                    if undo:
                        execution.act(step, undo=True, complete=partial(self._undone.append, step))
                    else:
                        self._attempted.append(step)
                        execution.act(step, undo=False)
            finally:
                execution.layout.handle_source.settle()

    def start_rollback(self, reason: str) -> None:
        """Make the stages those of the rollback: undo what was attempted, and do again what was undone.

        Raises `RollbackFailed` if contexts that were released after the change cannot be retained again.
        """
        self._reason, self.back, self.geometry = reason, True, None
        self.abandon()
        if not self._begun:
            return
        with self.rolling_back():
            self._execution.resume()
            back = transition(list(self._present()), self._old.steps)
            actions: list[StagedAction] = []
            if back.actions or self._attempted:  # work that a stage has begun ends before anything is unmapped
                settled = (step for step in reversed(self._old.steps) if step.in_change.repeated)
                actions += ((Stage.SETTLE, Action(step, undo=True)) for step in settled)
            for step in reversed(self._attempted):
                actions.append((Stage.COPY if step.reading else undo_stage(step), Action(step, undo=True)))
            for stage in tuple(Stage)[1:]:  # all but that of the settling
                actions += ((stage, action) for action in back.stages[stage])
            self._stages = Transition.of(actions).stages
            self._execution.progress.extend(len(actions))
            self._execution.note(back.do)

    def end(self) -> bool:
        """End the change: the layout has the new plan, or again the old one. Return true if it touched anything."""
        if self._begun:
            self._execution.adopt(self._old if self.back else self._new)
            self._execution.layout.of(LENT).clear()
        if not self.back:
            self._recording.close()
        return any(not step.in_change.repeated for step in (*self._attempted, *self._undone))

    def abandon(self) -> None:
        """Give back what the change holds besides the layout, which is rolled back or taken down."""
        self._recording.__exit__(Stopped, Stopped(), None)

    @contextmanager
    def rolling_back(self) -> Iterator[None]:
        """Raise an error of the code inside as `RollbackFailed`."""
        try:
            yield
        except StepFailed as failed:
            raise RollbackFailed(self._reason, failed) from failed
        except Exception as error:
            raise RollbackFailed(self._reason, StepFailed(None, "rollback", error)) from error

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


_OUTSIDE = ("folder",)
"""Aspects of what is outside of the layout, so that no change of it has caused a difference."""


def require_declared(execution: Execution) -> None:
    """Check a layout that was rolled back by queries, which no signal stops. Raises `StepFailed` for a difference."""
    execution.progress.extend(execution.plan.number_of_steps)
    stop, execution.stop = execution.stop, lambda: False
    try:
        for found in execution.check():
            if found.expected != found.observed and found.aspect not in _OUTSIDE:
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
    lacking: list[str] = []
    for location, size in sorted(growth.items()):
        if location.kind is LocationKind.GPU:
            free = _free(execution, location.id, machine)
            if free is not None and size > free:
                lacking.append(_numbers(str(location), size, free))
    if machine and growth:
        used = Counter[Location]()
        for location, size in (step.allocates for step in execution.plan.steps if step.allocates):
            if location.kind is not LocationKind.GPU:
                used[location] += size
        lacking += lacking_on_host(growth, used, machine)
    if lacking:
        raise DoesNotFit(f"the change does not fit: {'; '.join(lacking)}")


def _free(execution: Execution, device: int, machine: Machine | None) -> int | None:
    """Free bytes of a GPU; None if they are not known."""
    context = execution.layout.contexts.get(device)
    if context is None:
        return machine.devices[device].room - CONTEXT_BYTES if machine else None
    with failing("free memory before a change"), current(execution.driver, context):
        return execution.driver.mem_get_info()[0]


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
        case ExchangeError():
            return ChangeResult(error.message, error.hint, code=error.code)
        case MemtopoError():
            return ChangeResult(error.message, error.hint)
        case StepFailed():
            return ChangeResult(str(error), error.hint)
        case Stopped():
            return ChangeResult("interrupted")
    return ChangeResult(f"internal error: {type(error).__name__}: {error}")
