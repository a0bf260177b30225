"""Registration of memory of the process (`cuMemHostRegister`)."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo.common.mapped_files import READ_WRITE, map_memory, map_shared, unmap
from memtopo.common.units import KiB, MiB, TiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HostFlags, MemAttach, RegisterFlags, gpu
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import allocated

PAGE = 4 * KiB
SIZE = 16 * PAGE
BOTH = RegisterFlags.PORTABLE | RegisterFlags.DEVICEMAP
READ_ONLY = BOTH | RegisterFlags.READ_ONLY
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
ALREADY = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
NOT_REGISTERED = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"


@contextmanager
def anonymous(size: int = SIZE, protection: int = READ_WRITE) -> Iterator[int]:
    address = map_memory(None, size, protection, ANONYMOUS)
    try:
        yield address
    finally:
        unmap(address, size)


@contextmanager
def memfd(size: int = SIZE) -> Iterator[int]:
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def shared(fd: int, size: int = SIZE, offset: int = 0, *, writable: bool = True) -> Iterator[int]:
    address = map_shared(fd, offset, size, writable=writable)
    try:
        yield address
    finally:
        unmap(address, size)


@contextmanager
def registered(driver: Driver, address: int, size: int = SIZE, flags: RegisterFlags = BOTH) -> Iterator[int]:
    driver.mem_host_register(address, size, flags)
    try:
        yield address
    finally:
        driver.mem_host_unregister(address)


def test_the_cpu_and_a_gpu_see_the_same_bytes_of_registered_memory(driver: Driver) -> None:
    """Fact 85: at one address."""
    with current(driver), anonymous() as address, registered(driver, address):
        assert driver.mem_host_get_device_pointer(address) == address
        assert driver.mem_host_get_device_pointer(address + 17) == address + 17
        ctypes.memmove(address, b"by the CPU", 10)
        assert driver.memcpy_dtoh(address, 10) == driver.host_read(address, 10) == b"by the CPU"
        driver.memset_d8(address + SIZE - 4, 7, 4)
        driver.memcpy_htod(address, b"by the GPU")
        driver.ctx_synchronize()
        assert ctypes.string_at(address, 10) == b"by the GPU"
        assert ctypes.string_at(address + SIZE - 6, 6) == b"\0\0\7\7\7\7"
        assert driver.mem_get_address_range(address + PAGE) == (address, SIZE)
        assert driver.mem_get_access(address, gpu(0)) == 0
        assert not driver.pointer_is_managed(address)


def test_memory_keeps_its_bytes_when_it_is_unregistered(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address:
        with registered(driver, address):
            driver.memset_d8(address, 9, 4)
            driver.ctx_synchronize()
        assert ctypes.string_at(address, 5) == b"\t\t\t\t\0"
        for query in (driver.mem_host_get_flags, driver.mem_host_get_device_pointer):
            with refused(INVALID_VALUE):
                query(address)


@pytest.mark.parametrize(
    ("flags", "reported"), [(0, 2), (1, 3), (2, 2), (3, 3), (8, 2), (9, 3), (10, 2), (11, 3)], ids=str
)
def test_flags_of_registered_memory_are_reported_without_read_only(driver: Driver, flags: int, reported: int) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address, registered(driver, address, flags=RegisterFlags(flags)):
        assert driver.mem_host_get_flags(address) == driver.mem_host_get_flags(address + SIZE - 1) == reported


@pytest.mark.parametrize("flags", [4, 5, 7, 12, 15, 16, 64])
def test_flags_for_devices_and_unknown_ones_are_refused(driver: Driver, flags: int) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address, refused(INVALID_VALUE):
        driver.mem_host_register(address, SIZE, RegisterFlags(flags))


def test_a_page_is_locked_with_read_only_or_without(driver: Driver) -> None:
    """Fact 85: registrations that share a page agree on READ_ONLY."""
    with current(driver), anonymous() as address:
        for first, second in ((BOTH, READ_ONLY), (READ_ONLY, RegisterFlags.NONE)):
            with registered(driver, address + 100, 100, first):
                for start, size in ((address, 1), (address + 200, 2 * PAGE)):
                    with refused(INVALID_VALUE):
                        driver.mem_host_register(start, size, second)
                with registered(driver, address, 1, first), registered(driver, address + PAGE, PAGE, second):
                    pass


def test_fewer_pages_than_are_locked_are_registered_with_other_flags(driver: Driver) -> None:
    """Fact 85: READ_ONLY is compared with registrations of no other pages."""
    with current(driver), anonymous() as address:
        with registered(driver, address + 100, 2 * PAGE, BOTH), registered(driver, address + 50, 50, READ_ONLY):
            pass
        with registered(driver, address + 100, 2 * PAGE, READ_ONLY), registered(driver, address, 50, BOTH):
            pass


def test_bytes_before_registered_ones_are_refused_by_their_flags_first(driver: Driver) -> None:
    """Fact 85: unless a whole registration, or the first byte, is registered already."""
    with current(driver), anonymous() as address, registered(driver, address + 100, 1000):
        for start, size, flags, error in (
            (0, 200, READ_ONLY, INVALID_VALUE),
            (0, 200, RegisterFlags.IOMEMORY, INVALID_VALUE),
            (0, 200, BOTH, ALREADY),
            (0, 2000, READ_ONLY, ALREADY),
            (200, 2000, READ_ONLY, ALREADY),
            (200, 2000, RegisterFlags.IOMEMORY, ALREADY),
        ):
            with refused(error):
                driver.mem_host_register(address + start, size, flags)


def test_registered_memory_is_refused_before_flags_for_devices(driver: Driver) -> None:
    """Fact 85: and after unknown flags."""
    with current(driver), anonymous() as address, registered(driver, address):
        for flags, error in ((RegisterFlags.IOMEMORY, ALREADY), (RegisterFlags(16), INVALID_VALUE)):
            with refused(error):
                driver.mem_host_register(address + 1, 100, flags)


def test_only_mapped_memory_of_the_process_is_registered(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address, allocated(driver, MiB) as other:
        managed, pinned = driver.mem_alloc_managed(SIZE, MemAttach.GLOBAL), driver.mem_host_alloc(SIZE, HostFlags(3))
        for start, size in ((address, 0), (0, PAGE), (other, PAGE), (managed, PAGE), (pinned, PAGE)):
            with refused(INVALID_VALUE):
                driver.mem_host_register(start, size, BOTH)
        with refused(OUT_OF_MEMORY):
            driver.mem_host_register(address, 64 * TiB, BOTH)
        assert driver.mem_host_get_flags(managed) == HostFlags.DEVICEMAP
        with refused(INVALID_VALUE):
            driver.mem_host_get_device_pointer(managed)
        driver.mem_free(managed)
        driver.mem_free_host(pinned)
        unmap(address + 2 * PAGE, PAGE)
        for first, pages in ((0, 4), (2, 1), (1, 2)):
            with refused(INVALID_VALUE):
                driver.mem_host_register(address + first * PAGE, pages * PAGE, BOTH)
        with registered(driver, address, 2 * PAGE):
            pass


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 100), (100, PAGE), (PAGE - 1, 2), (64, 3 * PAGE)])
def test_any_bytes_are_registered(driver: Driver, offset: int, size: int) -> None:
    """Fact 85: also inside of pages, and exactly those."""
    with current(driver), anonymous() as page, registered(driver, page + offset, size) as address:
        assert driver.mem_get_address_range(address + size - 1) == (address, size)
        driver.memset_d8(address, 1, size)
        for outside in (address + size, *([address - 1] if offset else [])):
            with refused(INVALID_VALUE):
                driver.mem_host_get_flags(outside)
        with refused(INVALID_VALUE):
            driver.memset_d8(address, 1, size + 1)
        driver.ctx_synchronize()


def test_no_byte_is_registered_twice(driver: Driver) -> None:
    """Fact 85: other bytes of the same page are."""
    with current(driver), anonymous() as address, registered(driver, address + 4 * PAGE, 4 * PAGE):
        for first, pages in ((4, 4), (4, 1), (5, 1), (7, 2), (3, 2), (2, 8)):
            with refused(ALREADY):
                driver.mem_host_register(address + first * PAGE, pages * PAGE, RegisterFlags(0))
        for first in (3, 8):
            with registered(driver, address + first * PAGE, PAGE):
                pass
        with registered(driver, address, 100), registered(driver, address + 200, 100):
            pass


def test_a_copy_does_not_cross_two_registrations(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous() as one, registered(driver, one, PAGE), registered(driver, one + PAGE, PAGE):
        with refused(INVALID_VALUE):
            driver.memset_d8(one, 1, 2 * PAGE)
        with refused(INVALID_VALUE):
            driver.memcpy_dtoh(one, 2 * PAGE)
        assert driver.memcpy_dtoh(one + PAGE, PAGE) == bytes(PAGE)


def test_memory_is_unregistered_once_by_its_start(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address:
        pinned = driver.mem_host_alloc(SIZE, HostFlags(3))
        with registered(driver, address + PAGE, PAGE), allocated(driver, SIZE) as other:
            for inside in (address + PAGE + 1, address + 2 * PAGE - 1, pinned, other, 0):
                with refused(INVALID_VALUE):
                    driver.mem_host_unregister(inside)
            for outside in (address, address + 2 * PAGE):
                with refused(NOT_REGISTERED):
                    driver.mem_host_unregister(outside)
            for free in (driver.mem_free, driver.mem_free_host):
                with refused(INVALID_VALUE):
                    free(address + PAGE)
            with refused(INVALID_VALUE):
                driver.ipc_get_mem_handle(address + PAGE)
        with refused(NOT_REGISTERED):
            driver.mem_host_unregister(address + PAGE)
        driver.mem_free_host(pinned)


def test_registering_requires_a_context_and_unregistering_none(driver: Driver) -> None:
    """Fact 85."""
    with anonymous() as address:
        with refused(INVALID_CONTEXT):
            driver.mem_host_register(address, SIZE, BOTH)
        with refused(NOT_REGISTERED):
            driver.mem_host_unregister(address)
        with current(driver) as context:
            driver.mem_host_register(address, SIZE, BOTH)
            driver.ctx_pop_current()
            for query in (driver.mem_host_get_flags, driver.mem_host_get_device_pointer):
                with refused(INVALID_CONTEXT):
                    query(address)
            driver.mem_host_unregister(address)
            driver.ctx_push_current(context)


def test_a_registration_ends_with_its_context(driver: Driver, other: Other) -> None:
    """Fact 85: the memory stays."""
    del driver
    with memfd() as fd:
        address = other.map_path(f"/proc/{os.getpid()}/fd/{fd}", SIZE)
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        other.mem_host_register(address, SIZE, BOTH)
        other.host_write(address, b"stays")
        other.ctx_pop_current()
        other.device_primary_ctx_release(0)
        with current(other):
            with refused(INVALID_VALUE):
                other.mem_host_get_flags(address)
            with refused(NOT_REGISTERED):
                other.mem_host_unregister(address)
            other.mem_host_register(address, SIZE, BOTH)
            assert other.memcpy_dtoh(address, 5) == b"stays"
            other.mem_host_unregister(address)
        other.kill()


@pytest.mark.parametrize("flags", [RegisterFlags(8), READ_ONLY])
def test_memory_that_the_cpu_may_only_read_is_registered_as_read_only(driver: Driver, flags: RegisterFlags) -> None:
    """Fact 85: a GPU may not write it then, nor other memory that is registered so."""
    with current(driver), memfd() as fd:
        os.pwrite(fd, b"read", 0)
        for writable in (False, True):
            with shared(fd, writable=writable) as address:
                if not writable:
                    with refused(INVALID_VALUE):
                        driver.mem_host_register(address, SIZE, BOTH)
                with registered(driver, address, flags=flags):
                    assert driver.memcpy_dtoh(address, 4) == b"read"
                    with refused(INVALID_VALUE):
                        driver.memset_d8(address, 1, 4)
                    with refused(INVALID_VALUE):
                        driver.memcpy_htod(address, b"no")
                    driver.ctx_synchronize()
        assert os.pread(fd, 4, 0) == b"read"


def test_memory_without_access_is_not_registered(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous(protection=0) as address:
        for flags in (BOTH, READ_ONLY):
            with refused(INVALID_VALUE):
                driver.mem_host_register(address, SIZE, flags)


def test_a_gpu_sees_and_changes_a_registered_file(driver: Driver) -> None:
    """Fact 85: from any page on, and through each of its mappings."""
    with current(driver), memfd() as fd, shared(fd, SIZE - PAGE, PAGE) as address, shared(fd) as whole:
        os.pwrite(fd, b"file", PAGE)
        with registered(driver, address, SIZE - PAGE):
            assert driver.memcpy_dtoh(address, 4) == b"file"
            driver.memset_d8(address + 4, 66, 2)
            driver.ctx_synchronize()
            assert os.pread(fd, 6, PAGE) == b"fileBB"
            with registered(driver, whole):
                assert driver.memcpy_dtoh(whole + PAGE, 6) == b"fileBB"
        os.pwrite(fd, b"\0" * 6, PAGE)


def test_two_processes_register_one_file(driver: Driver, other: Other) -> None:
    """Fact 85: each sees what the GPU of the other writes, also after that one has ended."""
    with current(driver), memfd() as fd, shared(fd) as address, registered(driver, address):
        theirs = other.map_path(f"/proc/{os.getpid()}/fd/{fd}", SIZE)
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        other.mem_host_register(theirs, SIZE, BOTH)
        driver.memset_d8(address, 65, 2)
        driver.ctx_synchronize()
        assert other.memcpy_dtoh(theirs, 3) == b"AA\0"
        other.memset_d8(theirs + 2, 66, 2)
        other.ctx_synchronize()
        assert driver.memcpy_dtoh(address, 5) == b"AABB\0"
        other.kill()
        assert driver.memcpy_dtoh(address, 5) == b"AABB\0"


def test_bytes_behind_the_end_of_a_file_are_not_registered(driver: Driver) -> None:
    """Fact 85: its last page is as a whole."""
    with current(driver), memfd(2 * PAGE + 1) as fd, shared(fd) as address:
        with refused(INVALID_VALUE):
            driver.mem_host_register(address, SIZE, BOTH)
        with registered(driver, address, 3 * PAGE):
            assert driver.memcpy_dtoh(address + 3 * PAGE - 4, 4) == bytes(4)


def test_a_shared_mapping_of_a_file_on_a_disk_is_not_registered(driver: Driver) -> None:
    """Fact 85."""
    with tempfile.TemporaryFile(dir=Path(__file__).parent) as file, current(driver):
        file.truncate(SIZE)
        if os.major(os.fstat(file.fileno()).st_dev) == 0:
            pytest.skip("the tests are in a file system without a disk of its own")
        with shared(file.fileno()) as address, refused(INVALID_VALUE):
            driver.mem_host_register(address, SIZE, BOTH)
        private = map_memory(None, SIZE, READ_WRITE, mmap.MAP_PRIVATE, file.fileno())
        with registered(driver, private):
            pass
        unmap(private, SIZE)


def test_memory_that_was_unmapped_stays_registered(driver: Driver) -> None:
    """Fact 86: nothing else can be registered there, and it can still be unregistered."""
    with current(driver), memfd() as fd:
        address = map_shared(fd, 0, SIZE, writable=True)
        driver.mem_host_register(address, SIZE, BOTH)
        unmap(address, SIZE)
        assert driver.mem_host_get_flags(address) == BOTH
        with refused(ALREADY):
            driver.mem_host_register(address, SIZE, BOTH)
        driver.mem_host_unregister(address)


def test_bytes_are_copied_between_registered_memory_and_allocations(driver: Driver) -> None:
    """Fact 85."""
    with current(driver), anonymous() as address, registered(driver, address), allocated(driver, SIZE) as buffer:
        driver.host_write(address, b"there")
        driver.memcpy_async(buffer, address, SIZE)
        driver.memcpy_async(address + 5, buffer, 5)
        driver.ctx_synchronize()
        assert driver.host_read(address, 11) == b"therethere\0"


def test_every_gpu_accesses_memory_that_one_has_registered(driver: Driver) -> None:
    """Facts 74 and 85: also without PORTABLE."""
    contexts = [driver.device_primary_ctx_retain(device) for device in range(driver.device_get_count())]
    for flags in (RegisterFlags(0), BOTH):
        with anonymous() as address:
            driver.ctx_push_current(contexts[0])
            driver.mem_host_register(address, SIZE, flags)
            pinned = driver.mem_host_alloc(SIZE, HostFlags(int(flags)))
            for device, context in enumerate(contexts):
                driver.ctx_push_current(context)
                for memory in (address, pinned):
                    assert driver.mem_host_get_device_pointer(memory) == memory
                    driver.memset_d8(memory, 65 + device, 4)
                    driver.ctx_synchronize()
                    assert driver.host_read(memory, 5) == bytes([65 + device] * 4 + [0])
                driver.ctx_pop_current()
            driver.ctx_pop_current()
            driver.ctx_push_current(contexts[-1])
            driver.mem_host_unregister(address)
            driver.mem_free_host(pinned)
            driver.ctx_pop_current()
    for device in range(len(contexts)):
        driver.device_primary_ctx_release(device)
