"""Memory that the CPU uses, too: managed (facts 39, 60), page-locked (fact 74), and registered (fact 85)."""

from __future__ import annotations

from pathlib import Path

from memtopo.common.errors import on_failure
from memtopo.common.units import rounded_up
from memtopo.driver.types import (
    HOST,
    Advice,
    Attribute,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    RangeAttribute,
    RegisterFlags,
    gpu,
)
from memtopo.drivers.sim.address_space import PAGE
from memtopo.drivers.sim.allocations import AdvisedPages, PageUse, SimAllocation, SimAllocations
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.chunks import Mapping, SimMappings
from memtopo.drivers.sim.physical import SimProcessMemory
from memtopo.drivers.sim.process import SimProcess


class SimManagedMemory:
    """Rules of managed memory on one machine."""

    def __init__(self, sim: SimProcess, allocations: SimAllocations) -> None:
        self._sim, self._allocations = sim, allocations

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        """Allocate memory that the CPU and every GPU may use; it takes no device memory (fact 60)."""
        if flags not in {MemAttach.GLOBAL, MemAttach.HOST}:
            raise invalid("the flags must be those of memory for all GPUs, or at first for the host")
        refuse_if(size <= 0, "the size is 0")
        device = self._sim.contexts.current()
        if not self._has(device, Attribute.MANAGED_MEMORY):
            raise unsupported(f"gpu{device} has no managed memory")
        return self._allocations.manage(device, size, range(len(self._sim.machine.devices)))

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        """Advise a part of an allocation; with a node, the part is not checked, and nothing changes (fact 71)."""
        self._sim.contexts.current()
        read_mostly = advice == Advice.SET_READ_MOSTLY
        ordinal = location.id if read_mostly else self._ordinal(location, missing="CUDA_ERROR_INVALID_VALUE")
        if location.kind in {LocationKind.GPU, LocationKind.HOST}:
            start, end, advised = self._part(address, size)
            advised.change(start, end, lambda uses: _with(uses, advice, ordinal))
        elif advice == Advice.SET_ACCESSED_BY:
            raise invalid("memory is accessed by the host as a whole")

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        """Prefetch a part of an allocation in the order of a stream; in stream 0 at once."""
        self._sim.contexts.current()
        refuse_if(size <= 0, "the bytes are none")
        self._ordinal(location, missing="CUDA_ERROR_INVALID_DEVICE")
        start, end, advised = self._part(address, size)

        def work() -> bool:
            advised.change(start, end, lambda uses: uses._replace(prefetched=location))
            return True

        if stream:
            self._sim.streams.add(self._sim.streams.get(stream), work)
        else:
            work()

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """Value of an attribute of a part of an allocation."""
        self._sim.contexts.current()
        start, end, advised = self._part(address, size)
        return advised.value(start, end, attribute)

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        """Attach an allocation to a stream; has no effect where GPU and CPU may use memory concurrently (fact 60)."""
        self._sim.contexts.current(), self._sim.streams.get(stream)
        found = self._around(address)
        refuse_if(found.start != address, "the address is not the start of an allocation")
        if flags not in set(MemAttach):
            raise invalid("the flags are none of memory for all, for the host, and for a single stream")
        refuse_if(flags == MemAttach.SINGLE and not stream, "memory cannot be attached to stream 0")

    def _around(self, address: int) -> SimAllocation:
        found = self._allocations.find(address)
        if found is None or found.advised is None:
            raise invalid("the address is in no managed memory")
        return found

    def _part(self, address: int, size: int) -> tuple[int, int, AdvisedPages]:
        found = self._around(address)
        if size <= 0 or address + size > found.end or found.advised is None:
            raise invalid("the bytes are none, or run past the end of the allocation")
        return address, address + size, found.advised

    def _ordinal(self, location: Location, *, missing: str) -> int:
        """Location as an ordinal of range attributes; refuses a missing one, a GPU with the error `missing`."""
        if location.kind == LocationKind.GPU:
            if location not in self._sim.machine.locations:
                raise RefusedCall(missing, f"{location} does not exist")
            if not self._has(location.id, Attribute.CONCURRENT_MANAGED_ACCESS):
                raise RefusedCall(
                    "CUDA_ERROR_INVALID_DEVICE", f"{location} cannot use managed memory while the CPU does"
                )
            return location.id
        if location.kind == LocationKind.HOST_NUMA and location not in self._sim.machine.locations:
            raise invalid(f"{location} does not exist")
        return HOST

    def _has(self, device: int, attribute: Attribute) -> bool:
        return bool(self._sim.machine.devices[device].attributes.get(attribute.name))


def _with(uses: PageUse, advice: Advice, ordinal: int) -> PageUse:
    match advice:
        case Advice.SET_READ_MOSTLY:
            return uses._replace(read_mostly=True)
        case Advice.SET_PREFERRED_LOCATION:
            return uses._replace(preferred=(ordinal,))
        case Advice.SET_ACCESSED_BY:
            return uses._replace(accessed_by=uses.accessed_by | {ordinal})


_KNOWN = RegisterFlags.PORTABLE | RegisterFlags.DEVICEMAP | RegisterFlags.IOMEMORY | RegisterFlags.READ_ONLY

_LAST = 1 << 47


class SimPinnedMemory:
    """Rules of page-locked host memory, and what is said of chunks as if they were such memory."""

    def __init__(self, sim: SimProcess, allocations: SimAllocations, mappings: SimMappings) -> None:
        self._sim, self._allocations, self._mappings = sim, allocations, mappings

    def mem_host_register(self, address: int, size: int, flags: RegisterFlags) -> None:
        """Register any bytes of the process in the current context; the pages that have them are locked (fact 85)."""
        device = self._sim.contexts.current()
        if size <= 0 or not 0 < address < _LAST or int(flags) & ~int(_KNOWN):
            raise invalid("the size or the address is 0, or a flag is unknown")
        start, end = address // PAGE * PAGE, rounded_up(address + size, PAGE)
        self._check_registered(address, address + size, flags)
        refuse_if(any(self._allocations.within(address, address + size)), "the memory is an allocation of the driver")
        memory, pid = SimProcessMemory(-1, address, size, pid=self._sim.pid), self._sim.pid
        self._allocations.register(device, address, size, flags, memory)
        writable = not flags & RegisterFlags.READ_ONLY
        with on_failure(self._allocations.unregister, address):
            if not (_is_mapped(start, end, pid, writable=writable) and memory.present(start, end)):
                raise invalid("a page is not mapped, beyond the end of its file, or read-only without READ_ONLY")

    def _check_registered(self, start: int, end: int, flags: int) -> None:
        """Refuse bytes that are registered, and pages that are locked with other flags, in the driver's order."""
        pages = start // PAGE * PAGE, rounded_up(end, PAGE)
        locked = [each for each in self._allocations.within(*pages) if each.kind == "registered"]
        if any(each.start <= start < each.end or (start <= each.start and each.end <= end) for each in locked):
            raise RefusedCall("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "some of it is registered already")
        refuse_if(flags & RegisterFlags.IOMEMORY, "a flag is for devices")
        inside = (each for each in locked if pages[0] <= each.start // PAGE * PAGE and each.end <= pages[1])
        if any((each.flags ^ flags) & RegisterFlags.READ_ONLY for each in inside):
            raise invalid("pages of it are locked with READ_ONLY, or are to be and are locked without")
        if any(each.start < end and start < each.end for each in locked):
            raise RefusedCall("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the end of it is registered already")

    def mem_host_unregister(self, address: int) -> None:
        """End the registration that begins at an address (fact 85)."""
        self._sim.streams.check_done()
        found = self._allocations.find(address)
        if found is None and address and not self._mappings.find(address):
            raise RefusedCall("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the address is in no registered memory")
        self._allocations.unregister(address)

    def mem_host_get_device_pointer(self, address: int) -> int:
        """Address for a device: that of the CPU (facts 74, 85); of a chunk, the start of its mapping."""
        if mapping := self._granted(address):
            return mapping.start
        found = self._allocations.find(address)
        if found is None or found.kind not in {"pinned", "registered"}:
            raise invalid("the address is in no page-locked memory")
        return address

    def mem_host_get_flags(self, address: int) -> int:
        """Flags of page-locked memory, which is mapped for devices anyway, without READ_ONLY (facts 74, 85)."""
        if self._granted(address):
            return HostFlags.PORTABLE | HostFlags.DEVICEMAP
        found = self._allocations.find(address)
        if found is None or not found.by_cpu or found.kind == "pooled":
            raise invalid("the address is in no memory of the host")
        return (found.flags | HostFlags.DEVICEMAP) & ~RegisterFlags.READ_ONLY

    def _granted(self, address: int) -> Mapping | None:
        """Mapping around an address to which the current device has access."""
        device, mapping = self._sim.contexts.current(), self._mappings.find(address)
        return mapping if mapping and mapping.access.get(gpu(device)) else None


def _is_mapped(start: int, end: int, pid: int | None, *, writable: bool) -> bool:
    """Return whether each page of a process from `start` to `end` may be read, and written if `writable`.

    Pages of a file that is on a disk, shared with others, cannot be locked (fact 85).
    """
    needed = {"r", "w"} if writable else {"r"}
    for line in Path(f"/proc/{pid or 'self'}/maps").read_text().splitlines():
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
