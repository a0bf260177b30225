"""External semaphores on streams."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from memtopo.driver.kernels import ExternalApi
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HostFlags, SemaphoreHandleType
from tests.contract.external_resources import (
    BINARY,
    PATIENCE,
    TIMELINE,
    UNKNOWN,
    ends,
    external,
    is_open,
    reaches,
    semaphore,
    stream,
    streams,
)
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, created, current, refused
from tests.contract.other_process import Other
from tests.contract.producer import produced
from tests.contract.shared_resources import closing, usable

SIZE = 2 << 20


def test_a_signalled_value_is_the_counter_of_the_other_api(driver: Driver, maker: ExternalApi) -> None:
    """Facts 36 and 56: a signal of a smaller value lowers it."""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        for value in (5, 3, 1 << 40):
            driver.signal_external_semaphore(imported, value, at)
            assert ends(driver, at)
            assert made.counter == value


def test_a_wait_ends_with_a_signal_of_the_value_or_more_by_the_other_api(driver: Driver, maker: ExternalApi) -> None:
    """Facts 36 and 56."""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        for value, reached in ((4, 4), (6, 9), (9, None)):
            driver.wait_external_semaphore(imported, value, at)
            if reached is not None:
                assert not driver.stream_query(at)
                made.signal(reached)
            assert ends(driver, at)


def test_a_wait_ends_with_a_signal_of_another_stream_and_import(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56."""
    made = maker.timeline()
    with (
        current(driver),
        semaphore(driver, made.fd()) as one,
        semaphore(driver, made.fd()) as two,
        streams(driver, 2) as (waiting, signalling),
    ):
        driver.wait_external_semaphore(one, 12, waiting)
        assert not driver.stream_query(waiting)
        driver.signal_external_semaphore(two, 12, signalling)
        assert ends(driver, waiting)


def test_a_signal_after_a_wait_follows_its_end(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56."""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        driver.wait_external_semaphore(imported, 1, at)
        driver.signal_external_semaphore(imported, 2, at)
        assert not driver.stream_query(at)
        assert made.counter == 0
        made.signal(1)
        assert ends(driver, at)
        assert made.counter == 2


def test_work_after_a_wait_runs_without_a_query(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: once another stream ends the wait."""
    first, second = maker.timeline(), maker.timeline()
    with (
        current(driver),
        semaphore(driver, first.fd()) as one,
        semaphore(driver, second.fd()) as two,
        streams(driver, 2) as (waiting, signalling),
    ):
        driver.wait_external_semaphore(one, 1, waiting)
        driver.signal_external_semaphore(two, 7, waiting)
        driver.signal_external_semaphore(one, 1, signalling)
        assert reaches(second, 7)


def test_a_binary_signal_ends_one_wait(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: whatever the values are."""
    made = maker.binary()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd(), BINARY) as imported:
        driver.signal_external_semaphore(imported, 7, at)
        driver.wait_external_semaphore(imported, 3, at)
        assert ends(driver, at)
        driver.wait_external_semaphore(imported, 0, at)
        assert not driver.stream_query(at)
        made.signal()
        assert ends(driver, at)


def test_the_other_api_waits_for_a_binary_signal(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56."""
    made = maker.binary()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd(), BINARY) as imported:
        driver.signal_external_semaphore(imported, 0, at)
        assert ends(driver, at)
        assert made.wait(1, PATIENCE)


@pytest.mark.parametrize("kind", [BINARY, TIMELINE])
@pytest.mark.parametrize("what", ["timeline", "binary", "memory"])
def test_the_type_of_a_semaphore_is_not_checked(
    driver: Driver, maker: ExternalApi, what: str, kind: SemaphoreHandleType
) -> None:
    """Fact 55: either type imports as either, and memory as both; the descriptor is closed."""
    made = maker.allocate(SIZE) if what == "memory" else maker.timeline() if what == "timeline" else maker.binary()
    fd = made.fd()
    with current(driver), semaphore(driver, fd, kind):
        assert not is_open(fd)


def test_a_semaphore_imports_as_memory_of_any_size(driver: Driver, maker: ExternalApi) -> None:
    """Fact 55."""
    with current(driver), external(driver, maker.timeline().fd(), SIZE):
        pass


@pytest.mark.parametrize("kind", [BINARY, TIMELINE])
def test_a_descriptor_refused_as_a_semaphore_stays_open(driver: Driver, kind: SemaphoreHandleType) -> None:
    """Fact 54."""
    with current(driver):
        for fd in (*os.pipe(), os.open(os.devnull, os.O_RDWR), os.memfd_create("x")):
            with closing(fd), refused(UNKNOWN):
                driver.import_external_semaphore(fd, kind)
        with refused(UNKNOWN):  # the last one is closed by now
            driver.import_external_semaphore(fd, kind)
        with refused(INVALID_VALUE if kind == TIMELINE else UNKNOWN):
            driver.import_external_semaphore(-1, kind)


def test_semaphores_import_from_opaque_descriptors_only(driver: Driver, maker: ExternalApi) -> None:
    """Fact 54: on Linux; others stay open."""
    with current(driver), closing(maker.timeline().fd()) as fd:
        for kind in (SemaphoreHandleType.OPAQUE_WIN32, SemaphoreHandleType.TIMELINE_WIN32):
            with refused(NOT_SUPPORTED):
                driver.import_external_semaphore(fd, kind)
        assert is_open(fd)


def test_only_the_import_of_a_semaphore_requires_a_context(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: not signals and waits with a stream, nor destroying it."""
    made = maker.timeline()
    with closing(made.fd()) as fd, refused(INVALID_CONTEXT):
        driver.import_external_semaphore(fd, TIMELINE)
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    imported, at = driver.import_external_semaphore(made.fd(), TIMELINE), driver.stream_create()
    driver.ctx_pop_current()
    driver.signal_external_semaphore(imported, 13, at)
    driver.wait_external_semaphore(imported, 13, at)
    assert ends(driver, at)
    driver.destroy_external_semaphore(imported)
    driver.stream_destroy(at)
    driver.device_primary_ctx_release(0)


@pytest.mark.usefixtures("two_gpus")
def test_a_semaphore_is_signalled_in_the_context_of_another_gpu(
    driver: Driver, make: Callable[[int], ExternalApi]
) -> None:
    """Fact 55."""
    made = make(1).timeline()
    with current(driver, 0), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        driver.signal_external_semaphore(imported, 2, at)
        assert ends(driver, at)
        assert made.counter == 2


def test_a_timeline_outlives_its_exporter(
    driver: Driver, on_hardware: bool, make: Callable[[int], ExternalApi]
) -> None:
    """Fact 56: it is imported, signalled and waited for after the exporter was killed."""
    make(0)  # skips where there is no other API
    with produced(driver.device_get_uuid(0), on_hardware=on_hardware) as (memory, timeline, process):
        process.kill()
        process.wait()
        with closing(memory), current(driver), stream(driver) as at, semaphore(driver, timeline) as imported:
            driver.signal_external_semaphore(imported, 2, at)
            driver.wait_external_semaphore(imported, 2, at)
            assert ends(driver, at)


def test_the_simulator_refuses_a_signal_of_a_destroyed_semaphore(
    driver: Driver, maker: ExternalApi, on_hardware: bool
) -> None:
    """Fact 57: the behaviour of hardware is undefined."""
    if on_hardware:
        pytest.skip("its memory may be another's by then")
    with current(driver), stream(driver) as at:
        imported = driver.import_external_semaphore(maker.timeline().fd(), TIMELINE)
        driver.destroy_external_semaphore(imported)
        with refused(INVALID_VALUE):
            driver.signal_external_semaphore(imported, 3, at)


def test_destroying_a_semaphore_twice_ends_the_process(other: Other, maker: ExternalApi, on_hardware: bool) -> None:
    """Fact 57: on hardware; the simulator refuses it."""
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    with closing(maker.timeline().fd()) as fd:
        imported = other.import_external_semaphore(fd, TIMELINE)
    other.destroy_external_semaphore(imported)
    if on_hardware:
        other.ask("destroy_external_semaphore", imported)
        assert other.fate() in {-signal.SIGABRT, -signal.SIGSEGV}
        return
    with refused(INVALID_VALUE):
        other.destroy_external_semaphore(imported)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)


@pytest.mark.parametrize("call", ["destroy_external_semaphore", "mem_free", "mem_free_host", "ctx_synchronize"])
def test_an_outstanding_wait_blocks_destroy_free_and_synchronize(
    other: Other, maker: ExternalApi, granule: int, on_hardware: bool, call: str
) -> None:
    """Facts 58 and 92: but no call of virtual memory management."""
    made = maker.timeline()
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    with closing(made.fd()) as fd:
        imported = other.import_external_semaphore(fd, TIMELINE)
    at, address, pinned = other.stream_create(), other.mem_alloc(64), other.mem_host_alloc(64, HostFlags.PORTABLE)
    other.wait_external_semaphore(imported, 4, at)
    with created(other, granule) as handle, usable(other, granule, handle):
        assert not other.stream_query(at)
    arguments = {"destroy_external_semaphore": imported, "mem_free": address, "mem_free_host": pinned}
    other.ask(call, *(arguments[call],) if call in arguments else ())
    assert other.is_silent()
    if on_hardware:  # whether a signal ends that was not measured
        other.kill()
        return
    made.signal(4)
    other.answer()
    for each in arguments.keys() - {call}:
        getattr(other, each)(arguments[each])
    other.stream_destroy(at)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)


def test_a_process_ends_despite_an_outstanding_wait(other: Other, maker: ExternalApi) -> None:
    """Fact 58."""
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    with closing(maker.timeline().fd()) as fd:
        imported = other.import_external_semaphore(fd, TIMELINE)
    other.wait_external_semaphore(imported, 4, other.stream_create())
    other.ask("close")
    assert other.answer()["semaphores"] == 1
    assert other.fate() == 0


def test_a_timeline_orders_stores_of_both_apis(driver: Driver, maker: ExternalApi) -> None:
    """Facts 35 and 36: stores before a signal are visible after its wait, in both directions."""
    memory, made = maker.allocate(SIZE), maker.timeline()
    with (
        current(driver),
        stream(driver) as at,
        semaphore(driver, made.fd()) as imported,
        external(driver, memory.fd(), SIZE) as theirs,
    ):
        address = driver.external_memory_get_mapped_buffer(theirs, 0, SIZE)
        driver.wait_external_semaphore(imported, 1, at)
        memory.write(0, b"frame")
        made.signal(1)
        assert ends(driver, at)
        assert driver.memcpy_dtoh(address, 5) == b"frame"
        driver.memset_d8(address, 9, 4)
        driver.ctx_synchronize()
        driver.signal_external_semaphore(imported, 2, at)
        assert ends(driver, at)
        assert made.counter == 2
        assert memory.read(0, 5) == b"\t\t\t\te"
        driver.mem_free(address)
