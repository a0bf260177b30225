"""Replay of recorded sequences on the simulator: the first difference of each, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtopo.drivers.sim import SimDriver
from memtopo.machine import Machine
from tests.differential.calls import OK, Call, compiled
from tests.differential.explained import explanation
from tests.differential.neighbours import depends
from tests.differential.resource_calls import needs_of
from tests.differential.resources import Surroundings
from tests.differential.traces import END, Step, Trace


class Kind(NamedTuple):
    """Kind of a difference: the call's name, and the answers of the hardware and of the simulator."""

    call: str
    hardware: str
    simulator: str

    def __str__(self) -> str:
        return f"{self.call}: {self.hardware}, simulated {self.simulator}"


class Difference(NamedTuple):
    """First call of a sequence that the simulator answers differently."""

    trace: Trace
    position: int
    simulated: str

    @property
    def step(self) -> Step:
        """The call and the hardware's answer."""
        return self.trace.steps[self.position]

    @property
    def kind(self) -> Kind:
        """Kind of the difference, without values."""
        name = Call.parse(self.step.call).spoken
        return Kind(name, answer_kind(self.step.answer), answer_kind(self.simulated))

    @property
    def calls(self) -> tuple[str, ...]:
        """Calls up to the difference."""
        return tuple(step.call for step in self.trace.steps[: self.position + 1] if step.call != END)

    @property
    def by_neighbours(self) -> bool:
        """True if this call, or an earlier one, depends on what lies beside a reservation."""
        return depends(self.trace.steps[: self.position + 1])

    @property
    def explained_by(self) -> str:
        """Entry of STRICTER or LAXER that explains the difference, or an empty text."""
        return explanation(self.trace.steps[: self.position + 1], self.simulated)


class Replay(NamedTuple):
    """Result of a replay: sequences, calls that were made, and differences."""

    sequences: int
    calls: int
    differences: tuple[Difference, ...]


def replay(machine: Machine, traces: Iterable[Trace]) -> Replay:
    """Replay sequences, each on a new simulator, up to its first difference."""
    sequences = calls = 0
    found = []
    with Surroundings(machine) as surroundings:
        for trace in traces:
            sequences += 1
            difference = _first_difference(machine, trace, surroundings)
            calls += len(trace.steps) if difference is None else difference.position + 1
            if difference:
                found.append(difference)
    return Replay(sequences, calls, tuple(found))


def compare(machine: Machine, trace: Trace) -> Difference | None:
    """Return the first difference of one sequence, or None."""
    with Surroundings(machine) as surroundings:
        return _first_difference(machine, trace, surroundings)


def _first_difference(machine: Machine, trace: Trace, surroundings: Surroundings) -> Difference | None:
    needs = needs_of(step.call for step in trace.steps)
    with SimDriver(machine) as driver:
        driver.init()
        contexts = [driver.device_primary_ctx_retain(device) for device in range(len(machine.devices))]
        session = surroundings.session(driver, contexts, needs)
        try:
            for index, (call, answer) in enumerate(trace.steps):
                simulated = compiled(call)(session) if call != END else OK
                if simulated != answer:
                    return Difference(trace, index, simulated)
        finally:
            if needs.resources and not session.close():
                surroundings.renew()
            session.close_files()
    return None


def by_kind(differences: Iterable[Difference]) -> Iterator[tuple[Kind, list[Difference]]]:
    """Yield the kinds of differences, most frequent first, with the differences of each, shortest first."""
    kinds: dict[Kind, list[Difference]] = {}
    for each in differences:
        kinds.setdefault(each.kind, []).append(each)
    for kind, found in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        yield kind, sorted(found, key=lambda each: each.position)


def answer_kind(answer: str) -> str:
    """An answer without its values: an error or a number as it is, anything else as `value`."""
    if answer.startswith("died"):
        return "died"
    return answer if answer.isupper() or answer in {"ok", "0", "1", "3"} else "value"
