"""Page-locked host memory: allocated by the driver (fact 74), or memory of the process that is registered (fact 85)."""

from __future__ import annotations

from pathlib import Path

from memtopo.driver.types import HostFlags, RegisterFlags
from memtopo.drivers.sim.address_space import PAGE
from memtopo.drivers.sim.allocations import Allocations
from memtopo.drivers.sim.calls import Refused, invalid
from memtopo.drivers.sim.devices import Contexts
from memtopo.drivers.sim.events import Streams
from memtopo.drivers.sim.physical import ProcessMemory

_KNOWN = RegisterFlags.PORTABLE | RegisterFlags.DEVICEMAP | RegisterFlags.IOMEMORY | RegisterFlags.READ_ONLY

_LAST = 1 << 47


class PinnedMemory:
    """Rules of page-locked host memory."""

    def __init__(self, contexts: Contexts, streams: Streams, allocations: Allocations) -> None:
        self._contexts, self._streams, self._allocations = contexts, streams, allocations

    def mem_host_register(self, address: int, size: int, flags: RegisterFlags) -> None:
        """Register any bytes of the process in the current context; the pages that have them are locked (fact 85)."""
        device = self._contexts.current()
        if size <= 0 or not 0 < address < _LAST or int(flags) & ~int(_KNOWN):
            raise invalid("the size or the address is 0, or a flag is unknown")
        start, end = address // PAGE * PAGE, -(-(address + size) // PAGE) * PAGE
        self._check_registered(address, address + size, flags)
        if self._allocations.any_in(address, address + size):
            raise invalid("the memory is an allocation of the driver")
        memory = ProcessMemory(-1, address, size)
        self._allocations.register(device, address, size, flags, memory)
        if not (_is_mapped(start, end, writable=not flags & RegisterFlags.READ_ONLY) and memory.present(start, end)):
            self._allocations.unregister(address)
            raise invalid("a page is not mapped, behind the end of its file, or read-only without READ_ONLY")

    def _check_registered(self, start: int, end: int, flags: int) -> None:
        """Refuse bytes that are registered, and pages that are locked with other flags, in the driver's order."""
        pages = start // PAGE * PAGE, -(-end // PAGE) * PAGE
        locked = [each for each in self._allocations.within(*pages) if each.kind == "registered"]
        if any(each.start <= start < each.end or (start <= each.start and each.end <= end) for each in locked):
            raise Refused("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "some of it is registered already")
        if flags & RegisterFlags.IOMEMORY:
            raise invalid("a flag is for devices")
        inside = (each for each in locked if pages[0] <= each.start // PAGE * PAGE and each.end <= pages[1])
        if any((each.flags ^ flags) & RegisterFlags.READ_ONLY for each in inside):
            raise invalid("pages of it are locked with READ_ONLY, or are to be and are locked without")
        if any(each.start < end and start < each.end for each in locked):
            raise Refused("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the end of it is registered already")

    def mem_host_unregister(self, address: int) -> None:
        """End the registration that begins at an address (fact 85)."""
        self._streams.check_done()
        found = self._allocations.find(address)
        if found is None and address:
            raise Refused("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the address is in no registered memory")
        self._allocations.unregister(address)

    def mem_host_get_device_pointer(self, address: int) -> int:
        """Address for a device: that of the CPU (facts 74, 85)."""
        self._contexts.current()
        found = self._allocations.find(address)
        if found is None or found.kind not in {"pinned", "registered"}:
            raise invalid("the address is in no page-locked memory")
        return address

    def mem_host_get_flags(self, address: int) -> int:
        """Flags of page-locked memory, which is mapped for devices anyway, without READ_ONLY (facts 74, 85)."""
        self._contexts.current()
        found = self._allocations.find(address)
        if found is None or not found.by_cpu:
            raise invalid("the address is in no memory of the host")
        return (found.flags | HostFlags.DEVICEMAP) & ~RegisterFlags.READ_ONLY


def _is_mapped(start: int, end: int, *, writable: bool) -> bool:
    """Return whether each page of this process from `start` to `end` may be read, and written if `writable`.

    Pages of a file that is on a disk, shared with others, cannot be locked (fact 85).
    """
    needed = {"r", "w"} if writable else {"r"}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _, device = line.split(maxsplit=4)[:4]
        low, high = (int(each, 16) for each in span.split("-"))
        if low <= start < high:
            on_disk = "s" in permissions and not device.startswith("00:")
            if on_disk or not needed <= set(permissions):
                return False
            start = high
        if start >= end:
            return True
    return False
