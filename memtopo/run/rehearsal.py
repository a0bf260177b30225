"""Rehearsal of a layout's states: every switch between them is made and checked, with the bytes that they keep."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from memtopo.driver.types import DriverError
from memtopo.executor import Execution, StepFailed
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.run.findings import FindingTally
from memtopo.run.transition import make_transition
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.run.verification.rounds import Verification
from memtopo.run.verification.verifier import Verifier

States = Mapping[str, Mapping[str, Plan]]
"""Plans of all processes of a layout, by state and label; that of the layout as it is written among them."""


def paths(states: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a rehearsal from the layout as it is written: each state, and from each to each other one."""
    names = [name for name in states if name != AWAKE]
    yield from ((name,) for name in names)
    yield from permutations(names, 2)


def stops(states: Iterable[str]) -> int:
    """Return the number of states that a rehearsal comes to, each of which is checked."""
    return sum(len(path) + 1 for path in paths(states))


class Rehearsal:
    """Walks from the layout as it is written through its states and back. Raises `StepFailed` or `Stopped`."""

    def __init__(
        self,
        execution: Execution,
        states: Mapping[str, Plan],
        verification: Verification,
        findings: FindingTally,
        *,
        full: bool,
    ) -> None:
        """`states` are the plans of all states by name, that of the layout as it is written among them.

        With `full`, all that each switch keeps is read before and after it, also where it is offloaded.
        """
        self._execution, self._states, self._full = execution, states, full
        self._verification, self._findings = verification, findings
        plans = {name: {"": plan} for name, plan in states.items()}
        self._part = RehearsedPart(execution, plans, verification, findings)

    def walk(self) -> None:
        """Go along all paths and back; bytes that all states of a path keep must be as they were written before it."""
        for path in paths(self._states):
            self._part.write(path)
            for state in (*path, AWAKE):
                plan = self._states[state]
                kept = Fingerprints.take(self._execution, plan) if self._full and self._verification.safe else None
                make_transition(self._execution, plan)
                self._part.read(path, state)
                if kept:
                    self._findings.include(kept.compared_after(self._findings), ASPECT)


class RehearsedPart:
    """Part of one process in a rehearsal. Raises `StepFailed` or `Stopped`."""

    def __init__(
        self, execution: Execution, states: States, verification: Verification, findings: FindingTally
    ) -> None:
        self._execution, self._states, self._verification, self._findings = execution, states, verification, findings

    def write(self, path: Sequence[str]) -> None:
        """Write the bytes that all states of a path keep."""
        if verifier := self._verification.of_kept_bytes(lost(self._states, path)):
            _attempt(lambda: verifier.write(0))

    def read(self, path: Sequence[str], state: str) -> None:
        """Check every step, and read those bytes as far as the state that the layout is in has memory."""
        self._execution.progress.extend(len(self._execution.plan.steps))
        self._findings.add(self._execution.check())
        awake, now = self._states[AWAKE], self._states[state]
        absent = {label: _provided(awake[label]) - _provided(plan) for label, plan in now.items()}
        without = {label: each | absent[label] for label, each in lost(self._states, path).items()}
        if verifier := self._verification.of_kept_bytes(without):
            self._read(verifier)

    def _read(self, verifier: Verifier) -> None:
        _attempt(lambda: self._findings.add(verifier.read(0)))


def lost(states: States, path: Sequence[str]) -> dict[str, frozenset[Hashable]]:
    """Return the resources of each process whose bytes a state of a path does not keep.

    Bytes of an import belong to its creator: they are kept where only the importer gives it back.
    """
    awake = states[AWAKE]
    found = {
        label: frozenset[Hashable]().union(
            *(
                (_provided(plan) - _provided(states[name][label]) - _kept(states[name][label]))
                | _keepers(states[name][label])
                for name in path
            )
        )
        for label, plan in awake.items()
    }
    for label, plan in awake.items():
        imports = {step.provides: step.imports for step in plan.steps if step.imports}
        gone = {resource for resource, (holder, source) in imports.items() if source in found[holder]}
        found[label] = found[label] - imports.keys() | gone
    return found


def _attempt(act: Callable[[], None]) -> None:
    try:
        act()
    except DriverError as error:
        raise StepFailed(None, "rehearsal of the states", error) from error


def _provided(plan: Plan) -> frozenset[Hashable]:
    return frozenset(step.provides for step in plan.steps)


def _kept(plan: Plan) -> frozenset[Hashable]:
    """Resources whose bytes a state keeps elsewhere."""
    return frozenset(step.keeps for step in plan.steps)


def _keepers(plan: Plan) -> frozenset[Hashable]:
    """Resources whose bytes a state replaces by those that it keeps there."""
    return frozenset(need for step in plan.steps if step.keeps is not None for need in step.needs)
