from __future__ import annotations

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Attribute, Grant, PeerAttribute, gpu
from tests.contract.memory import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    PLAIN,
    created,
    current,
    laid_out,
    mapped,
    refused,
    reserved,
)


def test_calls_that_lay_out_memory_require_no_context(driver: Driver, granule: int) -> None:
    """Fact 8: nor do they activate a primary one; those that access memory do."""
    with (
        reserved(driver, granule) as address,
        created(driver, granule) as handle,
        mapped(driver, address, granule, handle),
    ):
        driver.mem_set_access(address, granule, (Grant(gpu(0), Access.RW),))
        assert driver.mem_get_access(address, gpu(0)) == Access.RW
        driver.mem_release(driver.mem_retain_allocation_handle(address))
        assert not any(driver.device_primary_ctx_get_state(i) for i in range(driver.device_get_count()))
        with refused(INVALID_CONTEXT):
            driver.memset_d8(address, 0, granule)
        with refused(INVALID_CONTEXT):
            driver.memcpy_htod(address, b"x")
        with refused(INVALID_CONTEXT):
            driver.memcpy_dtoh(address, 1)


def test_mappings_and_bytes_outlive_contexts(driver: Driver, granule: int) -> None:
    """Fact 73: also through another mapping and grant without any context."""
    grant = (Grant(gpu(0), Access.RW),)
    with reserved(driver, granule) as address, created(driver, granule) as handle:
        with mapped(driver, address, granule, handle):
            driver.mem_set_access(address, granule, grant)
            with current(driver):
                driver.memset_d8(address, 0x5A, granule)
                driver.ctx_synchronize()
            assert not driver.device_primary_ctx_get_state(0)
            with current(driver):
                assert driver.memcpy_dtoh(address, granule) == b"\x5a" * granule
        with mapped(driver, address, granule, handle):
            driver.mem_set_access(address, granule, grant)
            with current(driver):
                assert driver.memcpy_dtoh(address, granule) == b"\x5a" * granule


def test_calls_on_the_current_context_require_one(driver: Driver) -> None:
    """Fact 8: pop, synchronize and memory info."""
    for call in (driver.ctx_pop_current, driver.ctx_synchronize, driver.mem_get_info):
        with refused(INVALID_CONTEXT):
            call()


def test_the_range_of_an_address_alone_requires_a_context(driver: Driver, granule: int) -> None:
    """Fact 8: of the queries of a mapping."""
    with laid_out(driver, (granule,), access=Access.R) as address:
        with refused(INVALID_CONTEXT):
            driver.mem_get_address_range(address)
        with current(driver):
            assert driver.mem_get_address_range(address) == (address, granule)


def test_a_released_current_context_can_only_be_popped(driver: Driver) -> None:
    """Fact 8."""
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    driver.device_primary_ctx_release(0)
    for call in (driver.ctx_synchronize, driver.mem_get_info):
        with refused("CUDA_ERROR_CONTEXT_IS_DESTROYED"):
            call()
    assert driver.ctx_pop_current() == context


def test_every_other_call_before_init_is_refused(bare: Driver, on_hardware: bool) -> None:
    if on_hardware:
        pytest.skip("another test has initialised the driver")
    for call in (bare.device_get_count, lambda: bare.mem_create(2 << 20, PLAIN)):
        with refused("CUDA_ERROR_NOT_INITIALIZED"):
            call()


def test_a_primary_context_counts_its_retains(driver: Driver) -> None:
    """Fact 8: it is active until its last release; one release more is refused."""
    first = driver.device_primary_ctx_retain(0)
    assert driver.device_primary_ctx_retain(0) == first
    driver.device_primary_ctx_release(0)
    assert driver.device_primary_ctx_get_state(0)
    driver.device_primary_ctx_release(0)
    assert not driver.device_primary_ctx_get_state(0)
    with refused(INVALID_CONTEXT):
        driver.device_primary_ctx_release(0)


@pytest.mark.usefixtures("two_gpus")
def test_current_contexts_form_a_stack(driver: Driver) -> None:
    """Fact 8."""
    with current(driver, 0) as below, current(driver, 1) as above:
        assert driver.ctx_pop_current() == above
        assert driver.ctx_pop_current() == below
        driver.ctx_push_current(below)
        driver.ctx_push_current(above)


def test_an_active_context_takes_device_memory(driver: Driver) -> None:
    """Fact 30."""
    with current(driver):
        free, total = driver.mem_get_info()
        assert total - free > 100 << 20


def test_queries_of_a_missing_device_are_refused(driver: Driver) -> None:
    """Fact 3."""
    count = driver.device_get_count()
    for device in (count, -1):
        with refused(INVALID_DEVICE):
            driver.device_get_name(device)
        with refused(INVALID_DEVICE):
            driver.device_total_mem(device)
        with refused(INVALID_DEVICE):
            driver.device_get_attribute(device, Attribute.ECC_ENABLED)
        with refused(INVALID_DEVICE):
            driver.device_primary_ctx_retain(device)
        with refused(INVALID_DEVICE):
            driver.device_can_access_peer(0, device)


def test_a_device_has_a_unique_uuid_and_bus_id(driver: Driver) -> None:
    """Fact 38."""
    devices = range(driver.device_get_count())
    assert all(len(driver.device_get_uuid(device)) == 16 for device in devices)
    assert len({driver.device_get_uuid(device) for device in devices}) == len(devices)
    assert len({driver.device_get_pci_bus_id(device) for device in devices}) == len(devices)


def test_a_device_is_no_peer_of_itself(driver: Driver) -> None:
    """Fact 38."""
    assert driver.device_can_access_peer(0, 0) is False
    with refused(INVALID_DEVICE):
        driver.device_get_p2p_attribute(PeerAttribute.ACCESS_SUPPORTED, 0, 0)


@pytest.mark.usefixtures("two_gpus")
def test_peer_access_agrees_with_the_attributes_of_the_link(driver: Driver) -> None:
    """Fact 38."""
    supported = driver.device_get_p2p_attribute(PeerAttribute.ACCESS_SUPPORTED, 0, 1)
    assert driver.device_can_access_peer(0, 1) == bool(supported)
