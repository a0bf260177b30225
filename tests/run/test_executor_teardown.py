"""Teardown by the executor: its order, gates, failures and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

import pytest

from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution, StepFailed, TeardownGates
from memtopo.kinds.layout import HandleSource
from memtopo.plans.progress import Progress, SafeProgress
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import plan_of

M = 2 << 20
MACHINE = invented(2)
SPEC = """
ranges: {a: {size: 8MiB}}
chunks: {one: {location: gpu0, size: 2MiB}, page: {location: [gpu0, gpu1], size: 2MiB, count: 2}}
map: {a: [one, page]}
access: {a: {gpu0: rw}}
"""


@contextmanager
def built(
    progress: Progress | None = None, *, fails: str = "", every: bool = False
) -> Iterator[tuple[Execution, Ledger]]:
    """A built layout, on a driver that fails the next call of a method, or with `every` all of them."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        failing = Failing(driver, only={fails}, every=every)
        ledger = Ledger(failing)
        execution = Execution(plan_of(SPEC, MACHINE), ledger, progress=progress)
        execution.build()
        failing.at = failing.calls + 1
        yield execution, ledger


class Gates(TeardownGates):
    """Gates that note what is open, and of which one is not passed in time."""

    def __init__(self, ledger: Ledger, late: int | None = None) -> None:
        self.ledger, self.late = ledger, late
        self.open: list[dict[str, int]] = []

    def imports_released(self) -> bool:
        self.open.append(self.ledger.counts())
        return self.late != 0

    def all_released(self) -> bool:
        self.open.append(self.ledger.counts())
        return self.late != 1


def test_mappings_end_before_the_first_gate_and_contexts_after_the_second() -> None:
    with built() as (execution, ledger):
        gates = Gates(ledger)
        teardown = execution.take_down(gates)
        assert gates.open == [
            {"reservations": 1, "handles": 3, "mappings": 0, "contexts": 2},
            {"reservations": 0, "handles": 0, "mappings": 0, "contexts": 2},
        ]
        assert ledger.empty
        assert execution.layout.ending
        assert not teardown.timed_out
        assert execution.times[-1].steps == len(execution.plan.steps)


@pytest.mark.parametrize("late", [0, 1])
def test_a_gate_that_is_not_passed_in_time_is_reported_and_all_is_undone(late: int) -> None:
    with built() as (execution, ledger):
        assert execution.take_down(Gates(ledger, late)).timed_out
        assert ledger.empty


def test_free_memory_and_descriptors_are_measured_before_contexts_are_released() -> None:
    with built() as (execution, ledger):
        held = execution.snapshot()
        teardown = execution.take_down()
        assert execution.baseline
        assert teardown.after
        assert {device: execution.baseline.free[device] - held.free[device] for device in held.free} == {0: 2 * M, 1: M}
        assert (teardown.after.free, teardown.after.fds) == (execution.baseline.free, execution.baseline.fds)
        assert set(teardown.after.free) == {0, 1}
        assert ledger.empty


class LastOwner(TeardownGates):
    """Another process with memory of a GPU, which it releases right before it passes the second gate."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.handle = driver, driver.mem_create(M, Properties(gpu(0)))

    def all_released(self) -> bool:
        self.driver.mem_release(self.handle)
        return True


def test_free_memory_is_measured_after_every_process_has_released_its_own() -> None:
    with built() as (execution, ledger):
        teardown = execution.take_down(LastOwner(ledger))
        assert execution.baseline
        assert teardown.after
        assert teardown.after.free == execution.baseline.free


def test_without_a_baseline_nothing_is_measured() -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(Failing(driver, 1, only={"mem_get_info"}))
        execution = Execution(plan_of(SPEC, MACHINE), ledger)
        with pytest.raises(StepFailed, match=r"^free memory before building: cuMemGetInfo: "):
            execution.build()
        assert execution.take_down().after is None
        assert ledger.empty


def test_a_context_that_cannot_be_retained_for_the_teardown_is_its_failure_and_all_else_is_released() -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(failing := Failing(driver, only={"device_primary_ctx_retain"}))
        execution = Execution(plan_of(SPEC, MACHINE), ledger)
        execution.build()
        execution.suspend(list(execution.layout.contexts))
        failing.at = failing.calls + 1
        teardown = execution.take_down()
        assert [each.step.verb for each in teardown.failures if each.step] == ["retain context"]
        assert not any(ledger.counts().values())


def test_descriptors_of_a_contexts_events_are_not_counted() -> None:
    """Fact 49: the driver keeps the file open as long as the context exists."""
    with built() as (execution, _):
        before = execution.snapshot().fds
        assert before == open_descriptors()
        with NamedTemporaryFile(prefix="cuda.shm.", dir="/dev/shm"):
            assert execution.snapshot().fds == before
        with NamedTemporaryFile(prefix="cuda_shm.", dir="/dev/shm"):
            assert execution.snapshot().fds == before + 1
        execution.take_down()


def test_a_failed_measurement_after_the_teardown_is_a_failure_and_no_leak() -> None:
    with built(fails="mem_get_info") as (execution, ledger):
        teardown = execution.take_down()
        (failure,) = teardown.failures
        assert (failure.step, failure.action) == (None, "free memory after taking down")
        assert "CUDA_ERROR_UNKNOWN" in str(failure.error)
        assert (teardown.leaks, teardown.after, ledger.empty) == ((), None, True)


def test_a_failed_undo_without_a_resource_is_a_failure_that_names_its_step() -> None:
    with built(fails="ctx_synchronize") as (execution, ledger):
        teardown = execution.take_down()
        (failure,) = teardown.failures
        assert failure.step
        assert (failure.step.verb, failure.action) == ("synchronize", "synchronize gpu1")
        assert (teardown.leaks, ledger.empty) == ((), True)


def test_calls_after_a_failed_undo_are_made_for_no_step() -> None:
    with built(fails="device_primary_ctx_release", every=True) as (execution, _):
        execution.context = CallContext()
        assert execution.take_down().leaks
        assert (execution.context.verb, execution.context.undo) == ("", False)


def test_a_failure_after_the_effect_of_an_undo_is_no_leak() -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(failing := Failing(driver, only={"ctx_pop_current"}))
        text = "pools: {p: {location: gpu0}}\nallocations: {a: {pool: p, size: 2MiB}}"
        execution = Execution(plan_of(text, MACHINE), ledger)
        execution.build()
        failing.at = failing.calls + 2  # the first one is that of the wait for the GPU
        teardown = execution.take_down()
        assert [each.action for each in teardown.failures] == ["allocate from pool a"]
        assert (teardown.leaks, ledger.empty) == ((), True)


class StoppedHolder(HandleSource):
    """A holder whose connection a stop keeps from being closed, and which gives nothing."""

    def attach(self, holder: str) -> int:
        del holder
        return 0

    def detach(self, holder: str) -> None:
        del holder
        raise Stopped


def test_a_stop_in_an_undo_is_its_failure_and_stops_no_other() -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(driver)
        text = f"{SPEC}imports: {{w: {{from: other/w, location: gpu0, size: 2MiB}}}}\n"
        execution = Execution(plan_of(text, MACHINE), ledger)
        execution.layout.handle_source = StoppedHolder()
        with pytest.raises(StepFailed, match=r"^import w"):
            execution.build()
        teardown = execution.take_down()
        assert [each.action for each in teardown.failures] == ["attach other"]
        assert (teardown.leaks, ledger.empty) == ((), True)


def test_a_leak_has_its_resource_error_path_and_what_it_blocks() -> None:
    with built(fails="mem_unmap", every=True) as (execution, ledger):
        teardown = execution.take_down()
        assert [(leak.what, leak.stays, leak.path) for leak in teardown.leaks] == [
            (f"mapping of page.1 in a at {2 * M:#x}", ("range a",), ("map", "a", 1)),
            (f"mapping of page.0 in a at {M:#x}", (), ("map", "a", 1)),
            ("mapping of one in a at 0x0", (), ("map", "a", 0)),
        ]
        assert all(leak.error.startswith("cuMemUnmap: CUDA_ERROR_UNKNOWN") for leak in teardown.leaks)
        assert teardown.failures == []
        assert ledger.counts() == {"reservations": 1, "handles": 0, "mappings": 3, "contexts": 0}


class Raising(Progress):
    """Hooks that count their calls; those that are named raise an exception."""

    def __init__(self, *raising: str) -> None:
        self.raising = raising
        self.calls: list[tuple[str, object]] = []

    def _note(self, hook: str, value: object) -> None:
        self.calls.append((hook, value))
        if hook in self.raising:
            raise ValueError(hook)

    def phase(self, name: str, steps: int, _processes: object = None) -> None:
        self._note("phase", (name, steps))

    def volume(self, name: str, size: int, _processes: object = None) -> None:
        self._note("volume", (name, size))

    def extend(self, steps: int, _process: str = "") -> None:
        self._note("extend", steps)

    def advance(self, steps: int, _process: str = "") -> None:
        self._note("advance", steps)

    def end(self) -> None:
        self._note("end", None)


CALLS = [("phase", ("a", 1)), ("volume", ("b", 2)), ("extend", 3), ("advance", 4), ("end", None)]


@pytest.mark.parametrize("raising", [None, *(name for name, _ in CALLS)])
def test_after_a_hook_has_raised_no_hook_is_called(raising: str | None) -> None:
    hooks = Raising(raising or "")
    safe = SafeProgress(hooks)
    safe.phase("a", 1)
    safe.volume("b", 2)
    safe.extend(3)
    safe.advance(4)
    safe.end()
    names = [name for name, _ in CALLS]
    assert hooks.calls == CALLS[: names.index(raising) + 1 if raising else None]


def test_a_teardown_undoes_all_though_its_hooks_raise() -> None:
    with built(Raising("end")) as (execution, ledger):
        execution.take_down()
        assert ledger.empty
