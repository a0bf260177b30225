"""Ctrl-C during calls of the API that change a layout: the layout is as before or as asked, and nothing is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api.live import Live
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.api import test_commits, test_dmabuf, test_following
from tests.api.test_following import poll
from tests.api.test_states import SPEC
from tests.helpers.held_layouts import held, switching
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
        return not (contexts or simulator.mappings._at or simulator.chunks._open)

    def close(self) -> None:
        """Leave the simulator open: the test inspects it."""

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        return self.simulator.lend(address, writable=writable)


def interrupting() -> tuple[Target, Interrupting]:
    simulator = SimDriver(invented(2))
    simulator.init()
    driver = Interrupting(simulator)
    return Target("slow", invented(2), simulated=True, _opener=lambda: driver), driver


def each_call(
    act: Callable[[Live], object], judge: Callable[[Live], None], before: str = "awake", *, step: int = 1
) -> None:
    """Interrupt an action at each so many of its calls, each time of a new layout in a state, and judge the layout."""
    calls, at = 1, 1 - step
    while (at := at + step) <= calls:
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


def test_an_interrupted_build_is_undone_with_what_the_interrupted_call_has_made() -> None:
    target, driver = interrupting()
    with memtopo.applied(SPEC, target):
        calls = driver.calls
    for at in range(1, calls + 1):
        target, driver = interrupting()
        driver.at = at
        with pytest.raises(KeyboardInterrupt), memtopo.applied(SPEC, target):
            pytest.fail("it was built")
        assert driver.empty, at
        driver.simulator.close()


def test_a_signal_whose_handler_raises_nothing_does_not_end_a_build() -> None:
    """The handler is called once, while the layout is built."""
    target, driver = interrupting()
    driver.at = 20
    handled = list[int]()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: handled.append(driver.calls))
    try:
        with memtopo.applied(SPEC, target) as layout:
            assert 20 <= handled[0] < driver.calls
            layout.switch("asleep")
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(handled) == 1
    assert driver.empty


@pytest.mark.parametrize(("before", "after"), [("awake", "asleep"), ("asleep", "awake")])
def test_an_interrupted_switch_is_completed_before_the_interrupt_is_raised(before: str, after: str) -> None:
    def judge(layout: Live) -> None:
        assert layout.state == after
        layout.switch("awake")

    each_call(lambda layout: layout.switch(after), judge, before)


@pytest.mark.parametrize("check", ["fast", pytest.param("full", marks=pytest.mark.exhaustive(seconds=2))])
def test_an_interrupted_change_is_completed_before_the_interrupt_is_raised(check: Any) -> None:
    def judge(layout: Live) -> None:
        assert set(layout.ranges) == {"weights", "other"}
        assert layout.range("other").size == 4 << 20

    each_call(lambda layout: layout.change(CHANGED, check=check), judge)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive(seconds=4))])
def test_an_interrupted_with_of_a_state_returns_to_the_state_before(step: int) -> None:
    def act(layout: Live) -> None:
        with layout.switched("asleep"):
            pass

    def judge(layout: Live) -> None:
        assert layout.state == "awake"

    each_call(act, judge, step=step)


@contextmanager
def interrupted_after(function: str) -> Iterator[None]:
    """Receive SIGINT when a function of the interpreter, such as `sendmsg`, has returned for the first time."""

    def returned(_frame: object, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ == function:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(returned)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)


def test_an_interrupted_allocation_in_a_heap_is_made_or_freed_before_the_interrupt_is_raised() -> None:
    target, driver = interrupting()
    spec = {"memtopo": 1, "name": "heaps", "heaps": {"heap": {"location": "gpu0", "size": "8MiB"}}}
    with memtopo.applied(spec | {"access": {"heap": {"gpu0": "rw"}}}, target) as layout:
        heap = layout.heap("heap")
        changes: list[tuple[Callable[[], object], list[int]]] = [
            (lambda: heap.allocate(1), [heap.granule]),
            (lambda: heap.free(heap.address), []),
        ]
        first = driver.calls
        for change, _ in changes:
            change()
        calls = driver.calls - first
        assert calls > 6
        for at in range(1, calls + 1):
            driver.at, interrupts = driver.calls + at, 0
            for change, sizes in changes:
                try:
                    change()
                except KeyboardInterrupt:
                    interrupts += 1
                assert [each.size for each in heap.allocations] == sizes, at
            assert interrupts == 1, at
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks, driver.empty) == ("ok", (), True)
    driver.simulator.close()


def test_an_interrupted_poll_follows_the_notice_before_the_interrupt_is_raised(machine: Target, runtime: Path) -> None:
    """At each call that lets go of memory, and at each that imports it again."""
    del runtime
    calls, at = 1, 0
    with held(test_following.SPEC, machine), switching("sleeper") as switch:
        while (at := at + 1) <= calls:
            target, driver = interrupting()
            with memtopo.attach("sleeper", "w", machine=target) as shared:
                first = driver.calls
                driver.at = first + at
                interrupted = followed(shared, lambda: switch("asleep"), "changing")
                poll(shared)
                before = shared.absent
                interrupted |= followed(shared, lambda: switch("awake"), "changed")
                assert (sorted(before), sorted(shared.absent), interrupted) == (["w"], [], True)
                calls = max(calls, driver.calls - first)
                assert not shared.check().different
            assert shared.report
            assert (shared.report.outcome, shared.report.leaks, driver.empty) == ("ok", (), True), at
            driver.simulator.close()
    assert calls > 20


def followed(shared: Any, request: Callable[[], Any], kind: str) -> bool:
    """Follow the notice of a switch; return whether that was interrupted."""
    switched = request()
    try:
        assert poll(shared).kind == kind
    except KeyboardInterrupt:
        return True
    finally:
        switched.result()
    return False


def test_an_interrupted_commit_is_made_before_the_interrupt_is_raised(machine: Target, runtime: Path) -> None:
    del runtime
    with held(test_commits.SPEC, machine), memtopo.attach("model", "weights", machine=machine, role="writer") as shared:
        with interrupted_after("sendmsg"):
            shared.commit()
        assert shared.notice() is None
        with connect(endpoint("model")) as client:
            assert client.offers()["weights"].commit == "committed"


def test_interrupted_changes_of_dma_bufs_are_made_before_the_interrupt_is_raised(
    machine: Target, runtime: Path
) -> None:
    del runtime
    with held(test_dmabuf.SPEC, machine), memtopo.dma_bufs("nic", ["pages"]) as bufs:
        earlier = bufs["pages"]
        with interrupted_after("close"):
            bufs.let_go(["pages"])
        assert (bufs["pages"], [each._fd for each in earlier]) == ((), [-1, -1])
        with interrupted_after("sendmsg"):
            bufs.take("pages")
        assert [each.size for each in bufs["pages"]] == test_dmabuf.SIZES["pages"]
        assert bufs.notice() is None
