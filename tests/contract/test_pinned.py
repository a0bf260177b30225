"""Page-locked host memory (`cuMemHostAlloc`)."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, HostFlags, Location, Properties, gpu
from tests.contract.memory import (
    HOST,
    INVALID_CONTEXT,
    INVALID_VALUE,
    NODE,
    OUT_OF_MEMORY,
    created,
    current,
    laid_out,
    mapped,
    refused,
    reserved,
)
from tests.contract.other_process import Other
from tests.contract.shared_resources import allocated

SIZE = 3 * MiB
PORTABLE = HostFlags.PORTABLE | HostFlags.DEVICEMAP


@contextmanager
def pinned(driver: Driver, size: int = SIZE, flags: HostFlags = PORTABLE) -> Iterator[int]:
    address = driver.mem_host_alloc(size, flags)
    try:
        yield address
    finally:
        driver.mem_free_host(address)


@pytest.mark.parametrize("flags", [HostFlags(8), HostFlags(64)])
def test_unknown_flags_of_pinned_memory_are_refused(driver: Driver, flags: HostFlags) -> None:
    """Fact 74."""
    with current(driver), refused(INVALID_VALUE):
        driver.mem_host_alloc(4096, flags)


def test_more_pinned_memory_than_the_host_has_is_refused(driver: Driver) -> None:
    """Fact 74."""
    with current(driver), refused(OUT_OF_MEMORY):
        driver.mem_host_alloc(32 * TiB, PORTABLE)


def test_no_pinned_memory_is_allocated_for_0_bytes(driver: Driver) -> None:
    """Fact 74: the address is 0."""
    with current(driver), pinned(driver, 0) as address:
        assert address == 0


def test_pinned_memory_requires_a_context(driver: Driver) -> None:
    """Fact 74."""
    with refused(INVALID_CONTEXT):
        driver.mem_host_alloc(SIZE, PORTABLE)
    with current(driver) as context, pinned(driver) as address:
        driver.ctx_pop_current()
        with refused(INVALID_CONTEXT):
            driver.mem_host_get_flags(address)
        driver.ctx_push_current(context)


def test_small_pinned_allocations_have_the_flags_of_the_first_in_their_block(driver: Driver) -> None:
    """Fact 74: but write-combined ones, which have blocks of their own, as does what fills a block."""
    combined = HostFlags.WRITECOMBINED | HostFlags.PORTABLE
    with current(driver), pinned(driver, 4 * KiB, HostFlags.NONE), pinned(driver, MiB, PORTABLE) as small:
        assert driver.mem_host_get_flags(small) == HostFlags.DEVICEMAP
        with pinned(driver, KiB, combined) as other, pinned(driver, 2 * MiB, PORTABLE) as large:
            assert driver.mem_host_get_flags(other) == combined | HostFlags.DEVICEMAP
            assert driver.mem_host_get_flags(large) == PORTABLE
    with current(driver), pinned(driver, KiB, PORTABLE) as first, pinned(driver, KiB, HostFlags.NONE) as second:
        assert driver.mem_host_get_flags(first) == driver.mem_host_get_flags(second) == PORTABLE


def test_the_cpu_and_a_gpu_see_the_same_bytes(driver: Driver) -> None:
    """Fact 74: at one address; it takes no device memory."""
    with current(driver):
        free = driver.mem_get_info()
        with pinned(driver, SIZE + 1) as address:
            assert address % (4 * KiB) == 0
            assert driver.mem_get_info() == free
            driver.host_write(address + SIZE - 3, b"host")
            assert driver.memcpy_dtoh(address + SIZE - 3, 4) == b"host"
            driver.memset_d8(address, 7, SIZE)
            driver.ctx_synchronize()
            assert driver.host_read(address + SIZE - 4, 5) == b"\7\7\7\7t"
            driver.memcpy_htod(address, b"device")
            assert driver.host_read(address, 7) == b"device\7"
            assert not driver.pointer_is_managed(address)


def test_bytes_are_copied_between_pinned_memory_and_chunks(driver: Driver, granule: int) -> None:
    """Fact 74."""
    with current(driver), laid_out(driver, (granule,), access=Access.RW) as chunk, pinned(driver, granule) as address:
        driver.memcpy_htod(chunk, b"there and back")
        driver.memcpy_async(address, chunk, granule)
        driver.ctx_synchronize()
        assert driver.host_read(address, 14) == b"there and back"
        driver.memset_d8(chunk, 0, granule)
        driver.memcpy_async(chunk + 4, address, granule - 4)
        driver.ctx_synchronize()
        assert driver.memcpy_dtoh(chunk, 18) == bytes(4) + b"there and back"


def test_the_limit_of_locked_memory_limits_neither_pinned_memory_nor_chunks(driver: Driver, granule: int) -> None:
    """Fact 77."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4 * KiB, hard))
    try:
        with current(driver), pinned(driver, 4 * granule), created(driver, 4 * granule, Properties(NODE)):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def test_flags_are_reported_for_each_address_in_pinned_memory(driver: Driver) -> None:
    """Fact 74: mapped for devices, also where that was not requested."""
    with current(driver), pinned(driver) as both, pinned(driver, 100, HostFlags.WRITECOMBINED) as combined:
        assert driver.mem_host_get_flags(both) == driver.mem_host_get_flags(both + SIZE - 1) == PORTABLE
        assert driver.mem_host_get_flags(combined) == HostFlags.WRITECOMBINED | HostFlags.DEVICEMAP
        with allocated(driver, SIZE) as other, refused(INVALID_VALUE):
            driver.mem_host_get_flags(other)


@pytest.mark.parametrize("place", [gpu(0), HOST, NODE], ids=str)
def test_a_mapping_with_access_of_the_gpu_is_page_locked_by_flags(
    driver: Driver, granule: int, place: Location
) -> None:
    """Facts 74 and 85: of a chunk of any kind; the device pointer of each address in it is its start."""
    size = 3 * granule
    with (
        current(driver),
        reserved(driver, 5 * granule) as base,
        created(driver, size, Properties(place)) as handle,
        mapped(driver, base + granule, size, handle) as address,
    ):
        places = (address, address + 4, address + granule, address + size - 1)
        for access in (Access.NONE, Access.R, Access.RW, Access.NONE):
            driver.mem_set_access(address, size, (Grant(gpu(0), access),))
            for at in places if access else ():
                assert driver.mem_host_get_flags(at) == PORTABLE
                assert driver.mem_host_get_device_pointer(at) == address
            for at in (base, address + size) if access else places:
                for query in (driver.mem_host_get_flags, driver.mem_host_get_device_pointer):
                    with refused(INVALID_VALUE):
                        query(at)


def test_pinned_memory_is_freed_once_by_its_start(driver: Driver, granule: int) -> None:
    """Fact 74."""
    with current(driver):
        with pinned(driver) as address, allocated(driver, SIZE) as other:
            for wrong in (address + 4096, other):
                with refused(INVALID_VALUE):
                    driver.mem_free_host(wrong)
            with refused(INVALID_VALUE):
                driver.mem_free(address)
            with refused(INVALID_VALUE):
                driver.ipc_get_mem_handle(address)
        with refused(INVALID_VALUE):
            driver.mem_free_host(address)
        with laid_out(driver, (granule,), access=Access.RW) as chunk, refused(INVALID_VALUE):
            driver.mem_free_host(chunk)


def test_pinned_memory_is_freed_without_a_current_context(driver: Driver) -> None:
    """Fact 74."""
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    address = driver.mem_host_alloc(SIZE, PORTABLE)
    driver.ctx_pop_current()
    driver.mem_free_host(address)
    driver.device_primary_ctx_release(0)


def test_pinned_memory_has_an_address_range(driver: Driver) -> None:
    """Fact 74."""
    with current(driver), pinned(driver) as address:
        assert driver.mem_get_address_range(address + 5) == (address, SIZE)
        assert driver.mem_get_access(address, gpu(0)) == 0


def test_pinned_memory_ends_with_its_context(driver: Driver, other: Other) -> None:
    """Fact 74."""
    del driver
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    address = other.mem_host_alloc(SIZE, PORTABLE)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)
    with current(other):
        with refused(INVALID_VALUE):
            other.mem_host_get_flags(address)
        with refused(INVALID_VALUE):
            other.mem_free_host(address)
    other.kill()
