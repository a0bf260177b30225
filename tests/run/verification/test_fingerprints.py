"""Fingerprints: bytes that a change keeps are read before and after it, and not written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from memtopo import planner
from memtopo.common.errors import Stopped
from memtopo.driver.kernels import Area, KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.run.reports import FindingTally
from memtopo.run.verification import fingerprints
from memtopo.run.verification.fingerprints import Fingerprints
from tests.helpers.conducted import conducted, make_transition
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of, run_request
from tests.run.test_run_change import check_of_change

TWO = invented(2)
M = 2 << 20
TEXT = """
ranges: {weights: {size: 8MiB}, kv: {size: 4MiB}, same: {size: 4MiB}}
chunks:
  w: {location: [gpu0, gpu1], size: 2MiB, count: 4}
  page: {location: gpu1, size: 2MiB, count: 2}
  kept: {location: gpu0, size: 4MiB}
map: {weights: [w], kv: [page], same: [kept]}
access: {weights: {gpu0: rw, gpu1: r}, kv: {gpu1: rw}, same: {gpu1: rw}}
buffers: {b: {location: gpu0, size: 1MiB}}
states:
  asleep: {offload: {weights: KEEPER}, drop: kv}
  half: {offload: {w.1: KEEPER}}
"""


class Writing(Forwarder):
    """A driver that changes a byte in the middle of a range while `during` is called for the first time."""

    def __init__(self, driver: KernelDriver, during: str) -> None:
        self.address: int | None = None
        self.gpu = 0
        self._during = during
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        return self._writing(call) if method == self._during else call

    def _writing(self, call: Call) -> Call:
        def writing(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if self.address is not None:
                address, self.address = self.address, None
                with current(self._driver, self._driver.device_primary_ctx_retain(self.gpu)):
                    byte = self._driver.memcpy_dtoh(address, 1)
                    self._driver.memcpy_htod(address, bytes([byte[0] ^ 1]))
                self._driver.device_primary_ctx_release(self.gpu)
            return result

        return writing


@contextmanager
def built(plan: Plan, during: str = "mem_unmap") -> Iterator[tuple[Execution, Writing]]:
    with SimDriver(TWO) as driver:
        driver.init()
        writing = Writing(driver, during)
        execution = Execution(plan, ledger := Ledger(writing))
        execution.build()
        layout = execution.layout
        with current(driver, layout.contexts[0]):
            module = driver.module_load_data()
            driver.fill([Area(layout.ranges["weights"].address, 4 * M, 7)])
            driver.fill([Area(layout.buffers["b"].address, M // 2, 9)])
            driver.ctx_synchronize()
            driver.module_unload(module)
        yield execution, writing
        assert not execution.take_down().leaks
        assert ledger.empty


def plans(keeper: str = "host:0") -> dict[str, Plan]:
    text = TEXT.replace("KEEPER", keeper)
    if keeper == "gpu1":
        text = text.replace("w: {location: [gpu0, gpu1]", "w: {location: gpu0")
    plan = plan_of(text, TWO)
    return {"awake": plan, **planner.plan_states(plan, geometry_of(text, TWO))}


@pytest.mark.parametrize("keeper", ["host:0", "pinned", "gpu1"])
def test_all_that_a_change_keeps_has_the_fingerprint_that_it_had(keeper: str) -> None:
    """Offloaded or not; the bytes are not written."""
    states = plans(keeper)
    with built(states["awake"]) as (execution, _):
        counts = []
        for name in ("asleep", "half", "awake", "asleep", "awake", "half"):
            taken = Fingerprints.take(execution, states[name])
            make_transition(execution, states[name])
            found = list(taken.compare())
            assert [each for each in found if each.expected != each.observed] == []
            counts.append(taken.count)
            assert len(found) == taken.count
        assert counts == [7, 6, 9, 7, 7, 9]


def test_fingerprints_are_taken_of_as_many_areas_as_one_call_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not after a requested stop."""
    monkeypatch.setattr(fingerprints, "MOST_AREAS", 2)
    states = plans()
    with built(states["awake"]) as (execution, _):
        execution.driver = counted = Failing(execution.driver, only={"fingerprint"})
        taken = Fingerprints.take(execution, states["asleep"])
        assert (taken.count, counted.calls) == (7, 4)  # four of one GPU and three of the other, in twos
        make_transition(execution, states["asleep"])
        assert [each for each in taken.compare() if each.expected != each.observed] == []
        calls = counted.calls
        execution.stop = lambda: counted.calls > calls
        with pytest.raises(Stopped):
            Fingerprints.take(execution, states["half"])
        assert counted.calls == calls + 1
        execution.stop = lambda: 0


@pytest.mark.parametrize(("label", "offset", "subject"), [
    ("same", 1000, "kept in same at 0x0 by gpu1"),
    ("b", 1000, "b in this process at 0x0 by gpu0"),
    ("weights@", 2 * M + 1000, "w.2 in w@host:0 at 0x400000 by gpu0"),
])  # fmt: skip
def test_a_byte_that_changes_during_a_change_is_found_and_not_by_queries(label: str, offset: int, subject: str) -> None:
    """In a kept chunk, a buffer, or offloaded bytes."""
    states = plans()
    with built(states["awake"]) as (execution, writing):
        taken = Fingerprints.take(execution, states["asleep"])
        place = label.replace("weights@", "w@host:0")
        writing.gpu = int(subject[-1])
        writing.address = execution.layout.address(place) + offset
        make_transition(execution, states["asleep"])
        assert [each for each in execution.check() if each.expected != each.observed] == []
        assert [each.subject for each in taken.compare() if each.expected != each.observed] == [subject]


@pytest.mark.parametrize("aspect", ["access", "mapped chunk"])
def test_nothing_is_read_after_a_change_whose_check_found_another_access_or_chunk(aspect: str) -> None:
    """A kernel without access ends the process (fact 24): what was to be compared counts as not checked."""
    states, check = plans(), FindingTally()
    check.add([Finding("hole", "kv", "", "mapped"), Finding(aspect, "w.0 in weights", "rw", "none")])
    with built(states["awake"]) as (execution, _):
        taken = Fingerprints.take(execution, states["half"])
        execution.driver = counted = Failing(execution.driver, only={"fingerprint"})
        found = taken.compared_after(check).checks()
        assert [(each.aspect, each.looked_at, each.not_checked) for each in found.tallies] == [
            ("fingerprint", 0, taken.count)
        ]
        assert counted.calls == 0
        assert taken.compared_after(FindingTally()).checks().tallies[0].looked_at == taken.count
        assert counted.calls > 0


def test_a_full_check_of_a_switch_or_a_change_finds_it_and_a_fast_one_does_not() -> None:
    text = TEXT.replace("KEEPER", "host:0")
    other = text.replace("location: gpu1, size: 2MiB, count: 2", "location: gpu0, size: 2MiB, count: 2")
    with SimDriver(TWO) as driver:
        driver.init()
        writing = Writing(driver, "mem_unmap")
        writing.gpu = 1
        made = conducted(run_request(text, TWO, "fast"), Ledger(writing))
        made.build()
        address = made.run.execution.layout.address("same") + 1000

        def differences(act: Callable[[], Checks]) -> list[str]:
            writing.address = address
            return [each.aspect for each in act().differences]

        assert differences(lambda: made.switch("asleep")) == []
        assert differences(lambda: made.switch("awake", check="full")) == []  # nothing is unmapped: no byte changes
        assert writing.address == address
        assert differences(lambda: made.switch("asleep", check="full")) == ["fingerprint"]
        made.switch("awake", check="full")
        assert differences(lambda: check_of_change(made, run_request(other, TWO, "fast"))) == []
        assert differences(lambda: check_of_change(made, run_request(text, TWO, "full"))) == ["fingerprint"]
        made.take_down()
        assert made.report().leaks == ()
