"""Heaps: limits that several share, the bytes that a state keeps, and what a failure leaves."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.driver.types import DriverError, Location
from memtopo.driver.wrappers import Forwarder
from memtopo.executor import StepFailed
from memtopo.kinds.heaps import HEAPS, BackupGroup, HeapGroup, copying_gpu
from memtopo.kinds.heaps.steps import CopyOutHeap, HeapContent, OpenHeap, heaps, release_backups
from memtopo.kinds.layout import LateError, current
from memtopo.kinds.states.steps import COPIES
from memtopo.native.heaps import Refusal
from memtopo.planner import Plan
from memtopo.plans.transition import transition
from tests.helpers.conducted import make_transition
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, geometry_of, plan_of
from tests.run.test_transition import Built, built

M = 2 << 20
TWO = invented(2)
SPEC = """
heaps:
  weights: {location: gpu0, size: 64MiB, limit: 16MiB}
  cache: {location: gpu0, size: 64MiB, limit: weights}
access: {weights: {gpu0: rw, gpu1: r}, cache: {gpu0: rw}}
states: {asleep: {offload: {weights: pinned}, drop: [cache]}}
"""
INSIDE = SPEC.replace("{weights: pinned}", "{weights: p}") + "pinned: {p: {size: 6MiB}}\n"


def asleep(text: str = SPEC) -> Plan:
    return planner.plan_states(plan_of(text, TWO), geometry_of(text))["asleep"]


def heap(layout: Built, label: str = "weights") -> HeapContent:
    return heaps(layout.execution.layout)[label]


def opening(layout: Built) -> OpenHeap:
    """Step that opens the heap `weights`."""
    return next(each for each in layout.execution.plan.steps if isinstance(each, OpenHeap) and each.label == "weights")


def write(layout: Built, address: int, value: int) -> None:
    with current(layout.ledger, layout.execution.layout.contexts[0]):
        layout.ledger.memset_d8(address, value, M)


def read(layout: Built, *addresses: int) -> list[int]:
    """First byte of allocations."""
    with current(layout.ledger, layout.execution.layout.contexts[0]):
        return [layout.ledger.memcpy_dtoh(address, 1)[0] for address in addresses]


def open_objects(layout: Built) -> dict[str, int]:
    """Numbers of open objects, but for page-locked memory, which a heap keeps for the next time."""
    return {what: number for what, number in layout.ledger.counts().items() if number and what != "pinned"}


def allocated(layout: Built, *values: int) -> list[int]:
    """Addresses of new allocations of the heap `weights`, each of which is filled with a value."""
    found = []
    for value in values:
        found.append(heap(layout).native.allocate(M))
        write(layout, found[-1], value)
    return found


def test_heaps_with_limits_of_their_own_allocate_apart() -> None:
    with built(plan_of(SPEC.replace("limit: weights", "limit: 4MiB"), TWO)) as layout:
        weights, cache = heap(layout).native, heap(layout, "cache").native
        assert weights.allocate(8 * M)
        assert cache.allocate(2 * M)
        for each in (weights, cache):
            with pytest.raises(Refusal, match="its limit is reached"):
                each.allocate(M)


def test_heaps_with_one_limit_have_it_together_before_and_after_it_changes() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        weights, cache = heap(layout).native, heap(layout, "cache").native
        kept = [weights.allocate(4 * M), cache.allocate(4 * M)]
        for each in (weights, cache):
            with pytest.raises(Refusal, match="its limit is reached"):
                each.allocate(M)
        make_transition(layout.execution, plan_of(SPEC.replace("16MiB", "20MiB"), TWO))
        assert heap(layout).native is weights
        assert cache.allocate(M)
        assert weights.allocate(M)
        with pytest.raises(Refusal, match="its limit is reached"):
            cache.allocate(M)
        assert [weights.allocations()[0].address, cache.allocations()[0].address] == kept


def test_the_bytes_of_a_heap_return_from_backups_and_freed_allocations_have_none() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        first, second = allocated(layout, 3, 4)
        heap(layout, "cache").native.allocate(M)
        make_transition(layout.execution, asleep())
        assert (layout.ledger.counts()["handles"], heap(layout).content().at) == (0, {})
        for label in ("weights", "cache"):
            with pytest.raises(Refusal, match="it currently has no memory"):
                heap(layout, label).native.allocate(M)
        make_transition(layout.execution, plan_of(SPEC, TWO))
        assert read(layout, first, second) == [3, 4]
        heap(layout).native.free(first)
        (third,) = allocated(layout, 5)
        assert third == first
        make_transition(layout.execution, asleep())
        assert sorted(heap(layout).backups) == [1, 2]
        make_transition(layout.execution, plan_of(SPEC, TWO))
        assert read(layout, second, third) == [4, 5]
        assert [each.number for each in heap(layout).content().at.values()] == [2, 1]
        with current(layout.ledger, layout.execution.layout.contexts[0]):
            with pytest.raises(DriverError):
                release_backups(Failing(layout.ledger, 1, only={"mem_free_host"}), heap(layout), [1, 2])
            assert [*heap(layout).backups] == [1]


def test_pinned_memory_keeps_each_allocation_at_its_own_place_or_none() -> None:
    with built(plan_of(INSIDE, TWO)) as layout:
        addresses = allocated(layout, 3, 4, 5)
        make_transition(layout.execution, asleep(INSIDE))
        make_transition(layout.execution, plan_of(INSIDE, TWO))
        assert read(layout, *addresses) == [3, 4, 5]
        more = allocated(layout, 6)
        with pytest.raises(StepFailed, match="'weights' has 8 MiB allocated, and 'p' keeps 6 MiB"):
            make_transition(layout.execution, asleep(INSIDE))
        assert read(layout, *addresses, *more) == [3, 4, 5, 6]
        assert allocated(layout, 7)


@pytest.mark.parametrize("method", ["event_create", "memcpy_async", "event_record", "mem_unmap", "mem_host_alloc"])
def test_a_heap_that_could_not_be_offloaded_has_its_bytes_and_admits_allocations(method: str) -> None:
    with built(plan_of(SPEC, TWO), failing={method}) as layout:
        addresses = allocated(layout, 3, 4)
        before = open_objects(layout)
        layout.failing.at = layout.failing.calls + 1
        with pytest.raises(StepFailed):
            make_transition(layout.execution, asleep())
        layout.failing.at = 0
        assert (read(layout, *addresses), open_objects(layout), heap(layout).present) == ([3, 4], before, True)
        assert allocated(layout, 5)
        assert heap(layout, "cache").native.allocate(M)


@pytest.mark.parametrize("method", ["event_create", "memcpy_async", "event_record"])
def test_a_copy_of_a_heap_closes_it_until_it_fails_or_is_undone(method: str) -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        allocated(layout, 3)
        live, change = layout.execution.layout, transition(plan_of(SPEC, TWO).steps, asleep().steps)
        (copy,) = [step for step in change.do if isinstance(step, CopyOutHeap)]
        with pytest.raises(DriverError):
            copy.do(Failing(layout.ledger, 1, only={method}), live)
        assert (heap(layout).native.is_open, heap(layout).kept, live.of(COPIES)) == (True, {}, {})
        assert layout.ledger.counts().get("events", 0) == 0
        copy.do(layout.ledger, live)
        assert (heap(layout).native.is_open, [*heap(layout).kept], [*live.of(COPIES)]) == (False, [0], ["weights"])
        copy.undo(layout.ledger, live)
        assert (heap(layout).native.is_open, live.of(COPIES)) == (True, {})
        heap(layout).native.close()
        heap(layout).asleep = True
        copy.undo(layout.ledger, live)
        assert not heap(layout).native.is_open


def test_a_heap_that_cannot_be_emptied_is_open_again_with_its_bytes() -> None:
    with built(plan_of(SPEC, TWO), failing={"mem_unmap"}) as layout:
        addresses, layout.failing.at = allocated(layout, 3), layout.failing.calls + 1
        with pytest.raises(DriverError):
            heap(layout).empty()
        layout.failing.at = 0
        assert (heap(layout).native.is_open, read(layout, *addresses)) == (True, [3])


def test_a_heap_that_a_program_put_to_sleep_stays_without_memory_when_the_layout_wakes() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        allocated(layout, 3)
        heap(layout).empty()
        heap(layout).asleep = True
        for plan, present in ((asleep(), False), (plan_of(SPEC, TWO), True)):
            make_transition(layout.execution, plan)
            assert (heap(layout).native.is_open, heap(layout).native.mapped) == (False, 0)
            assert (heap(layout).present, heap(layout).backups) == (present, {})


def test_the_end_of_a_layout_closes_a_heap_whose_memory_ends_with_its_table() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        addresses, layout.execution.layout.ending = allocated(layout, 3), True
        opening(layout).undo(layout.ledger, layout.execution.layout)
        assert (heap(layout).native.is_open, read(layout, *addresses)) == (False, [3])


@pytest.mark.parametrize("at", [1, 2])
def test_a_heap_whose_end_had_to_be_repeated_is_gone_and_its_error_is_reported(at: int) -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        allocated(layout, 3)
        live, keep = layout.execution.layout, heap(layout).step
        layout.failing.at = layout.failing.calls + at
        with pytest.raises(LateError):
            keep.undo(layout.ledger, live)
        assert ([*heaps(live)], open_objects(layout).get("handles", 0)) == (["cache"], 0)


def test_a_check_of_a_heap_fails_where_the_access_to_an_allocation_cannot_be_queried() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        allocated(layout, 3)
        with pytest.raises(DriverError):
            list(opening(layout).check(Failing(layout.ledger, 1, only={"mem_get_access"}), layout.execution.layout))


def test_an_allocation_that_its_program_frees_while_it_is_checked_is_no_failure() -> None:
    with built(plan_of(SPEC, TWO)) as layout:
        freed, kept = allocated(layout, 3, 4)

        class Frees(Forwarder):
            def mem_get_access(self, address: int, location: Location) -> int:
                if address == freed and heap(layout).native.allocations()[0].address == freed:
                    heap(layout).native.free(freed)
                return int(self._driver.mem_get_access(address, location))

        found = list(opening(layout).check(Frees(layout.ledger), layout.execution.layout))
        assert [each.address for each in heap(layout).native.allocations()] == [kept]
        assert {each.subject.partition(" ")[0] for each in found} == {"weights.1"}


@pytest.mark.parametrize(("access", "gpu"), [("{gpu0: r, gpu1: rw}", 1), ("{gpu0: rw, gpu1: rw}", 0)])
def test_a_heap_of_the_host_is_copied_by_the_first_gpu_that_may_write_it(access: str, gpu: int) -> None:
    text = f"heaps: {{h: {{location: 'host:0', size: 64MiB}}}}\naccess: {{h: {access}}}\n"
    text += "states: {s: {offload: {h: pinned}}}"
    geometry = clean_geometry(text)
    backup = geometry.of(BackupGroup)["h"]
    assert (copying_gpu(geometry, geometry.of(HeapGroup)["h"]), backup.gpu, backup.largest_shares()) == (gpu, gpu, {})
    assert geometry.of(HeapGroup)["h"].contexts == {0}


def test_a_share_of_the_memory_that_is_more_than_the_addresses_is_noted_as_all_of_them() -> None:
    plan = plan_of(SPEC.replace("limit: 16MiB", "limit: 90%").replace("limit: weights", "limit: 2MiB"), TWO)
    (note,) = (each for each in plan.notes if each.startswith("heap weights"))
    assert note.startswith("heap weights: up to 64 MiB, all its addresses, less than 90% of the")


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("limit: 16MiB", "limit: 32MiB", []),
        ("limit: weights", "limit: 8MiB", ["cache"]),
        ("weights: {location: gpu0, size: 64MiB", "weights: {location: gpu0, size: 32MiB", ["weights"]),
        ("gpu1: r}", "gpu1: rw}", ["weights"]),
        ("cache: {location: gpu0", "cache: {location: gpu0, handles: fd", ["cache"]),
    ],
)
def test_a_change_keeps_what_programs_have_allocated_or_is_refused(old: str, new: str, refused: list[str]) -> None:
    before, after = clean_geometry(SPEC), clean_geometry(SPEC.replace(old, new))
    found = list(HEAPS.refused_changes(before, after))
    assert [(each.code, each.path) for each in found] == [("MT813", ("heaps", name)) for name in refused]
