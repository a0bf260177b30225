"""Export and import of chunks as file descriptors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memtopo.common.units import MiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind, Properties, gpu
from tests.contract.memory import INVALID_VALUE, NODE, NOT_SUPPORTED, created, current, mapped, refused, reserved
from tests.contract.other_process import Other
from tests.contract.shared_resources import FABRIC, FD, SHARED, closing, exported, imported, usable

UNKNOWN = "CUDA_ERROR_UNKNOWN"


def test_an_export_is_a_new_descriptor(driver: Driver, granule: int) -> None:
    """Facts 26 and 44: a program started meanwhile does not inherit it."""
    with created(driver, granule, SHARED) as handle, exported(driver, handle) as one, exported(driver, handle) as two:
        assert one != two
        assert not os.get_inheritable(one)
        assert not os.get_inheritable(two)


def test_an_export_has_no_flags_and_one_handle_type_of_its_chunk(driver: Driver, granule: int) -> None:
    """Facts 26 and 44."""
    with created(driver, granule, SHARED) as handle:
        for kind in (HandleType.NONE, FABRIC, FD | FABRIC):
            with refused(INVALID_VALUE):
                driver.mem_export_to_shareable_handle(handle, kind)
        with refused(INVALID_VALUE):
            driver.mem_export_to_shareable_handle(handle, FD, 1)
    with created(driver, granule) as handle, refused(INVALID_VALUE):
        driver.mem_export_to_shareable_handle(handle, FD)


def test_an_export_of_a_released_chunk_is_refused_by_the_simulator(
    driver: Driver, granule: int, on_hardware: bool
) -> None:
    """Fact 51: on hardware it ends the process."""
    if on_hardware:
        pytest.skip("ends the process")
    with created(driver, granule, SHARED) as handle:
        pass
    with refused(INVALID_VALUE):
        driver.mem_export_to_shareable_handle(handle, FD)


def test_an_import_of_another_descriptor_is_unknown(driver: Driver) -> None:
    """Facts 27 and 44: a pipe, a device, a file in memory and a closed descriptor."""
    reader, writer = os.pipe()
    memory = os.memfd_create("no chunk", os.MFD_CLOEXEC)
    device = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (reader, writer, memory, device):
        with refused(UNKNOWN):
            driver.mem_import_from_shareable_handle(fd, FD)
        os.close(fd)
        with refused(UNKNOWN):
            driver.mem_import_from_shareable_handle(fd, FD)


def test_an_import_of_no_descriptor_is_an_invalid_value(driver: Driver, granule: int) -> None:
    """Facts 44 and 48: a negative number, bytes, or a descriptor of no handle type."""
    for shared in (-1, -(1 << 40), 1 << 40, bytes(64)):
        with refused(INVALID_VALUE):
            driver.mem_import_from_shareable_handle(shared, FD)
    with created(driver, granule, SHARED) as handle, exported(driver, handle) as fd:
        for kind in (HandleType.NONE, FD | FABRIC):
            with refused(INVALID_VALUE):
                driver.mem_import_from_shareable_handle(fd, kind)
        for shared in (fd, b"too few"):
            with refused(INVALID_VALUE):
                driver.mem_import_from_shareable_handle(shared, FABRIC)


def test_an_import_in_the_same_process_is_another_handle_of_the_same_bytes(driver: Driver, granule: int) -> None:
    """Facts 7 and 44: without handle types, and retained by its own mapping."""
    with (
        current(driver),
        created(driver, granule, SHARED) as handle,
        usable(driver, granule, handle) as here,
        exported(driver, handle) as fd,
        imported(driver, fd) as another,
        usable(driver, granule, another) as there,
    ):
        assert another != handle
        assert driver.mem_get_allocation_properties_from_handle(another) == Properties(gpu(0))
        for address, mine in ((here, handle), (there, another)):
            assert driver.mem_retain_allocation_handle(address) == mine
            driver.mem_release(mine)
        driver.memcpy_htod(here + 5, b"one")
        assert driver.memcpy_dtoh(there + 4, 4) == driver.memcpy_dtoh(here + 4, 4)
        driver.memset_d8(there, 7, granule)
        assert driver.memcpy_dtoh(here + granule - 2, 2) == b"\7\7"


def test_an_export_changes_neither_mappings_nor_bytes(driver: Driver, granule: int) -> None:
    """Fact 26."""
    with current(driver), created(driver, granule, SHARED) as handle, usable(driver, granule, handle) as address:
        driver.memset_d8(address, 1, granule)
        driver.memcpy_htod(address + granule - 6, b"before")
        with exported(driver, handle):
            assert driver.memcpy_dtoh(address + granule - 8, 8) == b"\1\1before"
            driver.memcpy_htod(address, b"after")
            with usable(driver, granule, handle) as again:
                assert driver.memcpy_dtoh(again, 6) == b"after\1"


def test_each_import_is_a_handle_with_its_own_release(driver: Driver, granule: int) -> None:
    """Fact 27: also of the same descriptor."""
    with created(driver, granule, SHARED) as handle, exported(driver, handle) as fd:
        with imported(driver, fd) as one, imported(driver, fd) as two:
            assert len({handle, one, two}) == 3
            driver.mem_release(driver.mem_import_from_shareable_handle(fd, FD))
        for gone in (one, two):
            with refused(INVALID_VALUE):
                driver.mem_release(gone)


def test_an_import_takes_no_memory(driver: Driver) -> None:
    """Fact 29."""
    size = 64 * MiB
    with current(driver), created(driver, size, SHARED) as handle, exported(driver, handle) as fd:
        free = driver.mem_get_info()
        with imported(driver, fd):
            assert driver.mem_get_info() == free
        assert driver.mem_get_info() == free


def test_an_import_is_not_exported(driver: Driver, granule: int) -> None:
    """Fact 26."""
    with (
        created(driver, granule, SHARED) as handle,
        exported(driver, handle) as fd,
        imported(driver, fd) as another,
        refused(INVALID_VALUE),
    ):
        driver.mem_export_to_shareable_handle(another, FD)


def test_an_imported_chunk_is_mapped_whole(driver: Driver, granule: int, other: Other) -> None:
    """Fact 28."""
    with (
        created(other, 2 * granule, SHARED) as theirs,
        exported(other, theirs) as fd,
        imported(driver, fd) as handle,
        reserved(driver, 4 * granule) as address,
    ):
        for size in (granule, 4 * granule):
            with refused(NOT_SUPPORTED):
                driver.mem_map(address, size, handle)
        with mapped(driver, address, 2 * granule, handle):
            assert driver.mem_get_access(address, gpu(0)) == 0


def test_export_import_and_mapping_require_no_context(driver: Driver, granule: int, other: Other) -> None:
    """Facts 8 and 44: nor do they activate one."""
    with (
        created(other, granule, SHARED) as theirs,
        exported(other, theirs) as fd,
        imported(driver, fd) as handle,
        usable(driver, granule, handle),
    ):
        for each in (driver, other):
            assert not any(each.device_primary_ctx_get_state(i) for i in range(each.device_get_count()))


def test_exporter_and_importer_read_the_bytes_of_each_other(driver: Driver, granule: int, other: Other) -> None:
    """Facts 25 and 26: at addresses and with an access of their own."""
    with (
        current(other),
        created(other, granule, SHARED) as theirs,
        usable(other, granule, theirs) as there,
        current(driver),
    ):
        other.memcpy_htod(there, b"from there")
        other.ctx_synchronize()
        with (
            exported(other, theirs) as fd,
            imported(driver, fd) as handle,
            reserved(driver, granule) as here,
            mapped(driver, here, granule, handle),
        ):
            assert driver.mem_get_access(here, gpu(0)) == Access.NONE
            driver.mem_set_access(here, granule, (Grant(gpu(0), Access.RW),))
            assert driver.memcpy_dtoh(here, 10) == b"from there"
            driver.memcpy_htod(here + granule - 4, b"here")
            driver.ctx_synchronize()
            assert other.memcpy_dtoh(there + granule - 4, 4) == b"here"


def test_another_process_imports_an_export_whose_descriptor_is_closed(
    driver: Driver, granule: int, other: Other
) -> None:
    """Facts 27 and 29: after it was sent."""
    with current(driver), created(driver, granule, SHARED) as handle, usable(driver, granule, handle) as here:
        driver.memset_d8(here, 9, granule)
        driver.ctx_synchronize()
        with exported(driver, handle) as fd:
            theirs = other.mem_import_from_shareable_handle(fd, FD)
        with current(other), usable(other, granule, theirs) as there:
            other.mem_release(theirs)
            assert other.memcpy_dtoh(there + granule - 3, 3) == b"\t\t\t"


def filled(other: Other, size: int) -> tuple[int, int]:
    """A chunk with bytes in another process, which is killed afterwards, and the address of its mapping."""
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    handle, address = other.mem_create(size, SHARED), other.mem_address_reserve(size)
    other.mem_map(address, size, handle)
    other.mem_set_access(address, size, (Grant(gpu(0), Access.RW),))
    other.memset_d8(address, 5, size)
    other.ctx_synchronize()
    return handle, address


def test_an_unread_descriptor_in_a_socket_keeps_memory(driver: Driver, other: Other, on_hardware: bool) -> None:
    """Fact 29: and its bytes, after its exporter was killed."""
    size = 256 * MiB
    with current(driver):
        handle, _ = filled(other, size)
        other.ask("mem_export_to_shareable_handle", handle, FD)
        other.await_answer()
        other.kill()
        before = driver.mem_get_info()[0]
        fd = other.answer()
        with closing(fd), imported(driver, fd) as mine:
            with usable(driver, size, mine) as address:
                assert driver.memcpy_dtoh(address + size - 2, 2) == b"\5\5"
            if on_hardware:  # a simulated process counts its own memory alone
                assert driver.mem_get_info()[0] == before
        if on_hardware:
            assert driver.mem_get_info()[0] == before + size


def test_a_mapping_outlives_its_exporter(driver: Driver, granule: int, other: Other) -> None:
    """Fact 29: with the descriptor closed and the handle released."""
    handle, _ = filled(other, granule)
    fd = other.mem_export_to_shareable_handle(handle, FD)
    with current(driver), reserved(driver, granule) as address:
        with imported(driver, fd) as mine:
            os.close(fd)
            driver.mem_map(address, granule, mine)
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.RW),))
        other.kill()
        assert driver.memcpy_dtoh(address, 2) == b"\5\5"
        driver.memset_d8(address, 6, granule)
        assert driver.memcpy_dtoh(address, 2) == b"\6\6"
        driver.mem_unmap(address, granule)


def test_memory_of_a_node_is_exported_and_imported(driver: Driver, granule: int, other: Other) -> None:
    """Fact 6."""
    with (
        created(other, granule, Properties(NODE, FD)) as theirs,
        exported(other, theirs) as fd,
        imported(driver, fd) as handle,
        current(other),
        current(driver),
        usable(other, granule, theirs) as there,
        usable(driver, granule, handle) as here,
    ):
        assert driver.mem_get_allocation_properties_from_handle(handle).location == NODE
        other.memcpy_htod(there, b"host")
        other.ctx_synchronize()
        assert driver.memcpy_dtoh(here, 4) == b"host"


@pytest.mark.usefixtures("two_gpus")
def test_a_chunk_of_an_invisible_gpu_has_location_minus_2(
    driver: Driver, granule: int, start: Callable[..., Other]
) -> None:
    """Fact 43: a visible GPU uses it."""
    other = start(1)
    assert other.device_get_count() == 1
    with (
        created(driver, granule, SHARED) as handle,
        usable(driver, granule, handle) as here,
        exported(driver, handle) as fd,
        imported(other, fd) as theirs,
        usable(other, granule, theirs) as there,
        current(other),
        current(driver),
    ):
        nowhere = Properties(Location(LocationKind.GPU, -2))
        assert other.mem_get_allocation_properties_from_handle(theirs) == nowhere
        driver.memcpy_htod(here, b"seen")
        driver.ctx_synchronize()
        assert other.memcpy_dtoh(there, 4) == b"seen"


@pytest.mark.usefixtures("two_gpus")
def test_the_location_of_an_import_is_the_ordinal_of_the_importer(
    driver: Driver, granule: int, start: Callable[..., Other]
) -> None:
    """Facts 38 and 43."""
    other = start(1, 0)
    assert other.device_get_uuid(1) == driver.device_get_uuid(0)
    for ours, theirs in ((0, 1), (1, 0)):
        with (
            created(driver, granule, Properties(gpu(ours), FD)) as handle,
            exported(driver, handle) as fd,
            imported(other, fd) as taken,
        ):
            assert other.mem_get_allocation_properties_from_handle(taken).location == gpu(theirs)


def test_only_exported_descriptors_remain_after_the_last_handle(driver: Driver, granule: int) -> None:
    """Fact 29."""
    seen = []
    for _ in range(3):  # a driver may keep something open from the first on
        with created(driver, granule, SHARED) as handle, exported(driver, handle) as fd, imported(driver, fd):
            pass
        seen.append(len(list(Path("/proc/self/fd").iterdir())))
    assert seen[0] == seen[1] == seen[2]
