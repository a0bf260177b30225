"""Memory pools: their attributes and access, their allocations, and sharing them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    Access,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    gpu,
)
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, NODE, OUT_OF_MEMORY, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import FD, JUNK, closing

SIZE = 8 * MiB
RESERVED = 32 * MiB
SHARED = PoolProperties(gpu(0), FD)
HOST = Location(LocationKind.HOST)
RESERVED_NOW, USED_NOW = PoolAttribute.RESERVED_MEM_CURRENT, PoolAttribute.USED_MEM_CURRENT


@contextmanager
def pooled(driver: Driver, properties: PoolProperties = SHARED) -> Iterator[int]:
    pool = driver.mem_pool_create(properties)
    try:
        yield pool
    finally:
        driver.mem_pool_destroy(pool)


@contextmanager
def allocated(driver: Driver, pool: int, size: int = SIZE) -> Iterator[int]:
    address = driver.mem_alloc_from_pool_async(size, pool)
    driver.ctx_synchronize()
    try:
        yield address
    finally:
        driver.mem_free_async(address)
        driver.ctx_synchronize()


@contextmanager
def imported(driver: Driver, fd: int) -> Iterator[int]:
    pool = driver.mem_pool_import_from_shareable_handle(fd, FD)
    try:
        yield pool
    finally:
        driver.mem_pool_destroy(pool)


@contextmanager
def pointed(driver: Driver, pool: int, data: bytes) -> Iterator[int]:
    """The address of an imported allocation."""
    address = driver.mem_pool_import_pointer(pool, data)
    try:
        yield address
    finally:
        driver.ctx_synchronize()
        driver.mem_free(address)


@contextmanager
def offered(other: Other, count: int = 1) -> Iterator[tuple[list[int], list[bytes], int]]:
    """Allocations of a pool of the other process with bytes, the data of their pointers, and the pool's descriptor."""
    with current(other), pooled(other) as pool:
        addresses = [other.mem_alloc_from_pool_async(SIZE, pool) for _ in range(count)]
        for number, address in enumerate(addresses):
            other.memset_d8(address, 0x41 + number, SIZE)
        other.ctx_synchronize()
        with closing(other.mem_pool_export_to_shareable_handle(pool, FD)) as fd:
            yield addresses, [other.mem_pool_export_pointer(address) for address in addresses], fd
        for address in addresses:
            other.mem_free_async(address)
        other.ctx_synchronize()


def test_a_pool_reserves_memory_for_its_allocations(driver: Driver) -> None:
    """Fact 80: in units of 32 MiB, and none before the first allocation."""
    with current(driver), pooled(driver) as pool:
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 0
        with allocated(driver, pool) as address:
            assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == RESERVED
            assert driver.mem_pool_get_attribute(pool, USED_NOW) == SIZE
            assert driver.mem_get_address_range(address + 5) == (address, SIZE)


def test_the_memory_of_a_pool_comes_back(driver: Driver) -> None:
    """Fact 80."""
    with current(driver):
        free = driver.mem_get_info()
        with pooled(driver) as pool, allocated(driver, pool):
            assert free[0] - driver.mem_get_info()[0] == RESERVED
        assert driver.mem_get_info() == free


def test_an_allocation_holds_bytes(driver: Driver) -> None:
    with current(driver), pooled(driver) as pool, allocated(driver, pool) as address:
        driver.memset_d8(address, 7, SIZE)
        driver.memcpy_htod(address + 1, b"pool")
        driver.ctx_synchronize()
        assert driver.memcpy_dtoh(address, 6) == b"\7pool\7"
        assert driver.memcpy_dtoh(address + SIZE - 1, 1) == b"\7"


def test_an_allocation_is_freed_in_the_order_of_a_stream(driver: Driver) -> None:
    """Fact 80."""
    with current(driver), pooled(driver) as pool:
        address = driver.mem_alloc_from_pool_async(SIZE, pool)
        driver.mem_free_async(address)
        driver.ctx_synchronize()
        assert driver.mem_pool_get_attribute(pool, USED_NOW) == 0


def test_stream_0_needs_a_context_for_an_allocation(driver: Driver) -> None:
    """Fact 80."""
    with pooled(driver) as pool, refused(INVALID_CONTEXT):
        driver.mem_alloc_from_pool_async(SIZE, pool)


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        (PoolProperties(HOST, FD), INVALID_VALUE),
        (PoolProperties(Location(LocationKind.HOST_NUMA_CURRENT)), INVALID_VALUE),
    ],
)
def test_pools_that_cannot_be_created(driver: Driver, properties: PoolProperties, error: str) -> None:
    """Fact 80."""
    with refused(error):
        driver.mem_pool_create(properties)


def test_a_pool_has_a_maximum_size(driver: Driver) -> None:
    """Fact 80: 64 MiB refuse an allocation of 80 MiB."""
    with current(driver), pooled(driver, PoolProperties(gpu(0), FD, 64 * MiB)) as pool:
        with refused(OUT_OF_MEMORY):
            driver.mem_alloc_from_pool_async(80 * MiB, pool)
        with allocated(driver, pool, 64 * MiB), refused(OUT_OF_MEMORY):
            driver.mem_alloc_from_pool_async(SIZE, pool)


def test_allocations_beyond_the_memory_are_refused(driver: Driver) -> None:
    with current(driver), pooled(driver) as pool, refused(OUT_OF_MEMORY):
        driver.mem_alloc_from_pool_async(32 * TiB, pool)


def test_attributes_are_set_and_read(driver: Driver) -> None:
    """Fact 80: the defaults are 1 for each way of reuse, and a threshold of 0."""
    flags = [each for each in PoolAttribute if each.name.startswith("REUSE")]
    with current(driver), pooled(driver) as pool:
        for flag in flags:
            assert driver.mem_pool_get_attribute(pool, flag) == 1
            driver.mem_pool_set_attribute(pool, flag, 0)
            assert driver.mem_pool_get_attribute(pool, flag) == 0
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.RELEASE_THRESHOLD) == 0
        driver.mem_pool_set_attribute(pool, PoolAttribute.RELEASE_THRESHOLD, 64 * MiB)
        assert driver.mem_pool_get_attribute(pool, PoolAttribute.RELEASE_THRESHOLD) == 64 * MiB


def test_memory_up_to_the_threshold_is_kept(driver: Driver) -> None:
    """Fact 80: until it is trimmed."""
    with current(driver), pooled(driver) as pool:
        driver.mem_pool_set_attribute(pool, PoolAttribute.RELEASE_THRESHOLD, RESERVED)
        with allocated(driver, pool):
            pass
        driver.ctx_synchronize()
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == RESERVED
        driver.mem_pool_trim_to(pool, 0)
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 0


def test_the_pools_own_gpu_has_access(driver: Driver) -> None:
    """Fact 81."""
    with pooled(driver) as pool:
        assert driver.mem_pool_get_access(pool, gpu(0)) == Access.RW
        driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.RW),))


@pytest.mark.usefixtures("two_gpus")
def test_peers_have_the_access_that_is_set(driver: Driver) -> None:
    """Fact 81: for allocations from before it, too."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool) as address:
        driver.memset_d8(address, 3, SIZE)
        driver.ctx_synchronize()
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.NONE
        driver.mem_pool_set_access(pool, (Grant(gpu(1), Access.RW),))
        assert driver.mem_pool_get_access(pool, gpu(1)) == Access.RW
        with current(driver, 1):
            assert driver.memcpy_dtoh(address, 3) == b"\3\3\3"


def test_host_pools_are_of_the_cpu_until_a_gpu_has_access(driver: Driver) -> None:
    """Fact 81."""
    with current(driver), pooled(driver, PoolProperties(NODE, FD)) as pool, allocated(driver, pool) as address:
        driver.host_write(address, b"host")
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 7, 2)
        driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.RW),))
        driver.memset_d8(address, 7, 2)
        driver.ctx_synchronize()
        assert driver.host_read(address, 4) == b"\7\7st"
        driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.NONE),))
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 7, 2)


def test_an_allocation_is_shared_with_its_pool(driver: Driver, other: Other) -> None:
    """Fact 82: both processes read the bytes of each other."""
    with current(driver), offered(other, 2) as (addresses, pointers, fd), imported(driver, fd) as pool:
        with pointed(driver, pool, pointers[1]) as here:
            assert driver.mem_get_address_range(here) == (here, SIZE)
            assert driver.memcpy_dtoh(here, 4) == b"BBBB"
            driver.memcpy_htod(here, b"here")
            driver.ctx_synchronize()
            assert other.memcpy_dtoh(addresses[1], 5) == b"hereB"
        assert other.memcpy_dtoh(addresses[0], 1) == b"A"


def test_nothing_is_allocated_from_an_imported_pool(driver: Driver, other: Other) -> None:
    """Fact 82."""
    with current(driver), offered(other) as (_, _, fd), imported(driver, fd) as pool, refused(INVALID_VALUE):
        driver.mem_alloc_from_pool_async(SIZE, pool)


def test_bytes_that_name_no_allocation_are_refused(driver: Driver, other: Other) -> None:
    """Fact 82."""
    with current(driver), offered(other) as (_, _, fd), imported(driver, fd) as pool, refused(INVALID_VALUE):
        driver.mem_pool_import_pointer(pool, bytes(64))


def test_a_pool_without_handle_types_is_not_shared(driver: Driver) -> None:
    """Fact 82."""
    with current(driver), pooled(driver, PoolProperties(gpu(0))) as pool, allocated(driver, pool) as address:
        with refused(INVALID_VALUE):
            driver.mem_pool_export_to_shareable_handle(pool, FD)
        with refused(INVALID_VALUE):
            driver.mem_pool_export_pointer(address)


def test_junk_has_no_pointer_data(driver: Driver) -> None:
    """Fact 82: nor has memory of `cuMemAlloc`."""
    with current(driver):
        with refused(INVALID_VALUE):
            driver.mem_pool_export_pointer(JUNK)
        address = driver.mem_alloc(64 * KiB)
        with refused(INVALID_VALUE):
            driver.mem_pool_export_pointer(address)
        driver.mem_free(address)


@pytest.mark.parametrize("kind", [HandleType.NONE, HandleType.WIN32])
def test_a_pool_is_exported_as_what_it_was_created_for(driver: Driver, kind: HandleType) -> None:
    """Fact 82."""
    with pooled(driver) as pool, refused(INVALID_VALUE):
        driver.mem_pool_export_to_shareable_handle(pool, kind)


def test_a_descriptor_of_something_else_is_no_pool(driver: Driver) -> None:
    """Fact 82."""
    with closing(os.memfd_create("other")) as fd, refused("CUDA_ERROR_UNKNOWN"):
        driver.mem_pool_import_from_shareable_handle(fd, FD)


def test_pool_memory_has_no_handle_of_legacy_ipc(driver: Driver) -> None:
    """Fact 82."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool) as address, refused(INVALID_VALUE):
        driver.ipc_get_mem_handle(address)


def test_only_the_start_of_an_allocation_frees_it(driver: Driver) -> None:
    """Fact 80."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool) as address:
        with refused(INVALID_VALUE):
            driver.mem_free_async(address + 512)
        with refused(INVALID_VALUE):
            driver.mem_free(address + 512)
