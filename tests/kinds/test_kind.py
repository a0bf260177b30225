"""Rules of all kinds of the registry: names that entries share or not, uses that are refused, and steps of objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import permutations

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution
from memtopo.geometry.groups import RangeGroup
from memtopo.kinds import KINDS, Kind
from memtopo.kinds.ipc.steps import AliasBuffer, AllocateBuffer
from memtopo.kinds.kind import Keys
from memtopo.kinds.layout import LateError, Layout, current
from memtopo.kinds.objects import ObjectStep, TryExport
from memtopo.kinds.resources import AWAITED, WAITING, Synchronize, Wait
from memtopo.kinds.step import Step
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import diagnose, plan_of, steps_of

ENTRIES = {"imports": "{from: l/w, location: gpu0, size: 2MiB}", "allocations": "{pool: pool, size: 8MiB}"}
NAMED = [kind for kind in KINDS if kind.keys is Keys.UNIQUE]


def spec_of(*kinds: Kind) -> str:
    """One entry of each kind, as messages write it, all with the name `w`."""
    entries = {kind.section: {"w": ENTRIES.get(kind.section, kind.words.form.partition(": ")[2])} for kind in kinds}
    if "allocations" in entries:
        entries.setdefault("pools", {})["pool"] = "{location: gpu0}"
    return written(entries)


def written(sections: Mapping[str, Mapping[str, str]]) -> str:
    return "".join(
        f"{section}: {{{', '.join(f'{name}: {entry}' for name, entry in entries.items())}}}\n"
        for section, entries in sections.items()
    )


@pytest.mark.parametrize(
    ("first", "second"), [*permutations(NAMED, 2)], ids=lambda kind: kind.section if isinstance(kind, Kind) else None
)
def test_entries_of_two_kinds_have_distinct_names_in_any_order(first: Kind, second: Kind) -> None:
    """But for ranges: an object without an address of its own may be named like the range that it is mapped into."""
    earlier, later = sorted((first, second), key=KINDS.index)
    taken = earlier.group is not RangeGroup or later.group.addressed
    found = [each for each in diagnose(spec_of(first, second)) if each.code == "MT203"]
    assert [(each.path, each.at) for each in found] == [((later.section, "w"), "key")] * taken
    assert [each.labels[0].path for each in found] == [(earlier.section, "w")] * taken


VIEW = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\n"
USES: dict[str, list[tuple[str, tuple[object, ...], str]]] = {
    "map": [("map: {r: [c, w]}", ("map", "r", 1, "chunk"), "value"), ("map: {r: c, w: c}", ("map", "w"), "key")],
    "access": [("access: {w: {gpu0: rw}}", ("access", "w"), "key")],
    "exports": [
        (f"exports: {{x: {{{key}: w, via: {via}}}}}", ("exports", "x", key), "value")
        for key, via in (("chunk", "fd"), ("buffer", "ipc"), ("event", "ipc"))
    ],
    "states": [("states: {asleep: {drop: [w]}}", ("states", "asleep", "drop", 0), "value")],
}
REFUSED = [(kind, section, *use) for kind in KINDS for section in kind.unusable for use in USES[section]]


@pytest.mark.parametrize(("kind", "section", "use", "path", "at"), REFUSED)
def test_a_use_that_the_driver_does_not_have_is_refused_with_the_reason(
    kind: Kind, section: str, use: str, path: tuple[object, ...], at: str
) -> None:
    (found,) = [each for each in diagnose(VIEW + spec_of(kind) + use) if each.severity == "error"]
    assert (found.code, found.path, found.at) == ("MT706", path, at)
    assert (found.notes, found.help) == ((kind.unusable[section][0],), kind.unusable[section][1])


OBJECTS = """
buffers: {b: {location: gpu1, size: 2MiB, count: 2}}
events: {e: {device: gpu0}}
pools: {p: {location: gpus, accessed_by: gpus}}
allocations: {a: {pool: p, size: 1MiB}}
managed: {m: {size: 5KiB, prefer: gpu1}}
pinned: {h: {size: 1B, count: 2, accessed_by: [gpu1, gpu0]}}
"""


def test_an_object_is_as_declared_until_it_is_ended_once() -> None:
    """And no undo makes a call before the object exists, or after it has ended."""
    plan = plan_of(OBJECTS, invented(2))
    objects = [step for step in plan.steps if isinstance(step, ObjectStep)]
    assert {step.noun for step in objects} == {
        "buffer",
        "event",
        "pool",
        "allocation",
        "managed memory",
        "pinned memory",
    }
    assert len({step.leak_name() for step in objects}) == len({step.provides for step in objects}) == len(objects)
    with SimDriver(invented(2)) as driver:
        driver.init()
        for step in objects:
            step.undo(driver, Layout())
        execution = Execution(plan, driver)
        execution.build()
        layout = execution.layout
        for step in objects:
            assert step.label in step.objects(layout)
            assert [found for found in step.check(driver, layout) if found.expected != found.observed] == []
        for each in reversed(plan.steps):
            each.undo(driver, layout)
            if isinstance(each, ObjectStep):
                assert each.label not in each.objects(layout)
                each.undo(driver, layout)


ENDS = {"mem_free", "mem_free_async", "mem_free_host", "event_destroy", "mem_pool_destroy"}


def test_an_object_that_cannot_be_ended_is_there_until_a_second_try_ends_it() -> None:
    """And the access of a pool, and contexts, likewise."""
    plan, ends = plan_of(OBJECTS, invented(2)), ENDS | {"mem_pool_set_access", "device_primary_ctx_release"}
    with SimDriver(invented(2)) as simulator:
        simulator.init()
        driver = Failing(simulator, only=ends)
        ledger = Ledger(driver)
        execution = Execution(plan, ledger)
        execution.build()
        layout, failed = execution.layout, set[type[Step]]()
        for step in reversed(plan.steps):
            before = ledger.counts()
            driver.at = driver.calls + 1
            try:
                step.undo(ledger, layout)
            except DriverError:
                failed.add(type(step))
                assert ledger.counts() == before
                assert not isinstance(step, ObjectStep) or step.label in step.objects(layout)
                driver.at = 0
                step.undo(ledger, layout)
            driver.at, calls = 0, driver.calls
            step.undo(ledger, layout)
            assert driver.calls == calls, step
        assert {step for step in map(type, plan.steps) if issubclass(step, ObjectStep)} < failed
        assert ledger.empty


def test_a_context_is_taken_back_whatever_happens_in_it_and_an_error_of_that_alone_comes_late() -> None:
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver, context = Failing(simulator, only={"ctx_pop_current"}), simulator.device_primary_ctx_retain(0)
        with suppress(KeyError), current(driver, context):
            raise KeyError
        with pytest.raises(DriverError, match="INVALID_CONTEXT"):
            simulator.mem_get_info()
        driver.at = 2
        with pytest.raises(LateError), current(driver, context):
            pass
        simulator.ctx_pop_current()
        driver.at = 3
        with pytest.raises(KeyError), current(driver, context):
            raise KeyError
        simulator.ctx_pop_current()


def test_the_end_of_another_name_of_an_own_object_leaves_the_object() -> None:
    plan = plan_of("buffers: {b: {location: gpu0, size: 2MiB}}", invented(1))
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        ledger = Ledger(simulator)
        execution = Execution(plan, ledger)
        execution.build()
        layout, alias = execution.layout, AliasBuffer((), "x.1", 0, 2 << 20, "b")
        alias.do(ledger, layout)
        assert layout.buffers["x.1"] == layout.buffers["b"]
        assert [each for each in alias.check(ledger, layout) if each.expected != each.observed] == []
        before = ledger.counts()
        for _ in range(2):
            alias.undo(ledger, layout)
            assert ([*layout.buffers], ledger.counts()) == (["b"], before)
        (own,) = steps_of(plan, AllocateBuffer)
        assert [each for each in own.check(ledger, layout) if each.expected != each.observed] == []
        assert not execution.take_down().leaks


EXPORTED = """
ranges: {r: {size: 4MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
map: {r: c}
access: {r: {gpu0: rw}}
pools: {p: {location: gpu0, handles: fd}}
allocations: {a: {pool: p, size: 1MiB}}
exports: {c: {chunk: c, via: fd}, d: {range: r, via: dmabuf}, a: {allocation: a, via: fd}}
"""


def test_the_trial_of_an_export_leaves_no_descriptor() -> None:
    plan = plan_of(EXPORTED, invented(1))
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        execution = Execution(plan, simulator)
        execution.build()
        tries, before = steps_of(plan, TryExport), os.listdir("/proc/self/fd")
        assert len(tries) == 3
        for step in tries:
            step.do(simulator, execution.layout)
            assert {each.expected == each.observed for each in step.check(simulator, execution.layout)} <= {True}
            assert os.listdir("/proc/self/fd") == before, step
        assert not execution.take_down().leaks


class Waits(Failing):
    """Driver that notes what it waits for."""

    def __init__(self, driver: SimDriver) -> None:
        super().__init__(driver, only={"event_synchronize"})
        self.waits: list[object] = []

    def ctx_synchronize(self) -> None:
        self.waits.append("gpu")
        self._driver.ctx_synchronize()

    def event_record(self, event: int, stream: int = 0) -> None:
        self.waits.append(stream)
        self._driver.event_record(event, stream)


def test_a_gpu_is_waited_for_but_for_a_stream_that_waits_for_a_producer_or_is_the_only_one_of_a_change() -> None:
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver, layout, step = Waits(simulator), Layout(), Synchronize((), 0)
        ledger = Ledger(driver)
        step.undo(ledger, layout)
        layout.contexts[0] = ledger.device_primary_ctx_retain(0)
        step.do(ledger, layout)
        step.undo(ledger, layout)
        assert driver.waits == ["gpu", "gpu"]
        with current(ledger, layout.contexts[0]):
            layout.of(AWAITED)[0] = stream = ledger.stream_create()
        step.undo(ledger, layout)
        step.do(ledger, layout)
        assert driver.waits[2:] == [stream, 0]
        driver.at = driver.calls + 1
        with pytest.raises(DriverError):
            step.undo(ledger, layout)
        assert ledger.counts()["events"] == 0
        layout.of(WAITING)[0] = Wait("ready", 1, "camera")
        step.undo(ledger, layout)
        assert driver.waits[4:] == [stream]
