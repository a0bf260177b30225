"""What the driver itself does to bytes: fill and copy through mappings (fact 23)."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.driver.sim.access import AccessRules
from memtopo.driver.sim.arena import Physical
from memtopo.driver.sim.refusal import invalid
from memtopo.driver.types import Access

BLOCK = 1 << 20


class Contents:
    """Reads and writes simulated memory on behalf of one device."""

    def __init__(self, access: AccessRules) -> None:
        self._access = access

    def fill(self, device: int, address: int, value: int, count: int) -> None:
        """Set `count` bytes to one value, across adjacent mappings."""
        if value not in range(256):
            raise invalid("the value is no byte")
        block = bytes([value]) * min(count, BLOCK)
        for physical, at, size in self.parts(device, address, count, Access.RW, copying=False):
            for done in range(0, size, BLOCK):
                physical.write(at + done, memoryview(block)[: size - done])

    def write(self, device: int, address: int, data: bytes) -> None:
        """Put bytes, across adjacent mappings."""
        rest = memoryview(data)
        for physical, at, size in self.parts(device, address, len(data), Access.RW, copying=True):
            physical.write(at, rest[:size])
            rest = rest[size:]

    def read(self, device: int, address: int, count: int) -> bytes:
        """Get bytes, across adjacent mappings."""
        parts = self.parts(device, address, count, Access.R, copying=True)
        return b"".join(physical.read(at, size) for physical, at, size in parts)

    def store(self, device: int, address: int, data: bytes) -> None:
        """Put bytes as a kernel of a device does: no CPU and no copy engine has a say."""
        for physical, at, _ in self.parts(device, address, len(data), Access.RW, copying=False):
            physical.write(at, data)

    def host_write(self, address: int, data: bytes) -> None:
        """Put bytes as the CPU does itself."""
        physical, at = self._access.cpu_reach(address, len(data), Access.RW)
        physical.write(at, data)

    def host_read(self, address: int, count: int) -> bytes:
        """Get bytes as the CPU does itself."""
        physical, at = self._access.cpu_reach(address, count, Access.R)
        return physical.read(at, count)

    def parts(
        self, device: int, address: int, count: int, wanted: Access, *, copying: bool
    ) -> Iterator[tuple[Physical, int, int]]:
        """The physical memory behind addresses, as (memory, offset in it, bytes), once access is checked throughout."""
        end = address + count
        for place in self._access.reach(address, count, device, wanted, copying=copying):
            low, high = max(address, place.start), min(end, place.end)
            yield place.physical, low - place.start, high - low
