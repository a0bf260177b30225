"""Runs of equal steps: thousands of chunks or mappings as one item of a plan, which has their numbers alone."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self, overload

from msgspec import Struct
from msgspec.structs import replace

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout
from memtopo.kinds.step import Finding, Phase, Step, Undoing, is_gone


class Progressed(NamedTuple):
    """Number of the first steps of a run that were done, undone or checked, and the error of the next, if it failed.

    Checked steps are as declared, and have `findings`. Without an error, the next one is checked by itself.
    """

    number: int
    error: Exception | None = None
    findings: Sequence[Finding] = ()


class StepRun(Struct, frozen=True):
    """Steps of one class that differ by a number, in the order of `indices`; a sequence of them, made on demand.

    A slice of a run is a run. A subclass does, undoes and checks its steps in loops of calls, with the same effect.
    """

    step_class: type[Step]
    indices: range

    @property
    def phase(self) -> Phase:
        """Phase of the steps."""
        return self.step_class.phase

    @property
    def undoing(self) -> Undoing:
        """Undo of each step."""
        return self.step_class.undoing

    @property
    def period(self) -> int:
        """Number of steps after which all but their numbers repeats."""
        return 1

    def step(self, index: int) -> Step:
        """Return the step with a number."""
        raise NotImplementedError

    def index_of(self, resource: Hashable) -> int | None:
        """Return the place in the run of the step that provides a resource; None if none does."""
        del resource
        return None

    def do(self, driver: Driver, layout: Layout) -> Progressed:
        """Do the steps until one fails."""
        return self._each("do", driver, layout)

    def undo(self, driver: Driver, layout: Layout) -> Progressed:
        """Undo the steps, in this order, until one fails."""
        return self._each("undo", driver, layout)

    def check(self, driver: Driver, layout: Layout) -> Progressed:
        """Check the first steps in loops of calls."""
        del driver, layout
        return Progressed(0)

    def _each(self, method: str, driver: Driver, layout: Layout) -> Progressed:
        for number, step in enumerate(self):
            try:
                getattr(step, method)(driver, layout)
            except Exception as error:  # noqa: BLE001  # the caller names the step
                return Progressed(number, error)
        return Progressed(len(self))

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> Step | Self:
        if isinstance(at, slice):
            return replace(self, indices=self.indices[at])
        return self.step(self.indices[at])

    def __iter__(self) -> Iterator[Step]:
        return map(self.step, self.indices)


class NumberedSteps:
    """Single steps of the items of a plan by their index; those of a run are made on demand."""

    def __init__(self, items: Iterable[Step | StepRun]) -> None:
        self._items: dict[int, Step | StepRun] = {}
        self._providers: dict[Hashable, int] = {}
        self._runs: list[tuple[int, StepRun]] = []
        self.count = 0
        for item in items:
            self._items[self.count] = item
            if isinstance(item, StepRun):
                self._runs.append((self.count, item))
            elif (provided := item.provides) is not None:
                self._providers[provided] = self.count
            self.count += len(item) if isinstance(item, StepRun) else 1
        self._starts = list(self._items)

    def __getitem__(self, index: int) -> Step:
        start = self._starts[bisect_right(self._starts, index) - 1]
        item = self._items[start]
        return item[index - start] if isinstance(item, StepRun) else item

    def provider(self, resource: Hashable) -> int | None:
        """Return the index of the step that provides a resource; None if none does."""
        if (known := self._providers.get(resource)) is not None:
            return known
        found = ((start, run.index_of(resource)) for start, run in self._runs)
        return next((start + index for start, index in found if index is not None), None)

    def of_phase(self, phase: Phase) -> Iterator[int]:
        """Indices of the single steps of a phase without runs."""
        return (start for start, item in self._items.items() if item.phase is phase)


def run_of(run: StepRun) -> Step | StepRun:
    """Return a run, or its step if it has only one."""
    return run if len(run) > 1 else run[0]


def expanded(items: Iterable[Step | StepRun]) -> Iterator[Step]:
    """Single steps of the items of a plan, in order."""
    for item in items:
        if isinstance(item, StepRun):
            yield from item
        else:
            yield item


def parts_of_runs(
    items: Iterable[Step | StepRun], most: int, pace: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Step | StepRun]:
    """Single steps, and parts of the runs, in order, each of which the caller makes before it takes the next.

    A part has at most `most` steps, and fewer if they take longer than `pace` seconds: a page-locked chunk of many GiB
    takes seconds.
    """
    entry, size = None, 1
    for item in items:
        if not isinstance(item, StepRun):
            yield item
            continue
        if item[0].path != entry:  # others may be slower
            entry, size = item[0].path, 1
        first = 0
        while first < len(item):
            start = clock()
            yield item[first : first + size]
            first += size
            size = min(2 * size, most) if clock() - start < pace else max(1, size // 2)


def number_of_steps(items: Iterable[Step | StepRun]) -> int:
    """Number of single steps of the items of a plan."""
    return sum(len(item) if isinstance(item, StepRun) else 1 for item in items)


def reversed_items(items: Sequence[Step | StepRun]) -> Iterator[Step | StepRun]:
    """Items in reverse order, and the steps of each run in reverse order."""
    for item in reversed(items):
        yield item[::-1] if isinstance(item, StepRun) else item


def remaining(items: Iterable[Step | StepRun], gone: Iterable[Hashable]) -> Iterator[Step | StepRun]:
    """Steps that need none of the resources that are gone, directly or through other steps.

    Resources of other processes, which steps import, are pairs of the process and the resource.
    """
    gone = set(gone)
    for item in items:
        if isinstance(item, StepRun):
            yield from _remaining_of(item, gone)
        elif not is_gone(item, gone) and (item.effect is not None or item.in_change.repeated):
            yield item


def _remaining_of(run: StepRun, gone: set[Hashable]) -> Iterator[Step | StepRun]:
    first = 0
    for number, step in enumerate(run):
        if is_gone(step, gone):
            if number > first:
                yield run_of(run[first:number])
            first = number + 1
    if first < len(run):
        yield run_of(run[first:])
