"""Transitions: the steps that bring a built plan to another plan, with least extra memory, and back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from memtopo.common.garbage_collection import collector_paused
from memtopo.kinds import KINDS
from memtopo.kinds.step import Phase, Step


@dataclass(frozen=True)
class Transition:
    """Steps that change a layout: `undo` in order, then `do` in order; all other steps of the old plan stay.

    Memory that goes is released before memory that comes is created, so that the peak is the larger of the two plans
    at each location.
    """

    undo: tuple[Step, ...]
    do: tuple[Step, ...]

    @property
    def empty(self) -> bool:
        """True if nothing changes."""
        return not self.undo and not self.do


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
        do += [step for kind in KINDS for step in kind.changes(kept, after)]
        if not (do or undo):
            return Transition((), ())
        first = [step for step in reversed(old) if step.repeated]
        do += [step for step in new if step.repeated]
        return Transition((*first, *undo), _by_phase(do))


def _by_effect(steps: Sequence[Step]) -> dict[Hashable, Step]:
    """Steps by their effect, in order, without those that every change repeats and those of other steps' state."""
    return {effect: step for step in steps if not step.repeated and (effect := step.effect) is not None}


def _gone(before: Mapping[Hashable, Step], after: Mapping[Hashable, Step]) -> set[Hashable]:
    """Effects of the steps that are undone: those that no step has after, and those whose resources are replaced."""
    replaced = {
        need for effect, step in before.items() if step.renews_needs and effect not in after for need in step.needs
    }
    gone: set[Hashable] = set()
    for effect, step in before.items():
        if effect not in after or step.provides in replaced or any(need in replaced for need in step.needs):
            gone.add(effect)
            if step.provides is not None:
                replaced.add(step.provides)
    return gone


def _by_phase(steps: Sequence[Step]) -> tuple[Step, ...]:
    order: Mapping[Phase, int] = {phase: index for index, phase in enumerate(Phase)}
    return tuple(sorted(steps, key=lambda step: order[step.phase]))
