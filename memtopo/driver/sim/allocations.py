"""Allocations, own and opened from other processes, external buffers and managed memory (facts 45, 46, 53, 60)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from memtopo.driver.sim.address_space import BLOCK, PAGE, AllocationBlocks
from memtopo.driver.sim.calls import invalid
from memtopo.driver.sim.physical import Arena, Physical
from memtopo.driver.types import HOST, Location, LocationKind, RangeAttribute


@dataclass(slots=True, eq=False)
class Allocation:
    """An allocation that the contexts of the devices `users` (ordinals) may read and write.

    It is freed with the context of `device`. `opens` is the number of openings of another process's allocation. A
    buffer is mapped external memory. `advised` has the advice for managed memory, which the CPU may use too (fact 39).
    """

    start: int
    end: int
    device: int
    users: set[int]
    physical: Physical
    kind: Literal["own", "opened", "buffer", "managed"] = "own"
    opens: int = 0
    advised: AdvisedPages | None = None

    @property
    def size(self) -> int:
        """Requested size."""
        return self.end - self.start


class Allocations:
    """Allocations that one process can use, in order of their addresses."""

    def __init__(self, blocks: AllocationBlocks, arena: Arena) -> None:
        self._blocks, self._arena = blocks, arena
        self._starts: list[int] = []
        self._at: dict[int, Allocation] = {}
        self._advised: WeakValueDictionary[int, AdvisedPages] = WeakValueDictionary()  # of shared blocks

    def take(self, device: int, size: int) -> int:
        """Allocate memory of a device (fact 45)."""
        if size <= 0:
            raise invalid("the size is 0")
        address = self._blocks.take(device, size)
        try:
            physical = self._arena.take(size)
        except OSError:
            self._blocks.give(device, address, size)
            raise
        self._add(Allocation(address, address + size, device, {device}, physical))
        return address

    def manage(self, device: int, size: int, users: Iterable[int]) -> int:
        """Allocate managed memory in a device's context for the CPU and the devices `users`; takes no device memory."""
        address = self._blocks.take_managed(device, size)
        physical, advised = self._arena.take(size), self._pages(address, size)
        self._add(Allocation(address, address + size, device, set(users), physical, "managed", advised=advised))
        return address

    def map(self, physical: Physical, device: int) -> int:
        """Map a part of external memory; returns its address (fact 53)."""
        address = self._blocks.take_addresses(physical.size)
        self._add(Allocation(address, address + physical.size, device, {device}, physical, "buffer"))
        return address

    def free(self, address: int) -> None:
        """Free an allocation of this process or a buffer; 0 is accepted and ignored (facts 45, 53)."""
        if address:
            self._end(self._starting(address, opened=False))

    def find(self, address: int) -> Allocation | None:
        """Allocation around an address; None if there is none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        allocation = self._at[self._starts[at]]
        return allocation if address < allocation.end else None

    def open(self, physical: Physical, device: int) -> Allocation:
        """Map another process's memory; it takes no memory of this process's budget (fact 46)."""
        address = self._blocks.take_addresses(physical.size)
        allocation = Allocation(address, address + physical.size, device, set(), physical, "opened")
        self._add(allocation)
        return allocation

    def opened(self, nonce: str) -> Allocation | None:
        """Allocation for another process's memory that is already open; None if there is none."""
        opened = (allocation for allocation in self._at.values() if allocation.kind == "opened")
        return next((each for each in opened if each.physical.tag and each.physical.tag.nonce == nonce), None)

    def close(self, address: int) -> None:
        """Close one opening; the last one frees the addresses (fact 46)."""
        allocation = self._starting(address, opened=True)
        allocation.opens -= 1
        if not allocation.opens:
            self._end(allocation)

    def drop(self, device: int) -> None:
        """Free all allocations of a device's context."""
        for allocation in [each for each in self._at.values() if each.device == device]:
            self._end(allocation)

    def _pages(self, address: int, size: int) -> AdvisedPages:
        """Pages of a new managed allocation; small ones share those of their block (fact 70)."""
        start = address - address % BLOCK
        if size >= BLOCK:
            return AdvisedPages(start, size)
        shared = self._advised.get(start) or AdvisedPages(start, BLOCK)
        self._advised[start] = shared
        return shared

    def _starting(self, address: int, *, opened: bool) -> Allocation:
        allocation = self._at.get(address)
        if allocation is None or (allocation.kind == "opened") != opened:
            expected = "memory opened from another process" if opened else "an allocation of this process"
            raise invalid(f"the address is not the start of {expected}")
        return allocation

    def _add(self, allocation: Allocation) -> None:
        insort(self._starts, allocation.start)
        self._at[allocation.start] = allocation

    def _end(self, allocation: Allocation) -> None:
        del self._at[allocation.start]
        del self._starts[bisect_left(self._starts, allocation.start)]
        if allocation.kind == "own":
            self._blocks.give(allocation.device, allocation.start, allocation.size)
        elif allocation.advised is not None:
            allocation.advised.change(allocation.start, allocation.end, lambda _: PageUse())
            self._blocks.give_managed(allocation.device, allocation.start, allocation.size)
        else:
            self._blocks.give_addresses(allocation.start, allocation.size)
        self._arena.give(allocation.physical)


class PageUse(NamedTuple):
    """Advice for a part of a managed allocation: GPUs by ordinal, and the host by -1."""

    read_mostly: bool = False
    preferred: tuple[int, ...] = ()
    accessed_by: tuple[int, ...] = ()
    prefetched: Location | None = None


class AdvisedPages:
    """Advice for the `size` bytes from `start`, the begin of a page, by pages of 4 KiB (facts 39, 60, 70)."""

    def __init__(self, start: int, size: int) -> None:
        self._start = start
        self._parts = [(start + _round_up(size), PageUse())]

    def change(self, start: int, end: int, change: Callable[[PageUse], PageUse]) -> None:
        """Change the advice for the pages that contain a range of bytes."""
        start, end = start // PAGE * PAGE, _round_up(end)
        parts, at = [], self._start
        for limit, uses in self._parts:
            before, inside = min(limit, max(at, start)), min(limit, max(at, end))
            cuts = [(before, uses), (inside, change(uses)), (limit, uses)]
            for cut, of in cuts:
                if cut > at:
                    parts.append((cut, of))
                    at = cut
        self._parts = parts

    def value(self, start: int, end: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """Value of an attribute that all pages of a range have in common.

        Advice that begins in an earlier page than the range is the value of the whole range (fact 70).
        """
        found = [uses for _, uses in self._advice(start, end)]
        begin, first = next(self._advice(start, end))
        if begin < start // PAGE * PAGE and first != PageUse():
            found = [first]
        match attribute:
            case RangeAttribute.READ_MOSTLY:
                return (int(all(uses.read_mostly for uses in found)),)
            case RangeAttribute.ACCESSED_BY:
                return tuple(each for each in found[0].accessed_by if all(each in uses.accessed_by for uses in found))
            case RangeAttribute.PREFERRED_LOCATION:
                return _common([uses.preferred for uses in found])
            case RangeAttribute.LAST_PREFETCH_LOCATION:
                places = {uses.prefetched for uses in found}
                return _ordinals(places.pop() if len(places) == 1 else None)

    def _advice(self, start: int, end: int) -> Iterator[tuple[int, PageUse]]:
        """Advice for a range, with the address of the first page that each was given for."""
        at = self._start
        for limit, uses in self._parts:
            if at < end and start < limit:
                yield at, uses
            at = limit


def _ordinals(location: Location | None) -> tuple[int, ...]:
    if location is None:
        return ()
    return (location.id if location.kind == LocationKind.GPU else HOST,)


def _common(values: list[tuple[int, ...]]) -> tuple[int, ...]:
    return values[0] if len(set(values)) == 1 else ()


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE
