"""Managed memory: allocation, advice and prefetches (facts 39 and 60)."""

from __future__ import annotations

from memtopo.driver.types import HOST, Advice, Attribute, Location, LocationKind, MemAttach, RangeAttribute
from memtopo.drivers.sim.allocations import AdvisedPages, Allocation, Allocations, PageUse
from memtopo.drivers.sim.calls import Refused, invalid, unsupported
from memtopo.drivers.sim.devices import Contexts
from memtopo.drivers.sim.events import Streams
from memtopo.machine import Machine


class ManagedMemory:
    """Rules of managed memory on one machine."""

    def __init__(self, machine: Machine, contexts: Contexts, streams: Streams, allocations: Allocations) -> None:
        self._machine, self._contexts, self._streams, self._allocations = machine, contexts, streams, allocations

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        """Allocate memory that the CPU and every GPU may use; it takes no device memory (fact 60)."""
        if flags not in {MemAttach.GLOBAL, MemAttach.HOST}:
            raise invalid("the flags must be those of memory for all GPUs, or at first for the host")
        if size <= 0:
            raise invalid("the size is 0")
        device = self._contexts.current()
        if not self._has(device, Attribute.MANAGED_MEMORY):
            raise unsupported(f"gpu{device} has no managed memory")
        return self._allocations.manage(device, size, range(len(self._machine.devices)))

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        """Advise a part of an allocation; with a node, the part is not checked, and nothing changes (fact 71)."""
        self._contexts.current()
        read_mostly = advice == Advice.SET_READ_MOSTLY
        ordinal = location.id if read_mostly else self._ordinal(location, missing="CUDA_ERROR_INVALID_VALUE")
        if location.kind in {LocationKind.GPU, LocationKind.HOST}:
            start, end, advised = self._part(address, size)
            advised.change(start, end, lambda uses: _with(uses, advice, ordinal))
        elif advice == Advice.SET_ACCESSED_BY:
            raise invalid("memory is accessed by the host as a whole")

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        """Prefetch a part of an allocation in the order of a stream; in stream 0 at once."""
        self._contexts.current()
        if size <= 0:
            raise invalid("the bytes are none")
        self._ordinal(location, missing="CUDA_ERROR_INVALID_DEVICE")
        start, end, advised = self._part(address, size)

        def work() -> bool:
            advised.change(start, end, lambda uses: uses._replace(prefetched=location))
            return True

        if stream:
            self._streams.add(self._streams.get(stream), work)
        else:
            work()

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """Value of an attribute of a part of an allocation."""
        self._contexts.current()
        start, end, advised = self._part(address, size)
        return advised.value(start, end, attribute)

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        """Attach an allocation to a stream; has no effect where GPU and CPU may use memory concurrently (fact 60)."""
        self._contexts.current(), self._streams.get(stream)
        found = self._around(address)
        if found.start != address:
            raise invalid("the address is not the start of an allocation")
        if flags not in set(MemAttach):
            raise invalid("the flags are none of memory for all, for the host, and for a single stream")
        if flags == MemAttach.SINGLE and not stream:
            raise invalid("memory cannot be attached to stream 0 alone")

    def _around(self, address: int) -> Allocation:
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
            if location not in self._machine.locations:
                raise Refused(missing, f"{location} does not exist")
            if not self._has(location.id, Attribute.CONCURRENT_MANAGED_ACCESS):
                raise Refused("CUDA_ERROR_INVALID_DEVICE", f"{location} cannot use managed memory while the CPU does")
            return location.id
        if location.kind == LocationKind.HOST_NUMA and location not in self._machine.locations:
            raise invalid(f"{location} does not exist")
        return HOST

    def _has(self, device: int, attribute: Attribute) -> bool:
        return bool(self._machine.devices[device].attributes.get(attribute.name))


def _with(uses: PageUse, advice: Advice, ordinal: int) -> PageUse:
    match advice:
        case Advice.SET_READ_MOSTLY:
            return uses._replace(read_mostly=True)
        case Advice.SET_PREFERRED_LOCATION:
            return uses._replace(preferred=(ordinal,))
        case Advice.SET_ACCESSED_BY:
            return uses._replace(accessed_by=uses.accessed_by | {ordinal})
