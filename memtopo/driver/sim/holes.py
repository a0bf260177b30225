"""Free address space, found by size or by place in logarithmic time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


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
