from __future__ import annotations

import pytest

from memtopo.common.units import GiB, KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from tests.contract.memory import INVALID_VALUE, OUT_OF_MEMORY, created, mapped, refused, reserved


@pytest.mark.parametrize("size", [0, 1, 4 * KiB, 64 * KiB, 2 * MiB + 64 * KiB])
def test_a_size_is_a_multiple_of_2_mib(driver: Driver, size: int) -> None:
    """Fact 9: a reservation's size is a multiple of the granularity, and not 0"""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(size)


@pytest.mark.parametrize("size", [2 * MiB, TiB, 64 * TiB])
def test_addresses_are_plenty(driver: Driver, size: int) -> None:
    """Fact 9: a reservation may be much larger than any memory"""
    with reserved(driver, size) as address:
        assert address % (2 * MiB) == 0


def test_addresses_end(driver: Driver) -> None:
    """Fact 9: a reservation of 128 TiB is out of memory, which here means addresses"""
    with refused(OUT_OF_MEMORY):
        driver.mem_address_reserve(128 * TiB)


def test_reservation_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 9: reservation takes no flags"""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, flags=1)


@pytest.mark.parametrize("alignment", [0, 1, 4 * KiB, 64 * KiB, 2 * MiB, GiB, TiB])
def test_alignment_is_honoured(driver: Driver, granule: int, alignment: int) -> None:
    """Fact 10: an alignment that is a power of two is honoured, and no address is less aligned than 2 MiB"""
    with reserved(driver, granule, alignment) as address:
        assert address % max(alignment, 2 * MiB) == 0


def test_alignment_is_a_power_of_two(driver: Driver, granule: int) -> None:
    """Fact 10: an alignment that is no power of two is refused"""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, 6 * MiB)


@pytest.mark.parametrize("hint", [0x7F0000000000, TiB])
def test_a_hint_is_a_wish(driver: Driver, granule: int, hint: int) -> None:
    """Fact 11: an aligned hint succeeds, at that address or another"""
    with reserved(driver, granule, address=hint) as address:
        assert address % (2 * MiB) == 0


def test_an_occupied_hint(driver: Driver, granule: int) -> None:
    """Fact 11: the hint of an occupied address succeeds elsewhere"""
    with reserved(driver, granule) as first, reserved(driver, granule, address=first) as second:
        assert abs(second - first) >= granule


def test_a_hint_is_aligned(driver: Driver, granule: int) -> None:
    """Fact 11: a hint that is not 2 MiB aligned is refused"""
    with refused(INVALID_VALUE):
        driver.mem_address_reserve(granule, address=TiB + 4 * KiB)


def test_only_a_whole_reservation_is_freed(driver: Driver, granule: int) -> None:
    """Fact 12: only exactly one reservation's address and size can be freed, once"""
    with reserved(driver, 2 * granule) as address:
        for start, size in ((address, granule), (address + granule, granule), (address + granule, 2 * granule)):
            with refused(INVALID_VALUE):
                driver.mem_address_free(start, size)
    with refused(INVALID_VALUE):
        driver.mem_address_free(address, 2 * granule)


def test_nothing_mapped_is_freed(driver: Driver, granule: int) -> None:
    """Fact 12: a reservation cannot be freed while anything is mapped inside"""
    with (
        reserved(driver, 2 * granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address + granule, granule, handle),
        refused(INVALID_VALUE),
    ):
        driver.mem_address_free(address, 2 * granule)


def test_a_hint_is_rounded_up(driver: Driver, granule: int) -> None:
    """Fact 11: a free hint is granted after it was rounded up to 32 MiB"""
    for hint, granted in ((0x20000000000, 0x20000000000), (0x20000200000, 0x20002000000)):
        with reserved(driver, granule, address=hint) as address:
            assert address == granted
