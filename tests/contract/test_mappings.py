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
    """Fact 13: another offset or size is not supported."""
    with reserved(driver, 4 * granule) as address, created(driver, 2 * granule) as handle, refused(NOT_SUPPORTED):
        driver.mem_map(address, size * granule, handle, offset * granule)


def test_a_mapping_or_unmapping_of_size_0_is_refused(driver: Driver, granule: int) -> None:
    """Fact 13."""
    with reserved(driver, granule) as address, created(driver, granule) as handle:
        with refused(INVALID_VALUE):
            driver.mem_map(address, 0, handle)
        with refused(INVALID_VALUE):
            driver.mem_unmap(address, 0)


def test_a_chunk_is_mapped_at_a_multiple_of_its_granularity(driver: Driver, granule: int) -> None:
    """Fact 14."""
    with reserved(driver, 2 * granule) as address, created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address + 64 * KiB, granule, handle)


def test_a_chunk_is_not_mapped_over_a_mapping(driver: Driver, granule: int) -> None:
    """Fact 14: not even in part."""
    with (
        reserved(driver, 4 * granule) as address,
        created(driver, 2 * granule) as handle,
        mapped(driver, address + granule, 2 * granule, handle),
    ):
        for start in (address, address + granule, address + 2 * granule):
            with refused(INVALID_VALUE):
                driver.mem_map(start, 2 * granule, handle)


def test_a_chunk_is_mapped_at_reserved_addresses_only(driver: Driver, granule: int) -> None:
    """Fact 14."""
    with reserved(driver, granule) as address:
        pass
    with created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address, granule, handle)


def test_mapping_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 14."""
    with reserved(driver, granule) as address, created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_map(address, granule, handle, flags=1)


def test_hardware_maps_past_the_end_of_a_reservation(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Fact 15: it cannot be freed before all is unmapped."""
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


def test_the_simulator_refuses_a_mapping_past_the_end_of_a_reservation(
    driver: Driver, granule: int, on_hardware: bool
) -> None:
    """Fact 15: into a neighbour or not."""
    if on_hardware:
        pytest.skip("hardware lets it happen")
    with adjacent(driver, granule) as address, created(driver, 2 * granule) as handle:
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_map(start, 2 * granule, handle)


def test_a_store_through_one_mapping_is_read_through_others(driver: Driver, granule: int) -> None:
    """Fact 16."""
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


def test_a_part_of_a_mapping_is_not_unmapped(driver: Driver, granule: int) -> None:
    """Fact 17."""
    with laid_out(driver, (2 * granule,)) as address:
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_unmap(start, granule)
        assert driver.mem_get_access(address, gpu(0)) == driver.mem_get_access(address + granule, gpu(0)) == 0


def test_one_call_unmaps_several_mappings(driver: Ledger, granule: int) -> None:
    """Fact 17: and succeeds where nothing is mapped any more."""
    with reserved(driver, 2 * granule) as address, created(driver, granule) as handle:
        driver.mem_map(address, granule, handle)
        driver.mem_map(address + granule, granule, handle)
        driver.mem_unmap(address, 2 * granule)
        driver.mem_unmap(address, 2 * granule)
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.mem_get_access(start, gpu(0))


def test_one_call_unmaps_mappings_and_holes(driver: Driver, granule: int) -> None:
    """Fact 17."""
    with reserved(driver, 4 * granule) as address, created(driver, granule) as handle:
        for start in (address, address + 2 * granule):
            driver.mem_map(start, granule, handle)
        driver.mem_unmap(address, 4 * granule)
        for start in (address, address + 2 * granule):
            with refused(INVALID_VALUE):
                driver.mem_get_access(start, gpu(0))


def test_unmapping_unreserved_addresses_is_refused(driver: Driver, granule: int) -> None:
    """Fact 17."""
    with reserved(driver, granule) as address:
        driver.mem_unmap(address, granule)
    with refused(INVALID_VALUE):
        driver.mem_unmap(address, granule)


def test_one_call_unmaps_across_adjacent_reservations(driver: Driver, granule: int) -> None:
    """Fact 17."""
    with adjacent(driver, granule) as address, created(driver, granule) as handle:
        driver.mem_map(address, granule, handle)
        driver.mem_map(address + granule, granule, handle)
        driver.mem_unmap(address, 2 * granule)
        with refused(INVALID_VALUE):
            driver.mem_get_access(address + granule, gpu(0))


def test_a_retained_handle_is_the_handle_of_the_chunk(driver: Driver, granule: int) -> None:
    """Fact 18: with one more reference, from any address of the mapping."""
    with (
        reserved(driver, granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
    ):
        assert driver.mem_retain_allocation_handle(address + granule - 1) == handle
        driver.mem_release(handle)
        assert driver.mem_get_allocation_properties_from_handle(handle).location == gpu(0)


def test_an_unmapped_address_has_no_handle(driver: Driver, granule: int) -> None:
    """Fact 18."""
    with reserved(driver, granule) as address, refused(INVALID_VALUE):
        driver.mem_retain_allocation_handle(address)


def test_a_mapping_outlives_the_release_of_its_handle(driver: Driver, granule: int) -> None:
    """Fact 18: it works, and its handle can be retained again."""
    with current(driver), reserved(driver, granule) as address:
        with created(driver, granule) as handle:
            driver.mem_map(address, granule, handle)
        driver.mem_set_access(address, granule, RW)
        driver.memset_d8(address, 1, granule)
        assert driver.memcpy_dtoh(address, 2) == b"\1\1"
        driver.mem_release(driver.mem_retain_allocation_handle(address))
        driver.mem_unmap(address, granule)


def test_the_range_of_an_address_is_its_mapping(driver: Driver, granule: int) -> None:
    """Fact 15: for a device with access."""
    sizes = (granule, 2 * granule)
    with current(driver), laid_out(driver, sizes, hole=granule, access=Access.R) as address:
        assert driver.mem_get_address_range(address) == (address, granule)
        assert driver.mem_get_address_range(address + 2 * granule + 5) == (address + granule, 2 * granule)
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.NONE),))
        for start in (address, address + 3 * granule):
            with refused("CUDA_ERROR_NOT_FOUND"):
                driver.mem_get_address_range(start)
