from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.driver.types import WHOLE_HOST, Location, gpu
from memtopo.drivers.sim.address_space import BLOCK, FIRST, LAST, AllocationBlocks, FreeRanges, Reservations
from memtopo.drivers.sim.calls import RefusedCall
from memtopo.drivers.sim.devices import SimMemoryBudget
from tests.helpers.machines import invented


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 8, 64]), st.booleans()), max_size=60))
def test_addresses_are_handed_out_once(asked: list[tuple[int, int, bool]]) -> None:
    """No two reservations overlap, every alignment is honoured, and all addresses come back when all are freed"""
    holes = FreeRanges(64, 2048)
    taken: dict[int, int] = {}
    for size, alignment, give in asked:
        address = holes.take(size, alignment)
        if address is not None:
            assert address % alignment == 0
            assert 64 <= address <= 2048 - size
            assert all(address + size <= at or at + length <= address for at, length in taken.items())
            taken[address] = size
        if give and taken:
            holes.give(first := min(taken), taken.pop(first))
    for address, size in taken.items():
        holes.give(address, size)
    assert holes.take(2048 - 64, 64) == 64


def test_a_hole_that_fits_is_found() -> None:
    """Addresses run out only where no hole is large and aligned enough, whichever hole that is"""
    holes = FreeRanges(0, 64)
    assert holes.take_at(17, 47)
    assert holes.take_at(0, 2)
    assert holes.take(16, 4) is None
    holes.give(0, 2)
    assert holes.take(16, 16) == 0
    assert not holes.take_at(16, 2)
    assert holes.take_at(16, 1)
    assert holes.take(1, 1) is None
    holes.give(17, 16)
    holes.give(48, 16)
    assert holes.take(16, 16) == 48


@pytest.mark.parametrize("location", [gpu(0), WHOLE_HOST])
def test_an_allocation_without_addresses_takes_no_memory(location: Location) -> None:
    budget = SimMemoryBudget(invented(1))
    blocks = AllocationBlocks(budget)
    blocks.take_addresses(LAST - FIRST)
    before = budget.free(location)
    with pytest.raises(RefusedCall, match="no free addresses are left"):
        blocks.take("own" if location == gpu(0) else "pinned", 0, BLOCK)
    assert budget.free(location) == before


@pytest.mark.parametrize("size", [1, 4096, 4097])
def test_memory_of_the_host_that_is_unlocked_is_free_again(size: int) -> None:
    budget = SimMemoryBudget(invented(1))
    blocks, before = AllocationBlocks(budget), budget.free(WHOLE_HOST)
    blocks.lock(size)
    assert (before - budget.free(WHOLE_HOST)) % 4096 == 0
    blocks.unlock(size)
    assert budget.free(WHOLE_HOST) == before


def test_reservations_have_less_than_128_tib_together() -> None:
    addresses = Reservations(BLOCK)
    reserved = [addresses.mem_address_reserve(4 << 40) for _ in range(31)]
    with pytest.raises(RefusedCall, match="no free addresses"):
        addresses.mem_address_reserve(4 << 40)
    addresses.mem_address_reserve((4 << 40) - BLOCK)
    assert len(set(reserved)) == 31
    addresses.free(reserved[0], 4 << 40)
    assert addresses.mem_address_reserve(4 << 40) == reserved[0]
