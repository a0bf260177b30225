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


def test_memory_needs_no_context(driver: Driver, granule: int) -> None:
    """Fact 8: no call that lays out memory needs a current context or wakes a primary one; those that touch it do"""
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


def test_the_current_context_is_asked_for(driver: Driver) -> None:
    """Fact 8: without a current context there is nothing to pop, to wait for or to count memory of"""
    for call in (driver.ctx_pop_current, driver.ctx_synchronize, driver.mem_get_info):
        with refused(INVALID_CONTEXT):
            call()


def test_the_range_of_an_address_wants_a_context(driver: Driver, granule: int) -> None:
    """Fact 8: of the calls that look at a mapping, the one for its range alone needs a current context"""
    with laid_out(driver, (granule,), access=Access.R) as address:
        with refused(INVALID_CONTEXT):
            driver.mem_get_address_range(address)
        with current(driver):
            assert driver.mem_get_address_range(address) == (address, granule)


def test_a_released_context_is_of_no_use(driver: Driver) -> None:
    """Fact 8: a context that was released while it was current can be popped, and nothing else"""
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    driver.device_primary_ctx_release(0)
    for call in (driver.ctx_synchronize, driver.mem_get_info):
        with refused("CUDA_ERROR_CONTEXT_IS_DESTROYED"):
            call()
    assert driver.ctx_pop_current() == context


def test_only_init_comes_before_init(bare: Driver, on_hardware: bool) -> None:
    """Before init, every call but init is refused"""
    if on_hardware:
        pytest.skip("another test has initialised the driver")
    for call in (bare.device_get_count, lambda: bare.mem_create(2 << 20, PLAIN)):
        with refused("CUDA_ERROR_NOT_INITIALIZED"):
            call()


def test_retains_are_counted(driver: Driver) -> None:
    """Fact 8: a primary context is active from its first retain to its last release, and one release more is refused"""
    first = driver.device_primary_ctx_retain(0)
    assert driver.device_primary_ctx_retain(0) == first
    driver.device_primary_ctx_release(0)
    assert driver.device_primary_ctx_get_state(0)
    driver.device_primary_ctx_release(0)
    assert not driver.device_primary_ctx_get_state(0)
    with refused(INVALID_CONTEXT):
        driver.device_primary_ctx_release(0)


@pytest.mark.usefixtures("two_gpus")
def test_contexts_are_stacked(driver: Driver) -> None:
    """Fact 8: a pushed context is current until it is popped, and then the one below it is again"""
    with current(driver, 0) as below, current(driver, 1) as above:
        assert driver.ctx_pop_current() == above
        assert driver.ctx_pop_current() == below
        driver.ctx_push_current(below)
        driver.ctx_push_current(above)


def test_a_context_costs_memory(driver: Driver) -> None:
    """Fact 30: an active context takes some of its device's memory"""
    with current(driver):
        free, total = driver.mem_get_info()
        assert total - free > 100 << 20


def test_a_device_exists(driver: Driver) -> None:
    """Fact 3: what is asked of a device that does not exist is refused"""
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


def test_a_device_has_a_name_everywhere(driver: Driver) -> None:
    """Fact 38: a device is told from others by its UUID and by its bus id"""
    devices = range(driver.device_get_count())
    assert all(len(driver.device_get_uuid(device)) == 16 for device in devices)
    assert len({driver.device_get_uuid(device) for device in devices}) == len(devices)
    assert len({driver.device_get_pci_bus_id(device) for device in devices}) == len(devices)


def test_a_device_is_no_peer_of_itself(driver: Driver) -> None:
    """Fact 38: a device is no peer of itself"""
    assert driver.device_can_access_peer(0, 0) is False
    with refused(INVALID_DEVICE):
        driver.device_get_p2p_attribute(PeerAttribute.ACCESS_SUPPORTED, 0, 0)


@pytest.mark.usefixtures("two_gpus")
def test_peers_agree(driver: Driver) -> None:
    """Fact 38: whether a device can reach a peer, and what is known of the link, agree"""
    supported = driver.device_get_p2p_attribute(PeerAttribute.ACCESS_SUPPORTED, 0, 1)
    assert driver.device_can_access_peer(0, 1) == bool(supported)
