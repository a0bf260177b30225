"""Transitions: the steps that bring a built plan to another plan, with least extra memory, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.common.garbage_collection import collector_paused
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Difference
from memtopo.kinds.step import Phase, Step

_ORDER: Mapping[Phase, int] = {phase: index for index, phase in enumerate(Phase)}


class Action(NamedTuple):
    """A step that a transition does, or undoes."""

    step: Step
    undo: bool = False


@dataclass(frozen=True)
class Transition:
    """Actions that change a layout, in order; the steps of the old plan that they do not undo stay.

    Memory that goes is released before memory that comes is created, so that the peak at each location is the larger
    of the two plans. Bytes that are kept are copied before anything is undone.
    """

    actions: tuple[Action, ...]

    @property
    def undo(self) -> tuple[Step, ...]:
        """Steps that are undone, in order."""
        return tuple(action.step for action in self.actions if action.undo)

    @property
    def do(self) -> tuple[Step, ...]:
        """Steps that are done, in order."""
        return tuple(action.step for action in self.actions if not action.undo)


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
            return Transition(())
        first = [step for step in changes if step.before_undo]
        do += [step for step in changes if not step.before_undo]
        do += [step for step in new if step.repeated]
        return Transition(
            (
                *(Action(step, undo=True) for step in reversed(old) if step.repeated),
                *map(Action, first),
                *_undo(undo, first),
                *map(Action, sorted(do, key=lambda step: (_ORDER[step.phase], step.position))),
            )
        )


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


def _undo(undo: Sequence[Step], first: Sequence[Step]) -> Iterator[Action]:
    """Undo steps, each after the work that reads its resources; the other work is awaited at the end."""
    readers = {resource: step for step in first for resource in step.reads}
    waits = {step: wait for step in first if (wait := step.awaited)}
    for step in undo:
        if readers:
            for resource in (step.provides, *step.needs):
                if (reader := readers.pop(resource, None)) and (wait := waits.pop(reader, None)):
                    yield Action(wait)
        yield Action(step, undo=True)
    yield from map(Action, waits.values())
