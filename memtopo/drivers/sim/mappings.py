"""Mappings of chunks into reservations (facts 13 to 17)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from memtopo.driver.types import Location
from memtopo.drivers.sim.address_space import Reservations
from memtopo.drivers.sim.calls import invalid, unsupported
from memtopo.drivers.sim.chunks import Chunk, Chunks
from memtopo.drivers.sim.physical import Physical


@dataclass(slots=True, eq=False)
class Mapping:
    """A whole chunk at an address, with access rights of its own, none at first (facts 16, 19)."""

    start: int
    end: int
    chunk: Chunk
    access: dict[Location, int] = field(default_factory=dict)

    @property
    def physical(self) -> Physical:
        """Bytes of the mapped chunk."""
        return self.chunk.physical


class Mappings:
    """Mappings of one process, in order of their addresses."""

    def __init__(self, addresses: Reservations, chunks: Chunks) -> None:
        self._addresses, self._chunks = addresses, chunks
        self._starts: list[int] = []
        self._at: dict[int, Mapping] = {}
        self._latest: Mapping | None = None
        """Mapping found last: its other end is mostly asked for next."""

    def map(self, address: int, size: int, handle: int, offset: int, flags: int) -> None:
        """Map a whole chunk inside one reservation (facts 13 to 15)."""
        if flags:
            raise invalid("flags must be 0")
        chunk = self._chunks.get(handle)
        if size <= 0 or not address:
            raise invalid("the size or the address is 0")
        if offset:
            raise unsupported("only a whole chunk can be mapped: the offset must be 0")
        if size != chunk.size:
            raise unsupported("only a whole chunk can be mapped: the size must be the chunk's")
        chunk.check_complete()
        index = self._free_index(address, size, chunk.granule)
        if chunk.anchor:
            chunk.anchor.map(address)
        self._starts.insert(index, address)
        self._at[address] = Mapping(address, address + size, chunk)
        chunk.mappings += 1

    def unmap(self, address: int, size: int) -> None:
        """Remove all mappings in a range, which must be reserved and cut no mapping (fact 17)."""
        if size <= 0:
            raise invalid("the size is 0")
        first, last = self._span(address, address + size)
        if not self._addresses.covers(address, address + size):
            raise invalid("the range is not reserved")
        self._latest = None
        for start in self._starts[first:last]:
            chunk = self._at.pop(start).chunk
            if chunk.anchor:
                chunk.anchor.unmap(start)
            self._chunks.unmapped(chunk)
        del self._starts[first:last]

    def find(self, address: int) -> Mapping | None:
        """Mapping around an address; None if there is none."""
        mapping = self._at.get(address) or self._latest
        if mapping is None or not mapping.start <= address < mapping.end:
            at = bisect_right(self._starts, address) - 1
            mapping = self._at[self._starts[at]] if at >= 0 else None
            if mapping is None or address >= mapping.end:
                return None
        self._latest = mapping
        return mapping

    def around(self, address: int) -> Mapping:
        """Mapping around an address; refuses if there is none."""
        mapping = self.find(address)
        if mapping is None:
            raise invalid("nothing is mapped at the address")
        return mapping

    def contiguous(self, address: int, size: int) -> list[Mapping]:
        """Mappings from the start of a range to its first hole; both ends of the range have to be ends of mappings."""
        if size <= 0:
            raise invalid("the size is 0")
        first, last = self._span(address, address + size)
        found = [self._at[start] for start in self._starts[first:last]]
        if not found or found[0].start != address or found[-1].end != address + size:
            raise invalid("the range does not begin and end with a mapping")
        hole = next((at for at, (one, next) in enumerate(pairwise(found), 1) if one.end != next.start), len(found))
        return found[:hole]

    def any_in(self, address: int, size: int) -> bool:
        """Return whether anything is mapped in a range (fact 12)."""
        at = bisect_left(self._starts, address)
        return at < len(self._starts) and self._starts[at] < address + size

    def _free_index(self, address: int, size: int, granule: int) -> int:
        """Index of a new mapping at this address; refuses addresses that are mapped or not reserved."""
        if address % granule:
            raise invalid("the address is not aligned to the granularity")
        reserved = self._addresses.end_around(address)
        if reserved is None:
            raise invalid("the address is not reserved")
        if address + size > reserved:
            raise invalid("the mapping runs past the end of its reservation")  # stricter than hardware (fact 15)
        index = bisect_left(self._starts, address)
        before = index and self._at[self._starts[index - 1]].end > address
        if before or (index < len(self._starts) and self._starts[index] < address + size):
            raise invalid("something is mapped there")
        return index

    def _span(self, address: int, end: int) -> tuple[int, int]:
        """Indices of the mappings in a range, as a half-open interval; refuses to cut one (facts 17, 20)."""
        first, last = bisect_left(self._starts, address), bisect_left(self._starts, end)
        cut_at_start = first and self._at[self._starts[first - 1]].end > address
        cut_at_end = last > first and self._at[self._starts[last - 1]].end > end
        if cut_at_start or cut_at_end:
            raise invalid("the range covers a part of a mapping")
        return first, last
