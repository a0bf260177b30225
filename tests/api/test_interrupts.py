"""Ctrl-C during calls of the API that change a layout: the layout is as before or as asked, and nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api.live import Live
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target
from tests.api.test_states import SPEC
from tests.helpers.machines import invented

CHANGED = {
    **SPEC,
    "ranges": {"weights": {"size": "4MiB"}, "other": {"size": "4MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2},
        "more": {"location": "gpu1", "size": "2MiB", "count": 2},
    },
    "map": {"weights": ["w"], "other": ["more"]},
    "access": {"weights": {"gpu0": "rw", "gpu1": "r"}, "other": {"gpu1": "rw"}},
    "states": {},
}


class Interrupting(Forwarder):
    """A simulator during whose n-th call SIGINT arrives; 0 is none. Its handler runs when the call has returned."""

    def __init__(self, driver: SimDriver) -> None:
        self.simulator, self.calls, self.at = driver, 0, 0
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        del method

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.calls += 1
            if self.calls == self.at:
                signal.raise_signal(signal.SIGINT)
            return result

        return counted

    @property
    def empty(self) -> bool:
        simulator = self.simulator
        contexts = any(simulator.device_primary_ctx_get_state(device) for device in range(2))
        return not (contexts or simulator._mappings._at or simulator._chunks._open)

    def close(self) -> None:
        """Leave the simulator open: the test inspects it."""

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        return self.simulator.lend(address, writable=writable)


def interrupting() -> tuple[Target, Interrupting]:
    simulator = SimDriver(invented(2))
    simulator.init()
    driver = Interrupting(simulator)
    return Target("slow", invented(2), simulated=True, _opener=lambda: driver), driver


def each_call(act: Callable[[Live], object], judge: Callable[[Live], None], before: str = "awake") -> None:
    """Interrupt an action at each of its calls, each time of a new layout in a state, and judge the layout."""
    calls, at = 1, 0
    while (at := at + 1) <= calls:
        target, driver = interrupting()
        with memtopo.applied(SPEC, target) as layout:
            weights = np.from_dlpack(layout.range("weights"))
            weights[:] = 7
            layout.switch(before)
            first = driver.calls
            driver.at = first + at
            with pytest.raises(KeyboardInterrupt):
                act(layout)
            calls = max(calls, driver.calls - first)
            judge(layout)
            assert not layout.check().different
            if layout.state == "awake":
                assert (weights == 7).all()
            del weights
        assert layout.report
        assert (layout.report.outcome, layout.report.leaks) == ("ok", ()), at
        assert driver.empty, at
        driver.simulator.close()
    assert calls > 20


@pytest.mark.parametrize(("before", "after"), [("awake", "asleep"), ("asleep", "awake"), ("half", "asleep")])
def test_an_interrupted_switch_is_completed_before_the_interrupt_is_raised(before: str, after: str) -> None:
    def judge(layout: Live) -> None:
        assert layout.state == after
        layout.switch("awake")

    each_call(lambda layout: layout.switch(after), judge, before)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_an_interrupted_change_is_completed_before_the_interrupt_is_raised(check: Any) -> None:
    def judge(layout: Live) -> None:
        assert set(layout.ranges) == {"weights", "other"}
        assert layout.range("other").size == 4 << 20

    each_call(lambda layout: layout.change(CHANGED, check=check), judge)


def test_an_interrupted_with_of_a_state_returns_to_the_state_before() -> None:
    def act(layout: Live) -> None:
        with layout.switched("asleep"):
            pass

    def judge(layout: Live) -> None:
        assert layout.state == "awake"

    each_call(act, judge)
