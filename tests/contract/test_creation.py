from __future__ import annotations

from contextlib import ExitStack

import pytest

from memtopo.common.units import GiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, AllocationType, Grant, HandleType, Location, LocationKind, Properties, gpu
from tests.contract.memory import (
    HOST,
    INVALID_DEVICE,
    INVALID_VALUE,
    NODE,
    OUT_OF_MEMORY,
    PLAIN,
    created,
    current,
    laid_out,
    mapped,
    refused,
    reserved,
)

CURRENT = Location(LocationKind.HOST_NUMA_CURRENT)


@pytest.mark.parametrize(("granules", "more"), [(0, 0), (0, 1), (1, 1)])
def test_the_size_of_a_chunk_is_a_multiple_of_the_granularity(
    driver: Driver, granule: int, granules: int, more: int
) -> None:
    """Fact 3: and not 0."""
    with refused(INVALID_VALUE):
        driver.mem_create(granules * granule + more, PLAIN)


def test_a_chunk_beyond_device_memory_is_out_of_memory(driver: Driver) -> None:
    """Fact 3."""
    with refused(OUT_OF_MEMORY):
        driver.mem_create(32 * TiB, PLAIN)


@pytest.mark.parametrize("ordinal", [9, -1])
def test_a_chunk_on_a_missing_device_is_refused(driver: Driver, granule: int, ordinal: int) -> None:
    """Fact 3."""
    with refused(INVALID_DEVICE):
        driver.mem_create(granule, Properties(gpu(ordinal)))


@pytest.mark.parametrize(
    "properties",
    [
        PLAIN._replace(handles=HandleType.WIN32),
        PLAIN._replace(handles=HandleType.WIN32_KMT),
        PLAIN._replace(location=CURRENT),
        PLAIN._replace(type=AllocationType.MANAGED),
    ],
    ids=repr,
)
def test_unsupported_properties_of_a_chunk_are_refused(driver: Driver, granule: int, properties: Properties) -> None:
    """Fact 3: win32 handles on Linux, the current NUMA node as location, managed memory."""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, properties)


def test_creation_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 3."""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, PLAIN, flags=1)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(HOST, HandleType.FD),
        Properties(HOST, rdma=True),
        Properties(NODE, rdma=True),
        Properties(NODE, compressible=True),
        Properties(NODE._replace(id=9)),
    ],
    ids=repr,
)
def test_host_memory_has_no_handle_types_rdma_or_compression(
    driver: Driver, granule: int, properties: Properties
) -> None:
    """Fact 6: its NUMA node exists."""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, properties)


def test_the_size_is_checked_before_the_device(driver: Driver) -> None:
    """Fact 3: a size of 0 on a missing device is an invalid value."""
    with refused(INVALID_VALUE):
        driver.mem_create(0, Properties(gpu(9)))


def test_host_memory_reads_back_as_node_0(driver: Driver, granule: int) -> None:
    """Fact 6."""
    with created(driver, granule, Properties(HOST)) as handle:
        assert driver.mem_get_allocation_properties_from_handle(handle) == Properties(NODE)


@pytest.mark.parametrize(
    "properties",
    [
        PLAIN,
        Properties(gpu(0), HandleType.FD),
        Properties(gpu(0), rdma=True),
        Properties(gpu(0), compressible=True),
        Properties(NODE),
        Properties(NODE, HandleType.FD),
    ],
    ids=repr,
)
def test_properties_of_a_chunk_read_back(driver: Driver, properties: Properties) -> None:
    """Fact 7."""
    with created(driver, driver.mem_get_allocation_granularity(properties), properties) as handle:
        assert driver.mem_get_allocation_properties_from_handle(handle) == properties


def test_a_second_release_of_a_handle_is_refused(driver: Driver, granule: int) -> None:
    """Fact 27."""
    with created(driver, granule) as handle:
        pass
    with refused(INVALID_VALUE):
        driver.mem_release(handle)


def test_memory_is_freed_with_the_last_handle_and_mapping(driver: Driver) -> None:
    """Fact 29."""
    with current(driver):
        free, total = driver.mem_get_info()
        assert 0 < free <= total == driver.device_total_mem(0)
        with laid_out(driver, (256 * MiB,)) as address:
            assert free - driver.mem_get_info()[0] == 256 * MiB
            driver.mem_release(driver.mem_retain_allocation_handle(address))
            assert free - driver.mem_get_info()[0] == 256 * MiB
        assert driver.mem_get_info() == (free, total)


def test_page_tables_of_distant_mappings_take_free_memory(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Fact 3: 4 KiB for each 512 MiB of addresses with access, in blocks of 2 MiB; on the simulator none."""
    count, distance = 1024, GiB
    with ExitStack() as stack:
        stack.enter_context(current(driver))
        handle = stack.enter_context(created(driver, granule))
        base = stack.enter_context(reserved(driver, count * distance))
        before = driver.mem_get_info()[0]
        with ExitStack() as mappings:
            for address in range(base, base + count * distance, distance):
                mappings.enter_context(mapped(driver, address, granule, handle))
            assert driver.mem_get_info()[0] == before
            for address in range(base, base + count * distance, distance):
                driver.mem_set_access(address, granule, (Grant(gpu(0), Access.RW),))
            assert before - driver.mem_get_info()[0] in ({2 * MiB, 4 * MiB} if on_hardware else {0})
        assert driver.mem_get_info()[0] == before


def test_a_mapping_keeps_memory_of_a_released_handle(driver: Driver) -> None:
    """Fact 29."""
    size = 256 * MiB
    with current(driver):
        free = driver.mem_get_info()[0]
        address = driver.mem_address_reserve(size)
        with created(driver, size) as handle:
            driver.mem_map(address, size, handle)
        assert driver.mem_get_info()[0] == free - size
        driver.mem_unmap(address, size)
        assert driver.mem_get_info()[0] == free
        driver.mem_address_free(address, size)


def test_rdma_memory_reads_back_without_compression(driver: Driver, granule: int) -> None:
    """Fact 41: creation with both succeeds."""
    requested = Properties(gpu(0), rdma=True, compressible=True)
    with created(driver, granule, requested) as handle:
        observed = driver.mem_get_allocation_properties_from_handle(handle)
    assert observed == requested._replace(compressible=False)
