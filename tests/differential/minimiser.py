"""Minimiser: the shortest part of a sequence that still shows a difference of the same kind (delta debugging).

Every candidate is made in a fresh process, since a driver's state may outlast a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from memtopo.machine import Machine
from tests.differential.replayer import Difference, Kind, compare
from tests.differential.runner import answers
from tests.differential.traces import END, Step, Trace

Shows = Callable[[Sequence[str]], bool]


class NoDifference(Exception):
    """The whole sequence does not show its difference in a fresh process."""


def minimal(calls: Sequence[str], shows: Shows, workers: int = 1) -> tuple[str, ...]:
    """Return a part of `calls` of which every call is needed for `shows`. Raises `NoDifference`."""
    shortest = tuple(calls)
    if not shows(shortest):
        raise NoDifference
    size = len(shortest) // 2
    with ThreadPoolExecutor(workers) as pool:
        while size:
            candidates = _without(shortest, size)
            shown = list(pool.map(shows, candidates))
            if any(shown):
                shortest = candidates[shown.index(True)]
            elif size == 1:
                return shortest
            size = max(1, min(size if any(shown) else size // 2, len(shortest) // 2))
    return shortest


def _without(calls: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """The calls without each run of `size`, later runs first: a difference is at the end."""
    starts = range(0, len(calls) - 1, size)
    return [calls[:start] + calls[start + size :] for start in reversed(starts) if start + size < len(calls)]


def difference(driver: str, machine: Machine, calls: Sequence[str]) -> Difference | None:
    """Make the calls on a driver in a fresh process, and on the simulator; returns their first difference."""
    steps = tuple(map(Step, [*calls, END], answers(driver, calls)))
    return compare(machine, Trace("", steps))


def minimised(found: Difference, driver: str, machine: Machine, workers: int = 1) -> Difference:
    """Shortest difference of the same kind. Raises `NoDifference`."""

    def kind(calls: Sequence[str]) -> Kind | None:
        shown = difference(driver, machine, calls)
        return shown.kind if shown else None

    calls = minimal(found.calls, lambda calls: kind(calls) == found.kind, workers)
    shortest = difference(driver, machine, calls)
    if shortest is None:
        raise NoDifference
    return shortest
