"""Rehearsals: every switch between the states of a layout is made, and the bytes that a state keeps are verified."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.step import Finding
from memtopo.plans.report import Check, Report, Tally
from memtopo.run import apply
from memtopo.run.reports import FindingTally
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, run_request
from tests.run.test_states import SLEEPING

MACHINE = invented(2)


class WithoutCopies(Forwarder):
    """A driver whose copies do nothing from the `first` one on."""

    def __init__(self, driver: KernelDriver, first: int) -> None:
        super().__init__(driver)
        self._driver, self.first, self.calls = driver, first, 0

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        self.calls += 1
        if not self.first or self.calls < self.first:
            self._driver.memcpy_async(destination, source, count, stream)


def rehearse(first: int = 0, check: Check = "fast", text: str = SLEEPING) -> tuple[Report, int]:
    """Report of a rehearsal, and the number of copies that it made."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        copies = WithoutCopies(driver, first)
        ledger = Ledger(copies)
        report = apply.apply(replace(run_request(text, MACHINE, check), rehearse=True), ledger)
        assert ledger.empty
        return report, copies.calls


@pytest.mark.parametrize("check", ["none", "fast", "full"])
def test_a_rehearsal_goes_through_every_state_and_leaves_nothing(check: Check) -> None:
    report, copies = rehearse(check=check)
    assert (report.outcome, report.exit_code, report.leaks) == ("ok", 0, ())
    assert copies > 10
    (time,) = (time for time in report.times if time.phase == "rehearse")
    assert time.steps == 3 * 2 + 6 * 3, "switches: to each state and back, and from each to each other one and back"
    assert [*report.plan.states] == ["awake", "asleep", "half", "empty"]


def test_findings_of_one_aspect_are_counted_together() -> None:
    """With their differences, and what was not checked."""
    ours, theirs = FindingTally(), FindingTally()
    ours.add([Finding.equal("fingerprint")])
    theirs.add([Finding.equal("fingerprint"), Finding("fingerprint", "w", 1, 2), Finding("access", "w", 1, 2)])
    theirs.not_checked("fingerprint", 3, "unsafe")
    ours.merge_findings(theirs, "fingerprint")
    ours.merge_findings(theirs, "mapped chunk")
    found = ours.checks()
    assert found.tallies == (Tally("fingerprint", 3, 2, 3, "unsafe"),)
    assert ([each.aspect for each in found.differences], found.different) == (["fingerprint"], 1)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_bytes_that_do_not_return_are_a_difference(check: Check) -> None:
    """Whichever copy is missing: out or back, of either GPU."""
    text = SLEEPING[: SLEEPING.index("  half:")].replace("gpu1: r}", "gpu1: rw}")
    _, copies = rehearse(check=check, text=text)
    assert copies >= 4
    for first in range(1, copies + 1):
        report, _ = rehearse(first, check, text)
        assert (report.outcome, report.exit_code) == ("different", 6), first


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_rehearsal_records_no_exported_event(check: Check) -> None:
    """The verification before it does, once; copies of a rehearsal record events of their own."""
    events = "events: {e: {device: gpu0}}\nexports: {e: {event: e, via: ipc}}\n"
    counts = []
    for text in (SLEEPING, SLEEPING + events):
        with SimDriver(MACHINE) as driver:
            driver.init()
            counting = Failing(driver, only={"event_record"})
            report = apply.apply(replace(run_request(text, MACHINE, check), rehearse=True), Ledger(counting))
            assert report.outcome == "ok"
            counts.append(counting.calls)
    assert counts[1] - counts[0] == 1


def test_bytes_return_by_several_gpus_after_one_grant() -> None:
    report, _ = rehearse(text=SLEEPING.replace("gpu1: r}", "gpu1: rw}"))
    assert report.outcome == "ok", report.failure


@pytest.mark.parametrize(("name", "check"), [("sleep-mode", "full"), ("memory-saver", "fast")])
def test_states_of_real_systems_are_rehearsed(name: str, check: Check) -> None:
    """Sleep of vLLM at two levels, and torch_memory_saver's pause of each tag and of all."""
    report, copies = rehearse(check=check, text=(ROOT / f"specs/{name}.yaml").read_text())
    assert (report.outcome, report.leaks) == ("ok", ())
    assert copies > 3


def test_all_changes_of_a_rehearsal_are_one_line_of_its_times() -> None:
    report, _ = rehearse()
    assert [time.phase for time in report.times].count("change") == 1


class WithoutTheMiddle(WithoutCopies):
    """A driver whose copies leave out 64 bytes in the middle of the first 4 KiB, from the `first` one on."""

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        self.calls += 1
        parts = [(0, count)] if not self.first or self.calls < self.first else [(0, 2000), (2064, count - 2064)]
        for at, size in parts:
            self._driver.memcpy_async(destination + at, source + at, size, stream)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_bytes_within_a_chunk_that_do_not_return_are_found_by_a_full_check_alone(check: Check) -> None:
    """Before they return, too: offloaded bytes are compared with those of the chunk."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        request = replace(run_request(SLEEPING, MACHINE, check), rehearse=True)
        report = apply.apply(request, Ledger(WithoutTheMiddle(driver, 1)))
    assert report.outcome == ("ok" if check == "fast" else "different")
    if check == "full":
        assert report.checks
        first = report.checks.differences[0]
        assert (first.aspect, first.subject) == ("fingerprint", "w.0 in w@host:0 at 0x0 by gpu0")
