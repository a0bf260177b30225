"""Transitions: the steps that bring a built plan to another plan, with least extra memory, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.common.garbage_collection import collector_paused
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Difference
from memtopo.kinds.step import Phase, Step

_ORDER: Mapping[Phase, int] = {phase: index for index, phase in enumerate(Phase)}
_PLACED = (Phase.MAP, Phase.GRANT)


class Action(NamedTuple):
    """A step that a transition does, or undoes."""

    step: Step
    undo: bool = False


@dataclass(frozen=True)
class Transition:
    """Actions that change a layout, in order; the steps of the old plan that they do not undo stay.

    Memory that goes is released before memory that comes is created, so that the peak at each location is the larger
    of the two plans. Bytes that are kept are copied before anything is undone. While copies run, memory is released
    and created part by part. `undo` and `do` have the steps of the actions by phases.
    """

    actions: tuple[Action, ...] = ()
    undo: tuple[Step, ...] = ()
    do: tuple[Step, ...] = ()


def transition(old: Sequence[Step], new: Sequence[Step]) -> Transition:
    """Transition from a layout that has the `old` steps to one that has the `new` steps; both in order of building.

    A step stays if the new steps have its effect and every resource that it needs stays. Equal inputs give equal
    transitions.
    """
    with collector_paused():
        before, after = _by_effect(old), _by_effect(new)
        gone = _gone(before, after)
        kept = {effect: step for effect, step in before.items() if effect not in gone}
        undo = [step for effect, step in reversed(before.items()) if effect in gone]
        do = [step for effect, step in after.items() if effect not in kept]
        difference = Difference(before, kept, after)
        changes = [step for kind in KINDS for step in kind.changes(difference)]
        if not (do or undo or changes):
            return Transition()
        first = [step for step in changes if step.before_undo]
        do += [step for step in changes if not step.before_undo]
        do += [step for step in new if step.repeated]
        do.sort(key=lambda step: (_ORDER[step.phase], step.position))
        repeated = [step for step in reversed(old) if step.repeated]
        waits = {step: wait for step in first if (wait := step.awaited)}
        actions = (
            *(Action(step, undo=True) for step in repeated),
            *map(Action, first),
            *_undo(undo, waits),
            *map(Action, _by_parts(do) if any(step.runs_on for step in do) else do),
        )
        return Transition(actions, (*repeated, *undo), (*first, *waits.values(), *do))


class Transitions:
    """Transitions between plans, each computed when it is first needed, and kept: a layout switches back and forth."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Sequence[Step], Sequence[Step], Transition]] = {}

    def between(self, old: Sequence[Step], new: Sequence[Step]) -> Transition:
        """Return the transition from some steps to others. They are kept, and recognised by their identity."""
        key = id(old), id(new)
        if key not in self._known:
            self._known[key] = old, new, transition(old, new)
        return self._known[key][2]


def _by_effect(steps: Sequence[Step]) -> dict[Hashable, Step]:
    """Steps by their effect, in order, without those that every change repeats and those that leave nothing."""
    return {effect: step for step in steps if not step.repeated and (effect := step.effect) is not None}


def _gone(before: Mapping[Hashable, Step], after: Mapping[Hashable, Step]) -> set[Hashable]:
    """Effects of the steps that are undone: those that no step has after, and those whose resources are replaced."""
    replaced = {
        need for effect, step in before.items() if step.renews_needs and effect not in after for need in step.needs
    }
    gone: set[Hashable] = set()
    for effect, step in before.items():
        provides = step.provides
        if effect not in after or provides in replaced or not replaced.isdisjoint(step.needs):
            gone.add(effect)
            if provides is not None:
                replaced.add(provides)
    return gone


def _undo(undo: Sequence[Step], waits: Mapping[Step, Step]) -> Iterator[Action]:
    """Undo steps, each after the work that reads its resources; the other work is awaited at the end."""
    left = dict(waits)
    readers = {resource: step for step in waits for resource in step.reads}
    for step in _with_early_release(undo) if readers else undo:
        if readers:
            for resource in (step.provides, *step.needs):
                if (reader := readers.pop(resource, None)) and (wait := left.pop(reader, None)):
                    yield Action(wait)
        yield Action(step, undo=True)
    yield from map(Action, left.values())


def _with_early_release(undo: Sequence[Step]) -> Iterator[Step]:
    """Steps to undo, in order, but memory right after the last step that needs it: the next copy runs meanwhile."""
    users = Counter(need for step in undo for need in step.needs)
    memory = {step.provides: step for step in undo if step.allocates}
    early: set[Hashable] = set()
    for step in undo:
        if step.provides in early:
            continue
        yield step
        for need in step.needs:
            users[need] -= 1
            if not users[need] and need in memory:
                early.add(need)
                yield memory[need]


def _by_parts(do: Sequence[Step]) -> Iterator[Step]:
    """Steps to do, by phases, but chunks that only mappings need are created, mapped and granted by position.

    So the bytes of each part return while the next one is created.
    """
    placed = [step for step in do if step.phase in _PLACED]
    placed.sort(key=lambda step: (step.position, _ORDER[step.phase]))
    others = {need for step in do if step.phase not in _PLACED for need in step.needs}
    late = {need for step in placed for need in step.needs} - others
    created = {step.provides: step for step in do if step.phase is Phase.CREATE and step.provides in late}
    yield from (step for step in do if _ORDER[step.phase] < _ORDER[Phase.MAP] and step.provides not in created)
    for step in placed:
        for need in step.needs:
            if creation := created.pop(need, None):
                yield creation
        yield step
    yield from (step for step in do if _ORDER[step.phase] > _ORDER[Phase.GRANT])
