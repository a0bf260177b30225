"""Memory that is allocated rather than laid out: this process's, and what it opened of others' (facts 45, 46)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass

from memtopo.driver.sim.arena import Arena, Physical
from memtopo.driver.sim.blocks import Blocks
from memtopo.driver.sim.refusal import invalid


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation, which the contexts of `users` may read and write, by ordinal.

    It lives and dies with the context of `device`. `opens` counts how often another process's was opened; 0 of own.
    `managed` memory is the CPU's too (fact 39).
    """

    start: int
    end: int
    device: int
    users: set[int]
    physical: Physical
    opens: int = 0
    managed: bool = False

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

    def take(self, device: int, size: int, managed: Iterable[int] = ()) -> int:
        """Allocate memory of a device (fact 45), or memory that the CPU and all of some devices may use (fact 39)."""
        if size <= 0:
            raise invalid("the size is 0")
        address, users = self._blocks.take(device, size), {device, *managed}
        allocation = Allocation(address, address + size, device, users, self._arena.take(size), managed=bool(managed))
        self._add(allocation)
        return address

    def free(self, address: int) -> None:
        """Free an allocation of this process; 0 is none, and that is well (fact 45)."""
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
        allocation = Allocation(address, address + physical.size, device, set(), physical)
        self._add(allocation)
        return allocation

    def opened(self, nonce: str) -> Allocation | None:
        """The memory of another process that was opened here already."""
        foreign = (allocation for allocation in self._at.values() if allocation.opens)
        return next((each for each in foreign if each.physical.tag and each.physical.tag.nonce == nonce), None)

    def close(self, address: int) -> None:
        """Give one opening back; with the last, the addresses go (fact 46)."""
        allocation = self._starting(address, opened=True)
        allocation.opens -= 1
        if not allocation.opens:
            self._end(allocation, foreign=True)

    def drop(self, device: int) -> None:
        """End everything that lived in a device's context."""
        for allocation in [each for each in self._at.values() if each.device == device]:
            self._end(allocation, foreign=bool(allocation.opens))

    def _starting(self, address: int, *, opened: bool) -> Allocation:
        allocation = self._at.get(address)
        if allocation is None or bool(allocation.opens) != opened:
            what = "memory opened from another process" if opened else "an allocation of this process"
            raise invalid(f"the address is not the start of {what}")
        return allocation

    def _add(self, allocation: Allocation) -> None:
        insort(self._starts, allocation.start)
        self._at[allocation.start] = allocation

    def _end(self, allocation: Allocation, *, foreign: bool = False) -> None:
        del self._at[allocation.start]
        del self._starts[bisect_left(self._starts, allocation.start)]
        if foreign:
            self._blocks.give_addresses(allocation.start, allocation.size)
        else:
            self._blocks.give(allocation.device, allocation.start, allocation.size)
        self._arena.give(allocation.physical)
