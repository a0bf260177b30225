"""A driver that sees some of the GPUs only, spoken to by the ordinals of a process that sees them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    HOST,
    Advice,
    Attribute,
    DriverError,
    Grant,
    Location,
    LocationKind,
    PeerAttribute,
    Properties,
    RangeAttribute,
    gpu,
)

if TYPE_CHECKING:
    # To a checker of types it can stand for any driver; the calls that name no GPU are found by name.
    from typing import Any as Anything
else:
    Anything = object


class Renumbered(Anything):  # type: ignore[misc]
    """Hands every call on, with GPU `ordinals[i]` of the caller as the driver's own GPU `i`."""

    def __init__(self, driver: Driver, ordinals: Sequence[int]) -> None:
        self._driver = driver
        self._own = {ordinal: own for own, ordinal in enumerate(ordinals)}
        self._theirs = dict(enumerate(ordinals))

    def __getattr__(self, method: str) -> Any:
        return getattr(self._driver, method)

    def device_get_name(self, device: int) -> str:
        return self._driver.device_get_name(self._device(device))

    def device_get_uuid(self, device: int) -> bytes:
        return self._driver.device_get_uuid(self._device(device))

    def device_get_pci_bus_id(self, device: int) -> str:
        return self._driver.device_get_pci_bus_id(self._device(device))

    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        return self._driver.device_get_attribute(self._device(device), attribute)

    def device_total_mem(self, device: int) -> int:
        return self._driver.device_total_mem(self._device(device))

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        return self._driver.device_can_access_peer(self._device(device), self._device(peer))

    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        return self._driver.device_get_p2p_attribute(attribute, self._device(device), self._device(peer))

    def device_primary_ctx_retain(self, device: int) -> int:
        return self._driver.device_primary_ctx_retain(self._device(device))

    def device_primary_ctx_release(self, device: int) -> None:
        self._driver.device_primary_ctx_release(self._device(device))

    def device_primary_ctx_get_state(self, device: int) -> bool:
        return self._driver.device_primary_ctx_get_state(self._device(device))

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        return self._driver.mem_get_allocation_granularity(self._properties(properties), recommended=recommended)

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return self._driver.mem_create(size, self._properties(properties), flags)

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        own = tuple(Grant(self._location(grant.location), grant.access) for grant in grants)
        self._driver.mem_set_access(address, size, own)

    def mem_get_access(self, address: int, location: Location) -> int:
        return self._driver.mem_get_access(address, self._location(location))

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        """A GPU that the driver cannot name stays under the number that it has for such (fact 43)."""
        found = self._driver.mem_get_allocation_properties_from_handle(handle)
        if found.location.kind != LocationKind.GPU:
            return found
        return found._replace(location=gpu(self._theirs.get(found.location.id, found.location.id)))

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        self._driver.mem_advise(address, size, advice, self._location(location))

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        self._driver.mem_prefetch_async(address, size, self._location(location), stream)

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        found = self._driver.mem_range_get_attribute(address, size, attribute)
        if attribute == RangeAttribute.READ_MOSTLY:
            return found
        return tuple(each if each == HOST else self._theirs.get(each, each) for each in found)

    def _device(self, ordinal: int) -> int:
        if ordinal not in self._own:
            raise DriverError("cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE", f"this process does not see gpu{ordinal}")
        return self._own[ordinal]

    def _location(self, location: Location) -> Location:
        return gpu(self._device(location.id)) if location.kind is LocationKind.GPU else location

    def _properties(self, properties: Properties) -> Properties:
        return properties._replace(location=self._location(properties.location))
