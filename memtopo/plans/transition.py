"""Transitions: the steps that bring built plans to other plans, with least extra memory, and back.

The difference of two plans is data to show: what a change undoes, does and keeps, and the memory that it needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field

from memtopo.common.text import numbered, qualified
from memtopo.driver.types import Location
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.exports import emptied_exports, touched_exports
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.mappings.steps import joined
from memtopo.kinds.step import Phase, Reading, Step
from memtopo.plans import folding
from memtopo.plans.report import ExportChange, MemoryChange, PlanDifference, ProcessDifference

_ORDER: Mapping[Phase, int] = {phase: index for index, phase in enumerate(Phase)}
_PLACED = (Phase.MAP, Phase.GRANT)

_Effects = dict[Hashable, Step]
"""Steps of one plan by their effect, in order."""

_Resource = tuple[str, Hashable]
"""Label of a process, and a resource of it."""


class Action(NamedTuple):
    """A step that a transition does, or undoes."""

    step: Step
    undo: bool = False


StagedAction = tuple["Stage", Action]
"""Stage of an action, and the action."""


class Stage(StrEnum):
    """Stages of a transition, in order. All processes of a layout complete one before any of them begins the next.

    The work of all GPUs is awaited before anything is copied, and all copies have begun before anything is unmapped.
    Imports are given back before their memory is released, and return after it is created. Memory is bound to a
    multicast object after all processes have added their GPUs to it.
    """

    SETTLE = "settle"
    COPY = "copy out"
    UNMAP = "unmap"
    RELEASE = "release"
    CREATE = "create"
    MAP = "map"
    BIND = "bind"


class Transition(Struct, frozen=True, dict=True):
    """Actions that change the layout of one process, by stage; the old plan's steps that they do not undo stay.

    Memory that goes is released before memory that comes is created, so that the peak at each location is the larger
    of the two plans. Bytes that are kept are copied before anything is undone. While copies run, memory that no other
    process imports is released as it is unmapped, and created as it is mapped. `undo` and `do` have the steps of the
    actions by phases.
    """

    stages: Mapping[Stage, tuple[Action, ...]] = field(default_factory=lambda: dict.fromkeys(Stage, ()))
    undo: tuple[Step, ...] = ()
    do: tuple[Step, ...] = ()

    @classmethod
    def of(cls, actions: Iterable[StagedAction], undo: Iterable[Step] = (), do: Iterable[Step] = ()) -> Transition:
        """Transition of actions, which keep their order within each stage."""
        stages: dict[Stage, list[Action]] = {stage: [] for stage in Stage}
        for stage, action in actions:
            stages[stage].append(action)
        return cls({stage: tuple(each) for stage, each in stages.items()}, tuple(undo), tuple(do))

    @classmethod
    def together(cls, several: Mapping[str, Transition], in_use: AbstractSet[_Resource] = frozenset()) -> Transition:
        """Transition with the actions of processes, stage by stage, for the memory that they need at their peak.

        The memory of `in_use` resources is not free after its release: importers have it.
        """
        return cls.of(
            (stage, action)
            for label, each in several.items()
            for stage in Stage
            for action in each.stages[stage]
            if not (action.undo and in_use and (label, action.step.provides) in in_use)
        )

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, in order."""
        return tuple(chain.from_iterable(self.stages.values()))

    @cached_property
    def growth(self) -> Mapping[Location, int]:
        """Bytes that the actions need at their peak, by location, beyond those of the layout before."""
        more: dict[Location, int] = {}
        peak: dict[Location, int] = {}
        for step, undo in self.actions:
            if found := step.allocates:
                location, size = found
                more[location] = more.get(location, 0) + (-size if undo else size)
                peak[location] = max(peak.get(location, 0), more[location])
        return {location: size for location, size in peak.items() if size}


def transition(old: Sequence[Step], new: Sequence[Step]) -> Transition:
    """Transition of a layout of one process, as `transitions` defines it."""
    return transitions({"": old}, {"": new})[""]


def transitions(old: Mapping[str, Sequence[Step]], new: Mapping[str, Sequence[Step]]) -> dict[str, Transition]:
    """Transitions of all processes of a layout from the `old` steps to the `new` ones, by the same labels.

    Steps are in the order of building. A step stays if the new steps of its process have its effect, and every resource
    stays that it needs, or that it imports from another process. Equal inputs give equal transitions, so that each
    process can compute those of all.
    """
    before = {label: _by_effect(steps) for label, steps in old.items()}
    after = {label: _by_effect(steps) for label, steps in new.items()}
    used, needed = _imported(before), _imported(after)
    gone = _gone_together(before, after, used)
    return {
        label: _transition(
            (old[label], new[label]), (before[label], after[label]), gone[label], used[label], needed[label]
        )
        for label in old
    }


def _by_effect(steps: Sequence[Step]) -> dict[Hashable, Step]:
    """Steps by their effect, in order, without steps that every change repeats or that leave nothing."""
    return {effect: step for step in steps if not step.in_change.repeated and (effect := step.effect) is not None}


def _imported(plans: Mapping[str, _Effects]) -> Mapping[str, set[Hashable]]:
    """Resources of each process that others import, by its label."""
    found: dict[str, set[Hashable]] = defaultdict(set)
    for step in (step for steps in plans.values() for step in steps.values()):
        if each := step.imports:
            found[each[0]].add(each[1])
    return found


def _gone_together(
    before: Mapping[str, _Effects], after: Mapping[str, _Effects], imported: Mapping[str, AbstractSet[Hashable]]
) -> dict[str, set[Hashable]]:
    """Effects that are undone in each process: those of imports, too, whose exporting process replaces the resource."""
    replaced: set[_Resource] = set()
    while True:
        gone: dict[str, set[Hashable]] = {}
        found: set[_Resource] = set()
        for label, steps in before.items():
            gone[label], own = _gone(steps, after[label], replaced)
            found.update((label, resource) for resource in own & imported[label])
        if found <= replaced:
            return gone
        replaced |= found


def _gone(before: _Effects, after: _Effects, elsewhere: AbstractSet[_Resource]) -> tuple[set[Hashable], set[Hashable]]:
    """Effects of the steps that are undone, and the resources that go with them.

    They are effects that no step has after, and effects whose resources are replaced, here or `elsewhere`.
    """
    replaced = {
        need
        for effect, step in before.items()
        if step.in_change.renews_needs and effect not in after
        for need in step.needs
    }
    gone: set[Hashable] = set()
    for effect, step in before.items():
        provides = step.provides
        if (
            effect not in after
            or provides in replaced
            or not replaced.isdisjoint(step.needs)
            or (elsewhere and step.imports in elsewhere)
        ):
            gone.add(effect)
            if provides is not None:
                replaced.add(provides)
    return gone, replaced


def _transition(
    plans: tuple[Sequence[Step], Sequence[Step]],
    effects: tuple[_Effects, _Effects],
    gone: AbstractSet[Hashable],
    used: AbstractSet[Hashable],
    needed: AbstractSet[Hashable],
) -> Transition:
    """Transition of one process, in which some effects are gone.

    Other processes have `used` resources of it before, and `needed` ones after.
    """
    (old, new), (before, after) = plans, effects
    kept = {effect: step for effect, step in before.items() if effect not in gone}
    undo = [step for effect, step in reversed(before.items()) if effect in gone]
    do = [step for effect, step in after.items() if effect not in kept]
    effects_of_both = StepDifference(before, kept, after)
    changes = [step for kind in KINDS for step in kind.changes(effects_of_both)]
    if not (do or undo or changes):
        return Transition()
    first = {step: reading for step in changes if (reading := step.reading)}
    do += [step for step in changes if step not in first]
    do += [step for step in new if step.in_change.repeated]
    do.sort(key=lambda step: (_ORDER[step.phase], step.position))
    repeated = [step for step in reversed(old) if step.in_change.repeated]
    acting = [step for step in do if step.call]
    if all(step.in_change.repeated for step in acting):
        acting = []  # nothing was begun that they would wait for
    actions = chain(
        ((Stage.SETTLE, Action(step, undo=True)) for step in repeated),
        ((Stage.COPY, Action(step)) for step in first),
        _undo(list(joined([step for step in undo if step.call])), first, used),
        _by_parts(acting, needed) if any(step.in_change.runs_on for step in do) else _by_phases(acting),
    )
    waits = (each.wait for each in first.values() if each.wait)
    return Transition.of(actions, (*repeated, *undo), (*first, *waits, *do))


def undo_stage(step: Step) -> Stage:
    """Return the stage in which a step is undone, unless memory is released as it is unmapped."""
    if step.in_change.undone_late:
        return Stage.CREATE
    return Stage.UNMAP if step.phase.uses_imports else Stage.RELEASE


def _undo(undo: Sequence[Step], reading: Mapping[Step, Reading], used: AbstractSet[Hashable]) -> Iterator[StagedAction]:
    """Undo steps, each after the work that reads its resources; the other work is awaited at the end."""
    left = {step: each.wait for step, each in reading.items() if each.wait}
    readers = {resource: step for step, each in reading.items() for resource in each.resources}
    staged = _with_early_release(undo, used) if readers else ((undo_stage(step), step) for step in undo)
    for stage, step in staged:
        if readers:
            for resource in (step.provides, *step.needs):
                if (reader := readers.pop(resource, None)) and (wait := left.pop(reader, None)):
                    yield stage, Action(wait)
        yield stage, Action(step, undo=True)
    yield from ((Stage.RELEASE, Action(wait)) for wait in left.values())


def _with_early_release(undo: Sequence[Step], used: AbstractSet[Hashable]) -> Iterator[tuple[Stage, Step]]:
    """Steps to undo, in order, but memory right after the last step that needs it: the next copy runs meanwhile.

    Memory that is `used` by other processes is released after they have given it back.
    """
    users = Counter(need for step in undo for need in step.needs)
    memory = {step.provides: step for step in undo if step.allocates and step.provides not in used}
    early: set[Hashable] = set()
    for step in undo:
        if step.provides in early:
            continue
        stage = undo_stage(step)
        yield stage, step
        for need in step.needs:
            users[need] -= 1
            if not users[need] and need in memory:
                early.add(need)
                yield stage, memory[need]


def _by_phases(do: Iterable[Step]) -> Iterator[StagedAction]:
    for step in do:
        stage = Stage.BIND if step.phase is Phase.BIND else Stage.MAP if step.phase.uses_imports else Stage.CREATE
        yield stage, Action(step)


def _by_parts(do: Sequence[Step], needed: AbstractSet[Hashable]) -> Iterator[StagedAction]:
    """Steps to do, by phases, but chunks that only mappings need are created, mapped and granted by position.

    So the bytes of each part return while the next one is created. Chunks that are `needed` by other processes are
    created before these import them.
    """
    placed = _by_position(step for step in do if step.phase in _PLACED)
    others = {need for step in do if step.phase not in _PLACED for need in step.needs}
    late = {need for step in placed for need in step.needs} - others - needed
    created = {step.provides: step for step in do if step.phase is Phase.CREATE and step.provides in late}
    yield from _by_phases(
        step for step in do if _ORDER[step.phase] < _ORDER[Phase.MAP] and step.provides not in created
    )
    for step in placed:
        for need in step.needs:
            if creation := created.pop(need, None):
                yield Stage.MAP, Action(creation)
        yield Stage.MAP, Action(step)
    yield from _by_phases(step for step in do if _ORDER[step.phase] > _ORDER[Phase.GRANT])


def _by_position(steps: Iterable[Step]) -> list[Step]:
    """Mappings, grants and copies by position; copies after the first grant that does not end before them."""
    placed = list(steps)
    ends = sorted(step.position for step in placed if step.phase is Phase.GRANT and not step.in_change.runs_on)

    def key(step: Step) -> tuple[tuple[str, int], int, bool]:
        position = step.position
        index = bisect_left(ends, position) if step.in_change.runs_on else len(ends)
        if index < len(ends) and ends[index][0] == position[0]:
            position = ends[index]
        return position, _ORDER[step.phase], step.in_change.runs_on

    return sorted(placed, key=key)


def difference(
    before: Mapping[str, Sequence[Step]],
    after: Mapping[str, Sequence[Step]],
    names: tuple[str, str],
    params: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    geometries: tuple[Geometry, Geometry] | None = None,
) -> PlanDifference:
    """Difference of two plans with these names, from their steps by process, of which both have the same.

    A layout of one process has the label ''. `params` are the values of the parameters of both specs. Without their
    `geometries`, the layouts have no nodes and no exports.
    """
    changes = transitions(before, after)
    nodes = geometries[0].nodes if geometries else {}
    homes = {label: node for node, labels in nodes.items() for label in labels}
    each = [_of_process(label, before[label], change, homes.get(label)) for label, change in changes.items()]
    single = each[0] if [*before] == [""] else None
    values = {name: (params[0].get(name), params[1].get(name)) for name in {**params[0], **params[1]}}
    memory = memory_changes(before, after, changes, nodes)
    return PlanDifference(
        *names,
        undo=single.undo if single else (),
        do=single.do if single else (),
        kept=sum(process.kept for process in each),
        lost=single.lost if single else (),
        memory={str(location): change for location, change in memory.items()},
        processes=() if single else tuple(folding.processes(each)),
        params={name: each for name, each in values.items() if each[0] != each[1]},
        emptied=tuple(_emptied(*geometries, changes)) if geometries else (),
        moved=tuple(qualified(label, name) for label, change in changes.items() for name in _moved(change)),
        exports=tuple(_export_changes(*geometries, changes)) if geometries else (),
    )


def memory_changes(
    before: Mapping[str, Sequence[Step]],
    after: Mapping[str, Sequence[Step]],
    changes: Mapping[str, Transition],
    nodes: Mapping[str, Sequence[str]],
) -> dict[Location, MemoryChange]:
    """Bytes at each location before, after and during the changes of all processes, from their steps by label.

    `nodes` are the labels of each node of a layout of several, which have locations of their own.
    """
    memory: dict[Location, MemoryChange] = {}
    for node, labels in (nodes or {"": tuple(before)}).items():
        first, last = Counter[Location](), Counter[Location]()
        for total, steps in ((first, before), (last, after)):
            for location, size in (step.counted for label in labels for step in steps[label] if step.counted):
                total[location] += size
        together = Transition.together({label: changes[label] for label in labels if label in changes})
        # Advice may count managed memory at another location without an action, so that the peak is at least the last.
        held, peak = Counter(first), first | last
        for step, undo in together.actions:
            if found := step.counted:
                location, size = found
                held[location] += -size if undo else size
                peak[location] = max(peak[location], held[location])
        for location in sorted(peak):
            memory[location.on(node)] = MemoryChange(first[location], last[location], peak[location])
    return memory


def _emptied(before: Geometry, after: Geometry, changes: Mapping[str, Transition]) -> Iterator[str]:
    """Exports of all processes whose content is gone after the changes."""
    for label, change in changes.items():
        undone = {step.provides for step in change.undo}
        for name in emptied_exports(before.members[label], after.members[label], undone):
            yield qualified(label, name)


def _export_changes(before: Geometry, after: Geometry, changes: Mapping[str, Transition]) -> Iterator[ExportChange]:
    """Exports of all processes that have other terms after the changes, or whose memory these release or replace."""
    for label, change in changes.items():
        old, new = before.members[label], after.members[label]
        touched = {*touched_exports(old, new, {step.provides for step in change.undo})}
        for name, export in old.of(ExportGroup).items():
            other = new.of(ExportGroup).get(name)
            now = other.terms if other else {}
            terms = {key: (value, now.get(key)) for key, value in export.terms.items() if value != now.get(key)}
            if terms or name in touched:
                yield ExportChange(qualified(label, name), terms, name in touched)


def _moved(change: Transition) -> Iterator[str]:
    """Labels of resources with addresses that a change ends and creates again, mostly at other addresses."""
    again = {step.provides: step.own_address for step in change.do if step.own_address is not None}
    for step in reversed(change.undo):
        address = step.own_address
        if address is not None and step.provides in again and not (address and address == again[step.provides]):
            yield step.describe().subject


def _of_process(label: str, before: Sequence[Step], change: Transition, node: str | None) -> ProcessDifference:
    undo = [step for step in change.undo if not step.in_change.repeated]
    do = _by_number(step for step in change.do if not step.in_change.repeated)
    changed = {None, *(step.effect for step in undo)}
    created = {step.provides for step in do if step.allocates}
    return ProcessDifference(
        label,
        label,
        1,
        undo=tuple(folding.rows((step for step in undo if step.undoing.verb), undo=True)),
        do=tuple(folding.rows(do)),
        kept=sum(not step.in_change.repeated and step.effect not in changed for step in before),
        lost=tuple(step.describe().subject for step in reversed(undo) if step.allocates and step.provides in created),
        node=node,
    )


def _by_number(do: Iterable[Step]) -> list[Step]:
    """Steps with those of each phase by range as it is counted: kv.2 before kv.10, which a change orders as text."""

    def key(step: Step) -> tuple[str, int, int]:
        entry, number = numbered(step.position[0])
        return entry, number or 0, step.position[1]

    return [step for _, steps in groupby(do, key=attrgetter("phase")) for step in sorted(steps, key=key)]
