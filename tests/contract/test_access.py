from __future__ import annotations

from contextlib import nullcontext

import pytest

from memtopo.common.units import KiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, Location, LocationKind, Properties, gpu
from tests.contract.memory import (
    HOST,
    INVALID_DEVICE,
    INVALID_VALUE,
    NODE,
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
CURRENT = Location(LocationKind.HOST_NUMA_CURRENT)
ALL = pytest.mark.usefixtures("two_gpus")


def test_a_fresh_mapping_has_no_access(driver: Driver, granule: int) -> None:
    """Fact 19: no device has access to a fresh mapping, even if its chunk is accessible elsewhere."""
    with (
        reserved(driver, 2 * granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
    ):
        driver.mem_set_access(address, granule, RW)
        with mapped(driver, address + granule, granule, handle) as alias:
            assert not any(driver.mem_get_access(alias, gpu(i)) for i in range(driver.device_get_count()))


def test_a_second_mapping_does_not_inherit_access(driver: Driver, granule: int) -> None:
    """Fact 19."""
    with reserved(driver, granule) as address, created(driver, granule) as handle:
        with mapped(driver, address, granule, handle):
            driver.mem_set_access(address, granule, RW)
        with mapped(driver, address, granule, handle):
            assert driver.mem_get_access(address, gpu(0)) == 0


def test_access_to_part_of_a_mapping_is_refused(driver: Driver, granule: int) -> None:
    """Fact 20: the call changes nothing."""
    parts = [(0, granule), (granule, granule), (granule, 2 * granule), (0, 3 * granule), (0, 64 * KiB)]
    with laid_out(driver, (2 * granule, 2 * granule), access=Access.R) as address:
        for at, size in parts:
            with refused(INVALID_VALUE):
                driver.mem_set_access(address + at, size, RW)
        assert {driver.mem_get_access(address + i * granule, gpu(0)) for i in range(4)} == {Access.R}


def test_one_call_sets_access_of_several_mappings(driver: Driver, granule: int) -> None:
    """Fact 20."""
    with laid_out(driver, (granule, 2 * granule)) as address:
        driver.mem_set_access(address, 3 * granule, RW)
        assert [driver.mem_get_access(address + i * granule, gpu(0)) for i in range(3)] == [3, 3, 3]


def test_access_across_a_hole_is_refused(driver: Driver, granule: int) -> None:
    """Fact 20: the call changes nothing."""
    with laid_out(driver, (granule,), hole=granule) as address:
        for start, size in ((address, 2 * granule), (address + granule, granule)):
            with refused(INVALID_VALUE):
                driver.mem_set_access(start, size, RW)
        assert driver.mem_get_access(address, gpu(0)) == 0


def test_one_call_sets_access_across_adjacent_reservations(driver: Driver, granule: int) -> None:
    """Fact 20."""
    with (
        adjacent(driver, granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
        mapped(driver, address + granule, granule, handle),
    ):
        driver.mem_set_access(address, 2 * granule, RW)
        assert driver.mem_get_access(address + granule, gpu(0)) == 3


@pytest.mark.parametrize(
    ("grants", "error"),
    [
        ((), INVALID_VALUE),
        ((Grant(gpu(9), Access.RW),), INVALID_VALUE),
        ((Grant(gpu(0), Access.RW), Grant(gpu(9), Access.RW)), INVALID_VALUE),
        ((Grant(gpu(0), Access(2)),), INVALID_VALUE),
        ((Grant(HOST, Access.RW),), NOT_SUPPORTED),
        ((Grant(NODE, Access.RW),), NOT_SUPPORTED),
        ((Grant(NODE._replace(id=9), Access.RW),), NOT_SUPPORTED),
        ((Grant(CURRENT, Access.RW),), INVALID_VALUE),
    ],
)
def test_access_requires_at_least_one_existing_device(
    driver: Driver, granule: int, grants: tuple[Grant, ...], error: str
) -> None:
    """Fact 20: the host has no access to a device's memory."""
    with laid_out(driver, (granule,)) as address:
        with refused(error):
            driver.mem_set_access(address, granule, grants)
        assert driver.mem_get_access(address, gpu(0)) == 0


@pytest.mark.parametrize("access", [Access.R, Access.RW, Access.NONE])
def test_each_access_reads_back(driver: Driver, granule: int, access: Access) -> None:
    """Fact 20: none, read, and read and write, also after another access."""
    with laid_out(driver, (granule,), access=Access.RW) as address:
        driver.mem_set_access(address, granule, (Grant(gpu(0), access),))
        assert driver.mem_get_access(address, gpu(0)) == access


def test_the_last_of_two_grants_for_a_device_wins(driver: Driver, granule: int) -> None:
    """Fact 20."""
    with laid_out(driver, (granule,)) as address:
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.R), Grant(gpu(0), Access.RW)))
        assert driver.mem_get_access(address, gpu(0)) == Access.RW


@ALL
def test_access_of_one_device_leaves_others_unchanged(driver: Driver, granule: int) -> None:
    """Fact 20."""
    with laid_out(driver, (granule,), access=Access.RW) as address:
        driver.mem_set_access(address, granule, (Grant(gpu(1), Access.R),))
        assert [driver.mem_get_access(address, gpu(i)) for i in (0, 1)] == [Access.RW, Access.R]


@pytest.mark.parametrize("location", [gpu(0), HOST, NODE], ids=str)
def test_host_memory_is_granted_to_devices_and_the_host(driver: Driver, location: Location) -> None:
    """Fact 21: on a NUMA node's chunk, a device, the host and its nodes can be given access."""
    properties = Properties(NODE)
    granule = driver.mem_get_allocation_granularity(properties)
    with laid_out(driver, (granule,), properties=properties) as address:
        driver.mem_set_access(address, granule, (Grant(location, Access.RW),))
        assert driver.mem_get_access(address, location) == Access.RW


def test_the_host_and_its_nodes_have_one_access(driver: Driver) -> None:
    """Fact 21: devices have an access of their own."""
    properties = Properties(NODE)
    granule = driver.mem_get_allocation_granularity(properties)
    with laid_out(driver, (granule,), properties=properties) as address:
        driver.mem_set_access(address, granule, (Grant(HOST, Access.RW),))
        assert driver.mem_get_access(address, NODE) == Access.RW
        assert driver.mem_get_access(address, gpu(0)) == 0


def test_a_device_with_access_fills_host_memory(driver: Driver) -> None:
    """Fact 21."""
    properties = Properties(NODE)
    granule = driver.mem_get_allocation_granularity(properties)
    with current(driver), laid_out(driver, (granule,), properties=properties, access=Access.RW) as address:
        driver.memset_d8(address, 0x41, granule)
        assert driver.memcpy_dtoh(address, 4) == b"AAAA"


def test_access_is_read_at_any_address_of_a_mapping(driver: Driver, granule: int) -> None:
    """Fact 22: without mapping or reservation there is none."""
    with laid_out(driver, (granule,), hole=granule, access=Access.R) as address:
        assert driver.mem_get_access(address + granule - 1, gpu(0)) == Access.R
        with refused(INVALID_VALUE):
            driver.mem_get_access(address + granule, gpu(0))
    with refused(INVALID_VALUE):
        driver.mem_get_access(address, gpu(0))


def test_access_of_the_host_to_gpu_memory_reads_as_none(driver: Driver, granule: int) -> None:
    """Fact 22: the access of a device that does not exist cannot be read."""
    with laid_out(driver, (granule,)) as address:
        assert driver.mem_get_access(address, HOST) == driver.mem_get_access(address, NODE) == 0
        for location in (gpu(9), gpu(-1), CURRENT):
            with refused(INVALID_DEVICE):
                driver.mem_get_access(address, location)


@pytest.mark.parametrize("access", [Access.NONE, Access.R])
def test_a_write_without_write_access_is_refused(driver: Driver, granule: int, access: Access) -> None:
    """Fact 23: the context stays usable."""
    with current(driver), laid_out(driver, (granule,), access=access) as address:
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 1, granule)
        with refused(INVALID_VALUE):
            driver.memcpy_htod(address, b"data")
        driver.ctx_synchronize()
        driver.mem_set_access(address, granule, RW)
        driver.memcpy_htod(address, b"data")
        assert driver.memcpy_dtoh(address, 4) == b"data"


@ALL
def test_a_write_requires_access_of_the_current_device(driver: Driver, granule: int) -> None:
    """Fact 23."""
    with current(driver, 1), laid_out(driver, (granule,), access=Access.RW) as address:
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 1, granule)
        driver.mem_set_access(address, granule, (Grant(gpu(1), Access.RW),))
        driver.memset_d8(address, 0x42, granule)
        assert driver.memcpy_dtoh(address, 1) == b"B"


def test_one_write_crosses_adjacent_accessible_mappings(driver: Driver, granule: int) -> None:
    """Fact 23."""
    with current(driver), laid_out(driver, (granule, granule), access=Access.RW) as address:
        driver.memset_d8(address, 7, 2 * granule)
        driver.memcpy_htod(address + granule - 2, b"over")
        assert driver.memcpy_dtoh(address + granule - 3, 6) == b"\7over\7"


@pytest.mark.parametrize("access", [Access.NONE, Access.R])
def test_a_partly_forbidden_write_changes_no_byte(driver: Driver, granule: int, access: Access) -> None:
    """Fact 23: it crosses into memory without write access, or into a hole."""
    with current(driver), laid_out(driver, (granule, granule), hole=granule, access=Access.RW) as address:
        driver.memset_d8(address, 7, 2 * granule)
        with refused(INVALID_VALUE):
            driver.memcpy_htod(address + 2 * granule - 4, b"too long")
        driver.mem_set_access(address + granule, granule, (Grant(gpu(0), access),))
        with refused(INVALID_VALUE):
            driver.memset_d8(address + granule - 4, 8, 8)
        with refused(INVALID_VALUE):
            driver.memcpy_htod(address + granule - 4, b"too long")
        assert driver.memcpy_dtoh(address + granule - 4, 4) == b"\7\7\7\7"
        driver.mem_set_access(address + granule, granule, RW)
        assert driver.memcpy_dtoh(address + 2 * granule - 4, 4) == b"\7\7\7\7"


def test_a_read_without_access_or_mapping_is_refused(driver: Driver, granule: int) -> None:
    """Fact 23."""
    with current(driver), laid_out(driver, (granule,), hole=granule) as address:
        for start in (address, address + granule):
            with refused(INVALID_VALUE):
                driver.memcpy_dtoh(start, 4)
        driver.ctx_synchronize()


def test_a_size_of_0_is_accepted_at_any_address(driver: Driver, granule: int) -> None:
    """Fact 23: by memset and copies."""
    with current(driver), reserved(driver, granule) as address:
        driver.memset_d8(address, 1, 0)
        driver.memcpy_htod(address, b"")
        assert driver.memcpy_dtoh(address, 0) == b""


def test_a_memset_value_must_fit_into_a_byte(driver: Driver, granule: int) -> None:
    """Fact 23."""
    with current(driver), laid_out(driver, (granule,), access=Access.RW) as address, refused(INVALID_VALUE):
        driver.memset_d8(address, 256, granule)


COPIES = [
    (host, device, required)
    for host in (Access.NONE, Access.R, Access.RW)
    for device in (Access.NONE, Access.R, Access.RW)
    for required in (Access.R, Access.RW)
]


def copies(host: Access, device: Access, required: Access) -> str:
    """Outcome of a copy of host memory by the access of the host and of the device (fact 40)."""
    if required == Access.R:
        return "done" if host or device else "dies"
    if device == Access.R:
        return "refused"
    return "done" if host == Access.RW or (device == Access.RW and host == Access.NONE) else "dies"


@pytest.mark.parametrize(("host", "device", "required"), COPIES)
def test_a_copy_of_host_memory_requires_access_of_device_or_cpu(
    driver: Driver, granule: int, on_hardware: bool, host: Access, device: Access, required: Access
) -> None:
    """Fact 40: the process ends where neither has access."""
    outcome = copies(host, device, required)
    if outcome == "dies" and on_hardware:
        pytest.skip("ends the process")
    with (
        reserved(driver, granule) as address,
        created(driver, granule, Properties(NODE)) as handle,
        mapped(driver, address, granule, handle),
        current(driver),
    ):
        driver.mem_set_access(address, granule, (Grant(NODE, host), Grant(gpu(0), device)))
        with nullcontext() if outcome == "done" else refused(INVALID_VALUE):
            if required == Access.R:
                driver.memcpy_dtoh(address, 4)
            else:
                driver.memcpy_htod(address, b"host")


@pytest.mark.parametrize("device", [Access.R, Access.RW])
def test_access_of_the_cpu_is_read_from_its_node(driver: Driver, granule: int, device: Access) -> None:
    """Fact 42: HOST without access answers the access of a GPU."""
    with (
        reserved(driver, granule) as address,
        created(driver, granule, Properties(NODE)) as handle,
        mapped(driver, address, granule, handle),
    ):
        driver.mem_set_access(address, granule, (Grant(gpu(0), device), Grant(HOST, Access.NONE)))
        assert driver.mem_get_access(address, HOST) == device
        assert driver.mem_get_access(address, NODE) == Access.NONE
        driver.mem_set_access(address, granule, (Grant(HOST, Access.R),))
        assert driver.mem_get_access(address, HOST) == driver.mem_get_access(address, NODE) == Access.R
        assert driver.mem_get_access(address, gpu(0)) == device


@pytest.mark.parametrize("place", [NODE, HOST], ids=str)
def test_bytes_return_from_a_copy_in_host_memory(driver: Driver, granule: int, place: Location) -> None:
    """A copy to host memory that the GPU alone can access, and back, crosses mappings at both ends."""
    host = Properties(place)
    size = 2 * max(granule, driver.mem_get_allocation_granularity(host))
    with (
        current(driver),
        laid_out(driver, (size // 2, size // 2), access=Access.RW) as address,
        laid_out(driver, (size,), properties=host, access=Access.RW) as area,
    ):
        driver.memset_d8(area, 9, size)
        driver.memcpy_htod(address + size // 2 - 2, b"both")
        driver.memcpy_async(area, address, size)
        driver.ctx_synchronize()
        driver.memset_d8(address, 7, size)
        driver.memcpy_async(address, area, size)
        driver.ctx_synchronize()
        assert driver.memcpy_dtoh(address + size // 2 - 4, 8) == b"\0\0both\0\0"


def test_an_asynchronous_copy_without_access_is_refused(driver: Driver, granule: int) -> None:
    with (
        current(driver),
        laid_out(driver, (granule,), access=Access.RW) as address,
        laid_out(driver, (granule,), access=Access.R) as other,
    ):
        with refused(INVALID_VALUE):
            driver.memcpy_async(other, address, granule)
        driver.memcpy_async(address, other, granule)
        driver.ctx_synchronize()
