"""Plans of the states of a layout of one process, and the transitions between them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property

from memtopo import planner
from memtopo.geometry import Geometry
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.transition import Transition, transition


class StatePlans:
    """Plans of a layout by state, with all resources or without some; `awake` is that of the layout as it is written.

    Plans and transitions are computed when they are first needed, and kept: a layout switches back and forth.
    """

    def __init__(self, awake: Plan, geometry: Geometry) -> None:
        self.awake, self._geometry = awake, geometry
        self._partial: dict[tuple[str, frozenset[Hashable]], Plan] = {}
        self._transitions: dict[tuple[int, int], tuple[Plan, Plan, Transition]] = {}

    @cached_property
    def by_name(self) -> Mapping[str, Plan]:
        """Plans of all states; that of the layout as it is written is the first."""
        return {AWAKE: self.awake, **planner.plan_states(self.awake, self._geometry)}

    def without(self, state: str, absent: frozenset[Hashable]) -> Plan:
        """Return the plan of a state without some resources, and without what needs them."""
        if (state, absent) not in self._partial:
            self._partial[state, absent] = planner.without(self.by_name[state], absent)
        return self._partial[state, absent]

    def to_build(self, absent: frozenset[Hashable]) -> Plan:
        """Return the plan that builds the layout without some resources; unlike that of `without`, it grants access."""
        plan = self.without(AWAKE, absent)
        return replace(plan, steps=transition((), plan.steps).do) if absent else plan

    def transition(self, old: Plan, new: Plan) -> Transition:
        """Return the transition from one of these plans to another; they are recognised by their identity."""
        key = id(old), id(new)
        if key not in self._transitions:
            self._transitions[key] = old, new, transition(old.steps, new.steps)
        return self._transitions[key][2]
