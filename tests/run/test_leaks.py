"""Resources that are open after a teardown."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution
from memtopo.plans.report import DeviceMemory, Left, Report
from memtopo.plans.transition import Stage
from memtopo.run.apply import apply
from memtopo.run.leaks import ResourceBalance, memory_notes
from memtopo.session.composition import HoldResult
from tests.helpers import faults
from tests.helpers.conducted import Conducted
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of, run_request

SPEC = """
ranges: {r: {size: 2MiB}}
chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}
map: {r: c}
access: {r: {gpu0: rw}}
"""


@pytest.mark.parametrize(("label", "what"), [("", "something that no step owns"), ("c.7", "chunk c.7")])
def test_a_resource_that_no_step_opened_is_a_leak(label: str, what: str) -> None:
    """An open chunk of the layout has its label."""

    def hold(made: Conducted) -> HoldResult:
        handle = made.run.ledger.mem_create(2 << 20, Properties(gpu(0)))
        made.run.execution.layout.chunks.update({label: handle} if label else {})
        return HoldResult()

    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(run_request(SPEC, machine), Ledger(driver), hold=hold)
    assert [leak.what for leak in report.leaks] == [what]
    assert (report.outcome, report.exit_code) == ("leaked", 5)


@pytest.mark.parametrize(("kept", "exclusive"), [(0, True), (1, True), (0, False)])
def test_a_descriptor_that_stays_open_is_a_leak_unless_it_is_kept_on_purpose(kept: int, exclusive: bool) -> None:
    """Or may be one of other code of the process, as a note says."""
    opened: list[int] = []

    def hold(_: Conducted) -> HoldResult:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return HoldResult(descriptors=kept)

    machine = invented(1)
    try:
        with SimDriver(machine) as driver:
            driver.init()
            report = apply(replace(run_request(SPEC, machine), exclusive=exclusive), Ledger(driver), hold=hold)
    finally:
        os.close(opened[0])
    is_leak = exclusive and not kept
    assert [leak.what for leak in report.leaks] == ["1 file descriptor"] * is_leak
    assert report.exit_code == (5 if is_leak else 0)
    assert any("1 more file descriptor is open" in note for note in report.notes) is not exclusive


@pytest.mark.parametrize(("free", "differs"), [((4, 2, 2), False), ((2, 2, 4), False), ((3, 2, 3), True)])
def test_memory_is_lacking_only_if_both_what_was_taken_and_what_was_given_back_are_too_little(
    free: tuple[int, int, int], differs: bool
) -> None:
    """Other programs may take or free some meanwhile."""
    machine = invented(1)
    left = Left({}, {}, {}, 0, 0, 0, (DeviceMemory("gpu0", *(each << 20 for each in free)),))
    with SimDriver(machine) as driver:
        ledger = Ledger(driver)
        balance = ResourceBalance(Execution(plan_of(SPEC, machine), ledger), ledger, exclusive=True)
        found = list(balance.misplaced([geometry_of(SPEC, machine)], left))
    assert [each.expected != each.observed for each in found] == [differs]


@pytest.mark.parametrize(
    ("after", "note"),
    [
        (9, None),
        (8, "gpu0 has 1 bytes less free than before; the driver keeps a block of managed memory"),
        (10, "gpu0 has 1 bytes more free than before; another process may use it"),
    ],
)
def test_only_less_free_memory_is_blamed_on_managed_memory(after: int, note: str | None) -> None:
    left = Left({}, {}, {}, 0, 0, 0, (DeviceMemory("gpu0", 9, 5, after),))
    found = list(memory_notes(left, geometry_of("managed: {m: {size: 2MiB}}", invented(1))))
    assert [str(note) in each for each in found] == [True] * bool(note)


def test_memory_of_partial_blocks_may_take_none() -> None:
    machine, text = invented(1), "buffers: {b: {location: gpu0, size: 1MiB}, c: {location: gpu0, size: 3MiB}}"
    for taken, differs in ((2, False), (1, True)):
        left = Left({}, {}, {}, 0, 0, 0, (DeviceMemory("gpu0", 9 << 20, (9 - taken) << 20, 9 << 20),))
        with SimDriver(machine) as driver:
            ledger = Ledger(driver)
            balance = ResourceBalance(Execution(plan_of(text, machine), ledger), ledger, exclusive=True)
            (found,) = balance.misplaced([geometry_of(text, machine)], left)
        assert (found.expected != found.observed) is differs


def test_a_change_that_is_stopped_in_its_end_leaves_what_the_layout_held_in_the_report() -> None:
    larger = SPEC.replace("r: {size: 2MiB", "r: {size: 4MiB").replace("handles", "count: 2, handles")
    machine = invented(1)

    def hold(made: Conducted) -> HoldResult:
        stops = iter([0] * len(Stage) + [15])
        made.stop = lambda: next(stops, 0)
        with pytest.raises(Stopped):
            made.change(run_request(larger, machine))
        return HoldResult()

    with SimDriver(machine) as driver:
        driver.init()
        left = apply(run_request(SPEC, machine), Ledger(driver), hold=hold).left
    assert left
    assert (left.ledger_held["handles"], left.ledger_held["mappings"]) == (1, 1)
    assert [each.before - (each.held or 0) for each in left.memory] == [2 << 20]


@pytest.mark.parametrize("fault", [None, faults.LosesHandleTypes, faults.GrantsNothing])
def test_only_a_layout_that_is_as_declared_is_rehearsed_and_held(fault: type[faults.Faulty] | None) -> None:
    held: list[Conducted] = []

    def hold(made: Conducted) -> HoldResult:
        held.append(made)
        return HoldResult()

    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        spec = SPEC.replace(", handles: fd", "") if fault is faults.GrantsNothing else SPEC
        request = replace(run_request(spec, machine), rehearse=True, position_of=lambda path: f"in {path[:1]}")
        report: Report = apply(request, Ledger(fault(driver) if fault else driver), hold=hold)
    assert (report.exit_code, len(held)) == ((6, 0) if fault else (0, 1))
    differences = report.checks.differences if report.checks else ()
    assert [each.place for each in differences] == [f"in {each.path[:1]}" for each in differences]
    assert ("rehearse" in [each.phase for each in report.times]) is not bool(fault)
