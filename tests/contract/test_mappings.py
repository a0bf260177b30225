from __future__ import annotations

import pytest

from memtopo.common.units import KiB
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, gpu
from tests.contract.memory import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    adjacent,
    created,
    current,
    laid_out,
    mapped,
    refused,
    reserved,
)

RW = (Grant(gpu(0), Access.RW),)


@pytest.mark.parametrize(("offset", "size"), [(1, 1), (1, 2), (0, 1), (0, 3)])
def test_only_a_whole_chunk_is_mapped(driver: Driver, granule: int, offset: int, size: int) -> None:
    """Fact 13: an offset other than 0, or a size other than the chunk's, is not supported"""
    with reserved(driver, 4 * granule) as address, created(driver, 2 * granule) as handle, refused(NOT_SUPPORTED):
        driver.mem_map(address, size * granule, handle, offset * granule)


def test_a_mapping_has_a_size(driver: Driver, granule: int) -> None:
    """Fact 13: a mapping or unmapping of no bytes is refused"""
    with reserved(driver, granule) as address, created(driver, granule) as handle:
        with refused(INVALID_VALUE):
            driver.mem_map(address, 0, handle)
        with refused(INVALID_VALUE):
            driver.mem_unmap(address, 0)


def test_an_address_is_aligned(driver: Driver, granule: int) -> None:
    """Fact 14: a chunk is mapped at an address that is a multiple of its granularity"""
    with reserved(driver, 2 * granule) as address, created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address + 64 * KiB, granule, handle)


def test_nothing_is_mapped_over(driver: Driver, granule: int) -> None:
    """Fact 14: a chunk is not mapped over a live mapping, not even in part"""
    with (
        reserved(driver, 4 * granule) as address,
        created(driver, 2 * granule) as handle,
        mapped(driver, address + granule, 2 * granule, handle),
    ):
        for start in (address, address + granule, address + 2 * granule):
            with refused(INVALID_VALUE):
                driver.mem_map(start, 2 * granule, handle)


def test_addresses_are_reserved(driver: Driver, granule: int) -> None:
    """Fact 14: a chunk is not mapped where nothing is reserved"""
    with reserved(driver, granule) as address:
        pass
    with created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address, granule, handle)


def test_mapping_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 14: mapping takes no flags"""
    with reserved(driver, granule) as address, created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address, granule, handle, flags=1)


def test_hardware_maps_past_the_end(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Fact 15: hardware maps a chunk past the end of its reservation, which cannot be freed before all is unmapped"""
    if not on_hardware:
        pytest.skip("the simulator is stricter")
    with (
        reserved(driver, granule) as address,
        created(driver, 2 * granule) as handle,
        mapped(driver, address, 2 * granule, handle),
        refused(INVALID_VALUE),
    ):
        # No access is set: where a context has memory of its own behind the end, that is ALREADY_MAPPED.
        driver.mem_address_free(address, granule)


def test_the_simulator_maps_nothing_past_the_end(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Fact 15: the simulator refuses a mapping that runs past the end of its reservation, into a neighbour or not"""
    if on_hardware:
        pytest.skip("hardware lets it happen")
    with adjacent(driver, granule) as address, created(driver, 2 * granule) as handle:
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_map(start, 2 * granule, handle)


def test_a_chunk_is_seen_through_all_its_mappings(driver: Driver, granule: int) -> None:
    """Fact 16: a chunk may be mapped at several addresses; what is stored through one is seen through the others"""
    with (
        current(driver),
        reserved(driver, 2 * granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
        mapped(driver, address + granule, granule, handle) as alias,
    ):
        driver.mem_set_access(address, granule, RW)
        driver.mem_set_access(alias, granule, (Grant(gpu(0), Access.R),))
        driver.memset_d8(address, 0x5A, granule)
        assert driver.memcpy_dtoh(alias + granule - 4, 4) == b"ZZZZ"
        assert driver.mem_get_access(address, gpu(0)) == Access.RW
        assert driver.mem_get_access(alias, gpu(0)) == Access.R


def test_a_mapping_is_unmapped_whole(driver: Driver, granule: int) -> None:
    """Fact 17: a part of a mapping cannot be unmapped"""
    with laid_out(driver, (2 * granule,)) as address:
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_unmap(start, granule)
        assert driver.mem_get_access(address, gpu(0)) == driver.mem_get_access(address + granule, gpu(0)) == 0


def test_several_mappings_are_unmapped_at_once(driver: Ledger, granule: int) -> None:
    """Fact 17: one call unmaps several whole mappings, and again where nothing is mapped any more"""
    with reserved(driver, 2 * granule) as address, created(driver, granule) as handle:
        driver.mem_map(address, granule, handle)
        driver.mem_map(address + granule, granule, handle)
        driver.mem_unmap(address, 2 * granule)
        driver.mem_unmap(address, 2 * granule)
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_get_access(start, gpu(0))


def test_unmapping_skips_holes(driver: Driver, granule: int) -> None:
    """Fact 17: one call unmaps whole mappings and the hole between or behind them"""
    with reserved(driver, 4 * granule) as address, created(driver, granule) as handle:
        for start in (address, address + 2 * granule):
            driver.mem_map(start, granule, handle)
        driver.mem_unmap(address, 4 * granule)
        for start in (address, address + 2 * granule):
            with refused(INVALID_VALUE):
                driver.mem_get_access(start, gpu(0))


def test_what_is_not_reserved_is_not_unmapped(driver: Driver, granule: int) -> None:
    """Fact 17: addresses that are not reserved cannot be unmapped"""
    with reserved(driver, granule) as address:
        driver.mem_unmap(address, granule)
    with refused(INVALID_VALUE):
        driver.mem_unmap(address, granule)


def test_unmapping_crosses_reservations(driver: Driver, granule: int) -> None:
    """Fact 17: one call unmaps mappings in adjacent reservations"""
    with adjacent(driver, granule) as address, created(driver, granule) as handle:
        driver.mem_map(address, granule, handle)
        driver.mem_map(address + granule, granule, handle)
        driver.mem_unmap(address, 2 * granule)
        with refused(INVALID_VALUE):
            driver.mem_get_access(address + granule, gpu(0))


def test_a_retained_handle_is_the_same(driver: Driver, granule: int) -> None:
    """Fact 18: the handle retained by any address of a mapping is the chunk's own, with a reference more"""
    with (
        reserved(driver, granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
    ):
        assert driver.mem_retain_allocation_handle(address + granule - 1) == handle
        driver.mem_release(handle)
        assert driver.mem_get_allocation_properties_from_handle(handle).location == gpu(0)


def test_nothing_mapped_has_no_handle(driver: Driver, granule: int) -> None:
    """Fact 18: where nothing is mapped, there is no handle to retain"""
    with reserved(driver, granule) as address, refused(INVALID_VALUE):
        driver.mem_retain_allocation_handle(address)


def test_a_mapping_outlives_its_handle(driver: Driver, granule: int) -> None:
    """Fact 18: a handle may be released while it is mapped; the mapping goes on working, and can be retained again"""
    with current(driver), reserved(driver, granule) as address:
        with created(driver, granule) as handle:
            driver.mem_map(address, granule, handle)
        driver.mem_set_access(address, granule, RW)
        driver.memset_d8(address, 1, granule)
        assert driver.memcpy_dtoh(address, 2) == b"\1\1"
        driver.mem_release(driver.mem_retain_allocation_handle(address))
        driver.mem_unmap(address, granule)


def test_the_range_around_an_address(driver: Driver, granule: int) -> None:
    """Fact 15: the range that is reported around an address is the mapping's, to a device that has access to it"""
    sizes = (granule, 2 * granule)
    with current(driver), laid_out(driver, sizes, hole=granule, access=Access.R) as address:
        assert driver.mem_get_address_range(address) == (address, granule)
        assert driver.mem_get_address_range(address + 2 * granule + 5) == (address + granule, 2 * granule)
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.NONE),))
        for start in (address, address + 3 * granule):
            with refused("CUDA_ERROR_NOT_FOUND"):
                driver.mem_get_address_range(start)
