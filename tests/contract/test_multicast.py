"""Multicast objects: what both drivers answer, without a call of the driver on a GPU (fact 87)."""

from __future__ import annotations

from memtopo.common.units import MiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Attribute, HandleType
from tests.contract.memory import NOT_SUPPORTED, refused


def test_no_multicast_object_is_created(driver: Driver) -> None:
    """Fact 87: on a GPU no call is made, and the simulator refuses it where no trial worked."""
    with refused(NOT_SUPPORTED):
        driver.multicast_create(2, 2 * MiB, HandleType.NONE)


def test_support_for_multicast_is_advertised_or_not(driver: Driver) -> None:
    assert driver.device_get_attribute(0, Attribute.MULTICAST_SUPPORTED) in {0, 1}
