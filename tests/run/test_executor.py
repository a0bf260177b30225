"""Execution of plans: build, check and take down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from memtopo.common.errors import InternalError, Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import STRIDE, Execution, StepFailed
from memtopo.kinds.chunks.steps import RETAINED, CreateChunk
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.runs import number_of_steps
from memtopo.kinds.step import Phase
from memtopo.planner import Plan
from memtopo.plans.progress import Progress
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of

M = 2 << 20
MACHINE = invented(2)
PAGES = """
ranges: {a: {size: 12MiB}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 6}}
map: {a: [page]}
access: {a: {gpu0: rw, gpu1: r}}
"""
"""Chunks that are checked together, since each is mapped once."""

SPEC = """
ranges: {a: {size: 8MiB}, b: {size: 4MiB, count: 2}}
chunks: {one: {location: gpu0, size: 2MiB}, page: {location: [gpu0, gpu1], size: 2MiB, count: 4}}
map: {a: [one, page.0, one], b: [page]}
access: {a: {gpu0: rw, gpu1: r}, b: {gpu1: rw}}
"""


@contextmanager
def ledger(at: int = 0, only: set[str] | None = None) -> Iterator[Ledger]:
    """A ledger over a simulator whose `at`-th call fails."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        yield Ledger(Failing(driver, at, only=only))


def test_layout_has_everything_the_spec_names_after_building() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        layout = execution.layout
        assert driver.counts() == {"reservations": 3, "handles": 5, "mappings": 7, "contexts": 2}
        assert list(layout.ranges) == ["a", "b.0", "b.1"]
        assert list(layout.chunks) == ["one", "page.0", "page.1", "page.2", "page.3"]
        base = layout.ranges["a"].address
        assert [layout.mappings[base + index * M] for index in range(3)] == ["one", "page.0", "one"]
        assert base + 3 * M not in layout.mappings
        execution.take_down()


def test_contexts_that_are_released_twice_are_retained_once() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        before = driver.counts()["contexts"]
        for devices in ([0], [0, 1], [1]):
            execution.suspend(devices)
        assert driver.counts()["contexts"] == 0
        execution.resume()
        assert driver.counts()["contexts"] == before
        execution.take_down()
        assert driver.empty


def test_a_phase_of_several_parts_begins_with_the_first_and_ends_with_the_last() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        for phase, steps in (("create", 2), ("map", 1)):
            with execution.timed(phase, steps):
                pass
        first, between = execution.times
        with execution.timed("create", 3, announce=False):
            pass
        whole, _ = execution.times
        assert (whole.phase, whole.steps, whole.began) == ("create", 5, first.began)
        assert whole.ended > between.ended
        assert first.seconds < whole.seconds < whole.ended - whole.began


def test_teardown_leaves_nothing_open() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        teardown = execution.take_down()
        assert driver.empty
        layout = execution.layout
        assert (layout.ranges, layout.chunks, layout.mappings, layout.contexts, layout.of(RETAINED)) == (
            {},
            {},
            {},
            {},
            {},
        )
        assert (teardown.leaks, teardown.failures) == ((), [])
        assert [time.phase for time in execution.times] == [
            *(each for each in Phase if each not in (Phase.EXPORT, Phase.IMPORT, Phase.BIND)),
            "take down",
        ]
        planned = [number_of_steps(items) for _, items in execution.plan.phases]
        assert [time.steps for time in execution.times[:-1]] == planned
        assert all(time.seconds > 0 for time in execution.times)


def test_check_can_be_repeated_and_leaves_the_ledger_unchanged() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        before = driver.counts()
        first, second = list(execution.check()), list(execution.check())
        assert first == second
        assert execution.checked == len(execution.plan.steps)
        assert all(finding.expected == finding.observed for finding in first)
        assert {finding.aspect for finding in first} == {"properties", "mapped chunk", "access"}
        assert sum(each.times for each in first if each.aspect == "access") == 7 * 2
        assert driver.counts() == before
        execution.take_down()


def test_a_failed_step_is_named_and_earlier_steps_remain_until_teardown() -> None:
    with ledger(at=3, only={"mem_create"}) as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        with pytest.raises(StepFailed) as failed:
            execution.build()
        assert str(failed.value).startswith("create page.1: cuMemCreate: CUDA_ERROR_UNKNOWN")
        assert (failed.value.action, failed.value.path) == ("create page.1", ("chunks", "page"))
        assert isinstance(failed.value.step, CreateChunk)
        assert execution.times[-1].steps == 3  # those until the failed one
        assert driver.counts() == {"reservations": 3, "handles": 2, "mappings": 0, "contexts": 2}
        assert execution.take_down().leaks == ()
        assert driver.empty


def test_a_failed_check_names_its_step_and_counts_those_before_it() -> None:
    with ledger(at=3, only={"mem_get_allocation_properties_from_handle"}) as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        assert execution.checked == 0
        with pytest.raises(StepFailed) as failed:
            list(execution.check())
        assert str(failed.value).startswith("check of create page.1: cuMemGetAllocationPropertiesFromHandle: ")
        assert (failed.value.action, failed.value.path) == ("check of create page.1", ("chunks", "page"))
        assert failed.value.step == execution.plan.steps[execution.checked]
        execution.take_down()


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("method", ["mem_retain_allocation_handle", "mem_release", "mem_get_access"])
def test_a_failed_check_of_one_of_many_mappings_is_that_of_its_own(method: str, at: int) -> None:
    """Each mapping is retained and released once, and its access is queried of two GPUs."""
    with ledger(only={method}) as driver:
        execution = Execution(plan_of(PAGES, MACHINE), driver)
        execution.build()
        mappings = [step for step in execution.plan.steps if isinstance(step, MapChunk)]
        failing = cast("Failing", driver._driver)
        failing.at = failing.calls + at
        with pytest.raises(StepFailed) as failed:
            list(execution.check())
        assert failed.value.step == mappings[(at - 1) // 2 if method == "mem_get_access" else at - 1]
        assert failed.value.step == execution.plan.steps[execution.checked]
        assert all(finding.expected == finding.observed for finding in execution.check())
        execution.take_down()
        assert driver.empty


def test_the_check_of_many_mappings_finds_the_one_that_differs() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(PAGES, MACHINE), driver)
        execution.build()
        steps = [step for step in execution.plan.steps if isinstance(step, MapChunk)]
        other, gone = steps[1], steps[3]
        address = execution.layout.address(other.range) + other.offset
        driver.mem_set_access(address, other.size, (Grant(gpu(1), Access.NONE),))
        driver.mem_unmap(execution.layout.address(gone.range) + gone.offset, gone.size)
        found = list(execution.check())
        wrong = [(each.aspect, each.subject) for each in found if each.expected != each.observed]
        assert wrong == [("access", f"{other._subject} for gpu1"), ("mapped chunk", gone._subject)]
        assert sum(each.times for each in found if each.aspect == "mapped chunk") == len(steps)
        assert sum(each.times for each in found if each.aspect == "access") == 2 * (len(steps) - 1)


@pytest.mark.parametrize(
    ("method", "action"), [("mem_address_reserve", "reserve b.0"), ("mem_get_info", "free memory before building")]
)
def test_a_phase_that_fails_is_timed_with_the_steps_that_were_begun(method: str, action: str) -> None:
    with ledger(at=2, only={method}) as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        with pytest.raises(StepFailed) as failed:
            execution.build()
        assert sum(time.steps for time in execution.times) == number_of_steps(execution.done)
        assert failed.value.action == action
        execution.take_down()


def test_phases_can_be_built_one_by_one_after_a_baseline() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build(Phase.OPEN)
        assert [time.phase for time in execution.times] == ["open"]
        assert execution.baseline is None
        execution.build(Phase.RESERVE, Phase.CREATE)
        assert driver.counts() == {"reservations": 3, "handles": 5, "mappings": 0, "contexts": 2}
        assert execution.baseline
        free = {device: driver.mem_get_info()[0] for device in contexts(driver, execution)}
        assert {device: execution.baseline.free[device] - free[device] for device in free} == {0: 3 * M, 1: 2 * M}
        execution.build(Phase.MAP, Phase.GRANT, Phase.SETTLE)
        assert all(finding.expected == finding.observed for finding in execution.check())
        execution.take_down()


def contexts(driver: Ledger, execution: Execution) -> Iterator[int]:
    """Yield each GPU while its context is current."""
    for device, context in execution.layout.contexts.items():
        driver.ctx_push_current(context)
        yield device
        driver.ctx_pop_current()


def test_times_of_parts_of_a_phase_are_added() -> None:
    progress = Counting()
    with SimDriver(MACHINE) as driver:
        execution = Execution(plan_of("", MACHINE), driver, progress=progress)
        with execution.timed("write", 3):
            pass
        with execution.timed("read", 4) as count:
            count.steps = 2
        first = execution.times[1].seconds
        for steps in (5, 6):
            with execution.timed("read", steps, announce=False):
                pass
        assert [(time.phase, time.steps) for time in execution.times] == [("write", 3), ("read", 13)]
        assert 0 < first < execution.times[1].seconds < 60
        assert progress.phases == [("write", 3), ("read", 4)]


@pytest.mark.parametrize("count", range(0, 20, 2))
def test_a_requested_stop_takes_effect_before_the_next_steps(count: int) -> None:
    """Before a single step, or the next ones of a run."""
    asked: list[int] = []
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.stop = lambda: asked.append(0) or len(asked) > count  # type: ignore[func-returns-value]
        with pytest.raises(Stopped):
            execution.build()
        assert (len(asked), len(execution.done)) == (count + 1, count)
        execution.take_down()
        assert driver.empty


@pytest.mark.parametrize("count", range(0, 13, 3))
def test_a_requested_stop_ends_a_check_before_its_next_step_and_is_no_failure(count: int) -> None:
    """The steps of one kind are checked together, and chunks that are mapped twice one by one."""
    asked: list[int] = []
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        execution.stop = lambda: asked.append(0) or len(asked) > count  # type: ignore[func-returns-value]
        with pytest.raises(Stopped):
            list(execution.check())
        assert len(asked) == count + 1
        execution.take_down()


def test_a_process_that_builds_nothing_has_a_baseline_too() -> None:
    with ledger() as driver:
        execution = Execution(plan_of("", MACHINE), driver)
        execution.build(Phase.OPEN)
        assert execution.baseline is None
        execution.build(Phase.CREATE)
        assert execution.baseline
        assert execution.take_down().after


def test_a_teardown_cannot_be_stopped() -> None:
    stopping = False
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver, stop=lambda: stopping)
        execution.build()
        stopping = True
        execution.take_down()
        assert driver.empty
        with pytest.raises(Stopped):
            list(Execution(plan_of(SPEC, MACHINE), driver, stop=lambda: True).check())


def test_a_second_teardown_does_nothing() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        execution.build()
        execution.take_down()
        assert execution.take_down().leaks == ()
        assert driver.empty


def test_a_plan_can_be_built_again_after_a_teardown() -> None:
    with ledger() as driver:
        execution = Execution(plan_of(SPEC, MACHINE), driver)
        for _ in range(3):
            execution.build()
            assert all(finding.expected == finding.observed for finding in execution.check())
            execution.take_down()
            assert driver.empty


def test_a_mapping_past_its_range_is_never_requested() -> None:
    """Fact 15: the driver would accept it."""
    good = plan_of("ranges: {a: {size: 4MiB}}\nchunks: {c: {location: gpu0, size: 4MiB}}\nmap: {a: c}", MACHINE)
    steps = tuple(
        MapChunk(step.path, step.range, M, step.chunk, step.size, step.access) if isinstance(step, MapChunk) else step
        for step in good.steps
    )
    with ledger() as driver:
        execution = Execution(Plan(good.name, steps, good.memory, good.notes), driver)
        with pytest.raises(StepFailed) as failed:
            execution.build()
        assert isinstance(failed.value.error, InternalError)
        assert driver.counts()["mappings"] == 0
        execution.take_down()
        assert driver.empty


class Counting(Progress):
    """Counts the calls of its hooks."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []
        self.steps = 0
        self.ends = 0

    def phase(self, name: str, steps: int, _processes: object = None) -> None:
        self.phases.append((name, steps))

    def advance(self, steps: int, _process: str = "") -> None:
        self.steps += steps

    def end(self) -> None:
        self.ends += 1


def test_progress_reports_phases_steps_and_one_end() -> None:
    count = 4 * STRIDE
    pages = f"ranges: {{a: {{size: {2 * count}MiB}}}}\nchunks: {{p: {{location: gpu0, size: 2MiB, count: {count}}}}}\n"
    progress = Counting()
    with ledger() as driver:
        execution = Execution(plan_of(pages + "map: {a: p}", MACHINE), driver, progress=progress)
        execution.build()
        assert progress.steps == sum(steps for _, steps in progress.phases) > 8 * STRIDE
        for consumed in (lambda: list(execution.check()), execution.take_down):
            progress.steps = 0
            consumed()
            assert progress.steps == len(execution.plan.steps) > execution.checked - 1
            assert progress.steps % STRIDE
    assert [name for name, _ in progress.phases] == ["open", "reserve", "create", "map", "settle", "take down"]
    assert progress.phases[2] == ("create", 4 * STRIDE)
    assert progress.ends == 1


def test_a_free_address_hint_and_an_alignment_are_met() -> None:
    with ledger() as driver:
        text = "ranges: {a: {size: 2MiB, address: 0x200000000000}, b: {size: 2MiB, align: 1GiB}}"
        execution = Execution(plan_of(text, MACHINE), driver)
        execution.build()
        assert execution.layout.ranges["a"].address == 0x200000000000
        assert execution.layout.ranges["b"].address % (1 << 30) == 0
        assert all(isinstance(step, ReserveRange) for step in execution.done)
        execution.take_down()
