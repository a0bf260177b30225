"""The address space: free ranges, reservations (facts 9 to 12), and blocks of allocations (fact 45)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from memtopo.common.errors import on_failure
from memtopo.common.units import rounded_up
from memtopo.driver.types import ADDRESS_BLOCK, ADDRESS_SPACE, WHOLE_HOST, Location, gpu
from memtopo.drivers.sim.calls import RefusedCall, refuse_if
from memtopo.drivers.sim.devices import SimMemoryBudget


class FreeRanges:
    """Free ranges of a span of addresses, found by size or by address in logarithmic time; deterministic."""

    def __init__(self, start: int = 0, end: int = 0) -> None:
        """One range, or none if it is empty."""
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        if start < end:
            self._add(start, end)

    def take(self, size: int, alignment: int) -> int | None:
        """Take the lowest aligned address of a range that has room for `size` bytes; None if there is none."""
        for start in self._candidates(size, alignment):
            address = -(-start // alignment) * alignment
            if address + size <= self._ends[start]:
                self._cut(start, address, size)
                return address
        return None

    def take_at(self, address: int, size: int) -> bool:
        """Take exactly these addresses; returns whether they were free."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address + size > self._ends[self._starts[at]]:
            return False
        self._cut(self._starts[at], address, size)
        return True

    def overlaps(self, address: int, size: int) -> bool:
        """Return whether some of the addresses are free."""
        return any(each < address + size and self._ends[each] > address for each in self._starts)

    def discard(self, address: int, size: int) -> list[tuple[int, int]]:
        """Take those of some addresses that are free; return them as (address, size)."""
        end, taken = address + size, list[tuple[int, int]]()
        for start in [each for each in self._starts if each < end and self._ends[each] > address]:
            low, high = max(start, address), min(self._ends[start], end)
            self._cut(start, low, high - low)
            taken.append((low, high - low))
        return taken

    def give(self, address: int, size: int) -> None:
        """Return addresses; they are merged with adjacent free ranges."""
        start, end = address, address + size
        at = bisect_left(self._starts, address)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._remove(self._starts[at])
        if at and self._ends[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._remove(start)
        self._add(start, end)

    def _candidates(self, size: int, alignment: int) -> Iterator[int]:
        """The smallest range that may fit, the smallest that fits for certain, and only then all between them."""
        tight = bisect_left(self._by_size, (size, 0))
        certain = bisect_left(self._by_size, (size + alignment - 1, 0))
        for at in (tight, certain):
            if at < len(self._by_size):
                yield self._by_size[at][1]
        yield from [start for _, start in self._by_size[tight:certain]]

    def _cut(self, start: int, address: int, size: int) -> None:
        end = self._remove(start)
        if start < address:
            self._add(start, address)
        if address + size < end:
            self._add(address + size, end)

    def _add(self, start: int, end: int) -> None:
        insort(self._starts, start)
        self._ends[start] = end
        insort(self._by_size, (end - start, start))

    def _remove(self, start: int) -> int:
        end = self._ends.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end


LOWEST, HIGHEST = 1 << 40, 84 << 40
_FURTHER = 1 << 48
"""Start of the addresses, which no process has, of reservations that do not fit into those."""


class Reservations:
    """Reservations of one process."""

    def __init__(self, granule: int) -> None:
        self._granule = granule
        self._free = FreeRanges(LOWEST, HIGHEST)
        self._free.give(_FURTHER, ADDRESS_SPACE)
        self._left = ADDRESS_SPACE - 1
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        """Reserve addresses at the rounded hint if they are free, otherwise wherever they fit (facts 9 to 11)."""
        refuse_if(flags, "flags must be 0")
        refuse_if(size <= 0 or size % self._granule, "the size is not a multiple of the granularity")
        refuse_if(alignment < 0 or alignment & (alignment - 1), "the alignment is not a power of two")
        refuse_if(address % self._granule, "the address hint is not aligned to the granularity")
        refuse_if(alignment and address % alignment, "the address hint is not aligned as the reservation is to be")
        alignment = max(alignment, self._granule)
        hinted = -(-address // max(ADDRESS_BLOCK, alignment)) * max(ADDRESS_BLOCK, alignment)
        start = None
        if address and hinted < HIGHEST and self._free.take_at(hinted, size):
            start = hinted
        elif size <= self._left:
            start = self._free.take(size, alignment)
        if start is None:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "no free addresses of that size and alignment are left")
        self._left -= size
        insort(self._starts, start)
        self._ends[start] = start + size
        return start

    def free(self, address: int, size: int) -> None:
        """Free exactly one reservation (fact 12); the caller has checked that nothing is mapped inside."""
        del self._ends[address]
        del self._starts[bisect_left(self._starts, address)]
        self._free.give(address, size)
        self._left += size

    def check_whole(self, address: int, size: int) -> None:
        """Refuse a range that is not exactly one reservation (fact 12)."""
        refuse_if(address not in self._ends, "the address is not the start of a reservation")
        refuse_if(self._ends[address] != address + size, "the size is not the reservation's")

    def around(self, address: int) -> tuple[int, int] | None:
        """Start and end of the reservation around an address; None if there is none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        start = self._starts[at]
        end = self._ends[start]
        return (start, end) if address < end else None

    def covers(self, address: int, end: int) -> bool:
        """Return whether all addresses up to `end` are reserved, by one or several adjacent reservations (fact 17)."""
        while address < end:
            reserved = self.around(address)
            if reserved is None:
                return False
            _, address = reserved
        return True


BLOCK = 2 << 20
UNIT = 512  # what small allocations are rounded to; only that two of 64 KiB lay side by side was seen
PAGE = 4 << 10
RESERVED = 32 << 20
"""Unit of the memory that a pool reserves."""
FIRST, LAST = HIGHEST + (12 << 40), HIGHEST + (76 << 40)  # where no reservation is, with room for fact 60


_Room = tuple[int, int, int]
"""Free range of a block: its size, the number of the block, and its start."""


class _Block(FreeRanges):
    """Block of `parts` small allocations; keeps its free ranges in the list `room` of all blocks, too."""

    def __init__(self, start: int, number: int, room: list[_Room]) -> None:
        self._number, self._room = number, room
        super().__init__(start, start + BLOCK)
        self.parts = 0

    def _add(self, start: int, end: int) -> None:
        super()._add(start, end)
        insort(self._room, (end - start, self._number, start))

    def _remove(self, start: int) -> int:
        end = super()._remove(start)
        del self._room[bisect_left(self._room, (end - start, self._number, start))]
        return end

    def leave(self) -> None:
        """Remove the block, all of which is free, from the list of all blocks."""
        for start in self._starts.copy():
            self._remove(start)


class _SharedBlocks:
    """Blocks that small allocations share; each is taken with its first part and given back with its last.

    A part goes where the least room is left, and of several such places into the oldest block (fact 70).
    """

    def __init__(self, take: Callable[[], int], give: Callable[[int], None]) -> None:
        self._take, self._give = take, give
        self._blocks: dict[int, _Block] = {}
        self._room: list[_Room] = []
        self._taken = 0

    def take(self, size: int) -> int:
        """Take a part that is rounded up to, and aligned to, `UNIT`."""
        size = rounded_up(size, UNIT)
        at = bisect_left(self._room, (size, 0, 0))
        if at == len(self._room):
            start = self._take()
            self._taken += 1
            self._blocks[start] = _Block(start, self._taken, self._room)
            return self.take(size)
        _, _, start = self._room[at]
        block = self._blocks[start - start % BLOCK]
        address = block.take(size, UNIT)
        assert address is not None
        block.parts += 1
        return address

    def give(self, address: int, size: int) -> None:
        """Give a part back."""
        start = address - address % BLOCK
        block = self._blocks[start]
        block.give(address, rounded_up(size, UNIT))
        block.parts -= 1
        if not block.parts:
            block.leave()
            del self._blocks[start]
            self._give(start)


Use = Literal["own", "managed", "pinned"]
"""Use of memory: that of a device, managed memory, which takes none, or page-locked memory of the host."""


class AllocationBlocks:
    """Addresses and memory of allocations, in whole blocks; small allocations share a block (fact 45)."""

    def __init__(self, budget: SimMemoryBudget) -> None:
        self._budget = budget
        self._free = FreeRanges(FIRST, LAST)
        self._shared: dict[tuple[Use, int, int], _SharedBlocks] = {}
        """Blocks of small allocations by use of the memory, device, and flags that separate them."""

    def take(self, use: Use, device: int, size: int, flags: int = 0) -> int:
        """Take addresses for an allocation, and the memory that it takes; refuses with `CUDA_ERROR_OUT_OF_MEMORY`.

        Small allocations share a block, those with other flags among themselves (facts 45, 70, 74).
        """
        location, taken = _taken(use, device, size)
        self._budget.take(location, taken)
        with on_failure(self._budget.give, location, taken):
            return self._blocks(use, device, flags).take(size) if size < BLOCK else self.take_addresses(size)

    def give(self, use: Use, device: int, address: int, size: int, flags: int = 0) -> None:
        """Free an allocation; a shared block is freed with its last allocation."""
        if size < BLOCK:
            self._blocks(use, device, flags).give(address, size)
        else:
            self.give_addresses(address, size)
        self._budget.give(*_taken(use, device, size))

    def lock(self, size: int) -> None:
        """Take memory of the host in whole pages."""
        self._budget.take(WHOLE_HOST, rounded_up(size, PAGE))

    def unlock(self, size: int) -> None:
        """Return such memory."""
        self._budget.give(WHOLE_HOST, rounded_up(size, PAGE))

    def take_addresses(self, size: int) -> int:
        """Take addresses alone, for memory of other processes or large managed memory."""
        address = self._free.take(rounded_up(size, BLOCK), BLOCK)
        if address is None:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "no free addresses are left")
        return address

    def give_addresses(self, address: int, size: int) -> None:
        """Return such addresses."""
        self._free.give(address, rounded_up(size, BLOCK))

    def _blocks(self, use: Use, device: int, flags: int) -> _SharedBlocks:
        """Shared blocks: of addresses alone, or with memory of a device."""
        key = use, device, flags
        if key not in self._shared:
            take, give = partial(self.take_addresses, BLOCK), partial(self.give_addresses, size=BLOCK)
            if use == "own":
                take, give = partial(self.take, use, device, BLOCK), partial(self.give, use, device, size=BLOCK)
            self._shared[key] = _SharedBlocks(take, give)
        return self._shared[key]


def _taken(use: Use, device: int, size: int) -> tuple[Location, int]:
    """Location and bytes of the memory that an allocation takes besides that of the block that it shares."""
    if use == "pinned":
        return WHOLE_HOST, rounded_up(size, PAGE)
    return gpu(device), rounded_up(size, BLOCK) if use == "own" and size >= BLOCK else 0
