"""`change` of a live layout: what both specs have stays where it is, with its bytes, and views of the rest are gone."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.drivers.target import Target
from memtopo.kinds.layout import current
from tests.api.child_process import Process
from tests.api.test_apply import failing
from tests.helpers.processes import open_descriptors

SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "cache",
    "ranges": {"weights": {"size": "4MiB"}, "kv": {"size": "4MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2},
        "page": {"location": "gpu0", "size": "2MiB", "count": 2},
    },
    "map": {"weights": ["w"], "kv": ["page"]},
    "access": {"weights": {"gpu0": "rw"}, "kv": {"gpu0": "rw"}},
    "states": {"asleep": {"drop": ["kv"]}},
}


def larger() -> dict[str, Any]:
    found = deepcopy(SPEC)
    found["ranges"]["kv"]["size"], found["chunks"]["page"]["count"] = "8MiB", 4
    return found


def test_views_of_what_stays_remain_and_those_of_what_goes_are_refused(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        weights, old = layout.range("weights"), layout.range("kv")
        array, cache = np.from_dlpack(weights), np.from_dlpack(old)
        array[:], cache[:] = 7, 9
        address = layout.address("weights")
        checks = layout.change(larger())
        assert (checks.different, layout.generation) == (0, 2)
        assert layout.address("weights") == address
        assert (np.from_dlpack(weights) == 7).all()
        assert (cache == 0).all()
        with pytest.raises(BufferError, match="the memory of range 'kv' was released: its layout was changed"):
            np.from_dlpack(old)
        kv = np.from_dlpack(layout.range("kv"))
        assert kv.size == 8 << 20
        assert (kv[100], kv[(2 << 20) + 100]) == (9, 9)
        assert layout.plan.memory == {"gpu0": 12 << 20}
        assert layout.check().different == 0
        del weights, old, array, cache, kv
    assert layout.report
    assert (layout.report.outcome, layout.report.plan.memory) == ("ok", {"gpu0": 12 << 20})


def test_a_view_for_writing_is_gone_once_its_range_is_read_only(machine: Target) -> None:
    reading = deepcopy(SPEC)
    reading["access"]["kv"]["gpu0"] = "r"
    with memtopo.applied(SPEC, machine) as layout:
        view = layout.range("kv")
        layout.change(reading)
        with pytest.raises(BufferError, match="the memory of range 'kv' was released: its layout was changed"):
            np.from_dlpack(view)
        del view


def test_views_that_a_change_has_replaced_leave_no_addresses(machine: Target) -> None:
    """A simulator's memory is mapped into this process for them."""
    before, after = deepcopy(SPEC), larger()
    for each in (before, after):
        each["chunks"]["page"]["size"] = "64MiB"
    before["ranges"]["kv"]["size"], after["ranges"]["kv"]["size"] = "128MiB", "256MiB"
    sizes = list[int]()
    for _ in range(8):
        with memtopo.applied(before, machine) as layout:
            assert layout.range("kv").size == 128 << 20
            layout.change(after)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    assert sizes[-1] - sizes[1] < 256 << 20


def test_a_change_is_refused_with_the_reason(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        with pytest.raises(memtopo.InvalidSpec, match="MT806"):
            layout.change(SPEC | {"name": "other"})
        with layout.switched("asleep"), pytest.raises(memtopo.Unsuitable, match="is in state 'asleep'"):
            layout.change(larger())
        assert layout.generation == 3
        assert layout.change(SPEC).different == 0
        assert layout.generation == 3
        checks = {"bytes": layout.change(larger())}
        layout.change(SPEC)
        checks["every byte"] = layout.change(larger(), check="full")
        for aspect, found in checks.items():
            assert {"bytes", "every byte"} & {each.aspect for each in found.tallies} == {aspect}


def test_switched_returns_to_the_state_before_also_after_an_error(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as layout:
        with layout.switched("asleep") as checks:
            assert (layout.state, checks.different) == ("asleep", 0)
            with layout.switched("awake"):
                assert layout.state == "awake"
            assert layout.state == "asleep"
        with pytest.raises(ZeroDivisionError), layout.switched("asleep"):
            raise ZeroDivisionError
        assert layout.state == "awake"


def test_a_layout_that_was_taken_down_meanwhile_is_not_switched_back(machine: Target) -> None:
    with ExitStack() as stack, memtopo.applied(SPEC, machine) as layout:
        stack.enter_context(layout.switched("asleep"))


@pytest.mark.parametrize("stays", [0, 1])
def test_a_view_of_the_part_of_a_range_that_stays_mapped_remains(machine: Target, stays: int) -> None:
    fewer = deepcopy(SPEC)
    fewer["map"]["kv"], fewer["states"] = [{"chunk": f"page.{stays}", "offset": f"{2 * stays}MiB"}], {}
    with memtopo.applied(SPEC, machine) as layout:
        views = [layout.range("kv", offset=index << 21, size=2 << 20) for index in range(2)]
        np.from_dlpack(views[stays])[:] = 7
        layout.change(fewer)
        assert (np.from_dlpack(views[stays]) == 7).all()
        with pytest.raises(BufferError, match="the memory of range 'kv' was released: its layout was changed"):
            np.from_dlpack(views[1 - stays])
        del views


def test_a_view_of_memory_that_was_replaced_stays_refused_after_further_changes(machine: Target) -> None:
    """One that leaves the new memory, and one back to the first spec."""
    with memtopo.applied(SPEC, machine) as layout:
        old, weights = layout.range("kv"), layout.range("weights")
        layout.change(larger())
        for spec in (larger() | {"states": {}}, SPEC):
            layout.change(spec)
            with pytest.raises(BufferError, match="the memory of range 'kv' was released: its layout was changed"):
                np.from_dlpack(old)
        new = layout.range("kv")
        assert np.from_dlpack(new).size == np.from_dlpack(weights).size == 4 << 20
        del old, weights, new


def test_a_stream_of_a_layout_on_several_gpus_is_that_of_the_gpu_that_is_named(machine: Target) -> None:
    spec = deepcopy(SPEC)
    spec["chunks"]["page"]["location"], spec["access"]["kv"] = "gpu1", {"gpu1": "rw"}
    with memtopo.applied(spec, machine) as layout:
        session = layout._session
        with current(session.driver, session.layout.contexts[1]):
            stream = session.driver.stream_create()
        requests: tuple[Callable[[], object], ...] = (
            lambda: layout.switch("asleep", stream=stream),
            lambda: layout.change(spec, stream=stream),
        )
        for request in requests:
            with pytest.raises(memtopo.Unsuitable, match="the layout uses several GPUs") as refused:
                request()
            assert refused.value.hint == "name the GPU of the stream: device='gpu0'"
        with layout.switched("asleep", stream=stream, device="gpu1") as checks:
            assert checks.different == 0
        assert layout.switch("asleep", stream=stream, device="gpu1").different == 0
        session.driver.stream_destroy(stream)
        assert layout.switch("awake").different == 0, "it waits for the stream no more"


def test_a_change_waits_for_the_work_of_one_stream(machine: Target) -> None:
    with memtopo.applied(SPEC | {"name": "cache"}, machine) as layout:
        session = layout._session
        with current(session.driver, session.layout.contexts[0]):
            stream = session.driver.stream_create()
        layout.switch("asleep", stream=stream)
        layout.switch("awake", stream=stream, device="gpu0")
        assert layout.change(larger(), stream=0).different == 0
        both_ways = layout.switched("asleep", stream=stream)
        with pytest.raises(memtopo.NotSwitched, match=r"cuEventRecord.*the layout is asleep, as before"), both_ways:
            session.driver.stream_destroy(stream)
        layout.switch("awake")
        with pytest.raises(memtopo.NotSwitched, match=r"cuEventRecord.*the layout is awake, as before"):
            layout.switch("asleep", stream=stream)
        with pytest.raises(memtopo.Unsuitable, match="does not use gpu1"):
            layout.switch("asleep", stream=0, device=1)
        assert layout.switch("asleep").different == 0


def test_a_view_shows_the_memory_that_a_failed_change_has_created_anew() -> None:
    """Whichever call fails."""
    shared = deepcopy(SPEC)
    shared["chunks"]["page"]["handles"] = "fd"
    with memtopo.applied(SPEC, failing(0)) as layout:
        driver: Any = layout._session._opened
        context, kv = layout._session.layout.contexts[0], np.from_dlpack(layout.range("kv"))
        chunks = {layout._session.layout.chunks["page.1"]}
        for at in range(1, 100):
            driver.at = driver.calls + at
            try:
                layout.change(shared)
            except memtopo.NotChanged:
                with current(driver, context):
                    driver.memset_d8(layout.address("kv"), at, 4 << 20)
                assert (kv == at).all()
                chunks.add(layout._session.layout.chunks["page.1"])
            else:
                driver.at = 0
                break
        assert len(chunks) > 1
        del kv


def test_a_change_may_add_an_import(start: Callable[..., Process]) -> None:
    """From a holder that the layout was not connected to before."""
    start(spec="specs/hold.yaml", machine="h200x2")
    importing = deepcopy(SPEC)
    importing["ranges"]["view"] = {"size": "64MiB"}
    importing["imports"] = {"hot": {"from": "kv-store/pages", "location": "gpu0", "size": "2MiB", "count": 32}}
    importing["map"]["view"], importing["access"]["view"] = ["hot"], {"gpu0": "r"}
    with memtopo.applied(SPEC, "h200x2") as layout:
        before = open_descriptors()
        assert layout.change(importing).different == 0
        assert layout.range("view").size == 64 << 20
        assert open_descriptors() == before + 1 + 32, "the connection, and the simulator's of each chunk"
        assert layout.change(SPEC).different == 0
