"""The address space and its reservations (facts 9 to 12)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from memtopo.driver.sim.holes import Holes
from memtopo.driver.sim.refusal import Refused, invalid

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
