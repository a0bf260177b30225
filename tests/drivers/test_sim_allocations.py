"""Allocations on the simulator: their packing, and cases that were never tried on hardware."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from memtopo.common.units import GiB, KiB, MiB
from memtopo.driver.kernels import Kernels
from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    WHOLE_HOST,
    Access,
    Grant,
    HandleType,
    HostFlags,
    PoolAttribute,
    PoolProperties,
    RegisterFlags,
    gpu,
)
from memtopo.drivers.sim import SimDriver
from memtopo.machine import CONTEXT_BYTES
from tests.contract.memory import INVALID_VALUE, created, current, refused
from tests.contract.shared_resources import allocated
from tests.helpers.machines import invented
from tests.helpers.simulator import LAXER, STRICTER, resident_bytes

M = 2 * MiB


@given(st.lists(st.tuples(st.integers(1, 5 * MiB), st.booleans()), max_size=40))
def test_allocations_do_not_overlap(asked: list[tuple[int, bool]]) -> None:
    """No two allocations overlap, each takes at most its blocks, and all memory comes back when all are freed"""
    with SimDriver(invented()) as sim:
        sim.init()
        with current(sim):
            free, _ = sim.mem_get_info()
            sizes: dict[int, int] = {}
            for size, give in asked:
                address = sim.mem_alloc(size)
                assert all(address + size <= at or at + length <= address for at, length in sizes.items())
                sizes[address] = size
                taken = free - sim.mem_get_info()[0]
                assert sum(sizes.values()) <= taken <= sum(-(-each // M) * M for each in sizes.values())
                if give:
                    sim.mem_free(first := min(sizes))
                    del sizes[first]
            for address in sizes:
                sim.mem_free(address)
            assert sim.mem_get_info()[0] == free


def test_small_allocations_share_a_block(sim: SimDriver) -> None:
    """Fact 45: 32 allocations of 64 KiB lie side by side in one block"""
    with current(sim):
        free, _ = sim.mem_get_info()
        addresses = [sim.mem_alloc(64 * KiB) for _ in range(32)]
        assert addresses == [addresses[0] + i * 64 * KiB for i in range(32)]
        assert free - sim.mem_get_info()[0] == M
        addresses.append(sim.mem_alloc(1))
        assert free - sim.mem_get_info()[0] == 2 * M
        for address in addresses:
            sim.mem_free(address)


def test_allocations_and_chunks_share_the_budget(sim: SimDriver) -> None:
    """Chunks and allocations take the same memory of a device, and each device has its own"""
    with current(sim), created(sim, 79 * GiB):
        with refused("CUDA_ERROR_OUT_OF_MEMORY"):
            sim.mem_alloc(GiB)
        with current(sim, 1), allocated(sim, 79 * GiB):
            assert sim.mem_get_info()[0] == GiB - CONTEXT_BYTES


def test_an_allocation_for_which_the_file_of_a_pool_has_no_room_takes_no_memory(sim: SimDriver) -> None:
    """Its pages are larger than the smallest allocations."""
    with current(sim):
        free, _ = sim.mem_get_info()
        pool = sim.mem_pool_create(PoolProperties(gpu(0), HandleType.FD, 32 * MiB))
        addresses = [sim.mem_alloc_from_pool_async(512, pool) for _ in range(8192)]
        for _ in range(2):
            with refused("CUDA_ERROR_OUT_OF_MEMORY"):
                sim.mem_alloc_from_pool_async(512, pool)
        for address in addresses:
            sim.mem_free_async(address)
        sim.ctx_synchronize()
        assert sim.mem_get_info()[0] == free
        sim.mem_pool_destroy(pool)


def test_allocations_end_with_their_context(sim: SimDriver) -> None:
    """With the last retain of its context an allocation is gone, and its memory is there again"""
    with current(sim):
        address, free = sim.mem_alloc(3 * MiB), sim.mem_get_info()[0]
        sim.mem_alloc(100)
    with current(sim):
        assert sim.mem_get_info()[0] == free + 4 * MiB
        with refused(INVALID_VALUE):
            sim.mem_free(address)
        with refused(INVALID_VALUE):
            sim.memset_d8(address, 1, 1)
    assert resident_bytes(sim) == 0


def test_other_devices_only_copy_allocations(sim: SimDriver) -> None:
    """Fact 68: from another device's context bytes are copied and not filled; past the end neither"""
    with current(sim), allocated(sim, 64 * KiB) as one, allocated(sim, 64 * KiB) as two:
        assert two == one + 64 * KiB
        with refused(INVALID_VALUE):
            sim.memset_d8(one, 1, 64 * KiB + 1)
        with refused(INVALID_VALUE):
            sim.memcpy_dtoh(one + 64 * KiB - 1, 2)
        with current(sim, 1):
            with refused(INVALID_VALUE):
                sim.memset_d8(one, 1, 1)
            sim.memcpy_htod(one, b"1")
            assert sim.memcpy_dtoh(one, 1) == b"1"
            with refused("CUDA_ERROR_NOT_FOUND"):
                sim.mem_get_address_range(one)


def test_an_allocation_is_not_laid_out(sim: SimDriver) -> None:
    """Facts 12 to 20: where an allocation is, nothing is reserved, mapped, unmapped or granted"""
    with current(sim), allocated(sim, M) as address, created(sim, M) as handle:
        calls: list[Callable[[], None]] = [
            lambda: sim.mem_address_free(address, M),
            lambda: sim.mem_map(address, M, handle),
            lambda: sim.mem_unmap(address, M),
            lambda: sim.mem_set_access(address, M, (Grant(gpu(0), Access.RW),)),
        ]
        for call in calls:
            with refused(INVALID_VALUE):
                call()
        assert sim.mem_address_reserve(M, address=address) != address
        with refused("CUDA_ERROR_INVALID_DEVICE"):
            sim.mem_get_access(address, gpu(2))


def test_lists_of_differences_name_protocol_methods() -> None:
    """Each entry of STRICTER and LAXER is a method of the protocol"""
    assert set(STRICTER) | set(LAXER) <= set(dir(Driver)) | set(dir(Kernels))


def test_addresses_of_a_pool_are_free_again_after_its_last_allocation_and_its_end(sim: SimDriver) -> None:
    """In either order."""
    found = []
    with current(sim):
        for destroyed_first in (False, True, False):
            pool = sim.mem_pool_create(PoolProperties(gpu(0), HandleType.NONE))
            found.append(address := sim.mem_alloc_from_pool_async(512, pool))
            if destroyed_first:
                sim.mem_pool_destroy(pool)
            sim.mem_free_async(address)
            if not destroyed_first:
                sim.mem_pool_destroy(pool)
    assert len({*found}) == 1


def test_host_memory_ends_with_the_context_that_made_it_and_no_other_one(sim: SimDriver) -> None:
    """All GPUs may use it."""
    with current(sim):
        pinned = sim.mem_host_alloc(4 * KiB, HostFlags.PORTABLE)
        with current(sim, 1):
            theirs = sim.mem_host_alloc(4 * MiB, HostFlags.PORTABLE)
            assert sim.mem_host_get_device_pointer(theirs) == theirs
        with refused(INVALID_VALUE):
            sim.host_write(theirs, b"theirs")
        sim.host_write(pinned, b"pinned")
        assert sim.memcpy_dtoh(pinned, 6) == b"pinned"
        sim.mem_free_host(pinned)


def test_the_highest_amounts_of_a_pool_are_reset_to_those_that_it_has(sim: SimDriver) -> None:
    """Fact 80"""
    pool = sim.mem_pool_create(PoolProperties(gpu(0)))
    with current(sim):
        sim.mem_alloc_from_pool_async(M, pool)
        sim.mem_free_async(sim.mem_alloc_from_pool_async(2 * M, pool))
        used, high = PoolAttribute.USED_MEM_CURRENT, PoolAttribute.USED_MEM_HIGH
        assert [sim.mem_pool_get_attribute(pool, each) for each in (used, high)] == [M, 3 * M]
        sim.mem_pool_set_attribute(pool, high, 0)
        assert [sim.mem_pool_get_attribute(pool, each) for each in (used, high)] == [M, M]
        sim.mem_pool_set_attribute(pool, PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC, 7)
        assert sim.mem_pool_get_attribute(pool, PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC) == 1


def test_memory_that_is_registered_is_taken_of_the_host_until_it_is_not(sim: SimDriver) -> None:
    memory, free = mmap.mmap(-1, 64 * KiB), sim.process.budget.free(WHOLE_HOST)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with current(sim):
        sim.mem_host_register(address, 64 * KiB, RegisterFlags.PORTABLE)
        assert sim.process.budget.free(WHOLE_HOST) == free - 64 * KiB
        sim.mem_host_unregister(address)
        assert sim.process.budget.free(WHOLE_HOST) == free
