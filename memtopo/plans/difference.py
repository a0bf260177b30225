"""Difference of two plans, as data to show: what a change undoes, does and keeps, and the memory that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

from memtopo.common.text import numbered
from memtopo.driver.types import Location
from memtopo.geometry.model import Geometry
from memtopo.kinds.exports import emptied_exports
from memtopo.kinds.step import Step
from memtopo.plans import folding
from memtopo.plans.report import MemoryChange, PlanDifference, ProcessDifference
from memtopo.plans.transition import Transition, transitions


def difference(
    before: Mapping[str, Sequence[Step]],
    after: Mapping[str, Sequence[Step]],
    names: tuple[str, str],
    params: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    geometries: tuple[Geometry, Geometry] | None = None,
) -> PlanDifference:
    """Difference of two plans with these names, from their steps by process, of which both have the same.

    A layout of one process has the label ''. `params` are the values of the parameters of both specs. Without their
    `geometries`, the layouts have no nodes, and no exports that are committed.
    """
    changes = transitions(before, after)
    each = [_of_process(label, before[label], change) for label, change in changes.items()]
    single = each[0] if [*before] == [""] else None
    memory: dict[Location, MemoryChange] = {}
    nodes = geometries[0].nodes if geometries else {}
    for node, labels in (nodes or {"": tuple(before)}).items():
        counted = [_counted(chain.from_iterable(steps[label] for label in labels)) for steps in (before, after)]
        together = Transition.together({label: changes[label] for label in labels if label in changes})
        own = _memory(counted[0], counted[1], together).items()
        memory |= {location.on(node): change for location, change in sorted(own)}
    return PlanDifference(
        *names,
        undo=single.undo if single else (),
        do=single.do if single else (),
        kept=sum(process.kept for process in each),
        lost=single.lost if single else (),
        memory={str(location): change for location, change in memory.items()},
        processes=() if single else tuple(folding.processes(each)),
        params=_changed(*params),
        emptied=tuple(_emptied(*geometries, changes)) if geometries else (),
    )


def _emptied(before: Geometry, after: Geometry, changes: Mapping[str, Transition]) -> Iterator[str]:
    """Exports of all processes whose content is gone after the changes."""
    for label, change in changes.items():
        undone = {step.provides for step in change.undo}
        yield from emptied_exports(before.members[label], after.members[label], undone)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    values = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {name: each for name, each in values.items() if each[0] != each[1]}


def _of_process(label: str, before: Sequence[Step], change: Transition) -> ProcessDifference:
    undo = [step for step in change.undo if not step.in_change.repeated]
    do = _by_number(step for step in change.do if not step.in_change.repeated)
    changed = {step.effect for step in undo}
    return ProcessDifference(
        label,
        label,
        1,
        undo=tuple(folding.rows((step for step in undo if step.undo_verb), undo=True)),
        do=tuple(folding.rows(do)),
        kept=sum(
            1
            for step in before
            if not step.in_change.repeated and step.effect is not None and step.effect not in changed
        ),
        lost=tuple(reversed(list(_lost(undo, do)))),
    )


def _by_number(do: Iterable[Step]) -> list[Step]:
    """Steps with those of each phase by range as it is counted: kv.2 before kv.10, which a change orders as text."""
    phases = groupby(do, key=lambda step: step.phase)
    return [step for _, steps in phases for step in sorted(steps, key=lambda step: _numbered(step.position))]


def _numbered(position: tuple[str, int]) -> tuple[str, int, int]:
    entry, number = numbered(position[0])
    return entry, number or 0, position[1]


def _lost(undo: Sequence[Step], do: Sequence[Step]) -> Iterator[str]:
    """Labels of memory that is released and created again, without its bytes."""
    created = {step.provides for step in do if step.allocates}
    for step in undo:
        if step.allocates and step.provides in created:
            yield step.describe().subject


def _memory(first: Counter[Location], last: Counter[Location], change: Transition) -> dict[Location, MemoryChange]:
    """Bytes at each location where a plan has memory, as the plans count them.

    Advice may count managed memory at another location without an action, so that the peak is at least `last`.
    """
    held = Counter(first)
    peak = first | last
    for step, undo in change.actions:
        if found := step.counted:
            location, size = found
            held[location] += -size if undo else size
            peak[location] = max(peak[location], held[location])
    return {each: MemoryChange(first[each], last[each], peak[each]) for each in peak}


def _counted(steps: Iterable[Step]) -> Counter[Location]:
    """Bytes by location that a plan with some steps counts."""
    total: Counter[Location] = Counter()
    for step in steps:
        if found := step.counted:
            total[found[0]] += found[1]
    return total
