"""Addresses and memory that a pool reserves, of which its allocations are parts (fact 80)."""

from __future__ import annotations

from dataclasses import dataclass, field

from memtopo.drivers.sim.address_space import FreeRanges

RESERVED = 32 << 20
"""Unit of the memory that a pool reserves."""

UNIT = 512
"""Alignment of allocations."""


@dataclass(slots=True, eq=False)
class Segment:
    """Addresses of a pool; `backed` has the units with memory, with the number of allocations in each.

    `freed` has what was freed since the last synchronisation, which is allocated again first (fact 80).
    """

    start: int
    size: int
    free: FreeRanges
    freed: FreeRanges = field(default_factory=FreeRanges.none)
    backed: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> int | None:
        """Take addresses where the least room is left, of what was freed last if it fits there."""
        address = self.freed.take(size, UNIT)
        if address is None:
            address = self.free.take(size, UNIT)
            if address is not None:
                self.freed.discard(address, size)
        else:
            self.free.take_at(address, size)
        return address

    def give(self, address: int, size: int, *, at_once: bool) -> None:
        """Return addresses, unless `at_once` as freed last until the next synchronisation."""
        self.free.give(address, size)
        if not at_once:
            self.freed.give(address, size)

    def unused(self) -> list[int]:
        """Units with memory that no allocation has a part of, nor had since the last synchronisation."""
        found = [unit for unit, parts in self.backed.items() if not parts]
        return [unit for unit in found if not self.freed.overlaps(self.start + unit * RESERVED, RESERVED)]

    def units(self, address: int, size: int) -> range:
        """Units that some of the addresses are in."""
        return range((address - self.start) // RESERVED, (address + size - 1 - self.start) // RESERVED + 1)
