"""External memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from memtopo.common.units import MiB
from memtopo.driver.kernels import ExternalApi
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, MemoryHandleType, gpu
from tests.contract.external_resources import OPAQUE, UNKNOWN, buffer, external, is_open, whole
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, created, current, refused
from tests.contract.other_process import Other
from tests.contract.producer import BYTES, produced
from tests.contract.producer import SIZE as PRODUCED
from tests.contract.shared_resources import FD, SHARED, closing, exported, imported, usable

SIZE = 8 * MiB


def test_cuda_and_the_other_api_share_bytes_at_equal_offsets(driver: Driver, maker: ExternalApi) -> None:
    """Facts 35 and 53."""
    made = maker.allocate(SIZE)
    with current(driver), whole(driver, made.fd(), SIZE) as address:
        made.write(4 * MiB, b"theirs")
        assert driver.memcpy_dtoh(address + 4 * MiB, 6) == b"theirs"
        driver.memcpy_htod(address + SIZE - 4, b"ours")
        driver.memset_d8(address, 3, MiB)
        driver.ctx_synchronize()
        assert made.read(SIZE - 4, 4) == b"ours"
        assert made.read(MiB - 2, 2) == b"\3\3"


@pytest.mark.parametrize("size", [1, 4096, 2 * MiB, SIZE, SIZE + 4096, 2 * SIZE])
def test_external_memory_imports_with_any_size(driver: Driver, maker: ExternalApi, size: int) -> None:
    """Facts 35 and 53: a mapped buffer must be inside the declared and the real size."""
    with current(driver), external(driver, maker.allocate(SIZE).fd(), size) as memory:
        inside = min(size, SIZE)
        for offset, count in ((0, inside), (0, 1), (inside - 1, 1)):
            with buffer(driver, memory, offset, count):
                pass
        for offset, count in ((0, inside + 1), (1, inside), (inside, 1), (0, 0)):
            with refused(INVALID_VALUE):
                driver.external_memory_get_mapped_buffer(memory, offset, count)


@pytest.mark.parametrize("allocated", [False, True])
@pytest.mark.parametrize("dedicated_flag", [False, True])
def test_the_dedicated_flag_is_not_checked(
    driver: Driver, maker: ExternalApi, *, allocated: bool, dedicated_flag: bool
) -> None:
    """Fact 53."""
    fd = maker.allocate(SIZE, dedicated=allocated).fd()
    with current(driver), external(driver, fd, SIZE, dedicated=dedicated_flag) as memory:
        assert not is_open(fd)
        with buffer(driver, memory, 0, SIZE):
            pass


@pytest.mark.parametrize("dedicated_flag", [False, True])
def test_dedicated_memory_is_mapped_at_offset_0_only(
    driver: Driver, maker: ExternalApi, *, dedicated_flag: bool
) -> None:
    """Fact 53: also in part."""
    fd = maker.allocate(SIZE, dedicated=True).fd()
    with current(driver), external(driver, fd, SIZE, dedicated=dedicated_flag) as memory:
        with buffer(driver, memory, 0, 4096):
            pass
        if dedicated_flag:
            with refused(INVALID_VALUE):
                driver.external_memory_get_mapped_buffer(memory, 4 * MiB, 4096)
        else:
            with buffer(driver, memory, 4 * MiB, 4096):
                pass


def test_two_buffers_have_different_addresses_and_the_same_bytes(driver: Driver, maker: ExternalApi) -> None:
    """Fact 53: the range of each is the requested one."""
    with (
        current(driver),
        external(driver, maker.allocate(SIZE).fd(), SIZE) as memory,
        buffer(driver, memory, 0, SIZE) as one,
        buffer(driver, memory, MiB, 4096) as two,
    ):
        assert one != two
        driver.memset_d8(one + MiB, 3, 16)
        driver.ctx_synchronize()
        assert driver.memcpy_dtoh(two, 17) == b"\3" * 16 + driver.memcpy_dtoh(one + MiB + 16, 1)
        assert driver.mem_get_address_range(one) == (one, SIZE)
        assert driver.mem_get_address_range(two) == (two, 4096)


def test_a_buffer_has_no_mapping_access_and_is_freed_once(driver: Driver, maker: ExternalApi) -> None:
    """Fact 53: calls for mappings and sharing refuse it."""
    with current(driver), external(driver, maker.allocate(SIZE).fd(), SIZE) as memory:
        with buffer(driver, memory, 0, SIZE) as address:
            assert driver.mem_get_access(address, gpu(0)) == 0
            for call in (driver.mem_retain_allocation_handle, driver.ipc_get_mem_handle):
                with refused(INVALID_VALUE):
                    call(address)
            with refused(INVALID_VALUE):
                driver.mem_unmap(address, SIZE)
        with refused(INVALID_VALUE):
            driver.mem_free(address)


def test_mapping_a_buffer_takes_no_memory(driver: Driver, maker: ExternalApi) -> None:
    """Fact 53."""
    made = maker.allocate(SIZE)
    with current(driver):
        free = driver.mem_get_info()
        with whole(driver, made.fd(), SIZE):
            assert driver.mem_get_info() == free
        assert driver.mem_get_info() == free


def test_a_buffer_outlives_its_external_memory_object(driver: Driver, maker: ExternalApi) -> None:
    """Fact 53."""
    with current(driver):
        with external(driver, maker.allocate(SIZE).fd(), SIZE) as memory:
            address = driver.external_memory_get_mapped_buffer(memory, 0, SIZE)
        driver.memset_d8(address, 5, 16)
        assert driver.memcpy_dtoh(address, 2) == b"\5\5"
        driver.mem_free(address)


def test_external_memory_outlives_its_release_by_the_other_api(driver: Driver, maker: ExternalApi) -> None:
    """Fact 53: the bytes remain, and an open descriptor still imports."""
    made = maker.allocate(SIZE)
    with current(driver), whole(driver, made.fd(), SIZE) as one:
        driver.memcpy_htod(one, b"bytes")
        with closing(made.fd()) as fd:
            made.free()
            with whole(driver, os.dup(fd), SIZE) as two:
                assert driver.memcpy_dtoh(two, 5) == driver.memcpy_dtoh(one, 5) == b"bytes"


def test_external_memory_outlives_the_process_of_its_exporter(
    driver: Driver, on_hardware: bool, make: Callable[[int], ExternalApi]
) -> None:
    """Facts 37 and 53: it keeps its bytes, and still imports."""
    make(0)  # skips where there is no other API
    with current(driver), produced(driver.device_get_uuid(0), on_hardware=on_hardware) as (memory, timeline, process):
        os.close(timeline)
        with whole(driver, os.dup(memory), PRODUCED) as before:
            process.kill()
            process.wait()
            with whole(driver, memory, PRODUCED) as after:
                assert driver.memcpy_dtoh(before, 6) == driver.memcpy_dtoh(after, 6) == BYTES


def test_a_descriptor_refused_as_unknown_memory_is_closed(driver: Driver) -> None:
    """Facts 35 and 54: therefore a copy is imported."""
    ours, theirs = os.pipe()
    with current(driver):
        for fd in (ours, theirs, os.open(os.devnull, os.O_RDWR), os.memfd_create("x")):
            with refused(UNKNOWN):
                driver.import_external_memory(fd, OPAQUE, SIZE)
            assert not is_open(fd)
        for wrong in (fd, -1):
            with refused(UNKNOWN):
                driver.import_external_memory(wrong, OPAQUE, SIZE)


def test_a_descriptor_refused_for_another_reason_stays_open(driver: Driver, maker: ExternalApi) -> None:
    """Fact 54: size 0, another handle type, or no context."""
    kinds = MemoryHandleType
    with closing(maker.allocate(SIZE).fd()) as fd:
        with refused(INVALID_CONTEXT):
            driver.import_external_memory(fd, OPAQUE, SIZE)
        with current(driver):
            with refused(INVALID_VALUE):
                driver.import_external_memory(fd, OPAQUE, 0)
            for kind in (kinds.DMABUF_FD, kinds.NVSCIBUF, kinds.OPAQUE_WIN32, kinds.OPAQUE_WIN32_KMT):
                with refused(NOT_SUPPORTED):
                    driver.import_external_memory(fd, kind, SIZE)
            assert is_open(fd)
            with whole(driver, os.dup(fd), SIZE):
                pass


@pytest.mark.usefixtures("two_gpus")
def test_external_memory_imports_on_its_gpu_only(driver: Driver, make: Callable[[int], ExternalApi]) -> None:
    """Facts 38 and 55: in another GPU's context it is unknown, and its descriptor closed."""
    made = make(1).allocate(SIZE)
    fd = made.fd()
    with current(driver, 0), refused(UNKNOWN):
        driver.import_external_memory(fd, OPAQUE, SIZE)
    assert not is_open(fd)
    with current(driver, 1), whole(driver, made.fd(), SIZE) as address:
        driver.memset_d8(address, 7, 16)
        driver.ctx_synchronize()
        with current(driver, 0):
            assert driver.memcpy_dtoh(address, 2) == b"\7\7"
            with refused(INVALID_VALUE):
                driver.memset_d8(address, 1, 8)


def test_a_chunk_imports_as_external_memory(driver: Driver, granule: int) -> None:
    """Fact 59: both addresses have the same bytes."""
    with (
        current(driver),
        created(driver, granule, SHARED) as handle,
        usable(driver, granule, handle) as one,
        exported(driver, handle) as fd,
        whole(driver, os.dup(fd), granule) as two,
    ):
        driver.memset_d8(one, 0x5A, granule)
        driver.ctx_synchronize()
        assert driver.memcpy_dtoh(two + granule - 2, 2) == b"ZZ"


def test_the_other_api_imports_a_chunk(driver: Driver, granule: int, maker: ExternalApi) -> None:
    """Fact 59: both read the bytes of each other."""
    with (
        current(driver),
        created(driver, granule, SHARED) as handle,
        usable(driver, granule, handle) as address,
        exported(driver, handle) as fd,
    ):
        theirs = maker.adopt(os.dup(fd), granule)
        driver.memset_d8(address, 0x5A, granule)
        driver.ctx_synchronize()
        assert theirs.read(granule - 4, 4) == b"ZZZZ"
        theirs.write(100, b"theirs")
        assert driver.memcpy_dtoh(address + 99, 7) == b"Ztheirs"
        theirs.free()


def test_external_memory_imports_as_a_chunk(driver: Driver, granule: int, maker: ExternalApi) -> None:
    """Fact 59: on its GPU, without handle types; it is mapped."""
    made = maker.allocate(granule)
    with current(driver), closing(made.fd()) as fd, imported(driver, fd) as handle:
        properties = driver.mem_get_allocation_properties_from_handle(handle)
        assert (properties.location, properties.handles) == (gpu(0), HandleType.NONE)
        with usable(driver, granule, handle) as address:
            driver.memset_d8(address, 6, granule)
            driver.ctx_synchronize()
            assert made.read(granule - 2, 2) == b"\6\6"
        with refused(INVALID_VALUE):
            driver.mem_export_to_shareable_handle(handle, FD)


@pytest.mark.parametrize("call", ["destroy_external_memory", "external_memory_get_mapped_buffer"])
def test_use_of_destroyed_external_memory_ends_the_process(
    other: Other, maker: ExternalApi, on_hardware: bool, call: str
) -> None:
    """Fact 57: by SIGSEGV on hardware; the simulator refuses a second destroy, and a mapping after it."""
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    with closing(maker.allocate(SIZE).fd()) as fd:
        memory = other.import_external_memory(fd, OPAQUE, SIZE)
    other.destroy_external_memory(memory)
    arguments = [memory] if call == "destroy_external_memory" else [memory, 0, SIZE]
    if on_hardware:
        other.ask(call, *arguments)
        assert other.fate() == -signal.SIGSEGV
        return
    with refused(INVALID_VALUE):
        getattr(other, call)(*arguments)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)
