"""Heaps of the C library over a driver that fails: what is freed later, what is broken, and the context of a thread."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from memtopo.driver.types import Access, DriverError, Grant, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.native.heaps import Budget, NativeHeap, Refusal, Unmapped
from memtopo.native.tables import AllocationTable
from tests.contract.memory import PLAIN, current, reserved
from tests.helpers.examples import examples
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented

GRANULE, SIZE = 2 << 20, 16 << 20
WORDS = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p


@contextmanager
def opened(
    budget: Budget | None = None, only: Collection[str] = ("mem_map", "mem_unmap"), size: int = SIZE, **failures: Any
) -> Iterator[tuple[Failing, NativeHeap]]:
    """A heap, by default without a limit, and its driver, whose mappings may fail; no context is current."""
    with closing(SimDriver(invented(1))) as simulator:
        simulator.init()
        driver = Failing(simulator, only=only, **failures)
        context = driver.device_primary_ctx_retain(0)
        with reserved(driver, size) as base:
            table, grants = AllocationTable.create("layout", "h", size // GRANULE), (Grant(gpu(0), Access.RW),)
            heap = NativeHeap(driver, table, (base, size), GRANULE, PLAIN, grants, context, budget or Budget("h", None))
            yield driver, heap
            driver.at = 0
            assert heap.end() is None


def test_what_cannot_be_freed_is_tried_again_until_it_can() -> None:
    with opened() as (driver, heap):
        address = heap.allocate(GRANULE)
        driver.at = driver.calls + 1
        with pytest.raises(DriverError):
            heap.free(address)
        driver.at = driver.calls + 1
        assert heap.allocate(GRANULE) == address + GRANULE, "it is still there"
        assert heap.allocate(GRANULE) == address


def test_an_allocation_whose_access_and_unmapping_are_refused_is_freed_later() -> None:
    budget = Budget("h", None)
    with opened(budget, only=("mem_set_access", "mem_unmap"), every=True) as (driver, heap):
        first = heap.allocate(GRANULE)
        for _ in range(2):
            driver.at = driver.calls + 1
            with pytest.raises(DriverError):
                heap.allocate(GRANULE)
            assert (heap.mapped, len(heap.allocations())) == (budget.used, 1)
        driver.at = 0
        assert heap.allocate(GRANULE) == first + GRANULE
        assert (heap.mapped, budget.used) == (2 * GRANULE, 2 * GRANULE)


def test_memory_that_is_mapped_without_its_access_gets_it_with_the_next_attempt() -> None:
    with opened(only=("mem_set_access", "mem_unmap"), every=True) as (driver, heap):
        addresses = [heap.allocate(GRANULE) for _ in range(3)]
        heap.close()
        heap.unmap()
        driver.at = driver.calls + 2
        with pytest.raises(DriverError):
            heap.map()
        driver.at = 0
        heap.map()
        assert heap.mapped == 3 * GRANULE
        assert {driver.mem_get_access(address, gpu(0)) for address in addresses} == {Access.RW}


@settings(max_examples=examples(20))
@given(choices=randoms())
def test_an_allocation_is_at_the_begin_of_the_smallest_hole_of_several_of_the_first_one(choices: Random) -> None:
    """Compared with a list of granules, while allocations of random sizes come and go."""
    count = 64
    with opened(size=count * GRANULE) as (_, heap):
        free, kept = [True] * count, dict[int, int]()
        base = heap.allocate(1)
        heap.free(base)
        for _ in range(150):
            size, start = choices.randint(1, 9), 0
            if kept and choices.random() < len(kept) / 16:
                start = choices.choice([*kept])
                heap.free(base + start * GRANULE)
                size = kept.pop(start)
                free[start : start + size] = [True] * size
            elif fitting := [hole for hole in holes(free) if hole[0] >= size]:
                _, start = min(fitting)
                assert heap.allocate(size * GRANULE - choices.randrange(GRANULE)) == base + start * GRANULE
                free[start : start + size], kept[start] = [False] * size, size
            else:
                with pytest.raises(Refusal):
                    heap.allocate(size * GRANULE)
            assert heap.largest_hole == GRANULE * max([0, *(size for size, _ in holes(free))])
            assert [each.address for each in heap.allocations()] == [base + at * GRANULE for at in sorted(kept)]


def holes(free: list[bool]) -> list[tuple[int, int]]:
    """Size and place of each run of free granules."""
    found = list[tuple[int, int]]()
    for is_free, run in groupby(range(len(free)), free.__getitem__):
        places = [*run]
        if is_free:
            found.append((len(places), places[0]))
    return found


@pytest.mark.parametrize("last", [False, True])
def test_memory_is_freed_once_and_that_of_no_bytes_is_a_granule(*, last: bool) -> None:
    with opened() as (_, heap):
        addresses = [heap.allocate(0) for _ in range(2)]
        assert [each.size for each in heap.allocations()] == [GRANULE] * 2
        heap.free(addresses[last])
        with pytest.raises(Refusal):
            heap.free(addresses[last])
        assert [each.address for each in heap.allocations()] == [addresses[not last]]


def test_an_end_that_is_refused_once_is_tried_again_at_once() -> None:
    with opened() as (driver, heap):
        heap.allocate(GRANULE)
        driver.at = driver.calls + 1
        assert isinstance(heap.end(), DriverError), "which was repeated: nothing is left"


def test_what_was_freed_stays_until_the_work_of_the_gpu_is_done() -> None:
    with opened(only=("ctx_synchronize",)) as (driver, heap):
        address = heap.allocate(GRANULE)
        heap.close()
        heap.free(address)
        driver.at = driver.calls + 1
        heap.open()
        assert heap.mapped == GRANULE
        driver.at = 0
        assert heap.allocate(GRANULE) == address


def test_numbers_of_more_than_64_bits_are_no_sizes_and_no_addresses() -> None:
    with opened() as (_, heap):
        address = heap.allocate(GRANULE)
        for call, number in ((heap.allocate, 1), (heap.free, address)):
            with pytest.raises(Refusal):
                call((1 << 64) + number)
        heap.free(address)


def test_the_last_failure_is_kept_whether_the_driver_or_the_heap_refused() -> None:
    with opened() as (driver, heap):
        assert heap.failure is None
        driver.at = driver.calls + 1
        for size, refusal in ((GRANULE, DriverError), (2 * SIZE, Refusal)):
            with pytest.raises(refusal):
                heap.allocate(size)
            assert heap.failure
            assert (type(heap.failure[0]), heap.failure[1]) == (refusal, size)


def test_the_error_of_an_allocation_is_kept_while_other_calls_fail() -> None:
    with opened() as (driver, heap):
        address = heap.allocate(GRANULE)
        for fail in (lambda: heap.allocate(GRANULE), lambda: heap.free(address)):
            driver.at = driver.calls + 1
            with pytest.raises(DriverError):
                fail()
        failure = heap.failure
    assert failure
    assert isinstance(failure[0], DriverError)
    assert failure[0].call == "cuMemMap"


def test_allocations_that_cannot_be_mapped_again_are_counted() -> None:
    with opened(every=True) as (driver, heap):
        heap.allocate(GRANULE)
        heap.allocate(GRANULE)
        heap.close()
        driver.at = driver.calls + 2
        with pytest.raises(Unmapped) as broken:
            heap.unmap()
        assert broken.value.number == 1


def test_a_heap_keeps_the_margin_of_its_gpu_free_and_no_context_current() -> None:
    with opened() as (driver, heap):
        heap.keep_free(80 << 30)
        with pytest.raises(Refusal) as refused:
            heap.allocate(GRANULE)
        assert refused.value.no_margin
        heap.keep_free(GRANULE)
        heap.allocate(GRANULE)
        with pytest.raises(DriverError):
            driver.ctx_pop_current()


def test_the_margin_of_a_heap_is_of_the_free_memory_of_its_gpu() -> None:
    with opened() as (driver, heap):
        with current(driver):
            free, _ = driver.mem_get_info()
        heap.keep_free(free - GRANULE)
        heap.allocate(GRANULE)
        with pytest.raises(Refusal) as refused:
            heap.allocate(GRANULE)
        assert refused.value.no_margin


def test_a_heap_whose_memory_cannot_be_freed_gives_its_functions_to_the_next_one() -> None:
    with opened(every=True) as (driver, heap):
        functions = heap.functions()
        heap.allocate(GRANULE)
        driver.at = driver.calls + 1
        with pytest.raises(Unmapped):
            heap.end()
        driver.at = 0
        with opened() as (_, other):
            assert other.functions() == functions


def test_a_heap_has_one_pair_of_functions_also_after_the_end_of_another_one() -> None:
    """Those of a heap that has ended allocate and free nothing."""
    with opened() as (_, other), opened() as (_, heap):
        ended, functions = other.functions(), heap.functions()
        assert heap.functions() == functions != ended
        other.end()
        assert heap.functions() == functions
        allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, *WORDS[1:])(ended[0])
        free = ctypes.CFUNCTYPE(None, *WORDS)(ended[1])
        address = heap.allocate(GRANULE)
        free(address, GRANULE, 0, None)
        assert (allocate(GRANULE, 0, None), heap.mapped) == (None, GRANULE)


def test_what_is_freed_while_a_heap_is_closed_is_not_listed_and_counts_until_the_heap_is_open() -> None:
    budget = Budget("h", 2 * GRANULE)
    with opened(budget) as (_, heap):
        first, second = heap.allocate(GRANULE), heap.allocate(GRANULE)
        heap.close()
        heap.free(first)
        with pytest.raises(Refusal, match="nothing is allocated there"):
            heap.free(first)
        assert [each.address for each in heap.allocations()] == [second]
        assert (heap.mapped, budget.used) == (2 * GRANULE, 2 * GRANULE)
        heap.open()
        assert (heap.mapped, budget.used) == (GRANULE, GRANULE)
        assert heap.allocate(GRANULE) == first


def test_what_is_freed_before_or_after_a_heap_loses_its_memory_gets_none_again() -> None:
    budget = Budget("h", None)
    with opened(budget) as (_, heap):
        before, after, stays = (heap.allocate(GRANULE) for _ in range(3))
        heap.close()
        heap.free(before)
        heap.unmap()
        heap.free(after)
        assert (heap.mapped, budget.used) == (0, 2 * GRANULE)
        heap.map()
        assert heap.mapped == GRANULE
        heap.open()
        assert [each.address for each in heap.allocations()] == [stays]
        assert (heap.mapped, budget.used) == (GRANULE, GRANULE)


def test_a_heap_whose_allocations_cannot_all_be_mapped_takes_no_memory_and_is_mapped_later() -> None:
    with opened() as (driver, heap):
        for _ in range(3):
            heap.allocate(GRANULE)
        listed = [(each.address, each.number) for each in heap.allocations()]
        heap.close()
        heap.unmap()
        free = free_bytes(driver)
        driver.at = driver.calls + 3
        with pytest.raises(DriverError):
            heap.map()
        assert (heap.mapped, free_bytes(driver)) == (0, free)
        heap.map()
        assert (heap.mapped, free_bytes(driver)) == (3 * GRANULE, free - 3 * GRANULE)
        assert [(each.address, each.number) for each in heap.allocations() if each.mapped] == listed


def free_bytes(driver: Failing) -> int:
    with current(driver):
        return int(driver.mem_get_info()[0])


def test_the_most_that_heaps_have_allocated_together_stays_and_a_failure_counts_for_nothing() -> None:
    budget = Budget("both", 4 * GRANULE)
    with opened(budget) as (driver, heap), opened(budget) as (_, other):
        address = heap.allocate(2 * GRANULE)
        other.allocate(GRANULE)
        assert (budget.used, budget.peak) == (3 * GRANULE, 3 * GRANULE)
        heap.free(address)
        assert (budget.used, budget.peak) == (GRANULE, 3 * GRANULE)
        driver.at = driver.calls + 1
        with pytest.raises(DriverError):
            heap.allocate(3 * GRANULE)
        assert (budget.used, budget.peak) == (GRANULE, 3 * GRANULE)
        heap.allocate(3 * GRANULE)
        with pytest.raises(Refusal) as refused:
            other.allocate(1)
        assert (refused.value.over_limit, budget.used, budget.peak) == (True, 4 * GRANULE, 4 * GRANULE)
        budget.set_limit(GRANULE)
        with pytest.raises(Refusal, match="its limit is reached"):
            heap.allocate(GRANULE)
        budget.set_limit(None)
        heap.allocate(GRANULE)
        assert (budget.limit, budget.used) == (None, 5 * GRANULE)


def test_functions_are_given_to_the_next_heap_once_all_that_they_allocated_is_freed() -> None:
    """A library frees memory of a heap that has ended, whose addresses another heap may have by then."""
    with opened() as (_, heap):
        functions = heap.functions()
        allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, *WORDS[1:])(functions[0])
        free = ctypes.CFUNCTYPE(None, *WORDS)(functions[1])
        address = allocate(GRANULE, 0, None)
        assert heap.failures == 0
        assert allocate(2 * SIZE, 0, None) is None
        assert heap.failures == 1
    with opened() as (_, other):
        assert other.functions() != functions
        kept = other.allocate(GRANULE)
        free(address, GRANULE, 0, None)
        assert [each.address for each in other.allocations()] == [kept]
        with opened() as (_, third):
            assert third.functions() == functions
