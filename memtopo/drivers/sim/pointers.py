"""Attributes of the memory at an address (`CUpointer_attribute`), as an H200 answered."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memtopo.driver.types import HOST, WHOLE_HOST, Access, HandleType, LocationKind, RegisterFlags, gpu
from memtopo.drivers.sim.address_space import Reservations
from memtopo.drivers.sim.allocations import SimAllocation, SimAllocations
from memtopo.drivers.sim.calls import invalid
from memtopo.drivers.sim.chunks import Mapping as SimMapping
from memtopo.drivers.sim.chunks import SimMappings
from memtopo.drivers.sim.process import Contexts

_ON_HOST, _ON_DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_NOWHERE = -2


_DEVICE_POINTER = 3
_BYTES: Mapping[int, int] = dict.fromkeys((2, 6, 8, 9, 10, 13, 15, 16, 21), 4) | dict.fromkeys(
    (1, 3, 4, 7, 11, 12, 14, 17, 18, 19, 20), 8
)
"""Bytes of each attribute."""

_Values = Mapping[int, int | None]
"""Values of attributes by number; None of one that the memory has not."""


class _Query(Struct, frozen=True):
    """Address whose attributes are asked for; `device` is that of the current context, None without one.

    `reserved` are start and end of the reservation around the address; None without one.
    """

    address: int
    device: int | None
    reserved: tuple[int, int] | None

    @property
    def of_reservation(self) -> _Values:
        """Start and size of the reservation."""
        if self.reserved is None:
            return {11: None, 12: None}
        start, end = self.reserved
        return {11: start, 12: end - start}


def _values_of_mapping(query: _Query, memory: SimMapping) -> _Values:
    properties = memory.chunk.properties
    access = 0 if query.device is None else memory.access.get(gpu(query.device), 0)
    return {
        **dict.fromkeys(_BYTES, 0),
        **query.of_reservation,
        2: _ON_HOST if memory.on_host else _ON_DEVICE,
        3: query.address if access else None,
        4: query.address if memory.access.get(WHOLE_HOST) else None,
        7: memory.number,
        9: 0 if memory.on_host else properties.location.id,
        13: 1,
        14: int(HandleType.NONE if memory.chunk.imported else properties.handles),
        15: properties.rdma,
        16: access,
        18: memory.size,
        19: memory.start,
        20: memory.chunk.handle,
    }


def _values_of_allocation(query: _Query, memory: SimAllocation) -> _Values:
    pool, is_managed, is_own = memory.pool, memory.advised is not None, memory.kind == "own"
    is_on_host = pool.location.kind != LocationKind.GPU if pool else memory.by_cpu and not is_managed
    is_read_only = memory.kind == "registered" and memory.flags & RegisterFlags.READ_ONLY
    start, end = memory.mapped
    return {
        1: memory.context.handle if memory.context else 0,
        2: _ON_HOST if is_on_host else _ON_DEVICE,
        3: query.address if query.device in memory.users else None,
        4: query.address if memory.by_cpu else None,
        6: is_managed,
        7: memory.number,
        8: is_managed,
        9: max(pool.location.processor if pool else memory.device, 0),
        10: is_own,
        11: 0 if pool and HOST in memory.users else memory.start,
        12: memory.size,
        13: 1,
        14: int(pool.handles if pool else HandleType.NONE),
        15: is_own,
        16: int(Access.R if is_read_only else Access.RW),
        17: pool.handle if pool else 0,
        18: end - start,
        19: start,
        20: memory.block,
        21: is_own,
    }


def _values_of_nothing(query: _Query) -> _Values:
    """Values for other addresses, for which only a query of several attributes is answered."""
    return {**dict.fromkeys(_BYTES, 0), **query.of_reservation, 4: query.address, 9: _NOWHERE}


class SimPointers:
    """Attributes of the memory of one process."""

    def __init__(
        self, contexts: Contexts, addresses: Reservations, mappings: SimMappings, allocations: SimAllocations
    ) -> None:
        self._contexts, self._addresses = contexts, addresses
        self._mappings, self._allocations = mappings, allocations

    def attribute(self, attribute: int, address: int) -> bytes:
        """Bytes of one attribute, which the memory must have."""
        memory = self._allocations.find(address) or self._mappings.find(address)
        if attribute not in _BYTES or memory is None:
            raise invalid("no attribute of a pointer has this number" if memory else _UNKNOWN)
        if attribute == _DEVICE_POINTER:
            self._contexts.current()
        value = self._values(memory, address)[attribute]
        if value is None:
            raise invalid("the memory has no such attribute, or no access to it is set")
        return _packed(attribute, value)

    def attributes(self, attributes: list[int], address: int) -> list[bytes]:
        """Bytes of several attributes: zeros of those that the memory has not, none for an address of no range."""
        if not all(each in _BYTES for each in attributes):
            raise invalid("one of the numbers is that of no attribute of a pointer")
        memory = self._allocations.find(address) or self._mappings.find(address)
        values = self._values(memory, address)
        found = []
        for each in attributes:
            value = values[each]
            is_left = value is None and memory is None
            found.append(b"" if is_left else _packed(each, value or 0))
        return found

    def _values(self, memory: SimAllocation | SimMapping | None, address: int) -> _Values:
        query = _Query(address, self._contexts.device(), self._addresses.around(address))
        if memory is None:
            return _values_of_nothing(query)
        if isinstance(memory, SimAllocation):
            return _values_of_allocation(query, memory)
        return _values_of_mapping(query, memory)


_UNKNOWN = "nothing is allocated or mapped at the address"


def _packed(attribute: int, value: int) -> bytes:
    size = _BYTES[attribute]
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
