"""The simulated driver: the protocol's calls, each handed to the part that knows its rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from memtopo.driver.names import call_name
from memtopo.driver.sim.access import AccessRules
from memtopo.driver.sim.addresses import Addresses
from memtopo.driver.sim.arena import Arena
from memtopo.driver.sim.budget import Budget
from memtopo.driver.sim.chunks import Chunks
from memtopo.driver.sim.contents import Contents
from memtopo.driver.sim.contexts import Contexts
from memtopo.driver.sim.creation import Creation
from memtopo.driver.sim.devices import Devices
from memtopo.driver.sim.mappings import Mappings
from memtopo.driver.sim.refusal import Refused, invalid
from memtopo.driver.types import Attribute, DriverError, Grant, Location, PeerAttribute, Properties, gpu
from memtopo.machine import Machine

P = ParamSpec("P")
R = TypeVar("R")


def _call(method: Callable[Concatenate[SimDriver, P], R]) -> Callable[Concatenate[SimDriver, P], R]:
    """Make a method a driver call: one at a time, only between init and close, and refused under the driver's name."""
    name = call_name(method.__name__)

    @wraps(method)
    def call(self: SimDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            if self._shut:
                raise DriverError(name, *self._shut)
            try:
                return method(self, *args, **kwargs)
            except Refused as refused:
                raise DriverError(name, refused.name, refused.reason) from None

    return call


class SimDriver:
    """A driver without a GPU: a machine's facts, every rule of `DRIVER_FACTS.md`, and memory that holds bytes.

    It answers with the driver's error names and adds the reason. Close it to give its memory back.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._lock = threading.Lock()
        self._shut: tuple[str, str] | None = ("CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised")
        self._closed: tuple[str, str] | None = None
        self._arena = Arena()
        self._budget = Budget(machine)
        self._devices = Devices(machine)
        self._contexts = Contexts(self._budget)
        self._creation = Creation(machine)
        self._addresses = Addresses(self._creation.address_granule())
        self._chunks = Chunks(self._creation, self._budget, self._arena)
        self._mappings = Mappings(self._addresses, self._chunks)
        self._access = AccessRules(machine, self._mappings)
        self._contents = Contents(self._access)

    def close(self) -> None:
        """Give all memory back to the system; every later call is refused. A second time does nothing."""
        self._shut = self._closed = ("CUDA_ERROR_DEINITIALIZED", "the driver is closed")
        self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resident_bytes(self) -> int:
        """How much of the system's memory is behind the simulated memory; what nobody touched does not count."""
        return self._arena.resident()

    def init(self) -> None:
        """Allow all other calls."""
        if self._closed:
            raise DriverError(call_name("init"), *self._closed)
        self._shut = None

    @_call
    def driver_get_version(self) -> int:
        return self._devices.version()

    @_call
    def device_get_count(self) -> int:
        return self._devices.count()

    @_call
    def device_get_name(self, device: int) -> str:
        return self._devices.get(device).name

    @_call
    def device_get_uuid(self, device: int) -> bytes:
        return self._devices.uuid(device)

    @_call
    def device_get_pci_bus_id(self, device: int) -> str:
        return self._devices.bus_id(device)

    @_call
    def device_get_attribute(self, device: int, attribute: Attribute) -> int:
        return self._devices.attribute(device, attribute)

    @_call
    def device_total_mem(self, device: int) -> int:
        return self._devices.get(device).memory_bytes

    @_call
    def device_can_access_peer(self, device: int, peer: int) -> bool:
        return self._devices.can_access_peer(device, peer)

    @_call
    def device_get_p2p_attribute(self, attribute: PeerAttribute, device: int, peer: int) -> int:
        return self._devices.peer_attribute(attribute, device, peer)

    @_call
    def device_primary_ctx_retain(self, device: int) -> int:
        self._devices.get(device)
        return self._contexts.retain(device)

    @_call
    def device_primary_ctx_release(self, device: int) -> None:
        self._devices.get(device)
        self._contexts.release(device)

    @_call
    def device_primary_ctx_get_state(self, device: int) -> bool:
        self._devices.get(device)
        return self._contexts.active(device)

    @_call
    def ctx_push_current(self, context: int) -> None:
        self._contexts.push(context)

    @_call
    def ctx_pop_current(self) -> int:
        return self._contexts.pop()

    @_call
    def ctx_synchronize(self) -> None:
        self._contexts.current()

    @_call
    def mem_get_info(self) -> tuple[int, int]:
        location = gpu(self._contexts.current())
        return self._budget.free(location), self._budget.total(location)

    @_call
    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        return self._creation.granularity(properties, recommended=recommended)

    @_call
    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        return self._addresses.reserve(size, alignment, address, flags)

    @_call
    def mem_address_free(self, address: int, size: int) -> None:
        self._addresses.check_whole(address, size)
        if self._mappings.any_in(address, size):
            raise invalid("something is mapped inside")
        self._addresses.free(address, size)

    @_call
    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return self._chunks.create(size, properties, flags)

    @_call
    def mem_release(self, handle: int) -> None:
        self._chunks.release(handle)

    @_call
    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        self._mappings.map(address, size, handle, offset, flags)

    @_call
    def mem_unmap(self, address: int, size: int) -> None:
        self._mappings.unmap(address, size)

    @_call
    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._access.grant(address, size, grants)

    @_call
    def mem_get_access(self, address: int, location: Location) -> int:
        return self._access.granted(address, location)

    @_call
    def mem_retain_allocation_handle(self, address: int) -> int:
        return self._chunks.retain(self._mappings.around(address).chunk)

    @_call
    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        return self._chunks.get(handle).properties

    @_call
    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        return self._access.range_seen(address, self._contexts.current())

    @_call
    def memset_d8(self, address: int, value: int, count: int) -> None:
        self._contents.fill(self._contexts.current(), address, value, count)

    @_call
    def memcpy_htod(self, address: int, data: bytes) -> None:
        self._contents.write(self._contexts.current(), address, data)

    @_call
    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        return self._contents.read(self._contexts.current(), address, count)
