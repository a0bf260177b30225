"""Difference of two plans, as data to show: what a change undoes, does and keeps, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.driver.types import Location
from memtopo.kinds.step import Step
from memtopo.plans import folding
from memtopo.plans.report import MemoryChange, PlanDifference
from memtopo.plans.transition import Transition, transition


def difference(before: Sequence[Step], after: Sequence[Step], names: tuple[str, str]) -> PlanDifference:
    """Difference of the steps of two plans with these names."""
    change = transition(before, after)
    undo = [step for step in change.undo if not step.repeated]
    do = [step for step in change.do if not step.repeated]
    changed = {step.effect for step in undo}
    kept = sum(1 for step in before if not step.repeated and step.effect is not None and step.effect not in changed)
    return PlanDifference(
        *names,
        undo=tuple(folding.rows((step for step in undo if step.undo_verb), undo=True)),
        do=tuple(folding.rows(do)),
        kept=kept,
        lost=tuple(reversed(list(_lost(undo, do)))),
        memory={str(location): each for location, each in sorted(_memory(before, change).items())},
    )


def _lost(undo: Sequence[Step], do: Sequence[Step]) -> Iterator[str]:
    """Labels of memory that is released and created again, without its bytes."""
    created = {step.provides for step in do if step.allocates}
    for step in undo:
        if step.allocates and step.provides in created:
            yield step.describe().subject


def _memory(before: Sequence[Step], change: Transition) -> dict[Location, MemoryChange]:
    """Bytes by location, of those locations where a plan has memory."""
    held: dict[Location, int] = {}
    for step in before:
        if found := step.allocates:
            held[found[0]] = held.get(found[0], 0) + found[1]
    first, peak = dict(held), dict(held)
    for step, undo in change.actions:
        if found := step.allocates:
            location, size = found
            held[location] = held.get(location, 0) + (-size if undo else size)
            peak[location] = max(peak.get(location, 0), held[location])
    return {each: MemoryChange(first.get(each, 0), held[each], peak[each]) for each in held}
