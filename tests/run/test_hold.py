"""A held run keeps no context that nothing in its layout needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from memtopo.common.errors import MemtopoError, Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Check, Report
from memtopo.run import apply
from memtopo.run.holder import HeldLayout
from memtopo.run.transition import DoesNotFit
from memtopo.session.request import HoldResult, Revision
from tests.helpers.conducted import Conducted
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

TWO = invented(2)
CHUNKS = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 4, handles: fd}}
map: {kv: page}
access: {kv: {gpu0: rw, gpu1: r}}
exports: {pages: {chunk: page, via: fd}}
states: {idle: {drop: page}}
"""


def held(text: str, act: Callable[[Conducted, Failing], None], check: Check = "fast") -> Report:
    """Report of a run that calls `act` while it is held."""
    driver = SimDriver(TWO)
    driver.init()
    failing = Failing(driver)
    ledger = Ledger(failing)

    def hold(made: Conducted) -> HoldResult:
        made.release_contexts()
        act(made, failing)
        return HoldResult()

    try:
        report = apply.apply(run_request(text, TWO, check), ledger, hold=hold)
        assert ledger.empty
        return report
    finally:
        driver.close()


def test_a_holder_reports_the_contexts_that_it_keeps() -> None:
    seen: list[Sequence[str]] = []

    def look(made: Conducted, _: Failing) -> None:
        seen.append(HeldLayout(made, "", lambda _source, _request: pytest.fail("changed")).contexts)

    held(CHUNKS, look)
    held(f"{CHUNKS}buffers: {{b: {{location: gpu1, size: 2MiB}}}}", look)
    assert seen == [[], ["gpu1"]]


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_held_layout_of_chunks_keeps_no_context(check: Check) -> None:
    seen: list[dict[str, int]] = []
    report = held(CHUNKS, lambda made, _: seen.append(made.run.ledger.counts()), check)
    (counts,) = seen
    assert (counts["contexts"], counts["handles"], counts["mappings"]) == (0, 4, 4)
    assert (report.outcome, report.leaks, report.notes) == ("ok", (), report.notes)
    assert report.left is not None
    assert {each.device: each.before == each.after for each in report.left.memory} == {"gpu0": True, "gpu1": True}


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("buffers: {b: {location: gpu1, size: 2MiB}}", {1}),
        ("events: {e: {device: gpu0}}", {0}),
        ("managed: {m: {size: 2MiB, prefer: gpu1}}", {1}),
    ],
)
def test_a_context_with_objects_that_end_with_it_is_kept(entry: str, kept: set[int]) -> None:
    seen: list[set[int]] = []
    assert (
        held(f"{CHUNKS}{entry}\n", lambda made, _: seen.append({*made.run.execution.layout.contexts})).outcome == "ok"
    )
    assert seen == [kept]


def test_the_context_of_page_locked_memory_is_kept() -> None:
    seen: list[set[int]] = []
    text = CHUNKS.replace("gpu1: r}", "gpu1: rw}").replace("{idle: {drop: page}}", "{idle: {offload: {page: pinned}}}")

    def act(made: Conducted, _: Failing) -> None:
        for state in ("idle", "awake"):
            assert made.switch(state, check="full").different == 0
            seen.append({*made.run.execution.layout.contexts})

    assert held(text, act).outcome == "ok"
    assert seen == [{0}, {0}]


def test_checks_and_switches_retain_contexts_and_release_them() -> None:
    def act(made: Conducted, _: Failing) -> None:
        for work in (made.recheck, lambda: made.switch("idle"), lambda: made.switch("awake"), made.recheck):
            assert work().different == 0
            assert made.run.execution.layout.contexts == {}

    assert held(CHUNKS, act).outcome == "ok"


def test_a_change_that_is_rolled_back_or_not_checked_releases_the_contexts_that_it_retained() -> None:
    def act(made: Conducted, _: Failing) -> None:
        made.stop = lambda: 15
        with pytest.raises(Stopped):
            made.switch("idle")
        assert made.contexts == []
        made.stop = lambda: 0
        made.set_absent(frozenset())
        assert made.contexts == []

    assert held(CHUNKS, act).outcome == "ok"


def test_a_change_that_does_not_fit_releases_the_contexts_that_it_retained() -> None:
    def act(made: Conducted, _: Failing) -> None:
        taken = made.run.ledger.mem_create(60 << 30, Properties(gpu(0)))
        with pytest.raises(DoesNotFit):
            made.change(run_request(CHUNKS.replace("2MiB", "15GiB").replace("8MiB", "60GiB"), TWO))
        assert made.contexts == []
        made.run.ledger.mem_release(taken)

    assert held(CHUNKS, act).outcome == "ok"


def test_a_change_that_is_given_up_releases_the_contexts_that_its_plan_retained() -> None:
    def act(made: Conducted, _: Failing) -> None:
        larger = run_request(CHUNKS.replace("2MiB", "4MiB").replace("8MiB", "16MiB"), TWO)
        planned = HeldLayout(made, "", lambda source, _request: Revision(larger, source)).change("", None)
        assert made.run.execution.layout.contexts
        planned.give_up()
        assert made.run.execution.layout.contexts == {}

    assert held(CHUNKS, act).outcome == "ok"


@pytest.mark.parametrize(
    ("size", "exports", "touched"),
    [
        ("2MiB", "", set()),
        ("4MiB", "", {"pages"}),
        ("2MiB", "exports: {pages: {chunk: one, via: fd}}", {"pages"}),
        ("2MiB", "exports: {pages: {chunk: page, via: fd}, more: {chunk: one, via: fd}}", set()),
    ],
)
def test_a_change_touches_the_exports_whose_memory_it_releases_or_that_are_of_other_memory_then(
    size: str, exports: str, touched: set[str]
) -> None:
    """Their importers are asked to let go, also of an export that is left out."""
    text = CHUNKS.replace("chunks: {", "chunks: {one: {location: gpu0, size: 2MiB, handles: fd}, ")
    after = text.replace("size: 2MiB, count", f"size: {size}, count").replace(
        "8MiB", "16MiB" if size == "4MiB" else "8MiB"
    )
    after = after.replace("exports: {pages: {chunk: page, via: fd}}", exports)

    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "", lambda source, _request: Revision(run_request(after, TWO), source))
        assert layout.change("", None).touched == touched

    assert held(text, act).outcome == "ok"


def test_a_context_that_cannot_be_retained_again_fails_the_check_and_leaves_the_layout() -> None:
    def act(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 2  # of two contexts the second
        with pytest.raises(MemtopoError, match="retain context gpu1"):
            made.recheck()
        made.run.execution.resume()
        assert {*made.run.execution.layout.contexts} == {0, 1}
        assert made.recheck().different == 0

    assert held(CHUNKS, act).outcome == "ok"


def test_a_teardown_without_contexts_releases_all_memory_and_names_the_cause() -> None:
    def act(made: Conducted, failing: Failing) -> None:
        del made
        failing.at = failing.calls + 1

    report = held(CHUNKS, act)
    assert (report.outcome, report.leaks) == ("failed", ())
    assert report.failure is not None
    assert "retain context gpu0" in report.failure.step
