"""Rounds of all verifiers: their phases in the report, and what counts as not checked when one fails."""

from __future__ import annotations

import pytest

from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import EventFlags
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.views import Identity, RecordedEvent
from memtopo.plans.report import Check, Report, Tally
from memtopo.run.apply import apply
from memtopo.run.verification.rounds import UNSAFE
from memtopo.run.verification.verifier import EventVerification, RoundWriters, VerificationContext
from tests.helpers import faults
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.shared_producers import handle_source
from tests.helpers.specs import run_request

TEXT = """
ranges: {kv: {size: 4MiB}, view: {size: 2MiB}, h: {size: 2MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2}, h: {location: host, size: 2MiB}}
map: {kv: c, view: [{chunk: c.0}], h: h}
access: {kv: {gpu0: rw, gpu1: rw}, view: {gpu0: r}, h: {gpu0: rw, host: rw}}
external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}}
semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1, signal: 2}}
"""


def applied(check: Check, *, failing: str = "", at: int = 0) -> Report:
    """Report of the layout on a driver whose `at`-th call of a method fails."""
    machine = invented(2)
    made = run_request(TEXT, machine, check)
    with SimDriver(machine) as driver:
        driver.init()
        return apply(made, Ledger(Failing(driver, at, only={failing})), handle_source=handle_source(made, machine))


@pytest.mark.parametrize(
    ("check", "phases"),
    [
        ("none", []),
        ("fast", [("write", 6), ("read", 12), ("verify host access", 2), ("synchronize", 1)]),
        ("full", [("fill", 5), ("forbid", 2), ("verify", 10), ("verify host access", 4), ("synchronize", 1)]),
    ],
)  # fmt: skip
def test_each_verification_has_phases_with_the_number_of_its_objects(
    check: Check, phases: list[tuple[str, int]]
) -> None:
    report = applied(check)
    assert report.exit_code == 0, report
    named = {"write", "read", "fill", "verify", "forbid", "verify host access", "synchronize"}
    assert [(each.phase, each.steps) for each in report.times if each.phase in named] == phases


@pytest.mark.parametrize(
    ("check", "method", "at", "aspect", "expected"),
    [
        ("fast", "memcpy_dtoh", 3, "bytes", (0, 12)),
        ("fast", "memcpy_htod", 2, "bytes", (0, 12)),
        ("full", "verify", 1, "every byte", (0, 6)),
        ("full", "verify", 3, "every byte", (4, 2)),
        ("full", "verify", 4, "every byte", (6, 4)),
        ("full", "verify", 5, "every byte", (9, 1)),
        ("full", "fill", 2, "every byte", (0, 6)),
        ("full", "fill", 3, "every byte", (6, 4)),
    ],
)
def test_what_a_failed_round_had_still_to_read_is_not_checked(
    check: Check, method: str, at: int, aspect: str, expected: tuple[int, int]
) -> None:
    report = applied(check, failing=method, at=at)
    found = tallies(report.checks).get(aspect, Tally(aspect, 0, 0))
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert (found.looked_at, found.not_checked) == expected
    assert found.as_declared == found.looked_at
    assert found.why_not
    assert found.why_not.startswith("the driver reported ")


def test_an_object_is_written_by_its_creator_first_and_then_by_one_importer() -> None:
    """Whichever is named first; what nobody may write in a round has no writer."""
    one, other = Identity("server", "w"), Identity("server", "x")
    named = [("reader", one), ("late", one), ("server", one), ("server", other)]
    found = RoundWriters(iter(named))
    assert len(found) == 2
    assert [found.writer(index, one) for index in range(3)] == ["server", "reader", None]
    assert [found.writer(index, other) for index in range(3)] == ["server", None, None]
    assert len(RoundWriters(iter([("server", one)]))) == 1


def test_no_further_event_is_waited_for_after_a_requested_stop() -> None:
    waited: list[int] = []

    def stop() -> None:
        if waited:
            raise Stopped

    with SimDriver(invented(1)) as driver:
        driver.init()
        layout = Layout(contexts={0: driver.device_primary_ctx_retain(0)})
        with current(driver, layout.contexts[0]):
            layout.of(EVENT_HANDLES).update({name: driver.event_create(EventFlags.DISABLE_TIMING) for name in "ab"})
        events = [RecordedEvent(Identity("other", name), name, 0, ()) for name in "ab"]
        context = VerificationContext("", {}, {"other": events, "": events}, driver, layout, raise_if_stopped=stop)
        with pytest.raises(Stopped):
            waited += (1 for _ in EventVerification(context).wait(0))
    assert waited == [1]


@pytest.mark.parametrize("check", ["fast", "full"])
def test_without_a_granted_access_nothing_is_verified(check: Check) -> None:
    """Kernels, and copies of host memory, would end the process (facts 24, 40)."""
    machine = invented(2)
    made = run_request(TEXT, machine, check)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(made, Ledger(faults.GrantsNothing(driver)), handle_source=handle_source(made, machine))
    assert (report.outcome, report.exit_code) == ("different", 6)
    found = {key: each for key, each in tallies(report.checks).items() if each.not_checked}
    counts = (
        {"bytes": 12, "both sides": 2, "wait": 1} if check == "fast" else {"every byte": 6, "both sides": 4, "wait": 1}
    )
    assert {key: (each.looked_at, each.not_checked, each.why_not) for key, each in found.items()} == {
        key: (0, count, UNSAFE) for key, count in counts.items()
    }
