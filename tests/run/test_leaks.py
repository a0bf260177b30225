"""Resources that are open after a teardown."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Report
from memtopo.plans.transition import Stage
from memtopo.run.apply import apply
from memtopo.session.request import HoldResult
from tests.helpers import faults
from tests.helpers.conducted import Conducted
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

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


@pytest.mark.parametrize("kept", [0, 1])
def test_a_descriptor_that_stays_open_is_a_leak_unless_it_is_kept_on_purpose(kept: int) -> None:
    opened: list[int] = []

    def hold(_: Conducted) -> HoldResult:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return HoldResult(descriptors=kept)

    machine = invented(1)
    try:
        with SimDriver(machine) as driver:
            driver.init()
            report = apply(run_request(SPEC, machine), Ledger(driver), hold=hold)
    finally:
        os.close(opened[0])
    assert [leak.what for leak in report.leaks] == ([] if kept else ["1 file descriptor"])
    assert report.exit_code == (0 if kept else 5)


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
        request = replace(run_request(spec, machine), rehearse=True)
        report: Report = apply(request, Ledger(fault(driver) if fault else driver), hold=hold)
    assert (report.exit_code, len(held)) == ((6, 0) if fault else (0, 1))
    assert ("rehearse" in [each.phase for each in report.times]) is not bool(fault)
