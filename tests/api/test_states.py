"""`switch` of a live layout: memory goes and comes back under the same addresses, with the bytes that are offloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.drivers.target import Target
from tests.api.test_apply import failing

SPEC = {
    "memtopo": 1,
    "name": "sleeper",
    "ranges": {"weights": {"size": "4MiB"}, "kv": {"size": "4MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2},
        "page": {"location": "gpu0", "size": "2MiB", "count": 2},
    },
    "map": {"weights": ["w"], "kv": ["page"]},
    "access": {"weights": {"gpu0": "rw"}, "kv": {"gpu0": "rw"}},
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


def test_a_layout_is_taken_down_from_any_state(machine: Target) -> None:
    for state in ("asleep", "half"):
        with memtopo.applied(SPEC, machine) as layout:
            layout.switch(state)
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ())


def test_a_check_compares_the_state_that_the_layout_is_in(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        awake = layout.check()
        asleep = layout.switch("asleep")
        assert (awake.different, asleep.different) == (0, 0)
        assert layout.check() == asleep != awake


def test_an_unknown_state_is_refused_with_the_known_ones(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout, pytest.raises(memtopo.Unsuitable, match=r"state 'aslep'.*asleep"):
        layout.switch("aslep")


def test_a_failed_switch_leaves_the_layout_as_it_was() -> None:
    with memtopo.applied(SPEC, failing(0)) as layout:
        driver: Any = layout._session._opened
        weights = np.from_dlpack(layout.range("weights", dtype="uint8"))
        weights[:] = 3
        driver.at = driver.calls + 10
        with pytest.raises(memtopo.NotSwitched, match="the layout is awake, as before"):
            layout.switch("asleep")
        assert layout.state == "awake"
        assert not layout.check().different
        assert (weights == 3).all()
        del weights
