"""Attributes of the memory at an address (`CUpointer_attribute`), as an H200 answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


class _At(Struct, frozen=True):
    """Address whose attributes are asked for; `device` is that of the current context, None without one."""

    address: int
    device: int | None
    reserved: tuple[int, int] | None


class _Attribute(Struct, frozen=True):
    """Attribute: its bytes, and its value for a mapping and for an allocation, None if the memory has none.

    `nothing` is the value for other addresses, for which only a query of several attributes is answered.
    """

    size: int
    mapping: Callable[[_At, SimMapping], int | None]
    allocation: Callable[[_At, SimAllocation], int | None]
    nothing: Callable[[_At], int | None] = lambda _: 0


def _is_on_host(allocation: SimAllocation) -> bool:
    if allocation.pool:
        return allocation.pool.location.kind != LocationKind.GPU
    return allocation.by_cpu and allocation.advised is None


def _access(at: _At, mapping: SimMapping) -> int:
    return 0 if at.device is None else mapping.access.get(gpu(at.device), 0)


def _flag(flag: Callable[[SimAllocation], bool]) -> Callable[[_At, SimAllocation], int]:
    return lambda _, allocation: int(flag(allocation))


def _none(*_: object) -> int:
    return 0


def _one(*_: object) -> int:
    return 1


_ATTRIBUTES: Mapping[int, _Attribute] = {
    1: _Attribute(8, _none, lambda _, memory: memory.context.handle if memory.context else 0),
    2: _Attribute(
        4,
        lambda _, memory: _ON_HOST if memory.on_host else _ON_DEVICE,
        lambda _, memory: _ON_HOST if _is_on_host(memory) else _ON_DEVICE,
    ),
    3: _Attribute(
        8,
        lambda at, memory: at.address if _access(at, memory) else None,
        lambda at, memory: at.address if at.device in memory.users else None,
    ),
    4: _Attribute(
        8,
        lambda at, memory: at.address if memory.access.get(WHOLE_HOST) else None,
        lambda at, memory: at.address if memory.by_cpu else None,
        lambda at: at.address,
    ),
    6: _Attribute(4, _none, _flag(lambda memory: memory.advised is not None)),
    7: _Attribute(8, lambda _, memory: memory.number, lambda _, memory: memory.number),
    8: _Attribute(4, _none, _flag(lambda memory: memory.advised is not None)),
    9: _Attribute(
        4,
        lambda _, memory: 0 if memory.on_host else memory.chunk.properties.location.id,
        lambda _, memory: max(memory.pool.location.processor if memory.pool else memory.device, 0),
        lambda _: _NOWHERE,
    ),
    10: _Attribute(4, _none, _flag(lambda memory: memory.kind == "own")),
    11: _Attribute(
        8,
        lambda at, _: at.reserved[0] if at.reserved else None,
        lambda _, memory: 0 if memory.pool and HOST in memory.users else memory.start,
        lambda at: at.reserved[0] if at.reserved else None,
    ),
    12: _Attribute(
        8,
        lambda at, _: at.reserved[1] - at.reserved[0] if at.reserved else None,
        lambda _, memory: memory.size,
        lambda at: at.reserved[1] - at.reserved[0] if at.reserved else None,
    ),
    13: _Attribute(4, _one, _one),
    14: _Attribute(
        8,
        lambda _, memory: int(HandleType.NONE if memory.chunk.imported else memory.chunk.properties.handles),
        lambda _, memory: int(memory.pool.handles if memory.pool else HandleType.NONE),
    ),
    15: _Attribute(4, lambda _, memory: memory.chunk.properties.rdma, _flag(lambda memory: memory.kind == "own")),
    16: _Attribute(
        4,
        _access,
        lambda _, memory: int(
            Access.R if memory.kind == "registered" and memory.flags & RegisterFlags.READ_ONLY else Access.RW
        ),
    ),
    17: _Attribute(8, _none, lambda _, memory: memory.pool.handle if memory.pool else 0),
    18: _Attribute(8, lambda _, memory: memory.size, lambda _, memory: memory.mapped[1] - memory.mapped[0]),
    19: _Attribute(8, lambda _, memory: memory.start, lambda _, memory: memory.mapped[0]),
    20: _Attribute(8, lambda _, memory: memory.chunk.handle, lambda _, memory: memory.block),
    21: _Attribute(4, _none, _flag(lambda memory: memory.kind == "own")),
}  # fmt: skip
_DEVICE_POINTER = 3


class SimPointers:
    """Attributes of the memory of one process."""

    def __init__(
        self, contexts: Contexts, addresses: Reservations, mappings: SimMappings, allocations: SimAllocations
    ) -> None:
        self._contexts, self._addresses = contexts, addresses
        self._mappings, self._allocations = mappings, allocations

    def attribute(self, attribute: int, address: int) -> bytes:
        """Bytes of one attribute, which the memory must have."""
        known, memory = _ATTRIBUTES.get(attribute), self._allocations.find(address) or self._mappings.find(address)
        if known is None or memory is None:
            raise invalid("no attribute of a pointer has this number" if memory else _UNKNOWN)
        if attribute == _DEVICE_POINTER:
            self._contexts.current()
        value = self._value(known, memory, self._at(address))
        if value is None:
            raise invalid("the memory has no such attribute, or no access to it is set")
        return _packed(known.size, value)

    def attributes(self, attributes: list[int], address: int) -> list[bytes]:
        """Bytes of several attributes: zeros of those that the memory has not, none for an address of no range."""
        if not all(each in _ATTRIBUTES for each in attributes):
            raise invalid("one of the numbers is that of no attribute of a pointer")
        memory, at = self._allocations.find(address) or self._mappings.find(address), self._at(address)
        found = []
        for each in (_ATTRIBUTES[attribute] for attribute in attributes):
            value = self._value(each, memory, at)
            is_left = value is None and memory is None
            found.append(b"" if is_left else _packed(each.size, value or 0))
        return found

    def _at(self, address: int) -> _At:
        return _At(address, self._contexts.device(), self._addresses.around(address))

    def _value(self, attribute: _Attribute, memory: SimAllocation | SimMapping | None, at: _At) -> int | None:
        if memory is None:
            return attribute.nothing(at)
        if isinstance(memory, SimAllocation):
            return attribute.allocation(at, memory)
        return attribute.mapping(at, memory)


_UNKNOWN = "nothing is allocated or mapped at the address"


def _packed(size: int, value: int) -> bytes:
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
