"""Rehearsal of a layout's states: every switch between them is made and checked, with the bytes that they keep."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import permutations

from memtopo.driver.types import DriverError
from memtopo.executor import Execution, StepFailed
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.run.change import change
from memtopo.run.findings import FindingTally
from memtopo.run.verification.rounds import Verification
from memtopo.run.verification.verifier import Verifier


class Rehearsal:
    """Walks from the layout as it is written through its states and back. Raises `StepFailed` or `Stopped`."""

    def __init__(
        self, execution: Execution, states: Mapping[str, Plan], verification: Verification, findings: FindingTally
    ) -> None:
        """`states` are the plans of all states by name, that of the layout as it is written among them."""
        self._execution, self._verification, self._findings = execution, verification, findings
        self._awake = states[AWAKE]
        self._states = {name: plan for name, plan in states.items() if name != AWAKE}

    def walk(self) -> None:
        """Go to each state and back, and from each state to each other one and back."""
        for name in self._states:
            self._go([name])
        for pair in permutations(self._states, 2):
            self._go(pair)

    def _go(self, names: Sequence[str]) -> None:
        """Go through some states and back; bytes that all of them keep must be as they were written before."""
        states = [self._states[name] for name in names]
        lost = frozenset[Hashable]().union(*(self._absent(state) - _kept(state) for state in states))
        verifier = self._verification.of_bytes(lost)
        if verifier:
            self._attempt(lambda: verifier.write(0))
        for state in states:
            self._switch(state)
            self._read(self._verification.of_bytes(lost | self._absent(state)))
        self._switch(self._awake)
        self._read(verifier)

    def _absent(self, plan: Plan) -> frozenset[Hashable]:
        """Resources of the layout that a state has not."""
        return _provided(self._awake) - _provided(plan)

    def _switch(self, plan: Plan) -> None:
        change(self._execution, plan)
        self._findings.add(self._execution.check())

    def _read(self, verifier: Verifier | None) -> None:
        if verifier:
            self._attempt(lambda: self._findings.add(verifier.read(0)))

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except DriverError as error:
            raise StepFailed(None, "rehearsal of the states", error) from error


def _provided(plan: Plan) -> frozenset[Hashable]:
    return frozenset(step.provides for step in plan.steps)


def _kept(plan: Plan) -> frozenset[Hashable]:
    """Resources whose bytes a state keeps elsewhere."""
    return frozenset(step.keeps for step in plan.steps)
