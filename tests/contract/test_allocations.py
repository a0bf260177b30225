"""Allocations of device memory (`cuMemAlloc`)."""

from __future__ import annotations

import pytest

from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import gpu
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, current, refused, reserved
from tests.contract.shared_resources import JUNK, allocated

M = 2 * MiB


@pytest.mark.parametrize(("size", "error"), [(0, INVALID_VALUE), (-1, INVALID_VALUE), (32 * TiB, OUT_OF_MEMORY)])
def test_an_allocation_of_an_invalid_size_is_refused(driver: Driver, size: int, error: str) -> None:
    """Fact 45: 0, a negative size, or more than the device has."""
    with current(driver), refused(error):
        driver.mem_alloc(size)


def test_an_allocation_requires_a_context(driver: Driver) -> None:
    """Fact 45: it is freed with or without one."""
    with refused(INVALID_CONTEXT):
        driver.mem_alloc(M)
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    address = driver.mem_alloc(M)
    driver.ctx_pop_current()
    driver.mem_free(address)
    driver.device_primary_ctx_release(0)


def test_an_allocation_keeps_the_written_bytes(driver: Driver) -> None:
    """Fact 45."""
    with current(driver), allocated(driver, 64 * KiB) as one, allocated(driver, 64 * KiB) as two:
        driver.memset_d8(one, 1, 64 * KiB)
        driver.memset_d8(two, 2, 64 * KiB)
        driver.memcpy_htod(one + 60 * KiB, b"bytes")
        assert driver.memcpy_dtoh(one + 60 * KiB - 1, 7) == b"\1bytes\1"
        assert driver.memcpy_dtoh(one + 64 * KiB - 1, 1) == b"\1"
        assert driver.memcpy_dtoh(two, 1) == driver.memcpy_dtoh(two + 64 * KiB - 1, 1) == b"\2"


def test_small_allocations_share_a_block_of_2_mib(driver: Driver) -> None:
    """Fact 45: and do not overlap."""
    with current(driver):
        free = driver.mem_get_info()[0]
        with allocated(driver, 64 * KiB) as one, allocated(driver, 64 * KiB) as two, allocated(driver, 100) as three:
            assert free - driver.mem_get_info()[0] in {0, M}
            assert abs(one - two) >= 64 * KiB
            assert not one <= three < one + 64 * KiB
            assert not two <= three < two + 64 * KiB


def test_a_large_allocation_takes_whole_blocks_of_2_mib(driver: Driver) -> None:
    """Fact 45: 3 MiB take 4 MiB, which are released."""
    with current(driver):
        free = driver.mem_get_info()[0]
        with allocated(driver, 3 * MiB) as address:
            assert address % M == 0
            assert free - driver.mem_get_info()[0] == 4 * MiB
        assert driver.mem_get_info()[0] == free


@pytest.mark.parametrize("size", [64 * KiB, 3 * MiB])
def test_the_range_of_an_address_is_its_allocation(driver: Driver, size: int) -> None:
    """Fact 45: base and requested size, for any address inside."""
    with current(driver), allocated(driver, size) as address:
        for inside in (address, address + 5, address + size - 1):
            assert driver.mem_get_address_range(inside) == (address, size)


def test_an_allocation_is_freed_once_by_its_address(driver: Driver) -> None:
    """Fact 45: freeing 0 succeeds."""
    with current(driver):
        with allocated(driver, M) as address:
            for wrong in (JUNK, address + 1, address + MiB):
                with refused(INVALID_VALUE):
                    driver.mem_free(wrong)
        with refused(INVALID_VALUE):
            driver.mem_free(address)
        driver.mem_free(0)


def test_an_allocation_has_no_mapping_access_and_no_handle(driver: Driver, granule: int) -> None:
    """Fact 45."""
    with current(driver), allocated(driver, granule) as address:
        assert driver.mem_get_access(address, gpu(0)) == 0
        with refused(INVALID_VALUE):
            driver.mem_retain_allocation_handle(address)


def test_an_allocation_lies_in_no_reservation(driver: Driver, granule: int) -> None:
    """Fact 45."""
    with (
        current(driver),
        reserved(driver, 64 * granule) as start,
        allocated(driver, granule) as large,
        allocated(driver, 100) as small,
    ):
        assert not start <= large < start + 64 * granule
        assert not start <= small < start + 64 * granule
