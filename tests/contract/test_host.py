"""Chunks of host memory and accesses of the CPU."""

from __future__ import annotations

import signal

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind, Properties, gpu
from tests.contract.memory import HOST, INVALID_VALUE, NODE, created, current, mapped, refused, reserved
from tests.contract.other_process import Other
from tests.contract.shared_resources import FD, exported, imported

BOTH = (Grant(gpu(0), Access.RW), Grant(HOST, Access.RW))


def test_properties_of_host_memory_name_node_0(driver: Driver, granule: int) -> None:
    """Fact 6."""
    with created(driver, granule, Properties(HOST)) as handle:
        assert driver.mem_get_allocation_properties_from_handle(handle) == Properties(NODE)


def test_a_node_has_handle_types_and_the_host_has_none(driver: Driver, granule: int) -> None:
    """Facts 6 and 61."""
    with refused(INVALID_VALUE):
        driver.mem_create(granule, Properties(HOST, FD))
    with created(driver, granule, Properties(NODE, FD)):
        pass


@pytest.mark.parametrize("place", [HOST, NODE], ids=str)
def test_cpu_and_gpu_read_host_memory_written_by_the_other(driver: Driver, granule: int, place: Location) -> None:
    """Fact 21: with access for both."""
    with (
        current(driver),
        reserved(driver, granule) as address,
        created(driver, granule, Properties(place)) as handle,
        mapped(driver, address, granule, handle),
    ):
        driver.mem_set_access(address, granule, BOTH)
        driver.host_write(address + granule - 4, b"host")
        assert driver.memcpy_dtoh(address + granule - 4, 4) == b"host"
        driver.memset_d8(address, 0x33, 64)
        driver.ctx_synchronize()
        assert driver.host_read(address, 65) == b"\x33" * 64 + b"\0"


def test_the_cpu_has_one_access_at_all_addresses_of_a_host_chunk(driver: Driver, granule: int) -> None:
    """Facts 16 and 21: and reads the same bytes."""
    with (
        reserved(driver, 2 * granule) as address,
        created(driver, granule, Properties(NODE)) as handle,
        mapped(driver, address, granule, handle),
        mapped(driver, address + granule, granule, handle),
    ):
        driver.mem_set_access(address, granule, (Grant(HOST, Access.RW),))
        driver.mem_set_access(address + granule, granule, (Grant(NODE, Access.R),))
        driver.host_write(address + 5, b"bytes")
        assert driver.host_read(address + granule + 5, 5) == b"bytes"


def test_another_process_imports_a_chunk_of_a_node(driver: Driver, other: Other, granule: int) -> None:
    """Facts 6 and 61: its CPU and its GPU use the chunk."""
    with (
        current(driver),
        reserved(driver, granule) as here,
        created(driver, granule, Properties(NODE, FD)) as handle,
        mapped(driver, here, granule, handle),
        exported(driver, handle) as fd,
    ):
        driver.mem_set_access(here, granule, BOTH)
        driver.memset_d8(here, 0x44, granule)
        driver.ctx_synchronize()
        with imported(other, fd) as theirs, reserved(other, granule) as there, mapped(other, there, granule, theirs):
            found = other.mem_get_allocation_properties_from_handle(theirs)
            assert (found.location, found.handles) == (NODE, HandleType.NONE)
            for grants in (BOTH, (Grant(NODE, Access.RW),), (Grant(HOST, Access.RW),)):
                other.mem_set_access(there, granule, grants)
            assert other.host_read(there + granule - 2, 2) == b"\x44\x44"
            other.host_write(there, b"theirs")
            assert driver.host_read(here, 6) == driver.memcpy_dtoh(here, 6) == b"theirs"


@pytest.mark.parametrize(
    ("access", "call"), [(Access.NONE, "host_read"), (Access.NONE, "host_write"), (Access.R, "host_write")]
)
def test_an_access_of_the_cpu_without_permission_is_a_sigsegv(
    other: Other, granule: int, access: Access, call: str, on_hardware: bool
) -> None:
    """Facts 21 and 40: the simulator refuses it."""
    place = Location(LocationKind.HOST_NUMA, 0)
    address = other.mem_address_reserve(granule)
    handle = other.mem_create(granule, Properties(place))
    other.mem_map(address, granule, handle)
    other.mem_set_access(address, granule, (Grant(gpu(0), Access.RW), Grant(place, access)))
    argument = 4 if call == "host_read" else b"byte"
    if on_hardware:
        other.ask(call, address, argument)
        assert other.fate() == -signal.SIGSEGV
        return
    with refused(INVALID_VALUE):
        getattr(other, call)(address, argument)
    other.mem_unmap(address, granule)
    other.mem_release(handle)
    other.mem_address_free(address, granule)
