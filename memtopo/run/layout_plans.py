"""Plans of all processes of a layout in each of its states, and the transitions between them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations

from msgspec import Struct
from msgspec.structs import replace

from memtopo import planner
from memtopo.common.errors import MemtopoError
from memtopo.common.text import qualified
from memtopo.diagnostics.messages import unknown_state
from memtopo.geometry import Geometry
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.exports import exported_resources, touched_exports
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.report import Check
from memtopo.plans.transition import Transition, transition, transitions
from memtopo.session.composition import RunRequest

Plans = Mapping[str, Plan]
"""Plan of each process by its label, which is empty if there is only one."""

Absent = frozenset[tuple[str, Hashable]]
"""Resources that are absent from a layout with all that needs them, each with the label of its process."""

Variant = tuple[str, Absent]
"""State of a layout, and what is absent from it."""

WHOLE: Variant = (AWAKE, frozenset())
"""Variant of a layout as it is written."""


class Goal(Struct, frozen=True):
    """Variant to which a layout is to be changed, and the check of the result.

    `request` is that of another spec if the layout is changed to one, and `source` its source, for processes elsewhere.
    Importers keep the memory of `in_use` exports. A full check compares every byte that the change keeps by
    kernels; nothing may write them meanwhile.
    """

    variant: Variant
    check: Check = "fast"
    in_use: Collection[str] = ()
    request: RunRequest | None = None
    source: str = ""


class LayoutPlans:
    """The states of a layout, computed in the conductor and in every worker from the same spec.

    Plans and transitions are computed when they are first needed, and kept: a layout switches back and forth.
    """

    def __init__(self, geometry: Geometry, plan: Plan) -> None:
        self._geometry, self._plan = geometry, plan
        self._partial: dict[Variant, Plans] = {}
        self._known: dict[tuple[Variant, Variant], dict[str, Transition]] = {}

    def built_with(self, label: str, plan: Plan) -> LayoutPlans:
        """Return the plans with another one of a process, which differs in what no other process sees."""
        return LayoutPlans(self._geometry, replace(self._plan, processes={**self._plan.processes, label: plan}))

    def name_of(self, process: str) -> str:
        """Return the name of the layout, with the process in one of several: `kv/rank.3`."""
        return f"{self._plan.name}/{process}" if process else self._plan.name

    @cached_property
    def states(self) -> Mapping[str, Plans]:
        """Plans of all processes by state; the layout as it is written is the first."""
        others = planner.plan_states(self._plan, self._geometry)
        return {name: plan.processes or {"": plan} for name, plan in {AWAKE: self._plan, **others}.items()}

    def of(self, variant: Variant) -> Plans:
        """Return the plans of a variant. Raises `MemtopoError` if there is no such state."""
        state, absent = variant
        if state not in self.states:
            message, hint = unknown_state(self._plan.name, state, list(self.states))
            raise MemtopoError(message, hint=hint)
        if not absent:
            return self.states[state]
        if variant not in self._partial:
            self._partial[variant] = {
                label: planner.without(plan, {resource for owner, resource in absent if owner == label})
                for label, plan in self.states[state].items()
            }
        return self._partial[variant]

    def to_build(self, label: str, absent: Absent) -> Plan:
        """Return the plan that builds a process without some resources; unlike that of `of`, it grants access."""
        plan = self.of((AWAKE, absent))[label]
        return replace(plan, items=transition((), plan.steps).do) if absent else plan

    def transitions(self, old: Variant, new: Variant) -> Mapping[str, Transition]:
        """Transitions of all processes between two variants. Raises `MemtopoError` if there is no such state."""
        before, after = self.of(old), self.of(new)
        if (old, new) not in self._known:
            self._known[old, new] = transitions_between(before, after)
        return self._known[old, new]

    def resources_of(self, exports: Collection[str]) -> Absent:
        """Return the resources of some exports, each with the label of its process."""
        return frozenset(
            (label, resource)
            for label, geometry in self._processes.items()
            for resource in exported_resources(
                geometry, [name for name in geometry.of(ExportGroup) if qualified(label, name) in exports]
            )
        )

    def exports_of(self, absent: Absent) -> Iterator[str]:
        """Yield the exports all of whose resources are absent."""
        for label, geometry in self._processes.items() if absent else ():
            for name, group in geometry.of(ExportGroup).items():
                if all((label, resource) in absent for resource in group.resources):
                    yield qualified(label, name)

    def touched(self, undone: Mapping[str, Collection[Hashable]], after: LayoutPlans) -> frozenset[str]:
        """Return the exports of which a transition releases or replaces some objects, the `undone` of each process."""
        return frozenset(
            qualified(label, name)
            for label, geometry in self._processes.items()
            for name in touched_exports(geometry, after._processes[label], undone[label])
        )

    def reused(self, exports: Collection[str], gone: Mapping[str, Collection[Hashable]]) -> frozenset[str]:
        """Return those of some exports that are committed or lend, and some of whose memory is not among the `gone`."""
        return frozenset(
            qualified(label, name)
            for label, geometry in self._processes.items()
            for name, group in geometry.of(ExportGroup).items()
            if qualified(label, name) in exports and (group.commit or group.lends)
            if any(each not in gone[label] for each in group.memory_resources)
        )

    @property
    def _processes(self) -> Mapping[str, Geometry]:
        return self._geometry.processes or {"": self._geometry}


def transitions_between(old: Plans, new: Plans) -> dict[str, Transition]:
    """Return the transitions of all processes from some plans to others of the same processes."""
    return transitions(*({label: plan.steps for label, plan in plans.items()} for plans in (old, new)))


def paths(states: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a rehearsal from the layout as it is written: each state, and from each to each other one."""
    names = [name for name in states if name != AWAKE]
    yield from ((name,) for name in names)
    yield from permutations(names, 2)


def stops(states: Iterable[str]) -> int:
    """Return the number of states that a rehearsal comes to, each of which is checked."""
    return sum(len(path) + 1 for path in paths(states))


def lost(states: Mapping[str, Plans], path: Sequence[str], now: str = AWAKE) -> dict[str, frozenset[Hashable]]:
    """Return the resources of each process whose bytes a state of a path does not keep, or that do not exist `now`.

    Bytes of an import belong to its creator: they are kept where only the importer gives it back.
    """
    awake = states[AWAKE]
    found = {
        label: frozenset[Hashable]().union(
            *(
                (provided(plan) - provided(states[name][label]) - kept(states[name][label]))
                # Whose bytes the state replaces by the ones that it keeps there.
                | {need for step in states[name][label].steps if step.keeps is not None for need in step.needs}
                for name in path
            )
        )
        for label, plan in awake.items()
    }
    for label, plan in awake.items():
        imports = {step.provides: step.imports for step in plan.steps if step.imports}
        gone = {resource for resource, (holder, source) in imports.items() if source in found[holder]}
        found[label] = found[label] - imports.keys() | gone
    return {label: each | (provided(awake[label]) - provided(states[now][label])) for label, each in found.items()}


def provided(plan: Plan) -> frozenset[Hashable]:
    """Return the resources that exist in a plan."""
    return frozenset(step.provides for step in plan.steps)


def kept(plan: Plan) -> frozenset[Hashable]:
    """Return the resources whose bytes a plan keeps elsewhere."""
    return frozenset(step.keeps for step in plan.steps)


def built_plan(request: RunRequest) -> Plan:
    """Return the plan of a request as it is built: a full check needs kernels."""
    full = request.check == "full"
    return planner.with_kernels(request.plan, request.geometry.gpus) if full else request.plan


def plans_of(request: RunRequest) -> LayoutPlans:
    """Return the plans of a layout of one process."""
    return LayoutPlans(request.geometry, built_plan(request))
