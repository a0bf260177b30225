"""Streams, and what they still wait for when they go."""

from __future__ import annotations

from memtopo.driver.protocol import Driver
from memtopo.driver.trials import ExternalApi
from tests.contract.external_resources import TIMELINE, ends, semaphore, stream, streams
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import allocated, closing


def test_a_stream_wants_a_context(driver: Driver) -> None:
    """Fact 56: a stream is created in a context; it is asked and given up with or without one"""
    with refused(INVALID_CONTEXT):
        driver.stream_create()
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    made = driver.stream_create()
    driver.ctx_pop_current()
    assert driver.stream_query(made)
    driver.stream_destroy(made)
    driver.device_primary_ctx_release(0)


def test_flags_without_a_meaning(driver: Driver) -> None:
    """Fact 56: a stream is created with flags that there are"""
    with current(driver), refused(INVALID_VALUE):
        driver.stream_create(16)


def test_nothing_to_do_is_done(driver: Driver) -> None:
    """Fact 56: a stream that was never used is done, and so is stream 0"""
    with current(driver), stream(driver) as made:
        assert driver.stream_query(made)
        assert driver.stream_query(0)


def test_each_waits_for_itself(driver: Driver, maker: ExternalApi) -> None:
    """Facts 56 and 58: what one stream waits for keeps neither another one nor stream 0 from its work"""
    made = maker.timeline()
    with (
        current(driver),
        allocated(driver, 64) as address,
        semaphore(driver, made.fd()) as waited,
        streams(driver, 2) as (one, two),
    ):
        driver.wait_external_semaphore(waited, 4, one)
        assert not driver.stream_query(one)
        assert driver.stream_query(two)
        driver.memset_d8(address, 7, 64)
        assert driver.memcpy_dtoh(address, 2) == b"\7\7"
        assert not driver.stream_query(one)
        made.signal(4)
        assert ends(driver, one)


def test_a_stream_goes_before_its_work_is_done(
    driver: Driver, other: Other, maker: ExternalApi, on_hardware: bool
) -> None:
    """Fact 58: a stream that waits is given up at once; what it waits for holds its context until it comes"""
    made = maker.timeline()
    other.ctx_push_current(other.device_primary_ctx_retain(0))
    with closing(made.fd()) as fd:
        waited = other.import_external_semaphore(fd, TIMELINE)
    outstanding = other.stream_create()
    other.wait_external_semaphore(waited, 4, outstanding)
    other.stream_destroy(outstanding)
    other.ctx_pop_current()
    other.ask("device_primary_ctx_release", 0)
    assert other.is_silent()
    if on_hardware:  # whether a signal ends that was not measured
        other.kill()
        return
    made.signal(4)
    other.answer()
    with refused(INVALID_VALUE):  # it went with its context
        other.destroy_external_semaphore(waited)
    other.kill()
