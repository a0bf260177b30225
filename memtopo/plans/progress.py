"""Progress of a run: the hooks that it calls, and their state as data, which `output` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

NO_PROCESSES: Mapping[str, int] = MappingProxyType({})


class Progress:
    """Hooks that a run calls; all are empty here. A phase ends with the next one, or with `end`.

    `processes` are those of a layout of several, with the part of each in the steps of a phase, as far as it is known
    when the phase begins; `process` is that whose steps are added or done.
    """

    def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        """Begin a phase of `steps` steps."""

    def volume(self, name: str, size: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        """Begin a phase whose steps are `size` bytes."""

    def extend(self, steps: int, process: str = "") -> None:
        """Add `steps` steps to the phase; none to one whose steps are bytes."""

    def advance(self, steps: int, process: str = "") -> None:
        """Count `steps` more steps of the phase as done."""

    def end(self) -> None:
        """End the last phase, after success or failure. Another one may begin later."""


class SafeProgress(Progress):
    """Progress hooks that call those of others, whose exceptions do not reach the run.

    After the first exception of one of the others, none of its hooks is called again.
    """

    def __init__(self, *others: Progress) -> None:
        self._others = others

    def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        self._forward(lambda hooks: hooks.phase(name, steps, processes))

    def volume(self, name: str, size: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        self._forward(lambda hooks: hooks.volume(name, size, processes))

    def extend(self, steps: int, process: str = "") -> None:
        self._forward(lambda hooks: hooks.extend(steps, process))

    def advance(self, steps: int, process: str = "") -> None:
        self._forward(lambda hooks: hooks.advance(steps, process))

    def end(self) -> None:
        self._forward(lambda hooks: hooks.end())

    def _forward(self, call: Callable[[Progress], None]) -> None:
        for each in self._others:
            try:
                call(each)
            except Exception:  # noqa: BLE001 the hooks are the caller's code, and a teardown must go on
                self._others = tuple(other for other in self._others if other is not each)


class PhasePart(NamedTuple):
    """Steps or bytes of one process, or of all: those done, and all that are known."""

    done: int
    total: int

    @property
    def share(self) -> float:
        """Share of it that is done, from 0 to 1."""
        return min(self.done / self.total, 1.0) if self.total else 0.0


class PhaseState(Struct, frozen=True):
    """State of a phase: its name, its steps or bytes, those of each process that has some, and its seconds."""

    name: str
    in_bytes: bool
    whole: PhasePart
    processes: Mapping[str, PhasePart]
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """Seconds that it will take if it goes on at its mean rate; None as long as that is not known."""
        done, total = self.whole
        return self.seconds * (total - done) / done if 0 < done <= total else None


class CountedProgress(Progress):
    """Progress that keeps the state of the phase that the run is in. Another thread may read it meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = ""
        self._begun = 0.0
        self._in_bytes = False
        self._done = self._total = 0
        self._processes: dict[str, PhasePart] = {}

    def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        self._begin(name, steps, processes, in_bytes=False)

    def volume(self, name: str, size: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        self._begin(name, size, processes, in_bytes=True)

    def extend(self, steps: int, process: str = "") -> None:
        if self._in_bytes or not self._name:
            return
        self._total += steps
        if process and steps:
            done, total = self._processes.get(process, PhasePart(0, 0))
            self._processes[process] = PhasePart(done, total + steps)

    def advance(self, steps: int, process: str = "") -> None:
        if not self._name:
            return
        self._done += steps
        if process and process in self._processes:
            done, total = self._processes[process]
            self._processes[process] = PhasePart(done + steps, total)

    def end(self) -> None:
        self._name = ""

    @property
    def state(self) -> PhaseState | None:
        """State of the phase; None between phases."""
        if not (name := self._name):
            return None
        whole, seconds = PhasePart(self._done, self._total), self._clock() - self._begun
        taking_part = {label: part for label, part in list(self._processes.items()) if part.total}
        return PhaseState(name, self._in_bytes, whole, taking_part, seconds)

    def _begin(self, name: str, total: int, processes: Mapping[str, int], *, in_bytes: bool) -> None:
        self._name = ""  # no state until all of it is that of the new phase
        self._done, self._total, self._in_bytes = 0, total, in_bytes
        self._processes = {label: PhasePart(0, each) for label, each in processes.items()}
        self._begun = self._clock()
        self._name = str(name)
