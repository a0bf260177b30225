"""Gates of the teardown: what is released before each, and how long a process waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from memtopo.executor import TeardownGates
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.gates import Gate, SplitGate, WorkerGates, gate_descriptors
from tests.helpers.lockstep import apply_together
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import OWN_AND_IMPORTED


class Observer(TeardownGates):
    """Notes what a run has at each gate."""

    def __init__(self, run: ProcessRun, seen: dict[str, list[tuple[set[str], set[str], int, int]]]) -> None:
        self._run, self._seen = run, seen

    def imports_released(self) -> bool:
        self._note()
        return True

    def all_released(self) -> bool:
        self._note()
        return True

    def _note(self) -> None:
        layout = self._run.execution.layout
        state = set(layout.chunks), set(layout.ranges), len(layout.mappings), len(layout.contexts)
        self._seen.setdefault(self._run.request.process, []).append(state)


def test_imports_are_released_before_the_first_gate_and_own_memory_between_the_two() -> None:
    seen: dict[str, list[tuple[set[str], set[str], int, int]]] = {}
    reports = apply_together(OWN_AND_IMPORTED, invented(1), gates=lambda run: Observer(run, seen))
    assert all(report.exit_code == 0 for report in reports.values())
    assert seen == {
        "server": [({"c"}, {"r"}, 0, 1), (set(), set(), 0, 1)],
        "reader": [({"c"}, {"r"}, 0, 1), (set(), set(), 0, 1)],
    }


@pytest.fixture
def ends() -> Iterator[list[Gate]]:
    """Both gates, of this process and of another one."""
    first, second = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    found = [Gate(*first), Gate(*second), *(Gate(os.dup(read), os.dup(write)) for read, write in (first, second))]
    try:
        yield found
    finally:
        for gate in found:
            gate.close()


@pytest.mark.parametrize("number", [0, 1])
def test_each_gate_is_awaited_until_the_other_process_leaves_it(ends: list[Gate], number: int) -> None:
    """The other process leaves the other gate at once, and this one when this process is seen to wait."""
    here, others = ends[:2], ends[2:]
    others[1 - number].leave()
    waits: list[int] = []

    def alive(_: int) -> None:
        waits.append(1)
        if len(waits) == 2:
            others[number].leave()

    gates = WorkerGates(here[0], here[1], 60, alive)
    wait = [gates.imports_released, gates.all_released]
    assert wait[number]()
    assert len(waits) >= 2


def test_a_gate_that_the_other_process_does_not_leave_is_given_up(ends: list[Gate]) -> None:
    gates = WorkerGates(ends[0], ends[1], 0, lambda _: None)
    assert not gates.imports_released()
    assert not gates.all_released()


def test_a_process_that_is_late_at_the_first_gate_is_not_waited_for_at_the_second_one(ends: list[Gate]) -> None:
    waits: list[int] = []
    gates = WorkerGates(ends[0], ends[1], 0.5, waits.append)
    assert not gates.imports_released()
    at_first = len(waits)
    assert not gates.all_released()
    assert (at_first > 1, len(waits) - at_first) == (True, 1)


def test_a_gate_that_is_left_keeps_its_descriptors_and_may_be_left_again() -> None:
    """Their number shows leaks. No program that is started inherits them."""
    before, ends = open_descriptors(), os.pipe2(os.O_CLOEXEC)
    gate = Gate(*ends)
    for _ in range(2):
        gate.leave()
        assert (open_descriptors(), gate.wait(0)) == (before + 2, True)
        assert not any(map(os.get_inheritable, ends))
    gate.close()
    assert open_descriptors() == before
    reused = os.pipe2(os.O_CLOEXEC)  # their numbers, which nobody closes
    assert gate.wait(0)
    for end in reused:
        os.close(end)


@pytest.mark.parametrize("way", [SplitGate.open, SplitGate.close])
def test_workers_at_a_gate_go_on_once_the_conductor_opens_or_closes_it(way: Callable[[SplitGate], None]) -> None:
    """It is not opened by the last of them that leaves: others may be elsewhere."""
    before, gate = open_descriptors(), SplitGate()
    wait, left = gate.ends
    worker = Gate(os.dup(wait), os.dup(left))
    gate.inherited()
    assert not gate.all_left()
    assert (worker.wait(0), gate.all_left()) == (False, True)
    way(gate)
    assert worker.wait(0)
    worker.close()
    if way is SplitGate.open:
        gate.close()
    assert open_descriptors() == before


def test_the_conductor_keeps_no_end_of_a_gate() -> None:
    before = open_descriptors()
    with gate_descriptors() as found:
        assert open_descriptors() == before + 4
        assert not any(map(os.get_inheritable, found))
        os.write(found[1], b"1")
        os.write(found[3], b"2")
        assert (os.read(found[0], 1), os.read(found[2], 1)) == (b"1", b"2")
    assert open_descriptors() == before


def test_a_process_at_the_first_gate_has_not_left_the_second_one(ends: list[Gate]) -> None:
    """Another one, which is behind the first gate, does not take it for one that has released everything."""
    here, others = ends[:2], ends[2:]
    others[0].leave()
    assert WorkerGates(here[0], here[1], 60, lambda _: None).imports_released()
    assert not WorkerGates(others[0], others[1], 0.0, lambda _: None).all_released()
    here[1].leave()
    assert WorkerGates(others[0], others[1], 60, lambda _: None).all_released()
