"""Memory pools: their attributes and access, their allocations, and sharing them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

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
    Properties,
    gpu,
)
from tests.contract.memory import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    NODE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    created,
    current,
    refused,
)
from tests.contract.other_process import Other
from tests.contract.shared_resources import FD, JUNK, closing, exported

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
def exported_pool(driver: Driver, pool: int) -> Iterator[int]:
    """A descriptor of a pool."""
    fd = driver.mem_pool_export_to_shareable_handle(pool, FD)
    assert isinstance(fd, int)
    with closing(fd):
        yield fd


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
def imported_stale(driver: Driver, pool: int, data: bytes) -> Iterator[int]:
    """The address of an imported allocation that its exporter has freed."""
    address = driver.mem_pool_import_pointer(pool, data)
    yield address
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
        with exported_pool(other, pool) as fd:
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


def test_no_memory_is_allocated_for_0_bytes(driver: Driver) -> None:
    """Fact 80: the address is 0, which is freed without effect."""
    with current(driver), pooled(driver) as pool:
        assert driver.mem_alloc_from_pool_async(0, pool) == 0
        driver.mem_free_async(0)


def test_allocations_lie_side_by_side_at_multiples_of_512_bytes(driver: Driver) -> None:
    """Fact 80: across units, too, so that five of 8 MiB reserve 64 MiB."""
    with current(driver), pooled(driver) as pool:
        sizes = (1, 513, 8 * MiB, 31 * MiB, 33 * MiB)
        with ExitStack() as stack:
            addresses = [stack.enter_context(allocated(driver, pool, size)) for size in sizes]
            assert [address - addresses[0] for address in addresses] == [
                0, 512, 1536, 1536 + 8 * MiB, 1536 + 39 * MiB,
            ]  # fmt: skip
            assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 96 * MiB
            assert driver.mem_pool_get_attribute(pool, USED_NOW) == sum(sizes)
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 0


def test_bytes_past_the_end_of_an_allocation_are_refused(driver: Driver) -> None:
    """Fact 80."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool, 1000) as address, refused(INVALID_VALUE):
        driver.memset_d8(address, 0, 1001)


def test_memory_that_is_freed_at_once_counts_as_in_use(driver: Driver) -> None:
    """Fact 80."""
    with current(driver), pooled(driver) as pool:
        address = driver.mem_alloc_from_pool_async(SIZE, pool)
        driver.ctx_synchronize()
        driver.mem_free(address)
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 0
        assert driver.mem_pool_get_attribute(pool, USED_NOW) == SIZE


def test_a_freed_allocation_is_not_freed_again(driver: Driver) -> None:
    """Fact 80."""
    with current(driver), pooled(driver) as pool:
        address = driver.mem_alloc_from_pool_async(SIZE, pool)
        driver.mem_free_async(address)
        for free in (driver.mem_free_async, driver.mem_free):
            with refused(INVALID_VALUE):
                free(address)
        with refused(INVALID_VALUE):
            driver.memcpy_dtoh(address, 4)


def test_allocations_outlive_contexts_and_their_pool(driver: Driver) -> None:
    """Fact 80."""
    pool = driver.mem_pool_create(SHARED)
    with current(driver):
        address = driver.mem_alloc_from_pool_async(SIZE, pool)
        driver.memset_d8(address, 5, SIZE)
        driver.ctx_synchronize()
    driver.mem_pool_destroy(pool)
    with current(driver):
        assert driver.memcpy_dtoh(address, 3) == b"\5\5\5"
        driver.mem_free_async(address)
        driver.ctx_synchronize()


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        (PoolProperties(HOST, FD), INVALID_VALUE),
        (PoolProperties(Location(LocationKind.HOST_NUMA_CURRENT)), INVALID_VALUE),
        (PoolProperties(Location(LocationKind.HOST_NUMA, 900), FD), INVALID_VALUE),
        (PoolProperties(gpu(900), FD), INVALID_VALUE),
        (PoolProperties(gpu(0), HandleType.WIN32), INVALID_VALUE),
        (PoolProperties(gpu(0), FD, 128 * TiB), OUT_OF_MEMORY),
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


def test_amounts_of_memory_are_not_set(driver: Driver) -> None:
    """Fact 80: but the highest ones are reset."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool):
        for attribute in (RESERVED_NOW, USED_NOW):
            for value in (0, SIZE):
                with refused(INVALID_VALUE):
                    driver.mem_pool_set_attribute(pool, attribute, value)
        for attribute in (PoolAttribute.RESERVED_MEM_HIGH, PoolAttribute.USED_MEM_HIGH):
            with refused(INVALID_VALUE):
                driver.mem_pool_set_attribute(pool, attribute, 1)
            driver.mem_pool_set_attribute(pool, attribute, 0)


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


def test_freed_memory_is_allocated_first_until_the_next_synchronisation(driver: Driver) -> None:
    """Fact 80: even if other free addresses have less room, and it is not trimmed."""
    with current(driver), pooled(driver) as pool:
        parts = [driver.mem_alloc_from_pool_async(size, pool) for size in (8 * MiB, 512, 2 * MiB, 512, MiB)]
        driver.mem_free_async(parts[2])
        driver.ctx_synchronize()
        driver.mem_free_async(parts[0])
        again = driver.mem_alloc_from_pool_async(MiB, pool)
        assert again == parts[0]
        driver.ctx_synchronize()
        after = driver.mem_alloc_from_pool_async(MiB, pool)
        assert after == parts[2]
        for address in (again, after, parts[1], parts[3], parts[4]):
            driver.mem_free_async(address)
        driver.mem_pool_trim_to(pool, 0)
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == RESERVED
        driver.ctx_synchronize()
        assert driver.mem_pool_get_attribute(pool, RESERVED_NOW) == 0


def test_the_pools_own_gpu_has_access(driver: Driver) -> None:
    """Fact 81."""
    with pooled(driver) as pool:
        assert driver.mem_pool_get_access(pool, gpu(0)) == Access.RW
        driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.RW),))


@pytest.mark.parametrize(
    ("grants", "error"),
    [
        ((), INVALID_VALUE),
        ((Grant(gpu(0), Access.NONE),), INVALID_DEVICE),
        ((Grant(gpu(0), Access.R),), NOT_SUPPORTED),
        ((Grant(gpu(900), Access.RW),), INVALID_DEVICE),
        ((Grant(HOST, Access.RW),), NOT_SUPPORTED),
        ((Grant(NODE, Access.NONE),), NOT_SUPPORTED),
        ((Grant(gpu(0), Access.RW), Grant(gpu(0), Access.NONE)), INVALID_DEVICE),
        ((Grant(gpu(0), Access.RW), Grant(HOST, Access.RW)), NOT_SUPPORTED),
        ((Grant(gpu(0), Access.NONE), Grant(NODE, Access.NONE)), NOT_SUPPORTED),
    ],
)
def test_access_that_a_pool_cannot_have(driver: Driver, grants: tuple[Grant, ...], error: str) -> None:
    """Fact 81."""
    with pooled(driver) as pool:
        with refused(error):
            driver.mem_pool_set_access(pool, grants)
        assert driver.mem_pool_get_access(pool, gpu(0)) == Access.RW


def test_access_of_which_a_part_is_refused_is_not_set(driver: Driver) -> None:
    """Fact 81: all descriptors are checked before any is applied."""
    with pooled(driver, PoolProperties(NODE, FD)) as pool:
        with refused(INVALID_DEVICE):
            driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.RW), Grant(gpu(900), Access.RW)))
        assert driver.mem_pool_get_access(pool, gpu(0)) == Access.NONE


def test_the_access_of_locations_that_do_not_exist(driver: Driver) -> None:
    """Fact 81: a GPU is refused, any node is answered as the host."""
    with pooled(driver) as pool:
        with refused(INVALID_VALUE):
            driver.mem_pool_get_access(pool, gpu(900))
        assert driver.mem_pool_get_access(pool, Location(LocationKind.HOST_NUMA, 900)) == Access.NONE


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
        assert driver.mem_get_address_range(address + 5) == (address, SIZE)
        with refused(INVALID_VALUE):
            driver.memcpy_dtoh(address, 4)
        with refused(INVALID_VALUE):
            driver.memcpy_htod(address, b"copy")
        driver.memcpy_async(address + 8, address, 4)
        driver.ctx_synchronize()
        assert driver.host_read(address + 8, 4) == b"\7\7st"
        driver.mem_pool_set_access(pool, (Grant(gpu(0), Access.NONE),))
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 7, 2)
        with refused(NOT_SUPPORTED):
            driver.mem_pool_set_access(pool, (Grant(NODE, Access.NONE),))


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


@pytest.mark.parametrize("location", [gpu(0), NODE])
def test_a_pool_of_more_than_there_is_is_not_shared(driver: Driver, location: Location, on_hardware: bool) -> None:
    """Fact 82."""
    if on_hardware:
        pytest.skip("the import of such a pool may not return")
    with pooled(driver, PoolProperties(location, FD, TiB)) as pool, refused("CUDA_ERROR_UNKNOWN"):
        driver.mem_pool_export_to_shareable_handle(pool, FD)


def test_a_second_import_of_a_pool_gives_the_same_handle(driver: Driver, other: Other) -> None:
    """Fact 82: it is destroyed as often as it was imported, after all that is imported from it is freed."""
    with current(driver), offered(other) as (_, pointers, fd), imported(driver, fd) as pool:
        with imported(driver, fd) as again:
            assert again == pool
        with pointed(driver, pool, pointers[0]) as here:
            assert driver.memcpy_dtoh(here, 1) == b"A"
            with refused(INVALID_VALUE):
                driver.mem_pool_destroy(pool)


def test_a_second_import_of_an_allocation_ends_with_the_first(driver: Driver, other: Other) -> None:
    """Fact 82: it has the same address, which the first free unmaps."""
    with current(driver), offered(other) as (addresses, pointers, fd), imported(driver, fd) as pool:
        with pointed(driver, pool, pointers[0]) as here:
            assert driver.mem_pool_import_pointer(pool, pointers[0]) == here
        with refused(INVALID_VALUE):
            driver.memcpy_dtoh(here, 1)
        with refused(INVALID_VALUE):
            driver.mem_free(here)
        assert other.memcpy_dtoh(addresses[0], 1) == b"A"


def test_the_bytes_of_freed_memory_are_imported(driver: Driver, other: Other, on_hardware: bool) -> None:
    """Fact 82: the simulator has those of what the exporter allocates there next."""
    if on_hardware:
        pytest.skip("the memory behind its address may be other memory by then")
    with current(driver), current(other), pooled(other) as pool:
        with allocated(other, pool) as there:
            with exported_pool(other, pool) as fd:
                pointer = other.mem_pool_export_pointer(there)
                here = driver.mem_pool_import_from_shareable_handle(fd, FD)
            with allocated(other, pool, 512):
                pass
        with imported_stale(driver, here, pointer) as address, allocated(other, pool) as next_there:
            assert next_there == there
            other.memset_d8(next_there, 9, SIZE)
            other.ctx_synchronize()
            assert driver.memcpy_dtoh(address, 2) == b"\t\t"
        driver.mem_pool_destroy(here)


def test_a_process_imports_its_own_pool_at_another_address(driver: Driver) -> None:
    """Fact 82."""
    with current(driver), pooled(driver) as pool, allocated(driver, pool) as address:
        driver.memset_d8(address, 6, SIZE)
        driver.ctx_synchronize()
        with exported_pool(driver, pool) as fd:
            pointer = driver.mem_pool_export_pointer(address)
            own = driver.mem_pool_import_from_shareable_handle(fd, FD)
        with pointed(driver, own, pointer) as here:
            assert here != address
            assert driver.memcpy_dtoh(here, 1) == b"\6"
        driver.mem_pool_destroy(own)
        assert driver.memcpy_dtoh(address, 1) == b"\6"


def test_what_an_imported_pool_cannot_do(driver: Driver, other: Other) -> None:
    """Fact 82: only access can be asked for and set."""
    with current(driver), offered(other) as (_, pointers, fd), imported(driver, fd) as pool:
        assert driver.mem_pool_get_access(pool, gpu(0)) == Access.RW
        with refused(INVALID_VALUE):
            driver.mem_pool_get_attribute(pool, RESERVED_NOW)
        with refused(INVALID_VALUE):
            driver.mem_pool_set_attribute(pool, PoolAttribute.RELEASE_THRESHOLD, 0)
        with refused(INVALID_VALUE):
            driver.mem_pool_trim_to(pool, 0)
        with refused(INVALID_VALUE):
            driver.mem_pool_export_to_shareable_handle(pool, FD)
        with pointed(driver, pool, pointers[0]) as here, refused(INVALID_VALUE):
            driver.mem_pool_export_pointer(here)


def test_a_pointer_is_imported_into_its_own_pool_alone(driver: Driver, other: Other) -> None:
    """Fact 82."""
    with current(driver), offered(other) as (_, pointers, fd), offered(other) as (_, _, second):
        with imported(driver, second) as wrong, refused(INVALID_VALUE):
            driver.mem_pool_import_pointer(wrong, pointers[0])
        with pooled(driver) as own, imported(driver, fd), refused(INVALID_VALUE):
            driver.mem_pool_import_pointer(own, pointers[0])


def test_an_allocation_of_a_killed_process_remains(driver: Driver, start: Callable[..., Other]) -> None:
    """Fact 82: the descriptor alone keeps it, too."""
    exporter = start()
    context = exporter.device_primary_ctx_retain(0)
    exporter.ctx_push_current(context)
    pool = exporter.mem_pool_create(SHARED)
    address = exporter.mem_alloc_from_pool_async(SIZE, pool)
    exporter.memset_d8(address, 4, SIZE)
    exporter.ctx_synchronize()
    with exported_pool(exporter, pool) as fd:
        pointer = exporter.mem_pool_export_pointer(address)
        exporter.kill()
        with current(driver), imported(driver, fd) as here, pointed(driver, here, pointer) as found:
            assert driver.memcpy_dtoh(found, 2) == b"\4\4"


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


def test_a_pool_is_exported_before_its_pointers(driver: Driver) -> None:
    """Fact 82: with a current context and without."""
    with pooled(driver) as pool, current(driver), allocated(driver, pool) as address:
        with refused(INVALID_VALUE):
            driver.mem_pool_export_pointer(address)
        with exported_pool(driver, pool):
            first = driver.mem_pool_export_pointer(address)
        assert driver.mem_pool_export_pointer(address) == first


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


def test_pools_and_chunks_are_not_imported_as_each_other(driver: Driver, granule: int) -> None:
    """Fact 82."""
    with (
        created(driver, granule, Properties(gpu(0), FD)) as chunk,
        exported(driver, chunk) as fd,
        refused(NOT_SUPPORTED),
    ):
        driver.mem_pool_import_from_shareable_handle(fd, FD)
    with pooled(driver) as pool, exported_pool(driver, pool) as fd:
        assert not os.get_inheritable(fd)
        with refused(NOT_SUPPORTED):
            driver.mem_import_from_shareable_handle(fd, FD)


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
