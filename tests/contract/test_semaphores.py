"""Semaphores that another API made, on the streams of this one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.trials import ExternalApi
from memtopo.driver.types import SemaphoreHandleType
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
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, current, refused
from tests.contract.other_process import Other
from tests.contract.producer import produced
from tests.contract.shared_resources import closing

SIZE = 2 << 20


def test_a_timeline_shows_what_was_signalled(driver: Driver, maker: ExternalApi) -> None:
    """Facts 36 and 56: a signal shows in the other API's counter, and takes it back too"""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        for value in (5, 3, 1 << 40):
            driver.signal_external_semaphore(imported, value, at)
            assert ends(driver, at)
            assert made.counter == value


def test_a_wait_lasts_until_the_other_signals(driver: Driver, maker: ExternalApi) -> None:
    """Facts 36 and 56: a stream waits until the other API's counter is at the value, or beyond it"""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        for value, reached in ((4, 4), (6, 9), (9, None)):
            driver.wait_external_semaphore(imported, value, at)
            if reached is not None:
                assert not driver.stream_query(at)
                made.signal(reached)
            assert ends(driver, at)


def test_a_wait_ends_by_a_second_import(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: what one stream waits for may be signalled by another one, and through another import"""
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


def test_a_stream_keeps_its_order(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: a signal behind a wait comes when the wait is over, and not before"""
    made = maker.timeline()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        driver.wait_external_semaphore(imported, 1, at)
        driver.signal_external_semaphore(imported, 2, at)
        assert not driver.stream_query(at)
        assert made.counter == 0
        made.signal(1)
        assert ends(driver, at)
        assert made.counter == 2


def test_what_a_signal_sets_going(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: work behind a wait is done as soon as another stream ends that, though nobody asks for it"""
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


def test_a_binary_signal_is_consumed(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: a binary semaphore's signal ends one wait, whatever the values are; the next wait wants another"""
    made = maker.binary()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd(), BINARY) as imported:
        driver.signal_external_semaphore(imported, 7, at)
        driver.wait_external_semaphore(imported, 3, at)
        assert ends(driver, at)
        driver.wait_external_semaphore(imported, 0, at)
        assert not driver.stream_query(at)
        made.signal()
        assert ends(driver, at)


def test_a_binary_signal_reaches_the_other(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: the other API waits for a binary signal of this one"""
    made = maker.binary()
    with current(driver), stream(driver) as at, semaphore(driver, made.fd(), BINARY) as imported:
        driver.signal_external_semaphore(imported, 0, at)
        assert ends(driver, at)
        assert made.wait(1, PATIENCE)


@pytest.mark.parametrize("kind", [BINARY, TIMELINE])
@pytest.mark.parametrize("what", ["timeline", "binary", "memory"])
def test_types_are_not_guarded(driver: Driver, maker: ExternalApi, what: str, kind: SemaphoreHandleType) -> None:
    """Fact 55: either type imports as either, and memory as both; the descriptor is closed"""
    made = maker.allocate(SIZE) if what == "memory" else maker.timeline() if what == "timeline" else maker.binary()
    fd = made.fd()
    with current(driver), semaphore(driver, fd, kind):
        assert not is_open(fd)


def test_a_semaphore_imports_as_memory(driver: Driver, maker: ExternalApi) -> None:
    """Fact 55: a semaphore's descriptor imports as memory of any size"""
    with current(driver), external(driver, maker.timeline().fd(), SIZE):
        pass


@pytest.mark.parametrize("kind", [BINARY, TIMELINE])
def test_what_is_no_semaphore_stays_open(driver: Driver, kind: SemaphoreHandleType) -> None:
    """Fact 54: what is refused as a semaphore is still the caller's"""
    with current(driver):
        for fd in (*os.pipe(), os.open(os.devnull, os.O_RDWR), os.memfd_create("x")):
            with closing(fd), refused(UNKNOWN):
                driver.import_external_semaphore(fd, kind)
        with refused(UNKNOWN):  # the last one is closed by now
            driver.import_external_semaphore(fd, kind)
        with refused(INVALID_VALUE if kind == TIMELINE else UNKNOWN):
            driver.import_external_semaphore(-1, kind)


def test_other_kinds_are_refused(driver: Driver, maker: ExternalApi) -> None:
    """Fact 54: only opaque descriptors are taken on Linux, and the rest stay open"""
    with current(driver), closing(maker.timeline().fd()) as fd:
        for kind in (SemaphoreHandleType.OPAQUE_WIN32, SemaphoreHandleType.TIMELINE_WIN32):
            with refused(NOT_SUPPORTED):
                driver.import_external_semaphore(fd, kind)
        assert is_open(fd)


def test_only_the_import_wants_a_context(driver: Driver, maker: ExternalApi) -> None:
    """Fact 56: with a stream, signals and waits need no current context, and giving up needs none either"""
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
def test_another_gpu_signals(driver: Driver, make: Callable[[int], ExternalApi]) -> None:
    """Fact 55: a semaphore of one GPU is imported and signalled in another's context"""
    made = make(1).timeline()
    with current(driver, 0), stream(driver) as at, semaphore(driver, made.fd()) as imported:
        driver.signal_external_semaphore(imported, 2, at)
        assert ends(driver, at)
        assert made.counter == 2


def test_a_semaphore_outlives_its_maker(driver: Driver, on_hardware: bool, make: Callable[[int], ExternalApi]) -> None:
    """Fact 56: after its exporter was killed a timeline is imported, signalled and waited for as before"""
    make(0)  # skips where there is no other API
    with produced(driver.device_get_uuid(0), on_hardware=on_hardware) as (memory, timeline, process):
        process.kill()
        process.wait()
        with closing(memory), current(driver), stream(driver) as at, semaphore(driver, timeline) as imported:
            driver.signal_external_semaphore(imported, 2, at)
            driver.wait_external_semaphore(imported, 2, at)
            assert ends(driver, at)


def test_what_was_destroyed_is_not_signalled(driver: Driver, maker: ExternalApi, on_hardware: bool) -> None:
    """Fact 57: the simulator refuses a signal of a destroyed semaphore; hardware may do anything"""
    if on_hardware:
        pytest.skip("its memory may be another's by then")
    with current(driver), stream(driver) as at:
        imported = driver.import_external_semaphore(maker.timeline().fd(), TIMELINE)
        driver.destroy_external_semaphore(imported)
        with refused(INVALID_VALUE):
            driver.signal_external_semaphore(imported, 3, at)


def test_destroying_twice_ends_the_process(other: Other, maker: ExternalApi, on_hardware: bool) -> None:
    """Fact 57: a semaphore is destroyed once; the simulator refuses the second time, and hardware dies"""
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


@pytest.mark.parametrize("call", ["destroy_external_semaphore", "mem_free", "ctx_synchronize"])
def test_what_waits_for_an_outstanding_wait(other: Other, maker: ExternalApi, on_hardware: bool, call: str) -> None:
    """Fact 58: while a stream waits, giving up the semaphore, freeing memory and synchronising do not come back"""
    made = maker.timeline()
    context = other.device_primary_ctx_retain(0)
    other.ctx_push_current(context)
    with closing(made.fd()) as fd:
        imported = other.import_external_semaphore(fd, TIMELINE)
    at, address = other.stream_create(), other.mem_alloc(64)
    other.wait_external_semaphore(imported, 4, at)
    arguments = {"destroy_external_semaphore": [imported], "mem_free": [address]}.get(call, [])
    other.ask(call, *arguments)
    assert other.is_silent()
    if on_hardware:  # whether a signal ends that was not measured
        other.kill()
        return
    made.signal(4)
    other.answer()
    if call != "mem_free":
        other.mem_free(address)
    if call != "destroy_external_semaphore":
        other.destroy_external_semaphore(imported)
    other.stream_destroy(at)
    other.ctx_pop_current()
    other.device_primary_ctx_release(0)


def test_a_process_ends_with_a_wait_outstanding(other: Other, maker: ExternalApi) -> None:
    """Fact 58: a process that ends while a stream waits ends as any other"""
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    with closing(maker.timeline().fd()) as fd:
        imported = other.import_external_semaphore(fd, TIMELINE)
    other.wait_external_semaphore(imported, 4, other.stream_create())
    other.ask("close")
    assert other.answer()["semaphores"] == 1
    assert other.fate() == 0


def test_memory_and_a_timeline_go_together(driver: Driver, maker: ExternalApi) -> None:
    """Facts 35 and 36: what the other API wrote before it signalled is there when the wait is over, and back again"""
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
