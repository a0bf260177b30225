from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memtopo.driver.kernels import Area, KernelDriver, Verified, fingerprint, pattern, word
from memtopo.driver.types import Access, Grant, gpu
from tests.contract.memory import (
    INVALID_CONTEXT,
    INVALID_VALUE,
    PLAIN,
    created,
    current,
    laid_out,
    mapped,
    refused,
    reserved,
)
from tests.contract.other_process import Other
from tests.contract.shared_resources import SHARED, exported, usable

ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
SEED, OTHER = 0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210
SIZES = (1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 100, 4096, 4104, 8192, 8191)
LARGE = (16383, 16384, 16385, 16400, 20480, 32768, 49153)


@contextmanager
def kernels(driver: KernelDriver, device: int = 0) -> Iterator[None]:
    """The kernels, loaded in a device's context, which is current."""
    with current(driver, device):
        module = driver.module_load_data()
        try:
            yield
        finally:
            driver.module_unload(module)


@contextmanager
def ready(driver: KernelDriver, *sizes: int) -> Iterator[int]:
    """Chunks of the given sizes with access rw for the first GPU, and its kernels loaded."""
    with laid_out(driver, sizes, access=Access.RW) as address, kernels(driver):
        yield address


@pytest.mark.parametrize("granules", [1, 3])
def test_filled_memory_is_verified_with_its_seed_only(driver: KernelDriver, granule: int, granules: int) -> None:
    """By a driver's copy and by a kernel; with another seed every word differs."""
    with ready(driver, granules * granule) as address:
        area = Area(address, granules * granule, SEED)
        driver.fill([area])
        assert driver.verify([area]) == Verified(0)
        for at in (0, granules * granule - 4096):
            assert driver.memcpy_dtoh(address + at, 4096) == pattern(SEED, at, 4096)
        found = driver.verify([area._replace(seed=OTHER)])
        assert found == Verified(found.mismatches, 0, 0, word(OTHER, 0), word(SEED, 0))
        assert 1000 < found.mismatches <= granules * granule // 8


@pytest.mark.parametrize("size", SIZES + LARGE)
def test_exactly_the_bytes_of_an_area_of_any_size_are_filled_and_verified(
    driver: KernelDriver, granule: int, size: int
) -> None:
    """Its first and its last byte included."""
    with ready(driver, granule) as address:
        driver.memset_d8(address, 0xEE, granule)
        area = Area(address + 4096, size, SEED, 4096)
        driver.fill([area])
        assert driver.verify([area]) == Verified(0)
        assert driver.memcpy_dtoh(address + 4096 - 16, 16) == b"\xee" * 16
        assert driver.memcpy_dtoh(address + 4096 + size, 16) == b"\xee" * 16
        assert driver.memcpy_dtoh(address + 4096, min(size, 4096)) == pattern(SEED, 4096, min(size, 4096))
        for at in {0, size - 1}:
            before = driver.memcpy_dtoh(address + 4096 + at, 1)
            driver.memcpy_htod(address + 4096 + at, bytes([before[0] ^ 0x10]))
            found = driver.verify([area])
            assert (found.mismatches, found.area) == (1, 0)
            assert found.offset <= at < found.offset + 8
            assert found.expected ^ found.actual == 0x10 << (at - found.offset) * 8
            driver.memcpy_htod(address + 4096 + at, before)


@pytest.mark.parametrize("at", [0, 8, 24, 4088, -4096, -16, -8])
def test_one_different_word_is_counted_once_with_both_values(driver: KernelDriver, granule: int, at: int) -> None:
    with ready(driver, 2 * granule) as address:
        area, at = Area(address, 2 * granule, SEED), at % (2 * granule)
        driver.fill([area])
        driver.store(address + at, 0x1122_3344_5566_7788)
        assert driver.load(address + at) == 0x1122_3344_5566_7788
        assert driver.verify([area]) == Verified(1, 0, at, word(SEED, at), 0x1122_3344_5566_7788)


def test_the_different_area_of_hundreds_is_named_by_its_number(driver: KernelDriver, granule: int) -> None:
    """In one call, with areas of different sizes."""
    with ready(driver, 4 * granule) as address:
        sizes = [64 << (index % 8) for index in range(500)]
        areas = [Area(address + index * 8192, size, SEED + index, index * 8) for index, size in enumerate(sizes)]
        driver.fill(areas)
        assert driver.verify(areas) == Verified(0)
        assert driver.verify([]) == Verified(0)
        for number in (499, 168, 167, 0):
            driver.store(areas[number].address + 8, 7)
            found = driver.verify(areas)
            expected = word(SEED + number, number * 8 + 8)
            assert found == Verified(found.mismatches, number, 8, expected, 7)
        assert found.mismatches == 4


def test_an_area_within_a_chunk_has_the_pattern_of_the_chunk(driver: KernelDriver, granule: int) -> None:
    with ready(driver, 2 * granule) as address:
        driver.fill([Area(address, 2 * granule, SEED)])
        assert driver.verify([Area(address + granule, granule, SEED, granule)]) == Verified(0)
        assert driver.verify([Area(address + granule, granule, SEED)]).mismatches


def test_a_fill_is_verified_through_another_mapping_of_the_chunk(driver: KernelDriver, granule: int) -> None:
    """Fact 16: with access r."""
    with (
        reserved(driver, 2 * granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
        mapped(driver, address + granule, granule, handle),
        kernels(driver),
    ):
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.RW),))
        driver.mem_set_access(address + granule, granule, (Grant(gpu(0), Access.R),))
        driver.fill([Area(address, granule, SEED)])
        assert driver.verify([Area(address + granule, granule, SEED)]) == Verified(0)


@pytest.mark.usefixtures("two_gpus")
def test_a_fill_of_one_gpu_is_verified_by_another(driver: KernelDriver, granule: int) -> None:
    """In both directions."""
    with (
        reserved(driver, granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
    ):
        driver.mem_set_access(address, granule, tuple(Grant(gpu(each), Access.RW) for each in range(2)))
        with kernels(driver, 0):
            driver.fill([Area(address, granule, SEED)])
            driver.ctx_synchronize()
            with kernels(driver, 1):
                assert driver.verify([Area(address, granule, SEED)]) == Verified(0)
                driver.fill([Area(address, granule, OTHER)])
                driver.ctx_synchronize()
            assert driver.verify([Area(address, granule, OTHER)]) == Verified(0)


def test_kernels_require_a_context_loading_and_aligned_areas(driver: KernelDriver, granule: int) -> None:
    """Addresses are multiples of 16."""
    with refused(INVALID_CONTEXT):
        driver.module_load_data()
    with (
        laid_out(driver, (granule,), access=Access.RW) as address,
        current(driver),
        refused("CUDA_ERROR_INVALID_HANDLE"),
    ):
        driver.fill([Area(address, granule, SEED)])
    with ready(driver, granule) as address:
        for area in (Area(address + 8, 16, SEED), Area(address, 16, SEED, 4), Area(address, -1, SEED)):
            for call in (driver.fill, driver.verify):
                with refused(INVALID_VALUE):
                    call([area])
        for part in ((address + 8, 16), (address, -1)):
            with refused(INVALID_VALUE):
                driver.fingerprint([part])


def forbidden(other: Other, granule: int, access: Access) -> tuple[int, int]:
    """Address and handle of a chunk with an access in another process, which has the kernels loaded."""
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    other.module_load_data()
    address = other.mem_address_reserve(granule)
    handle = other.mem_create(granule, PLAIN)
    other.mem_map(address, granule, handle)
    other.mem_set_access(address, granule, (Grant(gpu(0), access),))
    return address, handle


FORBIDDEN = [(Access.R, "store"), (Access.NONE, "store"), (Access.NONE, "load"), (Access.NONE, "fingerprint")]


@pytest.mark.parametrize(("access", "call"), FORBIDDEN)
def test_a_forbidden_access_ends_the_context(other: Other, granule: int, access: Access, call: str) -> None:
    """Fact 24: calls that access memory, and new contexts, fail; those that lay memory out or release it succeed."""
    address, handle = forbidden(other, granule, access)
    if call == "store":
        other.store(address, 1)
        with refused(ILLEGAL_ADDRESS):
            other.ctx_synchronize()
    else:
        with refused(ILLEGAL_ADDRESS):
            other.load(address) if call == "load" else other.fingerprint([(address, granule)])
    later: tuple[Callable[[], object], ...] = (
        other.ctx_synchronize,
        lambda: other.memset_d8(address, 0, 8),
        other.mem_get_info,
    )
    for each in later:
        with refused(ILLEGAL_ADDRESS):
            each()
    with created(other, granule, SHARED) as made, usable(other, granule, made) as at, exported(other, made):
        assert other.mem_get_access(at, gpu(0)) == Access.RW
    assert other.mem_get_access(address, gpu(0)) == access
    other.mem_unmap(address, granule)
    other.mem_release(handle)
    other.mem_address_free(address, granule)
    assert other.device_primary_ctx_retain(0)
    for _ in range(2):
        other.device_primary_ctx_release(0)
    with refused(ILLEGAL_ADDRESS):
        other.device_primary_ctx_retain(0)
    other.kill()


def test_a_fill_past_the_end_of_a_mapping_ends_the_context(other: Other, granule: int) -> None:
    """Fact 24."""
    address, _ = forbidden(other, granule, Access.RW)
    other.fill([Area(address, granule, SEED)])
    assert other.verify([Area(address, granule, SEED)]) == Verified(0)
    other.fill([Area(address + granule - 4096, 64 << 20, SEED)])
    with refused(ILLEGAL_ADDRESS):
        other.ctx_synchronize()
    other.kill()


def test_a_permitted_load_changes_nothing(driver: KernelDriver, granule: int) -> None:
    """With access r."""
    with ExitStack() as stack:
        address = stack.enter_context(laid_out(driver, (granule,), access=Access.R))
        stack.enter_context(kernels(driver))
        driver.load(address)
        driver.ctx_synchronize()
        assert driver.mem_get_info()[0]


@pytest.mark.parametrize("size", SIZES + LARGE)
def test_a_fingerprint_depends_on_each_byte_of_a_part_and_on_no_other(
    driver: KernelDriver, granule: int, size: int
) -> None:
    """Its first and its last byte included, and where they are. It is the one that Python computes from the bytes."""
    with ready(driver, granule) as address:
        driver.fill([Area(address + 4096, size, SEED, 4096)])
        part = (address + 4096, size)
        (before,) = driver.fingerprint([part])
        if size <= 8192:
            assert before == fingerprint(pattern(SEED, 4096, size), 0)
        for at in (-1, size):
            driver.memset_d8(address + 4096 + at, 0xEE, 1)
        assert driver.fingerprint([part]) == (before,)
        found = {before}
        for at in {0, size - 1}:
            byte = driver.memcpy_dtoh(address + 4096 + at, 1)
            driver.memcpy_htod(address + 4096 + at, bytes([byte[0] ^ 0x10]))
            found |= {*driver.fingerprint([part])}
            driver.memcpy_htod(address + 4096 + at, byte)
        assert len(found) == 1 + len({0, size - 1})
        assert driver.fingerprint([part]) == (before,)


def test_equal_bytes_at_other_offsets_have_another_fingerprint(driver: KernelDriver, granule: int) -> None:
    with ready(driver, granule) as address:
        found = set()
        for at in (0, 8, 16, 4096, granule - 8):
            driver.memset_d8(address, 0, granule)
            driver.memcpy_htod(address + at, b"somebyte")
            found |= {*driver.fingerprint([(address, granule)])}
        assert len(found) == 5


def test_many_parts_have_the_fingerprints_of_each(driver: KernelDriver, granule: int) -> None:
    """Across chunks, in order, with equal ones for equal parts."""
    with ready(driver, granule, granule) as address:
        driver.fill([Area(address, 2 * granule, SEED)])
        parts = [(address + 512 * n, 512 * (1 + n % 3)) for n in range(200)]
        assert driver.fingerprint(parts) == tuple(driver.fingerprint([part])[0] for part in parts)
        across = (address + granule - 4096, 8192)
        assert driver.fingerprint([across, across]) == driver.fingerprint([across]) * 2
        assert driver.fingerprint([]) == ()
