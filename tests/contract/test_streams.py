"""Streams and their outstanding waits."""

from __future__ import annotations

from memtopo.driver.kernels import ExternalApi
from memtopo.driver.protocol import Driver
from tests.contract.external_resources import TIMELINE, ends, semaphore, stream, streams
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import allocated, closing


def test_creating_a_stream_requires_a_context(driver: Driver) -> None:
    """Fact 56: querying and destroying it do not."""
    with refused(INVALID_CONTEXT):
        driver.stream_create()
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    made = driver.stream_create()
    driver.ctx_pop_current()
    assert driver.stream_query(made)
    driver.stream_destroy(made)
    driver.device_primary_ctx_release(0)


def test_unknown_stream_flags_are_refused(driver: Driver) -> None:
    """Fact 56."""
    with current(driver), refused(INVALID_VALUE):
        driver.stream_create(16)


def test_an_unused_stream_is_complete(driver: Driver) -> None:
    """Fact 56: stream 0 too."""
    with current(driver), stream(driver) as made:
        assert driver.stream_query(made)
        assert driver.stream_query(0)


def test_a_wait_of_one_stream_does_not_block_others(driver: Driver, maker: ExternalApi) -> None:
    """Facts 56 and 58: nor stream 0."""
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


def test_a_waiting_stream_is_destroyed_at_once(
    driver: Driver, other: Other, maker: ExternalApi, on_hardware: bool
) -> None:
    """Fact 58: its wait keeps its context until its end."""
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
