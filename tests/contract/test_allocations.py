"""Memory that is allocated rather than laid out."""

from __future__ import annotations

import pytest

from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import gpu
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, current, refused, reserved
from tests.contract.shared_resources import JUNK, allocated

M = 2 * MiB


@pytest.mark.parametrize(("size", "error"), [(0, INVALID_VALUE), (-1, INVALID_VALUE), (32 * TiB, OUT_OF_MEMORY)])
def test_a_size_that_cannot_be(driver: Driver, size: int, error: str) -> None:
    """Fact 45: nothing, less than that, or more than there is cannot be allocated"""
    with current(driver), refused(error):
        driver.mem_alloc(size)


def test_an_allocation_wants_a_context(driver: Driver) -> None:
    """Fact 45: memory is allocated in a context, and freed with or without one"""
    with refused(INVALID_CONTEXT):
        driver.mem_alloc(M)
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    address = driver.mem_alloc(M)
    driver.ctx_pop_current()
    driver.mem_free(address)
    driver.device_primary_ctx_release(0)


def test_an_allocation_holds_bytes(driver: Driver) -> None:
    """Fact 45: what is put into an allocation is read back, and nothing else has changed"""
    with current(driver), allocated(driver, 64 * KiB) as one, allocated(driver, 64 * KiB) as two:
        driver.memset_d8(one, 1, 64 * KiB)
        driver.memset_d8(two, 2, 64 * KiB)
        driver.memcpy_htod(one + 60 * KiB, b"bytes")
        assert driver.memcpy_dtoh(one + 60 * KiB - 1, 7) == b"\1bytes\1"
        assert driver.memcpy_dtoh(one + 64 * KiB - 1, 1) == b"\1"
        assert driver.memcpy_dtoh(two, 1) == driver.memcpy_dtoh(two + 64 * KiB - 1, 1) == b"\2"


def test_small_ones_share_a_block(driver: Driver) -> None:
    """Fact 45: several small allocations take no more than the block of 2 MiB that they lie in, and do not overlap"""
    with current(driver):
        free = driver.mem_get_info()[0]
        with allocated(driver, 64 * KiB) as one, allocated(driver, 64 * KiB) as two, allocated(driver, 100) as three:
            assert free - driver.mem_get_info()[0] in {0, M}
            assert abs(one - two) >= 64 * KiB
            assert not one <= three < one + 64 * KiB
            assert not two <= three < two + 64 * KiB


def test_a_large_one_takes_whole_blocks(driver: Driver) -> None:
    """Fact 45: an allocation of 3 MiB is aligned to 2 MiB and takes 4 MiB, which come back"""
    with current(driver):
        free = driver.mem_get_info()[0]
        with allocated(driver, 3 * MiB) as address:
            assert address % M == 0
            assert free - driver.mem_get_info()[0] == 4 * MiB
        assert driver.mem_get_info()[0] == free


@pytest.mark.parametrize("size", [64 * KiB, 3 * MiB])
def test_the_range_is_the_allocation(driver: Driver, size: int) -> None:
    """Fact 45: for any address inside, the base and the size that was asked for"""
    with current(driver), allocated(driver, size) as address:
        for inside in (address, address + 5, address + size - 1):
            assert driver.mem_get_address_range(inside) == (address, size)


def test_an_allocation_is_freed_once(driver: Driver) -> None:
    """Fact 45: by its own address and once; 0 is no allocation, and freed with success"""
    with current(driver):
        with allocated(driver, M) as address:
            for wrong in (JUNK, address + 1, address + MiB):
                with refused(INVALID_VALUE):
                    driver.mem_free(wrong)
        with refused(INVALID_VALUE):
            driver.mem_free(address)
        driver.mem_free(0)


def test_an_allocation_is_no_mapping(driver: Driver, granule: int) -> None:
    """Fact 45: the calls for mappings tell no access of an allocation, and no handle"""
    with current(driver), allocated(driver, granule) as address:
        assert driver.mem_get_access(address, gpu(0)) == 0
        with refused(INVALID_VALUE):
            driver.mem_retain_allocation_handle(address)


def test_addresses_are_either_allocated_or_reserved(driver: Driver, granule: int) -> None:
    """Fact 45: an allocation lies in no reservation"""
    with (
        current(driver),
        reserved(driver, 64 * granule) as start,
        allocated(driver, granule) as large,
        allocated(driver, 100) as small,
    ):
        assert not start <= large < start + 64 * granule
        assert not start <= small < start + 64 * granule
