from __future__ import annotations

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, Properties, gpu
from tests.contract.memory import HOST, NODE, created

SETS = [
    Properties(gpu(0)),
    Properties(gpu(0), HandleType.FD),
    Properties(gpu(0), HandleType.FABRIC),
    Properties(gpu(0), HandleType.FD | HandleType.FABRIC),
    Properties(gpu(0), rdma=True),
    Properties(gpu(0), compressible=True),
    Properties(HOST),
    Properties(NODE),
    Properties(NODE, HandleType.FD),
]


@pytest.mark.parametrize("properties", SETS, ids=repr)
def test_every_property_set_has_a_granularity(driver: Driver, properties: Properties) -> None:
    """Fact 1: every property set has a minimum granularity, and the recommended one is a multiple of it"""
    minimum = driver.mem_get_allocation_granularity(properties)
    assert minimum > 0
    assert driver.mem_get_allocation_granularity(properties, recommended=True) % minimum == 0


@pytest.mark.parametrize("properties", [SETS[0], SETS[1], SETS[7], SETS[8]], ids=repr)
def test_a_chunk_of_one_granule_is_created(driver: Driver, properties: Properties) -> None:
    """Fact 1: with exactly the properties of the query."""
    with created(driver, driver.mem_get_allocation_granularity(properties), properties) as handle:
        assert handle


@pytest.mark.parametrize("ordinal", [9, -1])
def test_granularity_of_a_missing_device_succeeds(driver: Driver, granule: int, ordinal: int) -> None:
    """Fact 2: it is no proof of the device."""
    assert driver.mem_get_allocation_granularity(Properties(gpu(ordinal))) == granule
