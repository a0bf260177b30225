"""Failing calls of the transitions between the states of each spec in specs/: state and kept bytes are restored."""

from __future__ import annotations

from itertools import permutations
from zlib import crc32

import pytest

from memtopo import planner
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.kinds.layout import current
from memtopo.kinds.views import Member, mapped_memory
from memtopo.language import read_file
from memtopo.machine import Machine, load
from memtopo.planner import Plan
from memtopo.rules.validation import validate
from tests.helpers.conducted import make_transition
from tests.helpers.specs import SPECS
from tests.run.test_transition import Built, built

MACHINE = load("h100x1")
WITH_STATES = [
    path for path in SPECS if "\nstates:" in path.read_text() and validate(read_file(str(path)), MACHINE).geometry
]
SAMPLE = 3
"""Failing calls of each transition in a sample."""


def geometry_of(path: str) -> Geometry:
    found = validate(read_file(path), MACHINE).geometry
    assert found
    return found


def states_of(geometry: Geometry, machine: Machine) -> dict[str, Plan]:
    plan = planner.plan(geometry, machine)
    return {"awake": plan, **planner.plan_states(plan, geometry)}


class Marked:
    """A layout with a mark in each chunk of its ranges that a GPU may write."""

    def __init__(self, layout: Built, geometry: Geometry) -> None:
        self._execution = layout.execution
        self._chunks = [
            (each.resource, label, offset)
            for each in mapped_memory(Member(geometry))
            for label, offset, grants in each.views[:1]
            if label in layout.execution.layout.ranges and any(grant.access.word == "rw" for grant in grants)
        ]

    def write(self) -> None:
        for resource, label, offset in self._chunks:
            with current(self._execution.driver, self._execution.layout.contexts[0]):
                self._execution.driver.memcpy_htod(self._address(label, offset), _mark(resource))

    def lost(self, kept: set[object]) -> list[object]:
        """Return chunks among the `kept` ones whose mark is not there."""
        return [each for each in self._chunks if each[0] in kept and self._read(*each) != _mark(each[0])]

    def _read(self, resource: object, label: str, offset: int) -> bytes:
        with current(self._execution.driver, self._execution.layout.contexts[0]):
            return self._execution.driver.memcpy_dtoh(self._address(label, offset), len(_mark(resource)))

    def _address(self, label: str, offset: int) -> int:
        return self._execution.layout.ranges[label].address + offset + 1000


def _mark(resource: object) -> bytes:
    return crc32(repr(resource).encode()).to_bytes(4, "little")


def kept_in(*plans: Plan) -> set[object]:
    """Resources whose bytes all of some states keep."""
    each = [{step.provides for step in plan.steps} | {step.keeps for step in plan.steps} for plan in plans]
    return set(each[0]).intersection(*each[1:])


def calls_of(states: dict[str, Plan], one: str, other: str) -> int:
    with built(states["awake"], MACHINE) as layout:
        make_transition(layout.execution, states[one])
        before = layout.failing.calls
        make_transition(layout.execution, states[other])
        return layout.failing.calls - before


def attempt(geometry: Geometry, states: dict[str, Plan], pair: tuple[str, str], at: int) -> None:
    """Make one switch whose call fails, and one back to awake."""
    one, other = states[pair[0]], states[pair[1]]
    with built(states["awake"], MACHINE) as layout:
        marked = Marked(layout, geometry)
        marked.write()
        make_transition(layout.execution, one)
        before = layout.state()
        layout.failing.at = layout.failing.calls + at
        with pytest.raises(StepFailed):
            make_transition(layout.execution, other)
        layout.failing.at = 0
        assert layout.state() == before, (pair, at, layout.failing.failed)
        make_transition(layout.execution, states["awake"])
        assert marked.lost(kept_in(states["awake"], one, other)) == [], (pair, at, layout.failing.failed)


@pytest.mark.parametrize(
    "most",
    [SAMPLE, pytest.param(None, marks=(pytest.mark.exhaustive(seconds=8), pytest.mark.timeout(7200)))],
    ids=["some", "every"],
)
@pytest.mark.parametrize("name", [str(each) for each in WITH_STATES], ids=[each.stem for each in WITH_STATES])
def test_failing_calls_of_every_transition_restore_state_and_bytes(name: str, most: int | None) -> None:
    geometry = geometry_of(name)
    states = states_of(geometry, MACHINE)
    for pair in permutations(states, 2):
        calls = calls_of(states, *pair)
        stride = 1 if most is None else max(1, calls // most)
        for at in range(1, calls + 1, stride):
            attempt(geometry, states, pair, at)
