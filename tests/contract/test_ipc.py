"""IPC handles of allocations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memtopo.common.units import KiB, MiB
from memtopo.driver.protocol import Driver
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND, created, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import INVALID_HANDLE, JUNK, SHARED, allocated, opened, usable

SIZE = 64 * KiB
LARGE = 3 * MiB


@contextmanager
def shared(other: Other, size: int = SIZE) -> Iterator[tuple[int, bytes]]:
    """An allocation of the other process that holds bytes, and its handle."""
    with current(other), allocated(other, size) as there:
        other.memset_d8(there, 3, size)
        other.memcpy_htod(there, b"theirs")
        other.ctx_synchronize()
        yield there, other.ipc_get_mem_handle(there)


def test_an_ipc_handle_is_64_bytes_of_the_base(driver: Driver) -> None:
    """Facts 31 and 46: for any address inside."""
    with current(driver), allocated(driver, SIZE) as address:
        handle = driver.ipc_get_mem_handle(address)
        assert len(handle) == 64
        assert driver.ipc_get_mem_handle(address + 100) == handle


def test_ipc_memory_is_shared_from_its_base_with_its_size(driver: Driver, other: Other) -> None:
    """Facts 31 and 46: both processes read the bytes of each other; the size is the requested one."""
    with current(driver), shared(other) as (there, _):
        handle = other.ipc_get_mem_handle(there + 100)
        with opened(driver, handle) as here:
            assert driver.mem_get_address_range(here + 5) == (here, SIZE)
            assert driver.memcpy_dtoh(here, 7) == b"theirs\3"
            driver.memcpy_htod(here + SIZE - 4, b"ours")
            driver.ctx_synchronize()
            assert other.memcpy_dtoh(there + SIZE - 5, 5) == b"\3ours"


def test_ipc_memory_is_open_until_its_last_close(driver: Driver, other: Other) -> None:
    """Fact 46: a second opening gives the same address."""
    with current(driver), shared(other) as (_, handle):
        with opened(driver, handle) as one:
            with opened(driver, handle) as two:
                assert one == two
            assert driver.memcpy_dtoh(one, 6) == b"theirs"
        with refused(INVALID_VALUE):
            driver.memcpy_dtoh(one, 6)
        with refused(INVALID_VALUE):
            driver.ipc_close_mem_handle(one)


def test_opening_ipc_memory_takes_no_memory(driver: Driver, other: Other) -> None:
    """Fact 46."""
    with current(driver), shared(other, LARGE) as (_, handle):
        free = driver.mem_get_info()
        with opened(driver, handle):
            assert driver.mem_get_info() == free
        assert driver.mem_get_info() == free


def test_junk_and_mapped_chunks_have_no_ipc_handle(driver: Driver, granule: int) -> None:
    """Facts 31 and 46: without a context, nothing has."""
    with current(driver):
        with refused(INVALID_VALUE):
            driver.ipc_get_mem_handle(JUNK)
        with (
            created(driver, granule, SHARED) as chunk,
            usable(driver, granule, chunk) as address,
            refused(INVALID_VALUE),
        ):
            driver.ipc_get_mem_handle(address)
        with allocated(driver, SIZE) as address:
            context = driver.ctx_pop_current()
            with refused(INVALID_CONTEXT):
                driver.ipc_get_mem_handle(address)
            driver.ctx_push_current(context)


def test_an_invalid_or_own_ipc_handle_is_not_opened(driver: Driver, other: Other) -> None:
    """Facts 31 and 46: also without the flag for lazy peer access."""
    with current(driver), allocated(driver, SIZE) as address, shared(other) as (_, handle):
        for wrong in (bytes(64), b"too few"):
            with refused(INVALID_VALUE):
                driver.ipc_open_mem_handle(wrong)
        with refused(INVALID_VALUE):
            driver.ipc_open_mem_handle(handle, 0)
        with refused(INVALID_CONTEXT):
            driver.ipc_open_mem_handle(driver.ipc_get_mem_handle(address))


def test_closing_memory_that_is_not_open_is_refused(driver: Driver) -> None:
    """Fact 46: junk, and this process's own memory."""
    with current(driver), allocated(driver, SIZE) as address:
        for wrong in (JUNK, address):
            with refused(INVALID_VALUE):
                driver.ipc_close_mem_handle(wrong)
        driver.memset_d8(address, 1, SIZE)


def test_the_ipc_handle_of_freed_memory_is_invalid(driver: Driver, other: Other) -> None:
    """Fact 46."""
    with current(driver), current(other):
        with shared(other, LARGE) as (_, handle):
            pass
        with refused(INVALID_VALUE):
            driver.ipc_open_mem_handle(handle)


def test_open_ipc_memory_outlives_its_allocation(driver: Driver, other: Other, on_hardware: bool) -> None:
    """Fact 46: it keeps its bytes, and is freed with the last close."""
    with current(driver), current(other):
        with shared(other, LARGE) as (_, handle):
            here = driver.ipc_open_mem_handle(handle)
            free = driver.mem_get_info()[0]
        assert driver.memcpy_dtoh(here, 7) == b"theirs\3"
        assert driver.mem_get_info()[0] == free
        driver.ipc_close_mem_handle(here)
        if on_hardware:  # a simulated process counts its own memory alone
            assert driver.mem_get_info()[0] == free + 4 * MiB


def test_open_ipc_memory_opens_again_after_it_was_freed(driver: Driver, other: Other) -> None:
    """Fact 72: at the same address, with its bytes."""
    with current(driver), current(other):
        with shared(other, LARGE) as (_, handle):
            here = driver.ipc_open_mem_handle(handle)
        with opened(driver, handle) as again:
            assert again == here
            driver.ipc_close_mem_handle(here)
            assert driver.memcpy_dtoh(again, 7) == b"theirs\3"


def test_open_ipc_memory_outlives_its_exporter(driver: Driver, other: Other) -> None:
    """Fact 46: it keeps its bytes; handles of the killed exporter are invalid."""
    with current(driver):
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        there = other.mem_alloc(SIZE)
        other.memset_d8(there, 4, SIZE)
        other.ctx_synchronize()
        handle = other.ipc_get_mem_handle(there)
        with opened(driver, handle) as here:
            other.kill()
            assert driver.memcpy_dtoh(here + SIZE - 2, 2) == b"\4\4"
        with refused(INVALID_HANDLE):
            driver.ipc_open_mem_handle(handle)


@pytest.mark.usefixtures("two_gpus")
def test_ipc_memory_is_opened_in_the_context_of_another_gpu(driver: Driver, other: Other) -> None:
    """Fact 46."""
    with current(driver, 1), shared(other) as (_, handle), opened(driver, handle) as here:
        assert driver.memcpy_dtoh(here, 6) == b"theirs"


@pytest.mark.usefixtures("two_gpus")
def test_ipc_memory_has_an_address_in_each_context_that_opened_it(driver: Driver, other: Other) -> None:
    """Fact 46: the addresses differ."""
    with ExitStack() as stack:
        _, handle = stack.enter_context(shared(other))
        stack.enter_context(current(driver, 1))
        first = stack.enter_context(opened(driver, handle))
        stack.enter_context(current(driver, 0))
        second, again = (stack.enter_context(opened(driver, handle)) for _ in range(2))
        assert again == second != first
        assert driver.memcpy_dtoh(first, 6) == driver.memcpy_dtoh(second, 6) == b"theirs"


@pytest.mark.usefixtures("two_gpus")
def test_ipc_memory_is_copied_in_every_context_and_filled_in_that_of_its_opening(driver: Driver, other: Other) -> None:
    """Fact 78: the other context finds no allocation at the address either, even after it has opened the memory."""
    with ExitStack() as stack:
        _, handle = stack.enter_context(shared(other))
        stack.enter_context(current(driver, 0))
        first = stack.enter_context(opened(driver, handle))
        stack.enter_context(current(driver, 1))
        second = stack.enter_context(opened(driver, handle))
        driver.memcpy_htod(first, b"ours")
        assert driver.memcpy_dtoh(first, 6) == driver.memcpy_dtoh(second, 6) == b"oursrs"
        driver.memset_d8(second, 7, 4)
        with refused(INVALID_VALUE):
            driver.memset_d8(first, 7, 4)
        assert driver.mem_get_address_range(second)[0] == second
        with refused(NOT_FOUND):
            driver.mem_get_address_range(first)
