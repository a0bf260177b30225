"""Rehearsal of a layout's states: every switch between them is made and checked, with the bytes that they keep."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from memtopo.driver.types import DriverError
from memtopo.executor import StepFailed
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.run.layout_plans import Plans
from memtopo.run.reports import FindingTally
from memtopo.run.verification.rounds import Verification

States = Mapping[str, Plans]
"""Plans of all processes of a layout, by state; that of the layout as it is written among them."""


def paths(states: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a rehearsal from the layout as it is written: each state, and from each to each other one."""
    names = [name for name in states if name != AWAKE]
    yield from ((name,) for name in names)
    yield from permutations(names, 2)


def stops(states: Iterable[str]) -> int:
    """Return the number of states that a rehearsal comes to, each of which is checked."""
    return sum(len(path) + 1 for path in paths(states))


def write_kept(verification: Verification, states: States, path: Sequence[str]) -> None:
    """Write the bytes that all states of a path keep. Raises `StepFailed` or `Stopped`."""
    if verifier := verification.of_kept_bytes(lost(states, path)):
        _attempt(lambda: verifier.write(0))


def read_kept(
    verification: Verification, states: States, path: Sequence[str], state: str, findings: FindingTally
) -> None:
    """Read those bytes as far as the state that the layout is in has memory. Raises `StepFailed` or `Stopped`."""
    awake, now = states[AWAKE], states[state]
    absent = {label: _provided(awake[label]) - _provided(plan) for label, plan in now.items()}
    without = {label: each | absent[label] for label, each in lost(states, path).items()}
    if verifier := verification.of_kept_bytes(without):
        _attempt(lambda: findings.add(verifier.read(0)))


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
