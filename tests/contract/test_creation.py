from __future__ import annotations

import pytest

from memtopo.common.units import MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import AllocationType, HandleType, Location, LocationKind, Properties, gpu
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
    refused,
)

CURRENT = Location(LocationKind.HOST_NUMA_CURRENT)


@pytest.mark.parametrize(("granules", "more"), [(0, 0), (0, 1), (1, 1)])
def test_a_size_is_a_multiple_of_the_granularity(driver: Driver, granule: int, granules: int, more: int) -> None:
    """Fact 3: a chunk's size is a multiple of the granularity, and not 0"""
    with refused(INVALID_VALUE):
        driver.mem_create(granules * granule + more, PLAIN)


def test_more_than_there_is(driver: Driver) -> None:
    """Fact 3: a chunk larger than the device's memory is out of memory"""
    with refused(OUT_OF_MEMORY):
        driver.mem_create(32 * TiB, PLAIN)


@pytest.mark.parametrize("ordinal", [9, -1])
def test_the_device_exists(driver: Driver, granule: int, ordinal: int) -> None:
    """Fact 3: a chunk's device exists"""
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
def test_properties_that_cannot_be_created(driver: Driver, granule: int, properties: Properties) -> None:
    """Fact 3: win32 handles on Linux, the current NUMA node as location and managed memory are refused"""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, properties)


def test_creation_takes_no_flags(driver: Driver, granule: int) -> None:
    """Fact 3: creation takes no flags"""
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
def test_host_memory_is_plain(driver: Driver, granule: int, properties: Properties) -> None:
    """Fact 6: host memory takes no handle types, is neither rdma nor compressible, and its NUMA node exists"""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, properties)


def test_a_size_is_looked_at_first(driver: Driver) -> None:
    """Fact 3: a size of 0 on a device that does not exist is an invalid value"""
    with refused(INVALID_VALUE):
        driver.mem_create(0, Properties(gpu(9)))


def test_host_memory_is_node_0(driver: Driver, granule: int) -> None:
    """Fact 6: host memory reads back as memory of NUMA node 0"""
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
def test_properties_read_back(driver: Driver, properties: Properties) -> None:
    """Fact 7: a chunk's properties read back as they were asked for"""
    with created(driver, driver.mem_get_allocation_granularity(properties), properties) as handle:
        assert driver.mem_get_allocation_properties_from_handle(handle) == properties


def test_a_handle_is_released_once(driver: Driver, granule: int) -> None:
    """Fact 27: releasing a handle a second time is refused"""
    with created(driver, granule) as handle:
        pass
    with refused(INVALID_VALUE):
        driver.mem_release(handle)


def test_memory_comes_back(driver: Driver) -> None:
    """Fact 29: a chunk takes free memory until its last handle reference and its last mapping are gone"""
    with current(driver):
        free, total = driver.mem_get_info()
        assert 0 < free <= total == driver.device_total_mem(0)
        with laid_out(driver, (256 * MiB,)) as address:
            assert free - driver.mem_get_info()[0] == 256 * MiB
            driver.mem_release(driver.mem_retain_allocation_handle(address))
            assert free - driver.mem_get_info()[0] == 256 * MiB
        assert driver.mem_get_info() == (free, total)


def test_a_mapping_holds_memory(driver: Driver) -> None:
    """Fact 29: memory whose handle was released stays taken while it is mapped"""
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


def test_compression_is_left_out_of_rdma_memory(driver: Driver, granule: int) -> None:
    """Fact 41: rdma and compressible together are created, and read back without compression"""
    asked = Properties(gpu(0), rdma=True, compressible=True)
    with created(driver, granule, asked) as handle:
        seen = driver.mem_get_allocation_properties_from_handle(handle)
    assert seen == asked._replace(compressible=False)
