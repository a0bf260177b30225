"""Sharing on the simulator: files, forged handles, working fabric handles, and resources after closing."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.driver.types import (
    Access,
    EventFlags,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolProperties,
    Properties,
    gpu,
)
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.shared_files import SEALS, Tag, dma_buf, exclusive
from memtopo.machine import Machine, Trial, dump
from tests.contract.external_resources import UNKNOWN
from tests.contract.memory import INVALID_VALUE, created, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import (
    FABRIC,
    FD,
    INVALID_HANDLE,
    SHARED,
    SHARED_EVENT,
    allocated,
    closing,
    event,
    exported,
    imported,
    opened,
    opened_event,
    usable,
)
from tests.helpers.machines import identified, invented
from tests.helpers.processes import open_descriptors
from tests.helpers.python_process import run_python
from tests.helpers.simulator import resident_bytes

M = 2 * MiB
WITH_FABRIC = invented(trials={"fabric": Trial(advertised=True, works=True)})
UUIDS = ["GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-00112233-4455-6677-8899-aabbccddee00"]


@contextmanager
def simulated(machine: Machine) -> Iterator[SimDriver]:
    with SimDriver(machine) as driver:
        driver.init()
        yield driver


@contextmanager
def elsewhere(machine: Machine) -> Iterator[Other]:
    """A simulator in another process, which must leave nothing open."""
    other = Other(dump(machine))
    try:
        yield other
        other.end()
    finally:
        other.give_up()


def forged(tag: Tag, size: int, *, sealed: bool) -> int:
    fd = os.memfd_create(tag.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def test_other_files_are_unknown(sim: SimDriver, tmp_path: Path) -> None:
    """A socket, a regular file, and what is no chunk though it bears a chunk's name, are unknown"""
    tag = Tag("chunk", M, M, "gpu 00", "0123456789abcdef")
    named = tmp_path / "memfd:memtopo chunk"
    named.touch()
    wrong = [
        socket.socket().detach(),
        os.open(named, os.O_RDWR),
        forged(tag, M, sealed=False),
        forged(tag, M // 2, sealed=True),
        forged(tag._replace(kind="allocation"), M, sealed=True),
        forged(tag._replace(nonce="no"), M, sealed=True),
    ]
    before = open_descriptors()
    for fd in wrong:
        with closing(fd), refused(UNKNOWN):
            sim.mem_import_from_shareable_handle(fd, FD)
    assert open_descriptors() == before - len(wrong)


def test_a_shared_file_keeps_its_size(sim: SimDriver) -> None:
    """An importer cannot truncate a chunk that other processes read"""
    with created(sim, M, SHARED) as handle, exported(sim, handle) as fd:
        for size in (0, 2 * M):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)


def test_sparse_memory_moves_at_no_cost(sim: SimDriver) -> None:
    """A chunk of 70 GiB that was touched at both ends is shared at once, and holds the bytes and no more"""
    size = 70 * GiB
    with current(sim), created(sim, size, SHARED) as handle, usable(sim, size, handle) as address:
        sim.memcpy_htod(address, b"first")
        sim.memcpy_htod(address + size - 4, b"last")
        with exported(sim, handle) as fd, imported(sim, fd) as another, usable(sim, size, another) as there:
            assert sim.memcpy_dtoh(there, 6) == b"first\0"
            assert sim.memcpy_dtoh(there + size - 5, 5) == b"\0last"
            assert resident_bytes(sim) <= M


def test_neighbours_do_not_move(sim: SimDriver) -> None:
    """Sharing one chunk leaves the bytes of those beside it where they are"""
    with ExitStack() as stack:
        stack.enter_context(current(sim))
        chunks = [stack.enter_context(created(sim, M, SHARED)) for _ in range(3)]
        addresses = [stack.enter_context(usable(sim, M, chunk)) for chunk in chunks]
        for value, address in enumerate(addresses, 1):
            sim.memset_d8(address, value, M)
        with exported(sim, chunks[1]):
            assert resident_bytes(sim) == 3 * M
            assert [sim.memcpy_dtoh(address + M - 1, 1) for address in addresses] == [b"\1", b"\2", b"\3"]
    assert resident_bytes(sim) == 0


def test_memory_outlives_its_simulator(sim: SimDriver) -> None:
    """An exported fd holds the bytes when the simulator that they came from is closed"""
    with (
        simulated(invented()) as first,
        current(first),
        created(first, M, SHARED) as handle,
        usable(first, M, handle) as address,
    ):
        first.memset_d8(address, 8, M)
        fd = first.mem_export_to_shareable_handle(handle, FD)
    assert isinstance(fd, int)
    with closing(fd), imported(sim, fd) as mine, current(sim), usable(sim, M, mine) as address:
        assert sim.memcpy_dtoh(address, 2) == b"\b\b"


def leave_open(sim: SimDriver) -> int:
    """Open one of everything that has a file; the fd that was exported."""
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    fd = sim.mem_export_to_shareable_handle(sim.mem_create(M, SHARED), FD)
    sim.mem_import_from_shareable_handle(fd, FD)
    sim.ipc_get_mem_handle(sim.mem_alloc(M))
    sim.event_create(SHARED_EVENT)
    assert isinstance(fd, int)
    return fd


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_closed_simulator_closes_its_files(*, forgotten: bool) -> None:
    """Closed or forgotten, a simulator has no file open; an fd that it exported is the caller's"""
    before = open_descriptors()
    sim = SimDriver(invented())
    sim.init()
    fd = leave_open(sim)
    assert open_descriptors() == before + 6
    if forgotten:
        del sim
    else:
        sim.close()
        sim.close()
        assert resident_bytes(sim) == 0
    assert open_descriptors() == before + 1
    os.close(fd)


RUN_OUT = """
import os, resource, sys
from memtopo.drivers.sim import SimDriver
from memtopo.driver.types import DriverError, HandleType, Properties, gpu
from tests.helpers.machines import invented
with SimDriver(invented(1)) as sim:
    sim.init()
    handle = sim.mem_create(2 << 20, Properties(gpu(0), HandleType.FD))
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, int(sys.argv[1]) or lowest))
    try:
        os.close(sim.mem_export_to_shareable_handle(handle, HandleType.FD))
        print("exported")
    except DriverError as error:
        print(error.name)
"""


@pytest.mark.parametrize(("hard", "said"), [(0, "CUDA_ERROR_OPERATING_SYSTEM"), (4096, "exported")])
def test_running_out_of_descriptors_is_an_error(hard: int, said: str) -> None:
    """Without free descriptors a call fails as others do; the simulator raises the soft limit where it can"""
    done = run_python([sys.executable, "-c", RUN_OUT, str(hard)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


def test_fabric_crosses_where_it_works() -> None:
    """A fabric handle is 64 bytes, which another process of the machine, or the same, imports; alone or beside fd"""
    both = Properties(gpu(0), FD | FABRIC)
    with elsewhere(WITH_FABRIC) as other, simulated(WITH_FABRIC) as sim, current(sim), created(sim, M, both) as handle:
        shared = sim.mem_export_to_shareable_handle(handle, FABRIC)
        assert isinstance(shared, bytes)
        assert len(shared) == 64
        with (
            usable(sim, M, handle) as here,
            imported(other, shared, FABRIC) as theirs,
            imported(sim, shared, FABRIC) as mine,
            current(other),
            usable(other, M, theirs) as there,
            exported(sim, handle) as fd,
            imported(other, fd),
        ):
            assert mine != handle
            other.memcpy_htod(there, b"fabric")
            assert sim.memcpy_dtoh(here, 6) == b"fabric"
            for again in (FD, FABRIC):
                with refused(INVALID_VALUE):
                    other.mem_export_to_shareable_handle(theirs, again)


def test_a_fabric_handle_ends_with_its_memory() -> None:
    """A fabric handle is an invalid value after the chunk or the process has ended; so are other bytes"""
    with elsewhere(WITH_FABRIC) as other, simulated(WITH_FABRIC) as sim:
        with created(other, M, Properties(gpu(0), FABRIC)) as handle:
            gone = other.mem_export_to_shareable_handle(handle, FABRIC)
        kept = other.mem_create(M, Properties(gpu(0), FABRIC))
        dead = other.mem_export_to_shareable_handle(kept, FABRIC)
        sim.mem_release(sim.mem_import_from_shareable_handle(dead, FABRIC))
        with refused(INVALID_VALUE):
            sim.mem_import_from_shareable_handle(gone, FABRIC)
        other.kill()
        for shared in (dead, bytes(64), b""):
            with refused(INVALID_VALUE):
                sim.mem_import_from_shareable_handle(shared, FABRIC)


def test_fabric_is_not_imported_where_it_does_not_work(sim: SimDriver) -> None:
    """Fact 4: a machine whose trial failed fails an import in the same way"""
    with refused("CUDA_ERROR_NOT_PERMITTED"):
        sim.mem_import_from_shareable_handle(bytes(64), FABRIC)
    with simulated(invented(0)) as none, refused("CUDA_ERROR_NOT_SUPPORTED"):
        none.mem_import_from_shareable_handle(bytes(64), FABRIC)


def test_a_gpu_is_known_by_its_uuid(sim: SimDriver) -> None:
    """Facts 38 and 43: made-up UUIDs agree among simulators of one machine, and recorded ones are found by name"""

    def seen(machine: Machine, fd: int) -> Location:
        with simulated(machine) as another, imported(another, fd) as taken:
            return another.mem_get_allocation_properties_from_handle(taken).location

    second = Properties(gpu(1), FD)
    with created(sim, M, second) as handle, exported(sim, handle) as fd:
        assert seen(invented(), fd) == gpu(1)
    with simulated(identified(UUIDS)) as both, created(both, M, second) as handle, exported(both, handle) as fd:
        for uuids, ordinal in ((UUIDS[1:], 0), (UUIDS[::-1], 0), (UUIDS[:1], -2)):
            assert seen(identified(uuids), fd) == gpu(ordinal)


def test_properties_are_shared_with_the_chunk() -> None:
    """Fact 7: what a chunk is travels with it, but for its handle types; also a granularity of another machine"""
    asked = Properties(gpu(0), FD, compressible=True)
    with simulated(invented(granule=64 << 10)) as first, created(first, 64 << 10, asked) as handle:
        with exported(first, handle) as fd, simulated(invented()) as second, imported(second, fd) as taken:
            seen = second.mem_get_allocation_properties_from_handle(taken)
            assert seen == asked._replace(handles=HandleType.NONE)
        with (
            created(first, 64 << 10, Properties(gpu(0), FD, rdma=True)) as theirs,
            exported(first, theirs) as fd,
            imported(first, fd) as taken,
        ):
            assert first.mem_get_allocation_properties_from_handle(theirs).rdma
            assert not first.mem_get_allocation_properties_from_handle(taken).rdma
        with exported(first, handle) as fd, imported(first, fd) as taken, usable(first, 64 << 10, taken) as address:
            assert first.mem_get_access(address, gpu(0))


def test_imported_memory_needs_peer_access() -> None:
    """Imported and opened memory can be used only by GPUs with peer access to its GPU"""
    machine = invented(peers=False)
    with elsewhere(machine) as other, simulated(machine) as sim, current(other), current(sim, 1):
        with (
            created(other, M, SHARED) as theirs,
            exported(other, theirs) as fd,
            imported(sim, fd) as handle,
            refused("CUDA_ERROR_NOT_SUPPORTED"),
            usable(sim, M, handle, device=1),
        ):
            pass
        with allocated(other, M) as there, refused("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"):
            sim.ipc_open_mem_handle(other.ipc_get_mem_handle(there))


def test_memory_of_a_gpu_that_is_not_here_is_not_opened() -> None:
    """Never tried on hardware, so refused: allocated memory of a GPU that the process does not have"""
    with (
        elsewhere(identified(UUIDS[:1])) as other,
        simulated(identified(UUIDS[1:])) as sim,
        current(other),
        current(sim),
        allocated(other, M) as there,
    ):
        before = open_descriptors()
        with refused(INVALID_VALUE):
            sim.ipc_open_mem_handle(other.ipc_get_mem_handle(there))
        assert open_descriptors() == before


def test_opened_memory_has_no_handle_and_goes_with_its_context(sim: SimDriver) -> None:
    """Opened memory is no allocation of this process, and ends with the context that it was opened in"""
    with elsewhere(invented()) as other, current(other), allocated(other, M) as there:
        handle = other.ipc_get_mem_handle(there)
        with current(sim), opened(sim, handle) as here:
            with refused(INVALID_VALUE):
                sim.ipc_get_mem_handle(here)
            with refused(INVALID_VALUE):
                sim.mem_free(here)
        before = open_descriptors()
        with current(sim):
            here = sim.ipc_open_mem_handle(handle)
        assert open_descriptors() == before
        with current(sim), refused(INVALID_VALUE):
            sim.ipc_close_mem_handle(here)


def test_records_are_seen_by_whoever_shares_an_event(sim: SimDriver) -> None:
    """Fact 47: each record counts once, from whichever process, also when two record at the same time"""
    with elsewhere(invented()) as other, current(other), current(sim), event(sim) as here, event(sim) as unused:
        with opened_event(other, sim.ipc_get_event_handle(here)) as there:
            assert sim.events.records(here) == 0
            for _ in range(100):
                other.ask("event_record", there)
            for _ in range(5000):
                sim.event_record(here)
            for _ in range(100):
                other.answer()
            assert sim.events.records(here) == 5100
        assert sim.events.records(unused) == 0


def test_records_of_an_event_that_is_not_shared(sim: SimDriver) -> None:
    """An event counts its records, shared or not"""
    with current(sim), event(sim, EventFlags.DISABLE_TIMING) as plain, event(sim) as other:
        sim.event_record(plain)
        sim.event_record(plain)
        assert (sim.events.records(plain), sim.events.records(other)) == (2, 0)


def test_a_process_that_nobody_waited_for_is_gone(sim: SimDriver) -> None:
    """Fact 46: a handle's process has ended with its death, not when its parent takes notice"""
    with elsewhere(invented()) as other, current(sim):
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        handle = other.ipc_get_mem_handle(other.mem_alloc(M))
        os.kill(other.pid, signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        with refused(INVALID_HANDLE):
            sim.ipc_open_mem_handle(handle)


def test_open_memory_is_not_opened_again_after_the_death_of_its_exporter(sim: SimDriver) -> None:
    """Fact 46 for memory that is open, which was never tried on hardware, so refused"""
    with elsewhere(invented()) as other, current(sim):
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        handle = other.ipc_get_mem_handle(other.mem_alloc(M))
        with opened(sim, handle):
            other.kill()
            with refused(INVALID_HANDLE):
                sim.ipc_open_mem_handle(handle)


def test_a_handle_is_not_of_the_next_process_with_the_same_number(sim: SimDriver) -> None:
    with elsewhere(invented()) as other, current(sim), current(other), allocated(other, M) as address:
        handle = other.ipc_get_mem_handle(address)
        sim.ipc_close_mem_handle(sim.ipc_open_mem_handle(handle))
        with refused(INVALID_HANDLE):
            sim.ipc_open_mem_handle(handle[:16] + bytes(8) + handle[24:])  # of a process that began with the machine


def test_a_handle_is_of_one_simulator_and_not_of_the_next_file_with_its_number(sim: SimDriver) -> None:
    with simulated(invented()) as other, current(other):
        with allocated(other, M) as address:
            first = other.ipc_get_mem_handle(address)
            with current(sim), opened(sim, first), current(other), refused("CUDA_ERROR_INVALID_CONTEXT"):
                other.ipc_open_mem_handle(first)
        with allocated(other, M) as address:
            second = other.ipc_get_mem_handle(address)
            assert (second[:32], second[32:40] == first[32:40]) == (first[:32], False)
            before = open_descriptors()
            with current(sim), refused(INVALID_VALUE):
                sim.ipc_open_mem_handle(first)
            assert open_descriptors() == before


def test_a_file_is_locked_for_one_at_a_time() -> None:
    with (
        closing(os.memfd_create("locked")) as fd,
        exclusive(fd),
        closing(dma_buf(fd)) as another,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(another, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_pool_that_is_imported_twice_has_one_file(sim: SimDriver) -> None:
    pool = sim.mem_pool_create(PoolProperties(gpu(0), FD))
    with closing(int(sim.mem_pool_export_to_shareable_handle(pool, FD))) as fd:
        first, before = sim.mem_pool_import_from_shareable_handle(fd, FD), open_descriptors()
        assert (sim.mem_pool_import_from_shareable_handle(fd, FD), open_descriptors()) == (first, before)
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_import_from_shareable_handle(fd, FD)
        assert open_descriptors() == before


def test_events_that_are_not_there(sim: SimDriver) -> None:
    """An event is of use while it is open and its context lives, on the streams of that context"""
    with current(sim), event(sim) as made:
        for call in (sim.event_query, sim.event_destroy, sim.event_synchronize, sim.ipc_get_event_handle):
            with refused(INVALID_HANDLE):
                call(made + 1)
        with refused(INVALID_HANDLE):
            sim.event_record(made, stream=5)
        with refused(INVALID_HANDLE):
            sim.stream_wait_event(5, made)
        with refused("CUDA_ERROR_ILLEGAL_STATE"):
            sim.stream_wait_event(0, made, 1)
        with current(sim, 1), refused(INVALID_HANDLE):
            sim.event_record(made)
    with current(sim):
        left = sim.event_create(SHARED_EVENT)
    with refused(INVALID_HANDLE):
        sim.event_query(left)


def test_an_events_handle_ends_with_it(sim: SimDriver) -> None:
    """Never tried on hardware, so refused: an event that was destroyed, or whose process is gone, is not opened"""
    with elsewhere(invented()) as other, current(sim):
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        destroyed, left = (other.event_create(SHARED_EVENT) for _ in range(2))
        handles = [other.ipc_get_event_handle(each) for each in (destroyed, left)]
        other.event_destroy(destroyed)
        with opened_event(sim, handles[1]), refused("CUDA_ERROR_MAP_FAILED"):
            sim.ipc_open_event_handle(handles[0])
        other.kill()
        with refused("CUDA_ERROR_MAP_FAILED"):
            sim.ipc_open_event_handle(handles[1])


def test_a_wait_for_an_interprocess_event_on_the_stream_of_another_gpu_is_refused(sim: SimDriver) -> None:
    """Fact 75: on hardware the process dies; a wait for another event is allowed"""
    with current(sim, 0):
        shared, plain = sim.event_create(SHARED_EVENT), sim.event_create(EventFlags.DISABLE_TIMING)
        sim.stream_wait_event(0, shared)
        with current(sim, 1):
            stream = sim.stream_create()
            sim.stream_wait_event(stream, plain)
            for each in (0, stream):
                with refused(INVALID_HANDLE):
                    sim.stream_wait_event(each, shared)
            sim.stream_destroy(stream)
        sim.event_destroy(plain)
        sim.event_destroy(shared)


def test_an_allocation_of_an_imported_pool_is_imported_again_after_it_was_freed(sim: SimDriver) -> None:
    descriptors, addresses = open_descriptors(), set()
    with current(sim):
        pool = sim.mem_pool_create(PoolProperties(gpu(0), FD))
        with refused(INVALID_VALUE):
            sim.mem_pool_export_to_shareable_handle(pool, FD, 1)
        with closing(int(sim.mem_pool_export_to_shareable_handle(pool, FD))) as fd:
            another = sim.mem_pool_import_from_shareable_handle(fd, FD)
        allocation = sim.mem_alloc_from_pool_async(M, pool)
        sim.memcpy_htod(allocation, b"pool")
        pointer = sim.mem_pool_export_pointer(allocation)
        for _ in range(2):
            addresses.add(address := sim.mem_pool_import_pointer(another, pointer))
            assert sim.memcpy_dtoh(address, 4) == b"pool"
            sim.mem_free(address)
            with refused(INVALID_VALUE):
                sim.memcpy_dtoh(address, 4)
        sim.mem_pool_destroy(another)
        sim.mem_pool_destroy(pool)
        with refused(INVALID_VALUE):
            sim.mem_pool_export_pointer(allocation)
        with refused(INVALID_VALUE):
            sim.mem_free(allocation)
        sim.mem_free_async(allocation)
    assert (len(addresses), open_descriptors()) == (1, descriptors)


def test_an_allocation_of_a_pool_of_the_host_is_imported_once_at_a_time(sim: SimDriver) -> None:
    """Fact 82."""
    with current(sim):
        pool = sim.mem_pool_create(PoolProperties(Location(LocationKind.HOST_NUMA, 0), FD))
        with closing(int(sim.mem_pool_export_to_shareable_handle(pool, FD))) as fd:
            another = sim.mem_pool_import_from_shareable_handle(fd, FD)
        pointer = sim.mem_pool_export_pointer(sim.mem_alloc_from_pool_async(M, pool))
        for _ in range(2):
            address = sim.mem_pool_import_pointer(another, pointer)
            with refused("CUDA_ERROR_ALREADY_MAPPED"):
                sim.mem_pool_import_pointer(another, pointer)
            sim.mem_free(address)


def test_a_chunk_with_a_dma_buf_over_several_is_shared_without_its_neighbours(sim: SimDriver) -> None:
    with current(sim), created(sim, M, SHARED) as first, created(sim, M, SHARED) as second:
        base = sim.mem_address_reserve(2 * M)
        for at, handle in ((base, first), (base + M, second)):
            sim.mem_map(at, M, handle)
        sim.mem_set_access(base, 2 * M, (Grant(gpu(0), Access.RW),))
        sim.memcpy_htod(base + M - 6, b"secretshared")
        os.close(sim.mem_get_handle_for_address_range(base, 2 * M))
        with exported(sim, second) as fd, imported(sim, fd) as another, usable(sim, M, another) as there:
            assert os.fstat(fd).st_size == M
            assert sim.memcpy_dtoh(there, 6) == b"shared"
            assert sim.memcpy_dtoh(base + M - 6, 12) == b"secretshared"
        sim.mem_unmap(base, 2 * M)
        sim.mem_address_free(base, 2 * M)


def test_a_dma_buf_over_several_chunks_is_another_one_in_another_order(sim: SimDriver) -> None:
    def file_of(*chunks: int) -> int:
        base = sim.mem_address_reserve(3 * M)
        for number, handle in enumerate(chunks):
            sim.mem_map(base + number * M, M, handle)
        with closing(sim.mem_get_handle_for_address_range(base, 3 * M)) as fd:
            found = os.fstat(fd)
        sim.mem_unmap(base, 3 * M)
        sim.mem_address_free(base, 3 * M)
        assert found.st_size == 3 * M
        return found.st_ino

    with current(sim), created(sim, M) as a, created(sim, M) as b, created(sim, M) as c:
        assert file_of(a, b, c) == file_of(a, b, c) != file_of(a, c, b)
