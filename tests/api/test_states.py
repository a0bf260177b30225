"""`switch` of a live layout: memory goes and comes back under the same addresses, with the bytes that are offloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api.live import Live
from memtopo.drivers.target import Target
from memtopo.kinds.layout import current
from tests.api.test_apply import failing
from tests.api.test_change import SPEC as CACHE
from tests.helpers.reports import require_taken_down

SPEC = CACHE | {
    "name": "sleeper",
    "states": {"asleep": {"offload": {"weights": "host:0"}, "drop": ["kv"]}, "half": {"drop": ["page.1"]}},
}


def test_an_array_shows_the_same_bytes_after_sleep(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        weights = np.from_dlpack(layout.range("weights", dtype="uint8"))
        cache = np.from_dlpack(layout.range("kv", dtype="uint8"))
        weights[:], cache[:] = 7, 9
        address = layout.address("weights")
        for _ in range(2):
            layout.switch("asleep")
            assert (layout.state, weights[0], cache[0]) == ("asleep", 0, 0)
            with pytest.raises(memtopo.Unsuitable, match=r"'w@host:0' \(hint: there are kv, weights\)"):
                layout.address("w@host:0")
            layout.switch("awake")
            assert layout.address("weights") == address
            assert (weights == 7).all()
        cache[:] = 5
        assert bytes(layout.range("kv").memory[:2]) == b"\5\5"
        del weights, cache


def test_a_view_of_memory_that_is_gone_is_refused(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        layout.switch("half")
        with pytest.raises(memtopo.Unsuitable, match="range 'kv' has no memory in state 'half'"):
            layout.range("kv")
        with pytest.raises(memtopo.Unsuitable, match="has no memory in state 'half'"):
            layout.chunk("page.1")
        assert layout.range("kv", size=2 << 20).size == 2 << 20
        assert layout.chunk("page.0").size == 2 << 20


def test_a_with_goes_back_to_the_state_before_from_whichever_it_ends_in(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        with layout.switched("asleep"):
            layout.switch("half")
        assert (layout.state, layout.check().different) == ("awake", 0)
        with layout.switched("asleep"):
            layout.switch("awake")
        assert (layout.state, layout.generation) == ("awake", 6)


def test_a_layout_is_taken_down_from_any_state(machine: Target) -> None:
    for state in ("asleep", "half"):
        with memtopo.applied(SPEC, machine) as layout:
            layout.switch(state)
        require_taken_down(layout)


def test_a_check_compares_the_state_that_the_layout_is_in(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        awake = layout.check()
        asleep = layout.switch("asleep")
        assert (awake.different, asleep.different) == (0, 0)
        assert layout.check() == asleep != awake


def test_an_unknown_state_is_refused_with_the_known_ones(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout, pytest.raises(memtopo.Unsuitable, match=r"state 'aslep'.*asleep"):
        layout.switch("aslep")


def calls_of(before: str, act: Callable[[Live], object]) -> range:
    """Numbers of the driver calls that an action makes in a state, counted from the first of the layout."""
    with memtopo.applied(SPEC, failing(0)) as layout:
        layout.switch(before)
        driver: Any = layout._session._opened
        first = driver.calls
        act(layout)
        return range(first + 1, driver.calls + 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [("awake", "asleep"), ("asleep", "awake"), pytest.param("half", "asleep", marks=pytest.mark.exhaustive)],
)
def test_a_switch_of_which_any_call_fails_leaves_the_layout_as_it_was(before: str, after: str) -> None:
    """The calls of its check are among them."""
    calls = calls_of(before, lambda layout: layout.switch(after))
    for at in calls:
        with memtopo.applied(SPEC, failing(0)) as layout:
            driver: Any = layout._session._opened
            weights = np.from_dlpack(layout.range("weights", dtype="uint8"))
            weights[:] = 3
            layout.switch(before)
            driver.at = at
            with pytest.raises(memtopo.NotSwitched, match=f"the layout is {before}, as before"):
                layout.switch(after)
            require_as_before(layout, before, weights)
            del weights
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ()), at
    assert len(calls) > 20


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive(seconds=4))])
def test_a_with_of_a_state_of_which_any_call_fails_leaves_the_layout_as_it_was(step: int) -> None:
    """As it was before the `with` if a call on the way in fails, and in the state of the `with` on the way out."""

    def inside(layout: Live) -> None:
        with layout.switched("asleep"):
            entered.append(True)

    entered = list[bool]()
    for at in calls_of("awake", inside)[::step]:
        with memtopo.applied(SPEC, failing(at)) as layout:
            weights = np.from_dlpack(layout.range("weights", dtype="uint8"))
            weights[:] = 3
            layout.switch("awake")
            entered.clear()
            with pytest.raises(memtopo.NotSwitched, match="as before"):
                inside(layout)
            require_as_before(layout, "asleep" if entered else "awake", weights)
            del weights


def require_as_before(layout: Live, state: str, weights: np.ndarray[Any, Any]) -> None:
    assert layout.state == state
    assert not layout.check().different
    if state != "asleep":
        assert (weights == 3).all()
        session = layout._session
        with current(session.driver, session.layout.contexts[0]):
            session.driver.memset_d8(layout.address("weights"), 4, weights.size)
        assert (weights == 4).all(), "it is a view of memory from before"
        weights[:] = 3
    layout.switch("awake")
    assert (weights == 3).all()


ENGINE = {
    "memtopo": 1,
    "name": "engine",
    "ranges": {"weights": {"size": "65GiB"}},
    "chunks": {"weight": {"location": "gpu0", "size": "1GiB", "count": 65}},
    "map": {"weights": ["weight"]},
    "access": {"weights": {"gpu0": "rw"}},
    "states": {"asleep": {"drop": ["weights"]}},
}


def test_layouts_of_one_process_share_the_memory_of_a_simulated_machine() -> None:
    with memtopo.applied(ENGINE, "h100x1") as one:
        with pytest.raises(memtopo.NotApplied, match="CUDA_ERROR_OUT_OF_MEMORY"), memtopo.applied(ENGINE, "h100x1"):
            pass
        one.switch("asleep")
        with memtopo.applied(ENGINE, "h100x1"), pytest.raises(memtopo.NotSwitched, match="the change does not fit"):
            one.switch("awake")
        one.switch("awake")
