"""Memory that is allocated rather than laid out: this process's, and what it has of others' (facts 45, 46, 53, 60)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memtopo.driver.sim.address_space import Blocks
from memtopo.driver.sim.calls import invalid
from memtopo.driver.sim.physical import Arena, Physical
from memtopo.driver.types import RangeAttribute


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation, which the contexts of `users` may read and write, by ordinal.

    It lives and dies with the context of `device`. `opens` counts how often another process's was opened. A buffer is
    mapped of external memory. `advised` is how managed memory is used, which is the CPU's too (fact 39).
    """

    start: int
    end: int
    device: int
    users: set[int]
    physical: Physical
    kind: Literal["own", "opened", "buffer", "managed"] = "own"
    opens: int = 0
    advised: Advised | None = None

    @property
    def size(self) -> int:
        """The size that was asked for."""
        return self.end - self.start


class Allocations:
    """Every allocation that one process can use."""

    def __init__(self, blocks: Blocks, arena: Arena) -> None:
        self._blocks, self._arena = blocks, arena
        self._starts: list[int] = []
        self._at: dict[int, Allocation] = {}

    def take(self, device: int, size: int) -> int:
        """Allocate memory of a device (fact 45)."""
        if size <= 0:
            raise invalid("the size is 0")
        address = self._blocks.take(device, size)
        self._add(Allocation(address, address + size, device, {device}, self._arena.take(size)))
        return address

    def manage(self, device: int, size: int, users: Iterable[int]) -> int:
        """Memory in a device's context that the CPU and all of some devices may use; it takes none of theirs."""
        address = self._blocks.take_addresses(size)
        physical, advised = self._arena.take(size), Advised(size)
        self._add(Allocation(address, address + size, device, set(users), physical, "managed", advised=advised))
        return address

    def map(self, physical: Physical, device: int) -> int:
        """Put a part of external memory at addresses (fact 53)."""
        address = self._blocks.take_addresses(physical.size)
        self._add(Allocation(address, address + physical.size, device, {device}, physical, "buffer"))
        return address

    def free(self, address: int) -> None:
        """Free an allocation of this process, or give a buffer back; 0 is none, and that is well (facts 45, 53)."""
        if address:
            self._end(self._starting(address, opened=False))

    def find(self, address: int) -> Allocation | None:
        """The allocation around an address."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        allocation = self._at[self._starts[at]]
        return allocation if address < allocation.end else None

    def open(self, physical: Physical, device: int) -> Allocation:
        """Put another process's memory at addresses here; it takes no memory of this one (fact 46)."""
        address = self._blocks.take_addresses(physical.size)
        allocation = Allocation(address, address + physical.size, device, set(), physical, "opened")
        self._add(allocation)
        return allocation

    def opened(self, nonce: str) -> Allocation | None:
        """The memory of another process that was opened here already."""
        foreign = (allocation for allocation in self._at.values() if allocation.kind == "opened")
        return next((each for each in foreign if each.physical.tag and each.physical.tag.nonce == nonce), None)

    def close(self, address: int) -> None:
        """Give one opening back; with the last, the addresses go (fact 46)."""
        allocation = self._starting(address, opened=True)
        allocation.opens -= 1
        if not allocation.opens:
            self._end(allocation)

    def drop(self, device: int) -> None:
        """End everything that lived in a device's context."""
        for allocation in [each for each in self._at.values() if each.device == device]:
            self._end(allocation)

    def _starting(self, address: int, *, opened: bool) -> Allocation:
        allocation = self._at.get(address)
        if allocation is None or (allocation.kind == "opened") != opened:
            what = "memory opened from another process" if opened else "an allocation of this process"
            raise invalid(f"the address is not the start of {what}")
        return allocation

    def _add(self, allocation: Allocation) -> None:
        insort(self._starts, allocation.start)
        self._at[allocation.start] = allocation

    def _end(self, allocation: Allocation) -> None:
        del self._at[allocation.start]
        del self._starts[bisect_left(self._starts, allocation.start)]
        if allocation.kind == "own":
            self._blocks.give(allocation.device, allocation.start, allocation.size)
        else:
            self._blocks.give_addresses(allocation.start, allocation.size)
        self._arena.give(allocation.physical)


PAGE = 4 << 10


class Uses(NamedTuple):
    """What was advised for a part of an allocation: GPUs by ordinal, and the host by -1."""

    read_mostly: bool = False
    preferred: tuple[int, ...] = ()
    accessed_by: tuple[int, ...] = ()
    prefetched: tuple[int, ...] = ()


class Advised:
    """The uses of all parts of an allocation of `size` bytes, by the pages of the CPU."""

    def __init__(self, size: int) -> None:
        self._parts = [(_up(size), Uses())]

    def change(self, start: int, end: int, change: Callable[[Uses], Uses]) -> None:
        """Change the uses of whatever pages some bytes are in."""
        start, end = start // PAGE * PAGE, _up(end)
        parts, at = [], 0
        for limit, uses in self._parts:
            before, inside = min(limit, max(at, start)), min(limit, max(at, end))
            cuts = [(before, uses), (inside, change(uses)), (limit, uses)]
            for cut, of in cuts:
                if cut > at:
                    parts.append((cut, of))
                    at = cut
        self._parts = parts

    def told(self, start: int, end: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """What holds for all pages of some bytes alike."""
        found, at = [], 0
        for limit, uses in self._parts:
            if at < end and start < limit:
                found.append(uses)
            at = limit
        match attribute:
            case RangeAttribute.READ_MOSTLY:
                return (int(all(uses.read_mostly for uses in found)),)
            case RangeAttribute.ACCESSED_BY:
                return tuple(each for each in found[0].accessed_by if all(each in uses.accessed_by for uses in found))
            case RangeAttribute.PREFERRED_LOCATION:
                return _alike([uses.preferred for uses in found])
            case RangeAttribute.LAST_PREFETCH_LOCATION:
                return _alike([uses.prefetched for uses in found])


def _alike(places: list[tuple[int, ...]]) -> tuple[int, ...]:
    return places[0] if len(set(places)) == 1 else ()


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE
