"""A held run keeps no context that nothing in its layout needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from memtopo.common.errors import ExchangeError, MemtopoError, Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Check, Report
from memtopo.run import apply
from memtopo.run.holder import HeldLayout, _location_memory
from memtopo.run.transition import DoesNotFit
from memtopo.session.composition import HoldResult, Revision
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.status import LocationMemory
from tests.helpers.conducted import Conducted
from tests.helpers.failing_driver import Failing
from tests.helpers.lockstep import together
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of, run_request

TWO = invented(2)
CHUNKS = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 4, handles: fd}}
map: {kv: page}
access: {kv: {gpu0: rw, gpu1: r}}
exports: {pages: {chunk: page, via: fd}}
states: {idle: {drop: page}}
"""


def held(
    text: str,
    act: Callable[[Conducted, Failing], None],
    check: Check = "fast",
    *,
    only: set[str] | None = None,
    every: bool = False,
) -> Report:
    """Report of a run that calls `act` while it is held; `only` and `every` as for `Failing`."""
    driver = SimDriver(TWO)
    driver.init()
    failing = Failing(driver, only=only, every=every)
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


def test_memory_of_all_processes_is_summed_by_location_with_the_gpus_that_are_known() -> None:
    plan = plan_of(CHUNKS.replace("count: 4", "count: 3") + "pinned: {p: {size: 5B}}", TWO)
    assert _location_memory([plan, plan], ["aa"]) == (
        LocationMemory("gpu0", "aa", 8 << 20, 4),
        LocationMemory("gpu1", None, 4 << 20, 2),
        LocationMemory("host", None, 10, 2),
    )


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


def test_a_check_that_fails_releases_the_contexts_that_it_retained() -> None:
    def act(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 1
        with pytest.raises(MemtopoError, match="the check was not finished"):
            made.recheck()
        assert made.contexts == []

    assert held(CHUNKS, act, only={"mem_get_access"}).outcome == "ok"


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


def test_a_change_counts_the_memory_that_importers_keep_as_not_free() -> None:
    """It is refused before its first call."""
    text = "chunks: {x: {location: gpu0, size: 40GiB, handles: fd}}\nexports: {x: {chunk: x, via: fd}}\n"
    larger = text.replace("40GiB", "50GiB")

    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "", lambda source, _request: Revision(run_request(larger, TWO), source))
        with pytest.raises(DoesNotFit, match="gpu0 needs 50 GiB more than now at its peak"):
            layout.change("", None).make(full=False, in_use=frozenset({"x"}))
        assert layout.generation == 1
        layout.change("", None).make(full=False)

    assert held(text, act).outcome == "ok"


def test_a_change_that_is_given_up_releases_the_contexts_that_its_plan_retained() -> None:
    def act(made: Conducted, _: Failing) -> None:
        larger = run_request(CHUNKS.replace("2MiB", "4MiB").replace("8MiB", "16MiB"), TWO)
        planned = HeldLayout(made, "", lambda source, _request: Revision(larger, source)).change("", None)
        assert made.run.execution.layout.contexts
        planned.give_up()
        assert made.run.execution.layout.contexts == {}

    assert held(CHUNKS, act).outcome == "ok"


def test_contexts_that_are_released_twice_are_retained_once() -> None:
    """Each reference that is retained again is one that has to be released."""

    def act(made: Conducted, _: Failing) -> None:
        made.release_contexts()
        made.release_contexts()
        assert not made.recheck().different
        made.run.execution.resume()
        assert made.run.ledger.counts()["contexts"] == 2

    assert held(CHUNKS, act).outcome == "ok"


SEVERAL = """
ranges: {kv: {size: 4MiB}, w: {size: 2MiB}}
chunks:
  page: {location: gpu0, size: 2MiB, count: 2, handles: fd}
  w: {location: gpu0, size: 2MiB, handles: fd}
map: {kv: page, w: w}
access: {kv: {gpu0: rw}, w: {gpu0: rw}}
exports: {page: {chunk: page, via: fd}, last: {chunk: page.1, via: fd}, w: {chunk: w, via: fd, commit: required}}
states: {asleep: {drop: [page.1], offload: {w: host:0}}, empty: {drop: [kv, w]}}
"""


@pytest.mark.parametrize(
    ("path", "touched", "lost"),
    [
        (["asleep"], {"page", "last", "w"}, {"page", "last"}),
        (["asleep", "awake"], set(), set()),
        (["asleep", "empty"], {"page"}, {"page", "w"}),
        (["empty"], {"page", "last", "w"}, {"page", "last", "w"}),
    ],
)
def test_a_switch_touches_exports_whose_memory_goes_and_loses_those_whose_bytes_go(
    path: list[str], touched: set[str], lost: set[str]
) -> None:
    """Bytes that are offloaded stay, until a state drops them."""

    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "", lambda _source, _request: pytest.fail("changed"))
        for state in path[:-1]:
            layout.switch(state).make(full=False)
        planned = layout.switch(path[-1])
        assert (set(planned.touched), set(planned.lost)) == (touched, lost)

    assert held(SEVERAL, act).outcome == "ok"


@pytest.mark.parametrize("asleep", [True, False])
def test_memory_that_is_created_for_the_next_writer_has_lost_its_bytes_unless_they_are_offloaded(asleep: bool) -> None:
    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "", lambda _source, _request: pytest.fail("changed"))
        if asleep:
            layout.switch("asleep").make(full=False)
        found = layout.renewal(frozenset({"w"}))
        assert (set(found.touched), set(found.lost)) == ({"w"}, set[str]() if asleep else {"w"})

    assert held(SEVERAL, act).outcome == "ok"


def test_a_committed_export_of_which_a_change_keeps_some_memory_is_to_be_committed_again() -> None:
    """Not one whose memory is replaced as a whole, which is empty in any case."""
    text = SEVERAL.replace("fd}, last: {chunk: page.1, via: fd}", "fd, commit: required}")
    fewer = text[: text.index("states")].replace("size: 2MiB, count: 2", "size: 2MiB, count: 1")
    fewer = fewer.replace("w: {location: gpu0", "w: {location: gpu1")

    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "", lambda source, _request: Revision(run_request(fewer, TWO), source))
        planned = layout.change("", None)
        assert (set(planned.touched), set(planned.reused)) == ({"page", "w"}, {"page"})

    assert held(text, act).outcome == "ok"


def test_a_change_is_refused_unless_the_layout_is_whole_and_of_the_planned_generation() -> None:
    def act(made: Conducted, _: Failing) -> None:
        layout = HeldLayout(made, "before", lambda source, request: Revision(request, source))

        def refused(generation: int | None = None) -> tuple[str, str]:
            with pytest.raises(ExchangeError) as caught:
                layout.change("after", generation)
            return caught.value.code, caught.value.message

        assert refused(2) == ("stale", "the layout has generation 1, but the change was planned for 2")
        layout.change("after", 1).give_up()
        made.switch("idle")
        assert refused()[0] == refused(made.generation)[0] == "state"
        made.switch("awake")
        made.set_absent(frozenset({("", ("chunk", "page.3"))}))
        assert refused() == ("state", "layout 'test' has lost imports that their holder has released")
        made.set_absent(frozenset())
        assert refused(made.generation - 1)[0] == "stale"
        layout.change("after", made.generation).make(full=False)
        assert layout.source == "after"

    assert held(CHUNKS, act).outcome == "ok"


@pytest.mark.parametrize(("broken", "after"), [(False, "the layout is awake, as before$"), (True, "is taken down$")])
def test_a_change_that_fails_says_what_is_left_and_leaves_the_source(broken: bool, after: str) -> None:
    """A rollback that fails, too, ends the layout."""
    other = CHUNKS.replace("[gpu0, gpu1], size: 2MiB", "gpu1, size: 2MiB")

    def act(made: Conducted, failing: Failing) -> None:
        layout = HeldLayout(made, "before", lambda source, _request: Revision(run_request(other, TWO), source))
        failing.at = failing.calls + 1
        with pytest.raises(ChangeFailed, match=after) as end:
            layout.change("after", None).make(full=False)
        assert (end.value.broken, layout.source, made.state) == (broken, "before", "awake")

    report = held(CHUNKS, act, only={"mem_create"}, every=broken)
    assert (report.outcome, report.leaks) == ("failed" if broken else "ok", ())


def test_a_renewal_that_fails_says_that_the_memory_is_away_until_the_next_writer() -> None:
    def act(made: Conducted, failing: Failing) -> None:
        layout = HeldLayout(made, "", lambda _source, before: Revision(before, ""))
        failing.at = failing.calls + 1
        with pytest.raises(ChangeFailed, match=r"; the memory of pages is created for the next writer$"):
            layout.renewal(frozenset({"pages"})).make(full=False)
        assert not made.whole

    assert held(CHUNKS, act, only={"mem_create"}).outcome == "ok"


def test_a_process_keeps_the_gpus_that_it_sees() -> None:
    """Since its start: a change cannot give it others."""
    seeing = "processes: {one: {visible: gpu0, buffers: {b: {location: gpu0, size: 2MiB}}}, other: {visible: gpus}}"
    seeing = seeing.replace("visible: gpus", "buffers: {b: {location: gpu0, size: 2MiB}}")
    with together(seeing, TWO) as layout:
        more = run_request(seeing.replace("visible: gpu0", "visible: [gpu0, gpu1]"), TWO)
        found = HeldLayout(layout, "", lambda source, _request: Revision(more, source))
        with pytest.raises(ExchangeError, match="process 'one' sees other GPUs in the spec"):
            found.change("", None)


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
