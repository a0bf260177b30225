"""Events of one and of several processes."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import EventFlags
from tests.contract.external_resources import ends, streams
from tests.contract.memory import INVALID_CONTEXT, INVALID_VALUE, current, refused
from tests.contract.other_process import Other
from tests.contract.shared_resources import INVALID_HANDLE, SHARED_EVENT, allocated, event, opened_event

PLAIN = EventFlags.DISABLE_TIMING


@pytest.mark.parametrize("flags", [EventFlags.INTERPROCESS, EventFlags(16)])
def test_invalid_event_flags_are_refused(driver: Driver, flags: EventFlags) -> None:
    """Fact 47: a shared event without disabled timing, and unknown flags."""
    with current(driver), refused(INVALID_VALUE):
        driver.event_create(flags)


@pytest.mark.parametrize("flags", [EventFlags.NONE, EventFlags.BLOCKING_SYNC, PLAIN, SHARED_EVENT])
def test_an_event_is_complete_before_its_record_and_after_its_stream(driver: Driver, flags: EventFlags) -> None:
    """Fact 47: it is complete if never recorded, or once its stream has reached it."""
    with current(driver), event(driver, flags) as made:
        assert driver.event_query(made) is True
        driver.event_record(made)
        driver.stream_wait_event(0, made)
        driver.event_synchronize(made)
        assert driver.event_query(made) is True


@pytest.mark.parametrize("flags", [PLAIN, SHARED_EVENT])
def test_an_event_is_recorded_and_waited_for_in_a_stream(driver: Driver, flags: EventFlags) -> None:
    """Fact 47: of the event's context."""
    with current(driver), event(driver, flags) as made, streams(driver, 2) as (one, other):
        driver.event_record(made, one)
        driver.stream_wait_event(other, made)
        driver.event_synchronize(made)
        assert driver.event_query(made) is True
        assert ends(driver, other)


def test_creating_and_exporting_an_event_require_a_context(driver: Driver) -> None:
    """Fact 47: querying and destroying it do not."""
    with refused(INVALID_CONTEXT):
        driver.event_create(PLAIN)
    with current(driver):
        made = driver.event_create(SHARED_EVENT)
        context = driver.ctx_pop_current()
        with refused(INVALID_CONTEXT):
            driver.ipc_get_event_handle(made)
        assert driver.event_query(made) is True
        driver.event_destroy(made)
        driver.ctx_push_current(context)


@pytest.mark.usefixtures("two_gpus")
def test_an_event_is_exported_in_the_context_of_its_gpu(driver: Driver, on_hardware: bool) -> None:
    """Fact 78: in another one hardware may end the process."""
    if on_hardware:
        pytest.skip("ends the process")
    with current(driver, 0), event(driver, SHARED_EVENT) as made:
        with current(driver, 1), refused(INVALID_HANDLE):
            driver.ipc_get_event_handle(made)
        assert driver.ipc_get_event_handle(made)


def test_a_plain_or_imported_event_has_no_ipc_handle(driver: Driver, other: Other) -> None:
    """Facts 32 and 47."""
    with current(driver), current(other), event(driver, PLAIN) as plain, event(other) as theirs:
        with refused(INVALID_HANDLE):
            driver.ipc_get_event_handle(plain)
        with opened_event(driver, other.ipc_get_event_handle(theirs)) as here, refused(INVALID_HANDLE):
            driver.ipc_get_event_handle(here)


def test_an_own_or_invalid_event_handle_is_not_opened(driver: Driver) -> None:
    """Fact 47: an event of this process, and zeros."""
    with current(driver), event(driver) as made:
        handle = driver.ipc_get_event_handle(made)
        assert len(handle) == 64
        with refused(INVALID_CONTEXT):
            driver.ipc_open_event_handle(handle)
        with refused("CUDA_ERROR_MAP_FAILED"):
            driver.ipc_open_event_handle(bytes(64))
        with refused(INVALID_VALUE):
            driver.ipc_open_event_handle(b"too few")


def test_an_event_is_opened_several_times_and_recorded_by_either_process(driver: Driver, other: Other) -> None:
    """Facts 32 and 47: each opening is an event of its own."""
    with current(driver), current(other), event(other) as theirs:
        handle = other.ipc_get_event_handle(theirs)
        with opened_event(driver, handle) as one, opened_event(driver, handle) as two:
            assert one != two
            other.event_record(theirs)
            for here in (one, two):
                driver.stream_wait_event(0, here)
                driver.event_synchronize(here)
                assert driver.event_query(here) is True
            driver.event_record(one)
            driver.event_synchronize(one)
            assert other.event_query(theirs) is True


def test_an_event_outlives_its_exporter(driver: Driver, other: Other) -> None:
    """Fact 47: it is queried, recorded, waited for and destroyed after the exporter was killed."""
    with current(driver):
        other.ctx_push_current(other.device_primary_ctx_retain(0))
        with opened_event(driver, other.ipc_get_event_handle(other.event_create(SHARED_EVENT))) as here:
            other.kill()
            assert driver.event_query(here) is True
            driver.event_record(here)
            driver.stream_wait_event(0, here)
            driver.event_synchronize(here)


def test_a_recorded_event_is_incomplete_until_the_work_before_it_is_done(
    driver: Driver, other: Other, on_hardware: bool
) -> None:
    """Fact 47: in every process that shares it."""
    if not on_hardware:
        pytest.skip("the simulator does all work at once")
    with (
        current(driver),
        current(other),
        event(driver) as made,
        opened_event(other, driver.ipc_get_event_handle(made)) as theirs,
        allocated(driver, 4 * GiB) as address,
    ):
        for value in range(64):  # about 0.1 s
            driver.memset_d8(address, value, 4 * GiB)
        driver.event_record(made)
        assert driver.event_query(made) is False
        assert other.event_query(theirs) is False
        driver.event_synchronize(made)
        assert other.event_query(theirs) is True
