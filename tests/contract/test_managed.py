"""Managed memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HOST as CPU
from memtopo.driver.types import Advice, Location, LocationKind, MemAttach, RangeAttribute, gpu
from tests.contract.external_resources import stream
from tests.contract.memory import (
    HOST,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    NODE,
    OUT_OF_MEMORY,
    current,
    refused,
)
from tests.contract.shared_resources import allocated

SIZE = 3 * MiB
PAGE = 4 * KiB
NO_NODE = Location(LocationKind.HOST_NUMA, 99)
CURRENT_NODE = Location(LocationKind.HOST_NUMA_CURRENT)
READ_MOSTLY, PREFER, ACCESSED_BY = Advice.SET_READ_MOSTLY, Advice.SET_PREFERRED_LOCATION, Advice.SET_ACCESSED_BY


@contextmanager
def managed(driver: Driver, size: int = SIZE, flags: MemAttach = MemAttach.GLOBAL) -> Iterator[int]:
    address = driver.mem_alloc_managed(size, flags)
    try:
        yield address
    finally:
        driver.mem_free(address)


def range_attributes(driver: Driver, address: int, size: int = SIZE) -> list[tuple[int, ...]]:
    """Read mostly, preferred location, accessed by in any order, last prefetched to."""
    found = [driver.mem_range_get_attribute(address, size, attribute) for attribute in RangeAttribute]
    return [tuple(sorted(each)) for each in found]


@pytest.mark.parametrize(("size", "error"), [(0, INVALID_VALUE), (1 << 62, OUT_OF_MEMORY)])
def test_a_managed_allocation_of_an_invalid_size_is_refused(driver: Driver, size: int, error: str) -> None:
    """Facts 39 and 60: 0, or more than the address space."""
    with current(driver), refused(error):
        driver.mem_alloc_managed(size, MemAttach.GLOBAL)


def test_a_managed_allocation_may_exceed_device_memory(driver: Driver) -> None:
    """Fact 60: it takes none at first."""
    with current(driver):
        free = driver.mem_get_info()
        with managed(driver, 32 * TiB):
            assert driver.mem_get_info() == free


@pytest.mark.parametrize("flags", [0, 3, MemAttach.SINGLE, 5, 8])
def test_managed_memory_is_attached_globally_or_to_the_host(driver: Driver, flags: int) -> None:
    """Facts 39 and 60: other flags are refused."""
    with current(driver), refused(INVALID_VALUE):
        driver.mem_alloc_managed(SIZE, flags)  # type: ignore[arg-type]  # that is the point


def test_a_managed_allocation_requires_a_context(driver: Driver) -> None:
    """Fact 60."""
    with refused(INVALID_CONTEXT):
        driver.mem_alloc_managed(SIZE, MemAttach.GLOBAL)


@pytest.mark.parametrize("flags", [MemAttach.GLOBAL, MemAttach.HOST])
def test_cpu_and_gpu_read_the_managed_bytes_of_each_other(driver: Driver, flags: MemAttach) -> None:
    """Facts 39 and 60: after a synchronize, for each attachment."""
    with current(driver), managed(driver, flags=flags) as address:
        driver.host_write(address + MiB, b"host")
        assert driver.memcpy_dtoh(address + MiB, 4) == b"host"
        driver.memset_d8(address, 0x41, SIZE)
        driver.ctx_synchronize()
        assert driver.host_read(address + SIZE - 4, 4) == b"AAAA"


@pytest.mark.usefixtures("two_gpus")
def test_every_gpu_uses_managed_memory(driver: Driver) -> None:
    """Facts 39 and 60: in whichever GPU's context it was allocated."""
    with current(driver), managed(driver) as address:
        with current(driver, 1):
            driver.memset_d8(address, 0x42, 16)
            driver.ctx_synchronize()
        assert driver.memcpy_dtoh(address, 2) == driver.host_read(address, 2) == b"BB"
        for device in (0, 1):
            driver.mem_advise(address, SIZE, ACCESSED_BY, gpu(device))
        driver.mem_prefetch_async(address, SIZE, gpu(1))
        driver.ctx_synchronize()
        assert range_attributes(driver, address) == [(0,), (), (0, 1), (1,)]


def test_managed_memory_is_an_allocation_and_no_mapping(driver: Driver) -> None:
    """Fact 60: aligned, of the requested range, freed once, not shared."""
    with current(driver):
        with managed(driver) as address:
            assert address % (2 * MiB) == 0
            assert driver.mem_get_address_range(address + MiB) == (address, SIZE)
            assert driver.mem_get_access(address, gpu(0)) == 0
            for call in (driver.mem_retain_allocation_handle, driver.ipc_get_mem_handle):
                with refused(INVALID_VALUE):
                    call(address)
            with refused(INVALID_VALUE):
                driver.mem_free(address + MiB)
        with refused(INVALID_VALUE):
            driver.mem_free(address)


def test_managed_memory_is_distinguished_from_other_memory(driver: Driver) -> None:
    """Fact 60: at any address inside."""
    with current(driver), managed(driver) as address, allocated(driver, 64) as plain:
        assert driver.pointer_is_managed(address)
        assert driver.pointer_is_managed(address + SIZE - 1)
        assert not driver.pointer_is_managed(plain)


def test_advice_is_read_back(driver: Driver) -> None:
    """Fact 60: none at first; the host reads back as -1, a node does not."""
    with current(driver), managed(driver) as address:
        assert range_attributes(driver, address) == [(0,), (), (), ()]
        driver.mem_advise(address, SIZE, READ_MOSTLY, gpu(0))
        assert range_attributes(driver, address) == [(1,), (), (), ()]
        for place, location in ((HOST, CPU), (gpu(0), 0), (NODE, 0), (HOST, CPU), (CURRENT_NODE, CPU)):
            driver.mem_advise(address, SIZE, PREFER, place)
            assert range_attributes(driver, address)[1] == (location,)
        driver.mem_advise(address, SIZE, ACCESSED_BY, gpu(0))
        driver.mem_advise(address, SIZE, ACCESSED_BY, HOST)
        driver.mem_advise(address, SIZE, ACCESSED_BY, HOST)
        assert range_attributes(driver, address) == [(1,), (CPU,), (CPU, 0), ()]


def test_small_managed_allocations_share_the_advice_of_their_page(driver: Driver) -> None:
    """Fact 70: below 4 KiB."""
    with current(driver), managed(driver, 1) as one, managed(driver, 1) as two:
        driver.mem_advise(one, 1, PREFER, gpu(0))
        driver.mem_advise(two, 1, PREFER, HOST)
        assert one // PAGE == two // PAGE
        assert [range_attributes(driver, each, 1)[1] for each in (one, two)] == [(CPU,), (CPU,)]


@pytest.mark.parametrize("size", [PAGE, 16 * PAGE, MiB])
def test_managed_allocations_of_whole_pages_have_advice_of_their_own(driver: Driver, size: int) -> None:
    """Fact 70."""
    with current(driver), managed(driver, size) as one, managed(driver, size) as two:
        driver.mem_advise(one, size, PREFER, gpu(0))
        driver.mem_advise(two, size, PREFER, HOST)
        assert [range_attributes(driver, each, size)[1] for each in (one, two)] == [(0,), (CPU,)]


@pytest.mark.parametrize(
    ("advice", "place"),
    [(ACCESSED_BY, NODE), (ACCESSED_BY, CURRENT_NODE), (ACCESSED_BY, gpu(99)), (PREFER, gpu(99)), (PREFER, NO_NODE)],
)
def test_advice_for_a_missing_gpu_or_node_is_refused(driver: Driver, advice: Advice, place: Location) -> None:
    """Fact 60: and access by a single node; nothing changes."""
    with current(driver), managed(driver) as address:
        with refused(INVALID_VALUE):
            driver.mem_advise(address, SIZE, advice, place)
        assert range_attributes(driver, address) == [(0,), (), (), ()]


def test_a_prefetch_is_read_back(driver: Driver) -> None:
    """Fact 60: as ordinal or host; the bytes are the same."""
    with current(driver), managed(driver) as address:
        driver.host_write(address, b"bytes")
        for place, location in ((gpu(0), 0), (HOST, CPU), (gpu(0), 0), (NODE, CPU)):
            driver.mem_prefetch_async(address, SIZE, place)
            driver.ctx_synchronize()
            assert range_attributes(driver, address)[3] == (location,)
            assert driver.host_read(address, 5) == b"bytes"


def test_a_stream_prefetches_whole_and_in_part(driver: Driver) -> None:
    """Fact 60: at unaligned addresses too."""
    with current(driver), managed(driver) as address, stream(driver) as at:
        driver.mem_prefetch_async(address, SIZE, gpu(0), at)
        driver.mem_prefetch_async(address + 1, 100, HOST, at)
        driver.ctx_synchronize()
        assert driver.stream_query(at)
        assert driver.mem_range_get_attribute(address, 4096, RangeAttribute.LAST_PREFETCH_LOCATION) == (CPU,)


@pytest.mark.parametrize(("place", "error"), [(gpu(99), INVALID_DEVICE), (NO_NODE, INVALID_VALUE)])
def test_a_prefetch_to_a_missing_location_is_refused(driver: Driver, place: Location, error: str) -> None:
    """Fact 60."""
    with current(driver), managed(driver) as address, refused(error):
        driver.mem_prefetch_async(address, SIZE, place)


def test_advice_and_prefetch_outside_managed_memory_are_refused(driver: Driver) -> None:
    """Fact 60: past its end, and in other memory."""
    with current(driver), managed(driver) as address, allocated(driver, 2 * MiB) as plain:
        for at, size in ((address, 8 * MiB), (plain, MiB), (4096, MiB)):
            with refused(INVALID_VALUE):
                driver.mem_advise(at, size, READ_MOSTLY, gpu(0))
            with refused(INVALID_VALUE):
                driver.mem_prefetch_async(at, size, gpu(0))
        for at, size in ((address, 8 * MiB), (plain, MiB)):
            with refused(INVALID_VALUE):
                driver.mem_range_get_attribute(at, size, RangeAttribute.READ_MOSTLY)


def test_managed_memory_is_attached_to_a_stream_and_back(driver: Driver) -> None:
    """Fact 60: not to stream 0; back to the host or globally."""
    with current(driver), managed(driver, flags=MemAttach.HOST) as address, stream(driver) as at:
        for flags in (MemAttach.SINGLE, MemAttach.GLOBAL, MemAttach.HOST, MemAttach.SINGLE):
            driver.stream_attach_mem_async(at, address, flags)
            driver.ctx_synchronize()
        driver.memset_d8(address, 1, 64)
        driver.ctx_synchronize()
        assert driver.host_read(address, 2) == b"\1\1"
        with refused(INVALID_VALUE):
            driver.stream_attach_mem_async(0, address, MemAttach.SINGLE)
