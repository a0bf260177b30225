"""Allocations, own and opened from other processes, external buffers and managed memory (facts 45, 46, 53, 60)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct, field

from memtopo.common.units import rounded_up
from memtopo.driver.types import HOST, HandleType, HostFlags, Location, RangeAttribute
from memtopo.drivers.sim.address_space import BLOCK, PAGE, RESERVED
from memtopo.drivers.sim.calls import invalid, refuse_if
from memtopo.drivers.sim.physical import Physical, SimProcessMemory
from memtopo.drivers.sim.process import Context, SimProcess

Kind = Literal["own", "opened", "buffer", "managed", "pinned", "registered", "pooled"]
_PINNED = HostFlags.PORTABLE | HostFlags.DEVICEMAP | HostFlags.WRITECOMBINED


class PoolPlace(Struct, frozen=True):
    """Location of a pool's memory, the address from which on it has whole units of it, and the pool.

    `handles` are the types of handles that the pool was created with, none of an imported one.
    """

    location: Location
    origin: int
    handle: int
    handles: HandleType


class SimAllocation(Struct, eq=False):
    """An allocation that the contexts of the devices `users` (ordinals) may read and write.

    It is freed with its `context`; one of a pool has none, and the device -1. `opens` is the number of openings of
    another process's allocation. A buffer is mapped external memory. `advised` has the advice for managed memory, which
    the CPU may use too (fact 39).
    """

    start: int
    end: int
    device: int
    users: set[int]
    physical: Physical
    kind: Kind = "own"
    opens: int = 0
    advised: AdvisedPages | None = None
    flags: int = 0
    """Flags of page-locked host memory."""
    pool: PoolPlace | None = None
    """Place in the pool that it is of."""
    context: Context | None = None
    number: int = field(default_factory=count(1).__next__)
    """Number that no other allocation has (`CU_POINTER_ATTRIBUTE_BUFFER_ID`)."""
    block: int = 0
    """Number that only those have that share pages, a block, or reserved memory of a pool with it."""

    @property
    def by_cpu(self) -> bool:
        """True if the CPU may load and store."""
        return self.advised is not None or self.kind in {"pinned", "registered"} or HOST in self.users

    @property
    def size(self) -> int:
        """Requested size."""
        return self.end - self.start

    @property
    def mapped(self) -> tuple[int, int]:
        """Start and end of the pages, the block, or the reserved memory of a pool, that it is in."""
        origin, unit = 0, PAGE if self.kind == "registered" else BLOCK
        if self.pool:
            origin, unit = self.pool.origin, RESERVED
        return self.start - (self.start - origin) % unit, origin + rounded_up(self.end - origin, unit)


_STARTING: dict[Kind, str] = {
    "opened": "memory opened from another process",
    "pinned": "page-locked memory",
    "registered": "registered memory",
}


class SimAllocations:
    """Allocations that one process can use, in order of their addresses."""

    def __init__(self, sim: SimProcess) -> None:
        self._sim = sim
        self._starts: list[int] = []
        self._at: dict[int, SimAllocation] = {}
        self._advised: WeakValueDictionary[int, AdvisedPages] = WeakValueDictionary()  # of shared blocks

    def mem_alloc(self, size: int) -> int:
        """Allocate memory of the current context's device (fact 45)."""
        device = self._sim.contexts.current()
        refuse_if(size <= 0, "the size is 0")
        self._sim.arena.check(size)
        address, physical = self._sim.blocks.take("own", device, size), self._sim.arena.take(size)
        self.add(SimAllocation(address, address + size, device, {device}, physical))
        return address

    def manage(self, device: int, size: int, users: Iterable[int]) -> int:
        """Allocate managed memory in a device's context for the CPU and the devices `users`; takes no device memory."""
        self._sim.arena.check(size)
        address = self._sim.blocks.take("managed", device, size)
        physical, advised = self._sim.arena.take(size), self._pages(address, size)
        self.add(SimAllocation(address, address + size, device, set(users), physical, "managed", advised=advised))
        return address

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        """Allocate page-locked host memory, for the CPU and all devices; 0 for 0 bytes (fact 74).

        Small allocations share a block, and have the flags of its first one (fact 74).
        """
        device = self._sim.contexts.current()
        refuse_if(size < 0 or not 0 <= flags <= _PINNED, "the size is negative, or a flag is unknown")
        if not size:
            return 0
        self._sim.arena.check(size)
        address = self._sim.blocks.take("pinned", device, size, flags & HostFlags.WRITECOMBINED)
        block = address - address % BLOCK
        kept = next((each.flags for each in self.within(block, block + BLOCK)), flags)
        users, physical = set(range(self._sim.devices.device_get_count())), self._sim.arena.take(size)
        self.add(SimAllocation(address, address + size, device, users, physical, "pinned", flags=kept))
        return address

    def mem_free_host(self, address: int) -> None:
        """Free page-locked memory; 0 is accepted and ignored (fact 74)."""
        self._sim.streams.check_done()
        if address:
            self._end(self._starting(address, "pinned"))

    def within(self, start: int, end: int) -> Iterator[SimAllocation]:
        """Allocations that have an address from `start` to `end`, in order."""
        for first in self._starts[max(0, bisect_right(self._starts, start) - 1) :]:
            if first >= end:
                return
            if self._at[first].end > start:
                yield self._at[first]

    def register(self, device: int, address: int, size: int, flags: int, memory: SimProcessMemory) -> None:
        """Add memory of the process, for the CPU and all devices, in a device's context (fact 85)."""
        self._sim.blocks.lock(size)
        users = set(range(self._sim.devices.device_get_count()))
        self.add(SimAllocation(address, address + size, device, users, memory, "registered", flags=flags))

    def unregister(self, address: int) -> None:
        """Remove memory of the process by its start."""
        self._end(self._starting(address, "registered"))

    def map(self, physical: Physical, device: int, kind: Kind, context: Context | None = None) -> SimAllocation:
        """Map memory of another process or a part of external memory, which is not of the budget (facts 46, 53)."""
        address = self._sim.blocks.take_addresses(physical.size)
        allocation = SimAllocation(address, address + physical.size, device, {device}, physical, kind, context=context)
        self.add(allocation)
        return allocation

    def free(self, address: int) -> None:
        """Free an allocation of this process or a buffer; 0 is accepted and ignored (facts 45, 53)."""
        if address:
            self._end(self._starting(address, "own", "buffer", "managed"))

    def remove(self, allocation: SimAllocation) -> None:
        """Remove an allocation of a pool, whose memory the pool has."""
        del self._at[allocation.start]
        del self._starts[bisect_left(self._starts, allocation.start)]

    def find(self, address: int) -> SimAllocation | None:
        """Allocation around an address; None if there is none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        allocation = self._at[self._starts[at]]
        return allocation if address < allocation.end else None

    def is_pinned(self, address: int, count: int) -> bool:
        """Return whether an allocation of page-locked memory has all of some bytes."""
        found = self.find(address)
        return found is not None and found.kind == "pinned" and address + count <= found.end

    def unused(self, address: int) -> tuple[int, int | None]:
        """End of the addresses without an allocation in the block around an address, and the device that has it.

        The device is None if no allocation of this process is in the block, or behind its end (fact 45).
        """
        block = address - address % BLOCK
        at = bisect_right(self._starts, address)
        after = self._at[self._starts[at]] if at < len(self._starts) else None
        before = self._at[self._starts[at - 1]] if at else None
        end = min(after.start, block + BLOCK) if after else block + BLOCK
        for each in (before, after):
            if each and each.kind == "own" and each.start < block + BLOCK and each.end > block:
                return end, each.device
        return end, None

    def openings(self, nonce: str) -> list[SimAllocation]:
        """Allocations for another process's memory that is already open here, at most one in each device's context."""
        opened = [each for each in self._at.values() if each.kind == "opened"]
        return [each for each in opened if each.physical.tag and each.physical.tag.nonce == nonce]

    def ipc_close_mem_handle(self, address: int) -> None:
        """Close one opening; the last one frees the addresses (fact 46)."""
        self._sim.contexts.current()
        allocation = self._starting(address, "opened")
        allocation.opens -= 1
        if not allocation.opens:
            self._end(allocation)

    def drop(self, context: Context) -> None:
        """Free all allocations of a context."""
        for allocation in [each for each in self._at.values() if each.context == context]:
            self._end(allocation)

    def _pages(self, address: int, size: int) -> AdvisedPages:
        """Pages of a new managed allocation; small ones share those of their block (fact 70)."""
        start = address - address % BLOCK
        if size >= BLOCK:
            return AdvisedPages(start, size)
        shared = self._advised.get(start) or AdvisedPages(start, BLOCK)
        self._advised[start] = shared
        return shared

    def _starting(self, address: int, *kinds: Kind) -> SimAllocation:
        allocation = self._at.get(address)
        if allocation is None or allocation.kind not in kinds:
            raise invalid(
                f"the address is not the start of {_STARTING.get(kinds[0], 'an allocation that cuMemFree frees')}"
            )
        return allocation

    def add(self, allocation: SimAllocation) -> None:
        """Add an allocation; that of a pool, too."""
        if allocation.context is None and not allocation.pool:
            allocation.context = self._sim.contexts.current_context()
        at = bisect_left(self._starts, allocation.start)
        beside = (self._at[start] for start in self._starts[max(0, at - 1) : at + 1])
        is_own = allocation.kind == "registered"
        shared = [each.block for each in beside if not is_own and each.mapped[0] == allocation.mapped[0]]
        allocation.block = shared[0] if shared else allocation.number
        self._starts.insert(at, allocation.start)
        self._at[allocation.start] = allocation

    def _end(self, allocation: SimAllocation) -> None:
        self.remove(allocation)
        blocks, start, size = self._sim.blocks, allocation.start, allocation.size
        if allocation.advised:
            allocation.advised.change(start, allocation.end, lambda _: PageUse())
        if allocation.kind in ("own", "managed", "pinned"):
            blocks.give(allocation.kind, allocation.device, start, size, allocation.flags & HostFlags.WRITECOMBINED)
        elif allocation.kind == "registered":
            blocks.unlock(size)
            return
        else:
            blocks.give_addresses(start, size)
        self._sim.arena.give(allocation.physical)


class PageUse(NamedTuple):
    """Advice for a part of a managed allocation: GPUs by ordinal, and the host by -1."""

    read_mostly: bool = False
    preferred: tuple[int, ...] = ()
    accessed_by: frozenset[int] = frozenset()
    prefetched: Location | None = None


class AdvisedPages:
    """Advice for the `size` bytes from `start`, the begin of a page, by pages of 4 KiB (facts 39, 60, 70).

    Parts cover all pages; adjacent parts are merged when one of them is changed and they have the same advice. Like the
    driver, changes and queries go on behind a part by its size from where they met it, which may be behind its end.
    """

    def __init__(self, start: int, size: int) -> None:
        self._starts, self._uses = [start, start + rounded_up(size, PAGE)], [PageUse()]

    def change(self, start: int, end: int, change: Callable[[PageUse], PageUse]) -> None:
        """Change the advice for the pages that contain a range of bytes, but for pages that the driver misses."""
        at, end = start // PAGE * PAGE, rounded_up(end, PAGE)
        self._split(at)
        while at < end:
            index = self._index(at)
            if self._starts[index + 1] > end:
                self._split(end)
            self._uses[index] = change(self._uses[index])
            at += self._size(self._merge(index))

    def value(self, start: int, end: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """Value of an attribute that the parts of a range have in common, but for pages that the driver misses."""
        found = list(self._advice(start // PAGE * PAGE, rounded_up(end, PAGE)))
        match attribute:
            case RangeAttribute.READ_MOSTLY:
                return (int(all(uses.read_mostly for uses in found)),)
            case RangeAttribute.ACCESSED_BY:
                return tuple(sorted(frozenset.intersection(*(uses.accessed_by for uses in found))))
            case RangeAttribute.PREFERRED_LOCATION:
                preferred = {uses.preferred for uses in found}
                return preferred.pop() if len(preferred) == 1 else ()
            case RangeAttribute.LAST_PREFETCH_LOCATION:
                places = {uses.prefetched for uses in found}
                place = places.pop() if len(places) == 1 else None
                return (place.processor,) if place else ()

    def _advice(self, at: int, end: int) -> Iterator[PageUse]:
        while at < end:
            index = self._index(at)
            yield self._uses[index]
            at += self._size(index)

    def _index(self, address: int) -> int:
        return bisect_right(self._starts, address) - 1

    def _size(self, index: int) -> int:
        return self._starts[index + 1] - self._starts[index]

    def _split(self, address: int) -> None:
        index = self._index(address)
        if self._starts[index] < address:
            self._starts.insert(index + 1, address)
            self._uses.insert(index + 1, self._uses[index])

    def _merge(self, index: int) -> int:
        """Merge a part with those beside it that have the same advice; returns its index."""
        for right in (index + 1, index):
            if 0 < right < len(self._uses) and self._uses[right - 1] == self._uses[right]:
                del self._starts[right], self._uses[right]
                index = right - 1
        return index
