"""A layout within a `with`: built, used by NumPy, and gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.driver.sim import SimDriver
from memtopo.machine.target import Target
from tests.api.test_specs import SMALL
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import SPECS

RING = "specs/ring-buffer.yaml"


def failing(at: int) -> Target:
    """A machine whose driver fails at a call; 0 is never."""

    def opened() -> Any:
        driver = SimDriver(invented(2))
        driver.init()
        return _Failing(driver, at)

    return Target("failing", invented(2), simulated=True, _opener=opened)


class _Failing(Failing):
    """A simulator that fails once, and can be closed like one."""

    def __init__(self, driver: SimDriver, at: int) -> None:
        super().__init__(driver, at)
        self._driver_itself = driver

    def close(self) -> None:
        self._driver_itself.close()


def test_a_ring_sees_its_own_bytes_twice(machine: Target) -> None:
    """A chunk that is mapped twice is at both places of the view, in both directions"""
    with memtopo.applied(RING, machine) as layout:
        ring = np.from_dlpack(layout.range("ring", dtype="int32"))
        half = len(ring) // 2
        ring[half - 1 : half + 1] = [1, 2]
        assert ring[0] == 2
        assert ring[-1] == 1
        del ring


def test_views_alias_however_they_are_made(machine: Target) -> None:
    """DLPack, the array interface, a memoryview and the driver all see the same bytes"""
    with memtopo.applied(SMALL, machine) as layout:
        one = np.from_dlpack(layout.range("kv", dtype="uint16", shape=(2, -1)))
        two = np.asarray(layout.chunk("page.1", dtype="uint8"))
        three = layout.range("kv", offset=2 << 20).memory
        one[1, 0] = 0x1234
        assert (two[0], two[1], three[0]) == (0x34, 0x12, 0x34)
        three[1] = 0xFF
        assert one[1, 0] == 0xFF34
        assert one.shape == (2, 1 << 20)
        del one, two, three


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_range_of_every_spec_can_be_viewed(path: Path, machine: Target) -> None:
    """Every spec that the machine can build stands within a with, and each mapped chunk in it is seen as one piece"""
    try:
        planned = memtopo.plan(path, machine)
    except memtopo.InvalidSpec as error:
        refused = {fault.code for fault in error.diagnostics if fault.severity == "error"}
        assert refused <= {"MT401", "MT501"}
        return
    with memtopo.applied(path, machine) as layout:
        assert layout.plan.calls == len(planned.steps)
        for name, reserved in layout.ranges.items():
            try:
                view = layout.range(name)
            except memtopo.Unsuitable as error:
                assert "nothing is mapped" in str(error) or "no one device" in str(error)  # noqa: PT017
                continue
            assert view.size == reserved.size
            assert np.asarray(view).nbytes == reserved.size
            del view
    assert layout.report
    assert layout.report.outcome == "ok"


def test_facts_of_a_layout(machine: Target) -> None:
    """A layout says its name, machine, addresses and plan; its report comes with its end"""
    with memtopo.applied(SMALL, machine) as layout:
        assert (layout.name, layout.machine.simulated) == ("small", True)
        assert layout.ranges["kv"] == (layout.address("kv"), 4 << 20)
        assert layout.plan.memory == {"gpu0": 4 << 20}
        assert layout.check().different == 0
        report = layout.report
        assert report is None
    report = layout.report
    assert report
    assert (report.exit_code, report.checks is None) == (0, False)
    with pytest.raises(memtopo.Unsuitable, match="taken down"):
        layout.range("kv")
    with pytest.raises(memtopo.Unsuitable, match="taken down"):
        layout.address("kv")


def test_buffers_and_events(machine: Target) -> None:
    """A buffer is a view of its declared size, also where that is no whole page; an event is recorded and done"""
    spec = {
        "memtopo": 1,
        "name": "b",
        "buffers": {"b": {"location": "gpu1", "size": "6KiB", "count": 2}},
        "events": {"e": {"device": "gpu1"}},
    }
    with memtopo.applied(spec, machine) as layout:
        first = np.asarray(layout.buffer("b.0", dtype="float64"))
        second = np.asarray(layout.buffer("b.1"))
        first[:] = 1.5
        second[:] = 0
        assert first.nbytes == 6 << 10
        assert first[-1] == 1.5
        event = layout.event("e")
        event.record()
        event.wait()
        event.synchronize()
        assert event.query()
        del first, second
    with pytest.raises(memtopo.Unsuitable, match="gone"):
        event.query()


def test_a_host_chunk(machine: Target) -> None:
    """Memory of the host is viewed for the host, and for a GPU that may use it"""
    spec = {
        "memtopo": 1,
        "name": "h",
        "ranges": {"r": {"size": "2MiB"}},
        "chunks": {"c": {"location": "host:0", "size": "2MiB"}},
        "map": {"r": ["c"]},
        "access": {"r": {"host": "rw", "gpu1": "r"}},
    }
    with memtopo.applied(spec, machine) as layout:
        assert (layout.range("r").device, layout.range("r").read_only) == ("host", False)
        assert (layout.range("r", device=1).device, layout.range("r", device="gpu1").read_only) == ("gpu1", True)
        assert layout.range("r", device="host:0").read_only is False


def test_what_the_program_opens_is_no_leak(machine: Target, tmp_path: Path) -> None:
    """A program may open files while its layout stands, and close others; afterwards all of ours are closed"""
    before = open_descriptors()
    kept = []
    with memtopo.applied(SMALL, machine) as layout:
        kept = [(tmp_path / str(i)).open("w") for i in range(5)]
    assert layout.report
    assert layout.report.exit_code == 0
    assert open_descriptors() == before + 5
    with memtopo.applied(SMALL, machine):
        for file in kept:
            file.close()
    assert open_descriptors() == before


def test_an_error_within_goes_on(machine: Target) -> None:
    """What is raised within the with leaves it as it is, and the layout is taken down all the same"""
    before = open_descriptors()
    with pytest.raises(KeyError), memtopo.applied(SMALL, machine) as layout:
        raise KeyError("ours")
    assert layout.report
    assert layout.report.outcome == "ok"
    assert open_descriptors() == before


def test_it_is_entered_once(machine: Target) -> None:
    """The same object does not build a second layout"""
    made = memtopo.applied(SMALL, machine)
    with made, pytest.raises(memtopo.Unsuitable, match="once"), made:
        pass


@pytest.mark.parametrize("at", [1, 5, 9, 14, 20, 30])
def test_a_failing_driver_raises_after_all_was_undone(at: int) -> None:
    """Whichever call fails: what is raised has the report, and says the driver's error and what is left"""
    with pytest.raises(memtopo.NotApplied) as raised, memtopo.applied(SMALL, failing(at)):
        pytest.fail("it was built")
    report = raised.value.report
    assert report.failure or report.leaks
    assert raised.value.exit_code in (4, 5, 6)
    assert "CUDA_ERROR" in str(raised.value)
    assert ("everything was undone" in str(raised.value)) is not bool(report.leaks)


def test_a_failing_teardown_is_told(machine: Target) -> None:
    """What cannot be undone on leaving is raised with its name; beside an error of the program it is a note"""
    calls = _calls()
    found: list[str] = []
    for at in range(1, calls + 1):
        entered = False
        try:
            with memtopo.applied(SMALL, failing(at)):
                entered = True
                raise KeyError("ours")  # noqa: TRY301 it is what goes through the with
        except KeyError as error:
            found += getattr(error, "__notes__", [])
        except memtopo.NotApplied:
            assert not entered
    assert any("is left" in note for note in found)


def _calls() -> int:
    driver = failing(0).open()
    with memtopo.applied(SMALL, replace(failing(0), _opener=lambda: driver)):
        pass
    return int(driver.calls)  # type: ignore[attr-defined]


class _Interrupting(_Failing):
    """A simulator at whose n-th call Ctrl-C is pressed, and which can be looked at afterwards."""

    def _counted(self, method: str, call: Any) -> Any:  # noqa: ARG002 its base has it
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                raise KeyboardInterrupt
            return call(*args, **kwargs)

        return counted

    def close(self) -> None:
        """It stays, to be looked at."""


@pytest.mark.parametrize("at", range(1, 31, 3))
def test_ctrl_c_while_building(at: int) -> None:
    """An interrupt between or within calls goes on as it is, and all that was built until then is undone"""
    simulator = SimDriver(invented(2))
    simulator.init()
    target = Target("slow", invented(2), simulated=True, _opener=lambda: _Interrupting(simulator, at))
    with pytest.raises(KeyboardInterrupt), memtopo.applied(SMALL, target):
        pytest.fail("it was built")
    assert not simulator._mappings._at
    assert not simulator._chunks._open
    assert not simulator.device_primary_ctx_get_state(0)
    simulator.close()


def test_no_machine() -> None:
    """Without a GPU 'local' says so, and nothing is simulated in its place"""
    from memtopo.common.errors import MemtopoError

    with pytest.raises(MemtopoError, match=r"no such|not known"), memtopo.applied(SMALL, "h900"):
        pass


def test_rounds_leave_nothing(machine: Target) -> None:
    """Two hundred layouts one after another, each viewed, leave descriptors and mappings where they were"""

    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    for turn in range(200):
        with memtopo.applied(SMALL, machine) as layout:
            seen = np.from_dlpack(layout.range("kv"))
            seen[turn] = turn % 256
            del seen
        if turn == 20:
            before = open_descriptors(), maps()
    assert open_descriptors() == before[0]
    assert maps() <= before[1] + 4
