"""Kernels on simulated memory, and the end of a process after an illegal access by a kernel (fact 24).

Only the bytes at both ends of each granule are written and read: a simulator has no SMs to touch all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.driver.kernels import ALIGNED, MOST_AREAS, Area, Verified, fingerprint, pattern
from memtopo.driver.types import Access
from memtopo.drivers.sim.access import AccessRules
from memtopo.drivers.sim.calls import Numbered, RefusedCall, invalid
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.process import Context, SimProcess

END = 4 << 10
"""Bytes written and read at each end of each granule of an area, counted from the area's start."""

ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
FIRST_MODULE = 0x7100_0000


class SimKernels:
    """Stores and loads by one process's kernels. `fatal` is the reason once an illegal access has ended the process."""

    def __init__(self, sim: SimProcess, access: AccessRules) -> None:
        self._sim, self._access = sim, access
        self._granule = self._sim.machine.address_granularity
        self._modules: Numbered[Context] = Numbered(FIRST_MODULE, "the module is not loaded", "INVALID_HANDLE", step=1)
        self.fatal: str | None = None

    def module_load_data(self) -> int:
        return self._modules.add(self._sim.contexts.current_context())

    def module_unload(self, module: int) -> None:
        self._sim.streams.check_done(self._sim.contexts.current())
        self._modules.remove(module)

    def drop(self, context: Context) -> None:
        """Unload the kernels in a context."""
        for module in [module for module, owner in self._modules.items() if owner == context]:
            del self._modules[module]

    def fill(self, areas: Sequence[Area]) -> None:
        """Write the ends of each area's granules."""
        device = self._checked(areas)
        for area in areas:
            for at, physical, offset, size in self._ends(device, area, Access.RW):
                physical.write(offset, pattern(area.seed, area.first + at, size))

    def verify(self, areas: Sequence[Area]) -> Verified:
        """Compare the ends of each area's granules; every word that differs is counted."""
        device = self._checked(areas)
        mismatches, lowest = 0, None
        for number, area in enumerate(areas):
            for at, physical, offset, size in self._ends(device, area, Access.R):
                actual, expected = physical.read(offset, size), pattern(area.seed, area.first + at, size)
                if actual == expected:
                    continue
                for where, width in _units(at, size, area.size):
                    one, other = (int.from_bytes(each[where : where + width], "little") for each in (expected, actual))
                    if one != other:
                        mismatches += 1
                        lowest = lowest or (number, at + where, one, other)
        self._survive()
        return Verified(mismatches, *lowest) if lowest else Verified(0)

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Fingerprints of the ends of each part's granules."""
        areas = [Area(address, size, 0) for address, size in parts]
        device = self._checked(areas)
        found = []
        for area in areas:
            ends = self._ends(device, area, Access.R)
            shares = (fingerprint(physical.read(offset, size), at) for at, physical, offset, size in ends)
            found.append(sum(shares) % (1 << 64))
        self._survive()
        return tuple(found)

    def store(self, address: int, value: int) -> None:
        """Store one word."""
        for physical, offset, size in self._reached(self._checked(()), address, 8, Access.RW):
            physical.write(offset, (value & (1 << 64) - 1).to_bytes(8, "little")[:size])

    def load(self, address: int) -> int:
        """Load one word."""
        device = self._checked(())
        found = b"".join(physical.read(at, size) for physical, at, size in self._reached(device, address, 8, Access.R))
        self._survive()
        return int.from_bytes(found, "little")

    def _checked(self, areas: Sequence[Area]) -> int:
        """Device of the current context, after a check of its kernels and of areas."""
        device = self._sim.contexts.current()
        if self._sim.contexts.current_context() not in self._modules.values():
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "no kernels are loaded in this context")
        if len(areas) > MOST_AREAS or any(each.address % ALIGNED or each.size < 0 or each.first % 8 for each in areas):
            raise invalid("an area is not aligned, or there are too many")
        return device

    def _survive(self) -> None:
        if self.fatal:
            raise RefusedCall(ILLEGAL, self.fatal)

    def _ends(self, device: int, area: Area, needed: Access) -> Iterator[tuple[int, Physical, int, int]]:
        """Yield the parts that represent an area: offset in the area, memory, offset in the memory, size."""
        for start in range(0, area.size, self._granule):
            end = min(start + self._granule, area.size)
            at = start
            for physical, offset, size in self._reached(device, area.address + start, end - start, needed):
                if size <= 2 * END:
                    yield at, physical, offset, size
                else:
                    last = (size - END) // ALIGNED * ALIGNED
                    yield at, physical, offset, END
                    yield at + last, physical, offset + last, size - last
                at += size

    def _reached(self, device: int, address: int, size: int, needed: Access) -> Iterator[tuple[Physical, int, int]]:
        """Yield the memory behind addresses; nothing after an illegal access, which ends the process."""
        try:
            yield from self._access.parts(device, address, size, needed, copying=False)
        except RefusedCall as refused:
            self.fatal = self.fatal or f"a kernel on gpu{device} made an illegal access: {refused.reason}"


def _units(at: int, size: int, whole: int) -> Iterator[tuple[int, int]]:
    """Yield the words of a window, and each single one of an area's last bytes, as offset and width."""
    tail = whole - whole % 16 - at
    yield from ((where, 8) for where in range(0, min(size, tail), 8))
    yield from ((where, 1) for where in range(max(0, tail), size))
