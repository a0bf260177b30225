"""Free address space, found by size or by place in logarithmic time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.sim.calls import Refused, invalid
from memtopo.driver.sim.devices import Budget
from memtopo.driver.types import gpu


class Holes:
    """The free parts of one span of addresses; deterministic, and whole again once everything is given back."""

    def __init__(self, start: int, end: int) -> None:
        self._starts = [start]
        self._ends = {start: end}
        self._by_size = [(end - start, start)]

    def take(self, size: int, alignment: int) -> int | None:
        """Take the lowest address of a hole that holds `size` bytes at `alignment`; None where there is none."""
        for hole in self._candidates(size, alignment):
            address = -(-hole // alignment) * alignment
            if address + size <= self._ends[hole]:
                self._cut(hole, address, size)
                return address
        return None

    def take_at(self, address: int, size: int) -> bool:
        """Take exactly these addresses, if they are free."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address + size > self._ends[self._starts[at]]:
            return False
        self._cut(self._starts[at], address, size)
        return True

    def give(self, address: int, size: int) -> None:
        """Give addresses back; they grow together with the holes beside them."""
        start, end = address, address + size
        at = bisect_left(self._starts, address)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._remove(self._starts[at])
        if at and self._ends[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._remove(start)
        self._add(start, end)

    def _candidates(self, size: int, alignment: int) -> Iterator[int]:
        """The smallest hole that may do, the smallest that surely does, and only then all between them."""
        tight = bisect_left(self._by_size, (size, 0))
        surely = bisect_left(self._by_size, (size + alignment - 1, 0))
        for at in (tight, surely):
            if at < len(self._by_size):
                yield self._by_size[at][1]
        yield from [hole for _, hole in self._by_size[tight:surely]]

    def _cut(self, hole: int, address: int, size: int) -> None:
        end = self._remove(hole)
        if hole < address:
            self._add(hole, address)
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


HINTED = 32 << 20  # hints were rounded up to this (fact 11)
LOWEST, HIGHEST = 1 << 40, 84 << 40  # a reservation of 64 TiB fits, one of 128 TiB does not (fact 9)


class Addresses:
    """Every reservation of one process."""

    def __init__(self, granule: int) -> None:
        self._granule = granule
        self._holes = Holes(LOWEST, HIGHEST)
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def reserve(self, size: int, alignment: int, hint: int, flags: int) -> int:
        """Reserve addresses at the rounded hint if they are free there, else wherever they fit (facts 9 to 11)."""
        self._check(size, alignment, hint, flags)
        alignment = max(alignment, self._granule)
        wish = -(-hint // max(HINTED, alignment)) * max(HINTED, alignment)
        wished = bool(hint) and self._holes.take_at(wish, size)
        address = wish if wished else self._holes.take(size, alignment)
        if address is None:
            raise Refused("CUDA_ERROR_OUT_OF_MEMORY", "no free addresses of that size and alignment are left")
        insort(self._starts, address)
        self._ends[address] = address + size
        return address

    def free(self, address: int, size: int) -> None:
        """Give exactly one reservation back (fact 12); the caller sees to it that nothing is mapped inside."""
        del self._ends[address]
        del self._starts[bisect_left(self._starts, address)]
        self._holes.give(address, size)

    def check_whole(self, address: int, size: int) -> None:
        """Refuse what is not exactly one reservation's address and size (fact 12)."""
        if address not in self._ends:
            raise invalid("the address is not the start of a reservation")
        if self._ends[address] != address + size:
            raise invalid("the size is not the reservation's")

    def end_around(self, address: int) -> int | None:
        """Where the reservation around an address ends; None where there is none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        end = self._ends[self._starts[at]]
        return end if address < end else None

    def covers(self, address: int, end: int) -> bool:
        """Whether all addresses up to `end` are reserved, be it by several adjacent reservations (fact 17)."""
        while address < end:
            reserved = self.end_around(address)
            if reserved is None:
                return False
            address = reserved
        return True

    def _check(self, size: int, alignment: int, hint: int, flags: int) -> None:
        if flags:
            raise invalid("flags must be 0")
        if size <= 0 or size % self._granule:
            raise invalid("the size is not a multiple of the granularity")
        if alignment < 0 or alignment & (alignment - 1):
            raise invalid("the alignment is no power of two")
        if hint % self._granule:
            raise invalid("the address hint is not aligned to the granularity")
        if alignment and hint % alignment:
            raise invalid("the address hint is not aligned as the reservation is to be")


BLOCK = 2 << 20
UNIT = 512  # what small allocations are rounded to; only that two of 64 KiB lay side by side was seen
FIRST, LAST = HIGHEST + (12 << 40), HIGHEST + (76 << 40)  # where no reservation is, with room for fact 60


@dataclass(slots=True)
class _Shared:
    """A block of small allocations."""

    holes: Holes
    parts: int = 0


class Blocks:
    """Where allocations are, and what they take."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._holes = Holes(FIRST, LAST)
        self._shared: dict[int, dict[int, _Shared]] = {}  # by device and address

    def take(self, device: int, size: int) -> int:
        """Addresses and memory for an allocation, or a refusal with `CUDA_ERROR_OUT_OF_MEMORY`."""
        if size < BLOCK:
            return self._take_part(device, _up(size, UNIT))
        self._budget.take(gpu(device), _up(size, BLOCK))
        try:
            return self.take_addresses(size)
        except Refused:
            self._budget.give(gpu(device), _up(size, BLOCK))
            raise

    def give(self, device: int, address: int, size: int) -> None:
        """Give an allocation back; a shared block goes with its last one."""
        if size >= BLOCK:
            self._budget.give(gpu(device), _up(size, BLOCK))
            self.give_addresses(address, size)
            return
        start = address - address % BLOCK
        shared = self._shared[device][start]
        shared.holes.give(address, _up(size, UNIT))
        shared.parts -= 1
        if not shared.parts:
            del self._shared[device][start]
            self.give(device, start, BLOCK)

    def take_addresses(self, size: int) -> int:
        """Addresses alone, for memory that is not allocated here, or managed."""
        address = self._holes.take(_up(size, BLOCK), BLOCK)
        if address is None:
            raise Refused("CUDA_ERROR_OUT_OF_MEMORY", "no free addresses are left")
        return address

    def give_addresses(self, address: int, size: int) -> None:
        """Give such addresses back."""
        self._holes.give(address, _up(size, BLOCK))

    def _take_part(self, device: int, size: int) -> int:
        blocks = self._shared.setdefault(device, {})
        for shared in reversed(blocks.values()):  # the newest is the likeliest to have room
            if (address := shared.holes.take(size, UNIT)) is not None:
                shared.parts += 1
                return address
        start = self.take(device, BLOCK)
        blocks[start] = _Shared(Holes(start, start + BLOCK))
        return self._take_part(device, size)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
