"""`memtopo.apply` as a context manager: build, views and teardown of a layout."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.elastic import ElasticRange
from memtopo.api.objects import stream_handle
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target
from tests.api.test_specs import SMALL
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down
from tests.helpers.samples import sampled
from tests.helpers.specs import SPECS

RING = "specs/ring-buffer.yaml"


def failing(at: int, error: str = "CUDA_ERROR_UNKNOWN") -> Target:
    """A machine whose driver fails at a call, or at none if it is 0."""

    def opened() -> Any:
        driver = SimDriver(invented(2))
        driver.init()
        return _Failing(driver, at, error)

    return Target("failing", invented(2), simulated=True, _opener=opened)


class _Failing(Failing):
    """A simulator that fails, with the simulator's `close` and `lend`."""

    def __init__(self, driver: SimDriver, at: int, error: str = "CUDA_ERROR_UNKNOWN") -> None:
        super().__init__(driver, at, error=error)
        self._driver_itself = driver

    def close(self) -> None:
        self._driver_itself.close()

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        return self._driver_itself.lend(address, writable=writable)


def test_a_chunk_mapped_twice_appears_at_both_positions_of_the_view(machine: Target) -> None:
    with memtopo.applied(RING, machine) as layout:
        ring = np.from_dlpack(layout.range("ring", dtype="int32"))
        half = len(ring) // 2
        ring[half - 1 : half + 1] = [1, 2]
        assert ring[0] == 2
        assert ring[-1] == 1
        del ring


def test_all_interfaces_access_the_same_bytes(machine: Target) -> None:
    """DLPack, the array interface, a memoryview and the driver."""
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


@pytest.mark.parametrize("path", sampled(SPECS, 0.2))
def test_every_range_of_every_shipped_spec_can_be_viewed(path: Path, machine: Target) -> None:
    """On each machine that can build the spec, each run of mapped chunks is one view."""
    try:
        planned = memtopo.plan(path, machine)
    except memtopo.InvalidSpec as error:
        refused = {fault.code for fault in error.diagnostics if fault.severity == "error"}
        assert refused <= {"MT401", "MT501"}
        return
    with memtopo.applied(path, machine) as layout:
        assert layout.plan.calls == sum(step.calls for step in planned.steps)
        for name, reserved in layout.ranges.items():
            try:
                view = layout.range(name)
            except memtopo.Unsuitable as error:
                assert re.search("nothing is mapped|no one device|is a heap", str(error))  # noqa: PT017
                continue
            assert view.size == reserved.size
            if isinstance(view, ElasticRange):
                continue
            assert np.asarray(view).nbytes == reserved.size
            del view
    require_taken_down(layout)


def test_a_layout_has_name_machine_addresses_and_plan(machine: Target) -> None:
    """Its report is there after its end."""
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


def test_a_buffer_view_has_the_declared_size_and_an_event_is_recorded(machine: Target) -> None:
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
    with pytest.raises(memtopo.Unsuitable, match="no longer exists"):
        event.query()


class _NumberedStream:
    """A stream of cuda.core, whose number is not its handle."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7

    def __int__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "stream",
    [7, np.int64(7), _NumberedStream(), SimpleNamespace(cuda_stream=7, ptr=None), SimpleNamespace(ptr=7)],
    ids=["handle", "numpy", "cuda.core", "torch", "cupy"],
)
def test_a_stream_is_a_handle_or_an_object_that_has_one(stream: object) -> None:
    assert stream_handle(stream) == 7
    with pytest.raises(memtopo.Unsuitable, match="a SimpleNamespace is not a stream"):
        stream_handle(SimpleNamespace(ptr="7"))


def test_a_host_chunk_is_viewed_by_the_host_and_by_a_gpu_with_access(machine: Target) -> None:
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


def test_descriptors_of_the_program_are_no_leak(machine: Target, tmp_path: Path) -> None:
    """The program opens files within the `with` block and closes others; all descriptors of the layout are closed."""
    before = open_descriptors()
    kept = []
    with memtopo.applied(SMALL, machine) as layout:
        kept = [(tmp_path / str(i)).open("w") for i in range(5)]
    assert layout.report
    assert layout.report.exit_code == 0
    assert layout.report.left
    assert layout.report.left.fds_after == layout.report.left.fds_before
    assert open_descriptors() == before + 5
    with memtopo.applied(SMALL, machine):
        for file in kept:
            file.close()
    assert open_descriptors() == before


def test_an_exception_in_the_block_propagates_after_the_teardown(machine: Target) -> None:
    before = open_descriptors()
    with pytest.raises(KeyError), memtopo.applied(SMALL, machine) as layout:
        raise KeyError("ours")
    require_taken_down(layout)
    assert open_descriptors() == before


def test_a_layout_is_entered_only_once(machine: Target) -> None:
    made = memtopo.applied(SMALL, machine)
    with made, pytest.raises(memtopo.Unsuitable, match="once"), made:
        pass
    refused = memtopo.applied(SMALL, failing(1))
    for error in (memtopo.NotApplied, memtopo.Unsuitable):
        with pytest.raises(error), refused:
            pytest.fail("it was built")


@pytest.mark.parametrize("at", [1, 5, 9, 14, 20, 30])
def test_a_failing_call_raises_after_the_teardown(at: int) -> None:
    """The exception has the report, the driver's error and the leaks, whichever call fails."""
    with pytest.raises(memtopo.NotApplied) as raised, memtopo.applied(SMALL, failing(at)):
        pytest.fail("it was built")
    report = raised.value.report
    assert report.failure or report.leaks
    assert raised.value.exit_code in (4, 5, 6)
    assert "CUDA_ERROR" in str(raised.value)
    assert ("everything was undone" in str(raised.value)) is not bool(report.leaks)


def test_a_failing_teardown_raises_or_adds_a_note(machine: Target) -> None:
    """It raises with the names of the leaks; if the program raises itself, they are a note of its exception."""
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


def test_the_error_of_a_failing_teardown_has_the_completed_report() -> None:
    with pytest.raises(memtopo.NotApplied) as raised, memtopo.applied(SMALL, failing(_calls())) as layout:
        layout.completed = lambda report: replace(report, notes=(*report.notes, "a program is left"))
    report = raised.value.report
    assert report is layout.report
    assert (bool(report.leaks), report.notes[-1]) == (True, "a program is left")


def test_what_is_left_is_raised_beside_the_warning_of_a_view_in_use() -> None:
    failed, warned = pytest.raises(memtopo.NotApplied, match="is left"), pytest.warns(memtopo.ViewOutlived)
    with failed, warned, memtopo.applied(SMALL, failing(_calls())) as layout:
        view = layout.range("kv")
    assert view.size == 4 << 20


def test_every_request_of_a_layout_that_was_taken_down_is_refused(machine: Target) -> None:
    with memtopo.applied(SMALL, machine) as layout:
        pass
    requests: tuple[Callable[[], object], ...] = (
        *(layout.check, layout.poll, lambda: layout.switch("awake"), lambda: layout.change(SMALL)),
        *(partial(each, "kv") for each in (layout.address, layout.range, layout.chunk, layout.buffer)),
        *(partial(each, "kv") for each in (layout.event, layout.semaphore, layout.dma_buf, layout.chunks, layout.heap)),
    )
    for request in requests:
        with pytest.raises(memtopo.Unsuitable, match=r"layout( 'small')? was taken down"):
            request()


def _calls() -> int:
    driver = failing(0).open()
    with memtopo.applied(SMALL, replace(failing(0), _opener=lambda: driver)):
        pass
    return int(driver.calls)  # type: ignore[attr-defined]


class _Signalled(_Failing):
    """A simulator during whose calls SIGINT arrives, from the n-th on; its state remains inspectable."""

    def _wrap(self, method: str, call: Any) -> Any:  # noqa: ARG002 the base class passes it
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.calls += 1
            if self.calls >= self.at:
                signal.raise_signal(signal.SIGINT)
            return result

        return counted

    def close(self) -> None:
        """Leave the simulator open: the test inspects it."""


def signalled(at: int) -> tuple[Target, _Signalled]:
    simulator = SimDriver(invented(2))
    simulator.init()
    driver = _Signalled(simulator, at)
    return Target("slow", invented(2), simulated=True, _opener=lambda: driver), driver


def empty(driver: _Signalled) -> bool:
    simulator = driver._driver_itself
    driver.at = 10**9
    left = simulator.mappings._at or simulator.chunks._open or simulator.device_primary_ctx_get_state(0)
    simulator.close()
    return not left


def test_an_interrupted_teardown_is_completed_before_the_interrupt_is_raised() -> None:
    target, driver = signalled(10**9)
    with pytest.raises(KeyboardInterrupt), memtopo.applied(SMALL, target) as layout:
        driver.at = driver.calls + 2
    report = layout.report
    assert report is not None
    assert (report.outcome, report.leaks) == ("ok", ())
    assert empty(driver)


def test_repeated_interrupts_of_a_build_do_not_stop_its_teardown() -> None:
    target, driver = signalled(20)
    with pytest.raises(KeyboardInterrupt), memtopo.applied(SMALL, target):
        pytest.fail("it was built")
    assert empty(driver)


def test_an_interrupted_teardown_restores_the_handler_of_the_program() -> None:
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        target, driver = signalled(10**9)
        mine = signal.getsignal(signal.SIGINT)
        with memtopo.applied(SMALL, target):
            driver.at = driver.calls + 2
        assert (received, signal.getsignal(signal.SIGINT)) == ([signal.SIGINT], mine)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_local_without_a_gpu_is_an_error_and_not_simulated() -> None:
    from memtopo.common.errors import MemtopoError

    with pytest.raises(MemtopoError, match=r"no such|not known"), memtopo.applied(SMALL, "h900"):
        pass


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_many_layouts_with_views_leave_descriptors_and_mappings_unchanged(machine: Target, count: int) -> None:
    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    gc.collect()  # what earlier tests left to the collector has descriptors, too
    for index in range(count):
        with memtopo.applied(SMALL, machine) as layout:
            array = np.from_dlpack(layout.range("kv"))
            array[index] = index % 256
            del array
        if index == 20:
            before = open_descriptors(), maps()
    assert open_descriptors() == before[0]
    assert maps() <= before[1] + 4
