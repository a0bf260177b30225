"""Plans of all processes of a layout in each of its states, computed alike in the coordinator and in every worker."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from functools import cached_property

from memtopo import planner
from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.messages import unknown_state
from memtopo.geometry import Geometry
from memtopo.kinds.exports.groups import ExportGroup, exported_resources, touched_exports
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.transition import Transition, transitions


class JointPlans:
    """The states of a layout of several processes, and the transitions between them."""

    def __init__(self, geometry: Geometry, plan: Plan) -> None:
        self._geometry, self._plan = geometry, plan
        self._known: dict[tuple[str, str], dict[str, Transition]] = {}

    def built_with(self, label: str, plan: Plan) -> JointPlans:
        """Return the plans with another one of a process, which differs in what no other process sees."""
        return JointPlans(self._geometry, replace(self._plan, processes={**self._plan.processes, label: plan}))

    @cached_property
    def states(self) -> Mapping[str, Mapping[str, Plan]]:
        """Plans of all processes by state; the layout as it is written is the first."""
        others = planner.plan_states(self._plan, self._geometry)
        return {AWAKE: self._plan.processes, **{name: plan.processes for name, plan in others.items()}}

    def transitions(self, old: str, new: str) -> Mapping[str, Transition]:
        """Transitions of all processes between two states. Raises `MemtopoError` if there is no such state."""
        if new not in self.states:
            message, hint = unknown_state(self._plan.name, new, list(self.states))
            raise MemtopoError(message, hint=hint)
        if (old, new) not in self._known:
            steps = ({label: plan.steps for label, plan in self.states[name].items()} for name in (old, new))
            self._known[old, new] = transitions(*steps)
        return self._known[old, new]

    def transitions_to(self, other: JointPlans) -> Mapping[str, Transition]:
        """Transitions of all processes to another spec with the same processes; both as they are written."""
        both = (plans.states[AWAKE] for plans in (self, other))
        return transitions(*({label: plan.steps for label, plan in plans.items()} for plans in both))

    def resources_of(self, exports: Collection[str]) -> frozenset[tuple[str, Hashable]]:
        """Return the resources of some exports, each with the label of its process."""
        return frozenset(
            (label, resource)
            for label, geometry in self._geometry.processes.items()
            for resource in exported_resources(
                geometry, [name for name in geometry.of(ExportGroup) if f"{label}.{name}" in exports]
            )
        )

    def touched(self, steps: Mapping[str, Transition], after: JointPlans) -> frozenset[str]:
        """Return the exports whose objects some transitions release or replace, as `server.weights`."""
        gone = {label: {step.provides for step in each.undo} for label, each in steps.items()}
        return frozenset(
            f"{label}.{name}"
            for label, geometry in self._geometry.processes.items()
            for name in touched_exports(geometry, after._geometry.processes[label], gone[label])
        )
