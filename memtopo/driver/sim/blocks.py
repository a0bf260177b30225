"""Addresses and device memory of allocations, in whole blocks; small ones share a block (fact 45)."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.sim.addresses import HIGHEST
from memtopo.driver.sim.budget import Budget
from memtopo.driver.sim.holes import Holes
from memtopo.driver.sim.refusal import Refused
from memtopo.driver.types import gpu

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
