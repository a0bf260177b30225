"""Simulated drivers that report success for something else than what was requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memtopo.driver.kernels import Area
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, DriverError, Grant, Location, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.machine import Machine
from memtopo.run.apply import apply
from memtopo.session.request import RunRequest
from tests.helpers.failing_driver import Failing
from tests.helpers.specs import Run

GRANULE = 2 << 20


class SwapsChunks(SimDriver):
    """Maps the first two chunks in place of each other, each at its first mapping."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._created: list[int] = []
        self._mapped = 0

    def mem_create(self, *args: Any, **kwargs: Any) -> int:
        self._created.append(super().mem_create(*args, **kwargs))
        return self._created[-1]

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        first, second = self._created[:2]
        self._mapped += 1
        swapped = {first: second, second: first} if self._mapped <= 2 else {}
        super().mem_map(address, size, swapped.get(handle, handle), offset, flags)


class DropsAWrite(SimDriver):
    """Loses the third of the writes."""

    writes = 0

    def memcpy_htod(self, address: int, data: bytes) -> None:
        self.writes += 1
        if self.writes != 3:
            super().memcpy_htod(address, data)


class DropsFills(SimDriver):
    """Loses what gpu1's kernels store."""

    def fill(self, areas: Sequence[Area]) -> None:
        if self._contexts.current() != 1:
            super().fill(areas)


class MapsOneTwice(SimDriver):
    """Maps the first chunk in place of the second."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._handles: list[int] = []

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        self._handles.append(handle)
        super().mem_map(address, size, self._handles[0] if len(self._handles) == 2 else handle, offset, flags)


class Aliases(SimDriver):
    """Backs the second chunk by the memory of the first, which no query reports."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._created: list[int] = []

    def mem_create(self, *args: Any, **kwargs: Any) -> int:
        self._created.append(super().mem_create(*args, **kwargs))
        if len(self._created) == 2:
            first, second = (self._chunks.get(handle) for handle in self._created)
            second.physical = first.physical
        return self._created[-1]


class UnreleasedHandle(SimDriver):
    """Keeps the last reference to the second chunk."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._created: list[int] = []

    def mem_create(self, *args: Any, **kwargs: Any) -> int:
        self._created.append(super().mem_create(*args, **kwargs))
        return self._created[-1]

    def mem_release(self, handle: int) -> None:
        if handle != self._created[1] or self._mappings._at:
            super().mem_release(handle)


class LosesTheLastGranule(SimDriver):
    """Loses what is written to the last granule of a chunk that has several."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._lost: list[tuple[int, int]] = []

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        super().mem_map(address, size, handle, offset, flags)
        if size > GRANULE:
            self._lost.append((address + size - GRANULE, address + size))

    def memcpy_htod(self, address: int, data: bytes) -> None:
        if not any(low <= address < high for low, high in self._lost):
            super().memcpy_htod(address, data)

    def fill(self, areas: Sequence[Area]) -> None:
        ends = {high for _, high in self._lost}
        cut = [each._replace(size=each.size - GRANULE * (each.address + each.size in ends)) for each in areas]
        super().fill(cut)


class FlipsABit(SimDriver):
    """Flips a bit in the second read."""

    reads = 0

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        seen = super().memcpy_dtoh(address, count)
        self.reads += 1
        return bytes([seen[0] ^ 1, *seen[1:]]) if self.reads == 2 else seen


class GrantsTooMuch(SimDriver):
    """Grants gpu1 read and write access as well."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        super().mem_set_access(address, size, (*grants, Grant(gpu(1), Access.RW)))


class ReadOnlyGrants(SimDriver):
    """Grants read access in place of any other."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        super().mem_set_access(address, size, tuple(grant._replace(access=Access.R) for grant in grants))


class GrantsNothing(SimDriver):
    """Grants no access."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        pass


class FillsHoles(SimDriver):
    """Reports unmapped addresses as mapped without access."""

    def mem_get_access(self, address: int, location: Location) -> int:
        try:
            return super().mem_get_access(address, location)
        except DriverError:
            return 0


class Spills(SimDriver):
    """Lets stores of gpu1's kernels change the first mapping too."""

    first = 0

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        super().mem_map(address, size, handle, offset, flags)
        self.first = self.first or address

    def fill(self, areas: Sequence[Area]) -> None:
        super().fill(areas)
        if self._contexts.current() == 1:
            mapping = self._mappings.around(self.first)
            mapping.physical.write(0, b"spilled!")


class RefusesNothing(SimDriver):
    """Fills memory for any GPU, whatever its access."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        for place in self._access.reach(address, count, 0, Access.NONE, copying=False):
            place.physical.write(address - place.start, bytes([value]) * count)


class ForgetsHandles(SimDriver):
    """Creates chunks that cannot be exported."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return super().mem_create(size, properties._replace(handles=properties.handles & 0), flags)


class IgnoresAlignment(SimDriver):
    """Reserves at an address that is a multiple of the granularity, but not of a larger alignment."""

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        del alignment, address
        before = super().mem_address_reserve(2 << 20, 4 << 20, 0, flags)
        at = super().mem_address_reserve(size, 0, 0, flags)
        super().mem_address_free(before, 2 << 20)
        return at


class SharedMachine(SimDriver):
    """Reports 4 MiB less of free memory at each query, as if another process took it."""

    taken = 0

    def mem_get_info(self) -> tuple[int, int]:
        free, total = super().mem_get_info()
        self.taken += 4 << 20
        return free - self.taken, total


def run_on(driver: SimDriver, run_request: RunRequest) -> Run:
    """Apply a request on such a driver, and close it."""
    driver.init()
    failing = Failing(driver, 0)
    ledger = Ledger(failing)
    try:
        return Run(apply(run_request, ledger), ledger, failing)
    finally:
        driver.close()
