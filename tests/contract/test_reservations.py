from __future__ import annotations

import pytest

from memtopo.common.units import GiB, KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from tests.contract.memory import INVALID_VALUE, OUT_OF_MEMORY, created, current, mapped, refused, reserved


@pytest.mark.parametrize("size", [0, 1, 4 * KiB, 64 * KiB, 2 * MiB + 64 * KiB])
def test_the_size_of_a_reservation_is_a_multiple_of_2_mib(driver: Driver, size: int) -> None:
    """Fact 9: and not 0."""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(size)


@pytest.mark.parametrize("size", [2 * MiB, TiB, 64 * TiB])
def test_a_reservation_may_exceed_any_memory(driver: Driver, size: int) -> None:
    """Fact 9."""
    with reserved(driver, size) as address:
        assert address % (2 * MiB) == 0


def test_a_reservation_of_128_tib_is_out_of_memory(driver: Driver) -> None:
    """Fact 9: the error means addresses."""
    with refused(OUT_OF_MEMORY):
        driver.mem_address_reserve(128 * TiB)


def test_reservation_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 9."""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, flags=1)


@pytest.mark.parametrize("alignment", [0, 1, 4 * KiB, 64 * KiB, 2 * MiB, GiB, TiB])
def test_a_reservation_has_its_alignment_or_2_mib(driver: Driver, granule: int, alignment: int) -> None:
    """Fact 10."""
    with reserved(driver, granule, alignment) as address:
        assert address % max(alignment, 2 * MiB) == 0


def test_an_alignment_that_is_no_power_of_two_is_refused(driver: Driver, granule: int) -> None:
    """Fact 10."""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, 6 * MiB)


@pytest.mark.parametrize("hint", [0x7F0000000000, TiB])
def test_an_aligned_address_hint_succeeds_at_any_address(driver: Driver, granule: int, hint: int) -> None:
    """Fact 11."""
    with reserved(driver, granule, address=hint) as address:
        assert address % (2 * MiB) == 0


def test_an_occupied_address_hint_succeeds_elsewhere(driver: Driver, granule: int) -> None:
    """Fact 11."""
    with reserved(driver, granule) as first, reserved(driver, granule, address=first) as second:
        assert abs(second - first) >= granule


def test_an_address_hint_not_aligned_to_2_mib_or_as_the_reservation_is_refused(driver: Driver, granule: int) -> None:
    """Fact 11."""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, address=TiB + 4 * KiB)
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, 32 * MiB, address=TiB + 2 * MiB)


def test_only_a_whole_reservation_is_freed(driver: Driver, granule: int) -> None:
    """Fact 12: once."""
    with reserved(driver, 2 * granule) as address:
        for start, size in ((address, granule), (address + granule, granule), (address + granule, 2 * granule)):
            with refused(INVALID_VALUE):
                driver.mem_address_free(start, size)
    with refused(INVALID_VALUE):
        driver.mem_address_free(address, 2 * granule)


def test_a_reservation_with_a_mapping_is_not_freed(driver: Driver, granule: int) -> None:
    """Fact 12."""
    with (
        reserved(driver, 2 * granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address + granule, granule, handle),
        refused(INVALID_VALUE),
    ):
        driver.mem_address_free(address, 2 * granule)


def test_a_free_address_hint_of_a_large_reservation_is_rounded_up_to_32_mib(driver: Driver) -> None:
    """Fact 11."""
    for hint, granted in ((0x20000000000, 0x20000000000), (0x20000200000, 0x20002000000)):
        with reserved(driver, 64 * MiB, address=hint) as address:
            assert address == granted


def test_an_address_hint_in_the_block_of_contexts_succeeds_elsewhere(driver: Driver, granule: int) -> None:
    """Fact 11."""
    with current(driver), reserved(driver, granule, 32 * MiB, address=0x200000000) as address:
        assert address != 0x200000000


@pytest.mark.parametrize("hint", [0x20000000000, 0x200002000000, 0x530000000000])
def test_a_free_address_hint_is_granted_to_a_reservation_aligned_to_32_mib(
    driver: Driver, granule: int, hint: int
) -> None:
    """Fact 11: also if it is small, and others of its size exist."""
    with reserved(driver, granule), reserved(driver, granule, 32 * MiB, address=hint) as address:
        assert address == hint
