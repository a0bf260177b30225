"""Dma-bufs of address ranges (`cuMemGetHandleForAddressRange`)."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.common.units import GiB, KiB, MiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    Access,
    DmaBufFlags,
    Grant,
    HandleType,
    HostFlags,
    MemAttach,
    MemoryHandleType,
    PoolProperties,
    Properties,
    gpu,
)
from memtopo.drivers.sim import external_api
from tests.contract.external_resources import is_open, whole
from tests.contract.memory import (
    HOST,
    INVALID_CONTEXT,
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
from tests.contract.other_process import Other
from tests.contract.shared_resources import FD, SHARED, allocated, closing, exported, imported, opened, usable

UNKNOWN = "CUDA_ERROR_UNKNOWN"
PAGE = 4 * KiB
DMABUF = MemoryHandleType.DMABUF_FD


def size_of(fd: int) -> int:
    return os.lseek(fd, 0, os.SEEK_END)


@contextmanager
def dma_buf(driver: Driver, address: int, size: int) -> Iterator[int]:
    """A dma-buf of the size, which its descriptor reports."""
    with closing(driver.mem_get_handle_for_address_range(address, size)) as fd:
        assert size_of(fd) == size
        assert not os.get_inheritable(fd)
        yield fd


def refuse(driver: Driver, address: int, size: int, flags: int = 0, error: str = INVALID_VALUE) -> None:
    with refused(error):
        driver.mem_get_handle_for_address_range(address, size, DmaBufFlags(flags))


def test_a_dma_buf_begins_and_ends_at_pages_of_mapped_memory(driver: Driver, granule: int) -> None:
    """Fact 83: across chunks, too, but not past them."""
    end = 3 * granule
    with current(driver), laid_out(driver, (granule, 2 * granule), hole=granule) as start:
        for at, size in ((0, PAGE), (0, end), (PAGE, PAGE), (granule - PAGE, 2 * PAGE), (end - PAGE, PAGE)):
            with dma_buf(driver, start + at, size):
                pass
        for at, size in (
            (0, 0),
            (0, 1),
            (0, PAGE - 1),
            (0, PAGE + 1),
            (1, PAGE),
            (512, PAGE),
            (2048, PAGE),
            (0, end + 1),
        ):
            refuse(driver, start + at, size)
        for at, size in ((0, end + PAGE), (end - PAGE, 2 * PAGE), (end, PAGE), (-PAGE, PAGE), (0, 1 << 45)):
            refuse(driver, start + at, size)
    with current(driver):
        for address in (0, 0x123456000, 0x123456001):
            refuse(driver, address, PAGE)


def test_flags_of_a_dma_buf_are_none_or_pcie(driver: Driver, granule: int) -> None:
    """Fact 83: a mapping through PCIe has to be supported, which no GPU that was tried does."""
    with current(driver), laid_out(driver, (granule,)) as start:
        for flags in (2, 4, 1 << 32, 1 << 63):
            refuse(driver, start, granule, flags)
        for flags in (1, 3, 5, (1 << 63) | 1):
            refuse(driver, start, granule, flags, NOT_SUPPORTED)
        refuse(driver, start, 2 * granule, 1)
        refuse(driver, start, 1, 1)
        refuse(driver, start + 1, granule, 1)


def test_a_dma_buf_requires_a_context(driver: Driver, granule: int) -> None:
    """Fact 83: also of mapped memory, unlike other calls for it (fact 8)."""
    with laid_out(driver, (granule,)) as start:
        refuse(driver, start, granule, error=INVALID_CONTEXT)
        refuse(driver, start, 1)
        with current(driver), dma_buf(driver, start, granule):
            pass


@pytest.mark.parametrize("handles", [FD, HandleType.NONE])
def test_a_dma_buf_of_a_pool_begins_where_its_memory_does(driver: Driver, handles: HandleType) -> None:
    """Fact 83: at a unit that the pool has reserved, and not inside of it."""
    with current(driver):
        pool = driver.mem_pool_create(PoolProperties(gpu(0), handles))
        first, second = (driver.mem_alloc_from_pool_async(2 * MiB, pool) for _ in range(2))
        driver.ctx_synchronize()
        for size in (PAGE, MiB, 2 * MiB):
            with dma_buf(driver, first, size):
                pass
        for address in (first + PAGE, first + MiB, second):
            refuse(driver, address, PAGE)
            refuse(driver, address, PAGE, DmaBufFlags.PCIE, NOT_SUPPORTED)
        for address in (first, second):
            driver.mem_free_async(address)
        driver.ctx_synchronize()
        driver.mem_pool_destroy(pool)


def test_the_host_memory_of_a_pool_has_no_dma_buf(driver: Driver) -> None:
    """Fact 83: whatever the flags."""
    with current(driver):
        pool = driver.mem_pool_create(PoolProperties(NODE))
        address = driver.mem_alloc_from_pool_async(2 * MiB, pool)
        driver.ctx_synchronize()
        for flags in (0, DmaBufFlags.PCIE):
            refuse(driver, address, PAGE, flags)
        driver.mem_free_async(address)
        driver.ctx_synchronize()
        driver.mem_pool_destroy(pool)


def test_a_dma_buf_needs_no_access(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with current(driver), laid_out(driver, (granule, granule)) as start, dma_buf(driver, start, 2 * granule):
        driver.mem_set_access(start, granule, (Grant(gpu(0), Access.R),))
        with dma_buf(driver, start, 2 * granule):
            pass


def test_a_dma_buf_is_of_memory_without_a_hole(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with current(driver), reserved(driver, 3 * granule) as start, created(driver, granule) as handle:
        refuse(driver, start, granule)
        with mapped(driver, start, granule, handle), mapped(driver, start + 2 * granule, granule, handle):
            refuse(driver, start, 3 * granule)
            refuse(driver, start + granule, granule)
            with mapped(driver, start + granule, granule, handle), dma_buf(driver, start, 3 * granule):
                pass  # one chunk three times


def test_chunks_of_one_dma_buf_may_have_other_properties(driver: Driver, granule: int) -> None:
    """Fact 83: RDMA-capable and exportable ones beside plain ones; compressible ones nowhere."""
    rdma, compressible = Properties(gpu(0), rdma=True), Properties(gpu(0), compressible=True)
    with (
        current(driver),
        reserved(driver, 3 * granule) as start,
        created(driver, granule) as plain,
        created(driver, granule, rdma) as other,
        created(driver, granule, SHARED) as shared,
        mapped(driver, start, granule, plain),
        mapped(driver, start + granule, granule, other),
    ):
        with mapped(driver, start + 2 * granule, granule, shared), dma_buf(driver, start, 3 * granule):
            pass
        with created(driver, granule, compressible) as last, mapped(driver, start + 2 * granule, granule, last):
            refuse(driver, start, 3 * granule, error=UNKNOWN)
            refuse(driver, start + 2 * granule, PAGE, error=UNKNOWN)


def test_a_dma_buf_may_cross_adjacent_reservations(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with (
        current(driver),
        adjacent(driver, granule) as start,
        created(driver, granule) as one,
        created(driver, granule) as two,
        mapped(driver, start, granule, one),
        mapped(driver, start + granule, granule, two),
        dma_buf(driver, start, 2 * granule),
    ):
        pass


@pytest.mark.parametrize("location", [HOST, NODE])
def test_no_dma_buf_is_of_chunks_of_the_host(driver: Driver, granule: int, location: object) -> None:
    """Fact 83: alone, or beside a GPU's."""
    properties = Properties(location)  # type: ignore[arg-type]
    with (
        current(driver),
        reserved(driver, 2 * granule) as start,
        created(driver, granule) as ours,
        created(driver, granule, properties) as hosts,
        mapped(driver, start, granule, ours),
        mapped(driver, start + granule, granule, hosts),
    ):
        refuse(driver, start + granule, granule)
        refuse(driver, start, 2 * granule)


def test_no_dma_buf_is_of_managed_or_page_locked_memory(driver: Driver) -> None:
    """Fact 83."""
    with current(driver):
        address = driver.mem_alloc_managed(2 * MiB, MemAttach.GLOBAL)
        refuse(driver, address, 2 * MiB)
        driver.mem_free(address)
        address = driver.mem_host_alloc(2 * MiB, HostFlags.PORTABLE)
        refuse(driver, address, 2 * MiB)
        refuse(driver, address, PAGE)
        driver.mem_free_host(address)


def test_a_dma_buf_of_an_allocation_may_reach_the_end_of_its_block(driver: Driver) -> None:
    """Fact 83: allocations take blocks of 2 MiB, which small ones share (fact 45)."""
    with current(driver), allocated(driver, 3 * MiB) as large, allocated(driver, 1000) as small:
        for size in (PAGE, 3 * MiB, 4 * MiB):
            with dma_buf(driver, large, size):
                pass
        block = small - small % (2 * MiB)
        with dma_buf(driver, small - small % PAGE, PAGE), dma_buf(driver, block, 2 * MiB):
            pass
        refuse(driver, small, 1000)


def test_an_imported_chunk_can_be_a_dma_buf(driver: Driver, granule: int, other: Other) -> None:
    """Fact 83: unlike its export by a handle (fact 26)."""
    with (
        created(other, granule, SHARED) as theirs,
        exported(other, theirs) as fd,
        imported(driver, fd) as handle,
        current(driver),
        usable(driver, granule, handle) as address,
        dma_buf(driver, address, granule),
    ):
        pass


def test_no_dma_buf_is_of_external_memory(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with (
        current(driver),
        created(driver, granule, SHARED) as handle,
        exported(driver, handle) as fd,
        whole(driver, os.dup(fd), granule) as buffer,
    ):
        refuse(driver, buffer, granule)


def test_no_call_imports_a_dma_buf(driver: Driver, granule: int) -> None:
    """Fact 84: of whatever size; as an opaque descriptor it is unknown, and closed (fact 54)."""
    with (
        current(driver),
        laid_out(driver, (granule,), properties=SHARED) as start,
        dma_buf(driver, start, granule) as fd,
    ):
        for size in (PAGE, granule, 2 * granule):
            with refused(NOT_SUPPORTED):
                driver.import_external_memory(fd, DMABUF, size)
        with refused(INVALID_VALUE):
            driver.import_external_memory(fd, DMABUF, 0)
        with refused(INVALID_VALUE):
            driver.import_external_memory(fd, DMABUF, granule, dedicated=True)
        assert is_open(fd)
        with refused(UNKNOWN):
            driver.mem_import_from_shareable_handle(fd, FD)
        with refused(UNKNOWN):
            driver.import_external_memory(copy := os.dup(fd), MemoryHandleType.OPAQUE_FD, granule)
        assert not is_open(copy)


def test_the_cpu_cannot_write_through_a_dma_buf(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with current(driver), laid_out(driver, (granule,)) as start, dma_buf(driver, start, granule) as fd:
        with pytest.raises(OSError, match=r"."):
            os.write(fd, b"x")
        with pytest.raises(OSError, match=r"."):
            mmap.mmap(fd, granule)


def test_memory_is_taken_down_beside_an_open_dma_buf(driver: Driver, granule: int) -> None:
    """Fact 84: unmapped, released and freed; the descriptor stays open, and its address is free for other memory."""
    with current(driver):
        with laid_out(driver, (granule,)) as start:
            one = driver.mem_get_handle_for_address_range(start, granule)
        refuse(driver, start, granule)
        with allocated(driver, granule) as address:
            two = driver.mem_get_handle_for_address_range(address, granule)
        for fd in (one, two):
            assert size_of(fd) == granule
            os.close(fd)


def test_contexts_end_beside_an_open_dma_buf(driver: Driver, granule: int) -> None:
    """Fact 84."""
    with laid_out(driver, (granule,)) as start:
        with current(driver):
            fd = driver.mem_get_handle_for_address_range(start, granule)
        assert size_of(fd) == granule
        os.close(fd)


def test_an_open_dma_buf_of_a_page_keeps_the_whole_chunk(driver: Driver, on_hardware: bool) -> None:
    """Fact 84: its memory is free when the descriptor is closed."""
    if not on_hardware:
        pytest.skip("the simulator does not count memory that descriptors alone keep")
    size = GiB // 4
    with current(driver):
        with allocated(driver, MiB):
            pass
        before, _ = driver.mem_get_info()
        with laid_out(driver, (size,)) as start:
            fd = driver.mem_get_handle_for_address_range(start + size - PAGE, PAGE)
        assert before - driver.mem_get_info()[0] == size
        os.close(fd)
        assert driver.mem_get_info()[0] == before


def test_a_dma_buf_outlives_its_exporter(driver: Driver, granule: int, other: Other) -> None:
    """Fact 84."""
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    fd = other.mem_get_handle_for_address_range(other.mem_alloc(granule), granule)
    with closing(fd):
        assert size_of(fd) == granule
        other.kill()
        assert size_of(fd) == granule
    del driver


def test_each_export_is_another_dma_buf(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Fact 83: with an inode of its own, on hardware."""
    with (
        current(driver),
        laid_out(driver, (granule,)) as start,
        dma_buf(driver, start, granule) as one,
        dma_buf(driver, start, granule) as two,
    ):
        assert one != two
        assert (os.fstat(one).st_ino != os.fstat(two).st_ino) or not on_hardware


def test_no_descriptor_is_left_after_many_dma_bufs(driver: Driver, granule: int) -> None:
    """And at the limit of open files, the error is that of the system."""
    with current(driver), laid_out(driver, (granule,)) as start, dma_buf(driver, start, granule):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(200):
            with dma_buf(driver, start, granule):
                pass
        assert len(os.listdir("/proc/self/fd")) == before
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = [os.dup(0) for _ in range(8)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, limits[1]))
        try:
            refuse(driver, start, granule, error="CUDA_ERROR_OPERATING_SYSTEM")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in held:
                os.close(fd)


@pytest.mark.usefixtures("two_gpus")
def test_a_dma_buf_is_of_one_device(driver: Driver, granule: int) -> None:
    """Fact 83."""
    with (
        current(driver, 0),
        reserved(driver, 2 * granule) as start,
        created(driver, granule) as one,
        created(driver, granule, Properties(gpu(1))) as two,
        mapped(driver, start, granule, one),
        mapped(driver, start + granule, granule, two),
    ):
        for flags in (DmaBufFlags.NONE, DmaBufFlags.PCIE):
            refuse(driver, start, 2 * granule, flags)
            refuse(driver, start + granule - PAGE, 2 * PAGE, flags)
        with dma_buf(driver, start + granule, granule), current(driver, 1), dma_buf(driver, start, granule):
            pass


def test_memory_opened_by_legacy_ipc_is_no_dma_buf(driver: Driver, other: Other) -> None:
    """Fact 83."""
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    theirs = other.mem_alloc(2 * MiB)
    with current(driver), opened(driver, other.ipc_get_mem_handle(theirs)) as address:
        refuse(driver, address, 2 * MiB)
    other.mem_free(theirs)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)


def test_a_simulated_device_shares_the_bytes_of_a_dma_buf(driver: Driver, granule: int, on_hardware: bool) -> None:
    """Of chunks and allocations, of several chunks at once, and after all of it was freed."""
    if on_hardware:
        pytest.skip("needs a network card")
    with current(driver):
        with laid_out(driver, (granule, granule), access=Access.RW) as start, allocated(driver, granule) as address:
            several = driver.mem_get_handle_for_address_range(start, 2 * granule)
            one = driver.mem_get_handle_for_address_range(address, granule)
            external_api.write(several, granule - 1, b"ab")
            assert driver.memcpy_dtoh(start + granule - 1, 2) == b"ab"
            driver.memset_d8(start, 7, 2 * granule)
            driver.memset_d8(address, 9, granule)
            again = driver.mem_get_handle_for_address_range(start, 2 * granule)
            assert external_api.read(again, granule, 1) == b"\7"
            os.close(again)
        assert external_api.read(several, 2 * granule - 1, 1) == b"\7"
        assert external_api.read(one, 0, 1) == bytes([9])
        os.close(several)
        os.close(one)
