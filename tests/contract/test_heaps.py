"""Heaps of the C library over the driver: what it is asked for, and what it has after a refusal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, gpu
from memtopo.native.heaps import Budget, NativeHeap, Refusal
from memtopo.native.tables import AllocationTable
from tests.contract.memory import OUT_OF_MEMORY, PLAIN, current, reserved

ADDRESSES = 1 << 40
"""Bytes of the heap, more than a GPU has."""


@pytest.fixture
def primary(driver: Driver) -> Iterator[int]:
    with current(driver) as found:
        yield found


@pytest.fixture
def heap(driver: Driver, granule: int, primary: int) -> Iterator[NativeHeap]:
    with reserved(driver, ADDRESSES) as base:
        made = NativeHeap(
            driver,
            AllocationTable.create("layout", "h", ADDRESSES // granule),
            (base, ADDRESSES),
            granule,
            PLAIN,
            (Grant(gpu(0), Access.RW),),
            primary,
            Budget("h", None),
        )
        yield made
        assert made.end() is None


def test_an_allocation_is_mapped_with_access_and_freed_for_the_next_one(
    driver: Driver, heap: NativeHeap, granule: int
) -> None:
    address = heap.allocate(granule + 1)
    driver.memcpy_htod(address + granule, b"bytes")
    assert driver.memcpy_dtoh(address + granule, 5) == b"bytes"
    assert driver.mem_get_access(address, gpu(0)) == Access.RW
    free = driver.mem_get_info()[0]
    heap.free(address)
    assert driver.mem_get_info()[0] == free + 2 * granule
    assert heap.allocate(2 * granule) == address


def test_memory_returns_at_the_same_addresses(driver: Driver, heap: NativeHeap, granule: int) -> None:
    addresses = [heap.allocate(size * granule) for size in (1, 3, 2)]
    heap.free(addresses[1])
    free = driver.mem_get_info()[0]
    heap.close()
    heap.unmap()
    assert driver.mem_get_info()[0] == free + 3 * granule
    heap.map()
    heap.open()
    assert driver.mem_get_info()[0] == free
    for address in (addresses[0], addresses[2] + granule):
        driver.memcpy_htod(address, b"bytes")
        assert driver.memcpy_dtoh(address, 5) == b"bytes"
    assert heap.allocate(3 * granule) == addresses[1]


def test_more_than_the_gpu_has_is_the_error_of_the_driver(driver: Driver, heap: NativeHeap, granule: int) -> None:
    kept, (free, total) = heap.allocate(granule), driver.mem_get_info()
    with pytest.raises(DriverError) as caught:
        heap.allocate(total)
    assert (caught.value.call, caught.value.name) == ("cuMemCreate", OUT_OF_MEMORY)
    assert [each.address for each in heap.allocations()] == [kept]
    assert driver.mem_get_info()[0] == free
    with pytest.raises(Refusal) as refused:
        heap.allocate(ADDRESSES)
    assert refused.value.full


def test_memory_that_another_one_has_taken_leaves_a_heap_closed(driver: Driver, heap: NativeHeap, granule: int) -> None:
    """All of its chunks are created, or none."""
    first = heap.allocate(granule)
    heap.allocate(driver.mem_get_info()[0] // 4 * 3 // granule * granule)
    heap.close()
    heap.unmap()
    free = driver.mem_get_info()[0]
    other = driver.mem_create(free // 2 // granule * granule, PLAIN)
    taken = driver.mem_get_info()[0]
    with pytest.raises(DriverError) as caught:
        heap.map()
    assert (caught.value.call, caught.value.name) == ("cuMemCreate", OUT_OF_MEMORY)
    assert driver.mem_get_info()[0] == taken
    assert not any(each.mapped for each in heap.allocations())
    driver.mem_release(other)
    heap.map()
    driver.memcpy_htod(first, b"bytes")
    assert driver.memcpy_dtoh(first, 5) == b"bytes"
