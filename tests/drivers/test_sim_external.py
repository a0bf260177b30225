"""External memory and semaphores on the simulator: its stricter rules, and its open descriptors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from memtopo.common.units import GiB, KiB, MiB
from memtopo.driver.types import DriverError, MemAttach, Properties
from memtopo.drivers.sim import SimDriver, external_api
from tests.contract.external_resources import (
    BINARY,
    OPAQUE,
    TIMELINE,
    UNKNOWN,
    buffer,
    external,
    semaphore,
    stream,
    whole,
)
from tests.contract.memory import INVALID_VALUE, NODE, created, current, refused
from tests.contract.shared_resources import FD, INVALID_HANDLE, closing, exported
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.simulator import LAXER, STRICTER

M = 2 * MiB


def memory(sim: SimDriver, size: int = M, device: int = 0) -> int:
    return external_api.allocate(sim.device_get_uuid(device), size)


def timeline() -> int:
    return external_api.make_semaphore(timeline=True)


def why(call: Callable[..., object], *arguments: int) -> str:
    with pytest.raises(DriverError) as caught:
        call(*arguments)
    return str(caught.value.reason)


def test_small_memory_is_mapped_a_little_further(sim: SimDriver) -> None:
    """Fact 53: memory of 100,000 bytes can be mapped with 104,096 and not with 200,000"""
    with current(sim), external(sim, memory(sim, 100_000), 200_000) as imported:
        with buffer(sim, imported, 0, 104_096):
            pass
        with refused(INVALID_VALUE):
            sim.external_memory_get_mapped_buffer(imported, 0, 200_000)


def test_a_reason_tells_whose_size_is_passed(sim: SimDriver) -> None:
    """Cases with the same error on hardware: past the declared size, past the real size, or no memory"""
    with current(sim), external(sim, memory(sim), M) as right, external(sim, memory(sim), 2 * M) as large:
        assert "declared" in why(sim.external_memory_get_mapped_buffer, right, M, 1)
        assert "end of the memory" in why(sim.external_memory_get_mapped_buffer, large, M, 1)
    with current(sim), external(sim, timeline(), M) as wrong:
        assert "semaphore" in why(sim.external_memory_get_mapped_buffer, wrong, 0, 8)


def test_a_reason_tells_why_memory_is_unknown(sim: SimDriver) -> None:
    """Cases with the same error on hardware: another GPU's memory, or no memory"""
    with current(sim):
        assert "not of gpu0" in why(sim.import_external_memory, memory(sim, device=1), OPAQUE, M)
        assert "not a memory object" in why(sim.import_external_memory, os.memfd_create("x"), OPAQUE, M)


def test_another_gpu_copies_from_a_buffer_only(sim: SimDriver) -> None:
    """Fact 55; copies to one were never tried"""
    with current(sim), whole(sim, memory(sim), M) as address, current(sim, 1):
        assert sim.memcpy_dtoh(address, 1) == bytes(1)
        with refused(INVALID_VALUE):
            sim.memcpy_htod(address, b"1")


def test_external_objects_leave_no_descriptor_open(sim: SimDriver) -> None:
    """Imported memory and semaphores, their buffers, and what was refused leave no descriptor open"""
    with current(sim):
        before = open_descriptors()
        with external(sim, memory(sim), M) as imported, buffer(sim, imported, 0, M), buffer(sim, imported, 0, 1):
            pass
        with semaphore(sim, timeline()):
            pass
        with refused(UNKNOWN):
            sim.import_external_memory(memory(sim, device=1), OPAQUE, M)
        with closing(memory(sim, M + 1)) as fd, refused(UNKNOWN):
            sim.mem_import_from_shareable_handle(fd, FD)
        assert open_descriptors() == before


def test_external_objects_end_with_their_context(sim: SimDriver) -> None:
    """With the last retain of its context all of it is gone: streams, semaphores, objects, buffers, managed memory"""
    before = open_descriptors()
    with current(sim):
        imported, waited, at = (
            sim.import_external_memory(memory(sim), OPAQUE, M),
            sim.import_external_semaphore(timeline(), TIMELINE),
            sim.stream_create(),
        )
        address = sim.external_memory_get_mapped_buffer(imported, 0, M)
        managed = sim.mem_alloc_managed(M, MemAttach.GLOBAL)
    assert open_descriptors() == before
    with current(sim):
        for end, gone in (
            (sim.destroy_external_memory, imported),
            (sim.destroy_external_semaphore, waited),
            (sim.mem_free, address),
            (sim.mem_free, managed),
        ):
            with refused(INVALID_VALUE):
                end(gone)
        with refused(INVALID_HANDLE):
            sim.stream_destroy(at)


def test_closing_gives_up_what_is_left(sim: SimDriver) -> None:
    """A simulator that closes leaves no descriptor of another API open, whatever a stream still waits for"""
    before = open_descriptors()
    with SimDriver(invented()) as ending:
        ending.init()
        ending.ctx_push_current(ending.device_primary_ctx_retain(0))
        ending.import_external_memory(memory(ending), OPAQUE, M)
        waited = ending.import_external_semaphore(timeline(), TIMELINE)
        ending.wait_external_semaphore(waited, 1, ending.stream_create())
    assert open_descriptors() == before


def test_what_was_never_tried_on_hardware_is_refused(sim: SimDriver) -> None:
    """Stricter than hardware, or never tried: each is refused, and in the list"""
    with (
        current(sim),
        stream(sim) as at,
        semaphore(sim, timeline()) as right,
        semaphore(sim, timeline(), BINARY) as wrong,
        semaphore(sim, memory(sim)) as none,
    ):
        for call in (sim.signal_external_semaphore, sim.wait_external_semaphore):
            for mistyped in (wrong, none):
                assert "a different kind" in why(call, mistyped, 1, at)
            with refused(INVALID_VALUE):
                call(right, 1 << 64, at)
        with current(sim, 1), stream(sim) as elsewhere, refused(INVALID_HANDLE):
            sim.signal_external_semaphore(right, 1, elsewhere)
        with refused(INVALID_VALUE):
            sim.stream_create(0)
        with refused(INVALID_HANDLE):
            sim.stream_query(at + 1)
    assert {"signal_external_semaphore", "wait_external_semaphore", "stream_create", "stream_destroy"} <= set(STRICTER)


def test_stream_0_waits_too(sim: SimDriver) -> None:
    """A query reports that stream 0 waits, and a signal in another stream ends the wait"""
    with current(sim), stream(sim) as at, semaphore(sim, timeline()) as imported:
        sim.wait_external_semaphore(imported, 2, 0)
        assert not sim.stream_query(0)
        sim.signal_external_semaphore(imported, 2, at)
        assert sim.stream_query(0)


def test_host_chunks_are_no_external_memory(sim: SimDriver) -> None:
    """Never tried on hardware, so refused: a chunk of the host's as external memory, and odd memory as a chunk"""
    with current(sim), created(sim, M, Properties(NODE, FD)) as handle, exported(sim, handle) as fd, refused(UNKNOWN):
        sim.import_external_memory(os.dup(fd), OPAQUE, M)
    with closing(memory(sim, 64 * KiB)) as fd, refused(UNKNOWN):
        sim.mem_import_from_shareable_handle(fd, FD)


def test_external_memory_takes_no_device_memory(sim: SimDriver) -> None:
    """Laxer than hardware: neither what another API made nor managed memory is missing here"""
    with current(sim):
        free = sim.mem_get_info()
        with whole(sim, memory(sim, GiB), GiB) as address:
            sim.memset_d8(address, 1, 16)
            managed = sim.mem_alloc_managed(GiB, MemAttach.GLOBAL)
            sim.memset_d8(managed, 1, 16)
            assert sim.mem_get_info() == free
            sim.mem_free(managed)
    assert "mem_get_info" in LAXER


def test_a_waiting_call_lets_others_work(sim: SimDriver) -> None:
    """Fact 58: a call that waits comes back as soon as another thread's signal ends the wait"""
    with current(sim) as context, stream(sim) as at, stream(sim) as signalling:
        waited = sim.import_external_semaphore(timeline(), TIMELINE)
        sim.wait_external_semaphore(waited, 1, at)
        started = threading.Event()

        def destroy() -> None:
            sim.ctx_push_current(context)
            started.set()
            sim.destroy_external_semaphore(waited)
            sim.ctx_pop_current()

        thread = threading.Thread(target=destroy)
        thread.start()
        assert started.wait(10)
        sim.signal_external_semaphore(waited, 1, signalling)
        thread.join(10)
        assert not thread.is_alive()
