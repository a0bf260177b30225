"""Memory pools: what they reserve, their attributes and access, and their allocations (facts 80 and 81)."""

from __future__ import annotations

from msgspec import Struct, field

from memtopo.common.errors import on_failure
from memtopo.common.units import rounded_up
from memtopo.driver.types import (
    WHOLE_HOST,
    Access,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    Properties,
)
from memtopo.drivers.sim.address_space import PAGE, RESERVED, FreeRanges
from memtopo.drivers.sim.allocations import PoolPlace, SimAllocation, SimAllocations
from memtopo.drivers.sim.calls import Numbered, RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.chunks import Creation
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.process import SimProcess
from memtopo.drivers.sim.shared_files import Tag, nonce

UNIT = 512
"""Alignment of allocations."""


class SimSegment(Struct, eq=False):
    """Addresses of a pool; `backed` has the units with memory, with the number of allocations in each.

    `freed` has what was freed since the last synchronisation, which is allocated again first (fact 80).
    """

    start: int
    size: int
    free: FreeRanges
    freed: FreeRanges = field(default_factory=FreeRanges)
    backed: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, list[tuple[int, int]]] | None:
        """Take addresses where the least room is left, of what was freed last if it fits there.

        Returns the first one, and those addresses of them that were freed last, as (address, size).
        """
        address = self.freed.take(size, UNIT)
        if address is not None:
            self.free.take_at(address, size)
            return address, [(address, size)]
        address = self.free.take(size, UNIT)
        return None if address is None else (address, self.freed.discard(address, size))

    def untake(self, address: int, size: int, freed: list[tuple[int, int]]) -> None:
        """Undo `take`."""
        self.free.give(address, size)
        for each in freed:
            self.freed.give(*each)

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


FIRST_POOL = 0x7E00_0000
_SPAN = 16 << 30
"""Bytes of the addresses that a pool takes at a time, at least."""
_LARGEST = 1 << 47
_UNSHARED = 1 << 40
_CURRENT = (PoolAttribute.RESERVED_MEM_CURRENT, PoolAttribute.USED_MEM_CURRENT)
_CURRENT_OF = {
    PoolAttribute.RESERVED_MEM_HIGH: PoolAttribute.RESERVED_MEM_CURRENT,
    PoolAttribute.USED_MEM_HIGH: PoolAttribute.USED_MEM_CURRENT,
}
_REUSE = (
    PoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES,
    PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC,
    PoolAttribute.REUSE_ALLOW_INTERNAL_DEPENDENCIES,
)


class SimPool(Struct, eq=False):
    """A pool that this process created, or imported `imports` times.

    `users` are the ordinals of the processors with access, the host's `HOST` among them. A pool that can be shared has
    a file with a `tag`, in which its allocations have pages; `pointers` are the addresses of imported ones by offset.
    """

    properties: PoolProperties
    users: set[int]
    fd: int = -1
    tag: Tag | None = None
    pages: FreeRanges | None = None
    imports: int = 0
    handle: int = 0
    destroyed: bool = False
    exported: bool = False
    allocations: int = 0
    attributes: dict[PoolAttribute, int] = field(
        default_factory=lambda: dict.fromkeys(PoolAttribute, 0) | dict.fromkeys(_REUSE, 1)
    )
    segments: list[SimSegment] = []
    pointers: dict[int, int] = {}

    @property
    def location(self) -> Location:
        """Location of the memory."""
        return self.properties.location

    def count(self, attribute: PoolAttribute, change: int) -> None:
        """Add to a current number of bytes, and raise the highest one with it."""
        self.attributes[attribute] += change
        high = next(high for high, current in _CURRENT_OF.items() if current is attribute)
        self.attributes[high] = max(self.attributes[high], self.attributes[attribute])


class _Part(Struct, eq=False):
    """An allocation of a pool; one of an imported pool is in no segment."""

    pool: SimPool
    allocation: SimAllocation
    segment: SimSegment | None


class SimPools:
    """Pools of one process."""

    def __init__(self, sim: SimProcess, creation: Creation, allocations: SimAllocations) -> None:
        self._sim, self._creation, self._allocations = sim, creation, allocations
        reason = "the pool is not open: on hardware the process may die (fact 80)"
        self._open: Numbered[SimPool] = Numbered(FIRST_POOL, reason)
        self._parts: dict[int, _Part] = {}

    def mem_pool_create(self, properties: PoolProperties) -> int:
        """Create a pool, which takes no memory yet (fact 80)."""
        location, handles, size = properties
        if location.kind == LocationKind.GPU and location not in self._sim.machine.locations:
            raise invalid(f"{location} does not exist")
        like = Properties(location, handles)
        self._creation.check(self._creation.mem_get_allocation_granularity(like), like, 0)
        if not 0 <= size < _LARGEST:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "the maximum size exceeds the addresses of a process")
        pool = SimPool(properties, {location.processor})
        if HandleType.FD in handles or HandleType.FABRIC in handles:
            whole = rounded_up(size or self._sim.budget.total(_budgeted(location)), RESERVED)
            pool.tag = Tag("pool", whole, PAGE, self._sim.devices.location_name(location), nonce())
            pool.fd, pool.pages = self._sim.files.create(pool.tag), FreeRanges(0, whole)
        return self.open(pool)

    def open(self, pool: SimPool) -> int:
        """Open a pool; returns its handle."""
        pool.handle = self._open.add(pool)
        return pool.handle

    def own(self, number: int) -> SimPool:
        """Return an open pool that this process created (fact 82)."""
        pool = self._open[number]
        refuse_if(pool.imports, "the pool is imported")
        return pool

    def mem_pool_destroy(self, pool: int) -> None:
        """Destroy a pool; its memory stays until its last allocation is freed (facts 80 and 82)."""
        found = self._open[pool]
        if found.imports and found.allocations:
            raise invalid("an imported pool cannot be destroyed before its allocations are freed")
        found.imports -= bool(found.imports)
        if found.imports:
            return
        del self._open[pool]
        found.destroyed = True
        self._settle(found)

    def exceeds(self, location: Location, size: int) -> bool:
        """Return whether a maximum size is more than a location has, or is 1 TiB, the only one that was tried."""
        return size >= _UNSHARED or size > rounded_up(self._sim.budget.total(_budgeted(location)), RESERVED)

    def mem_pool_set_attribute(self, pool: int, attribute: PoolAttribute, value: int) -> None:
        """Set a reuse flag or the release threshold, or reset a highest number of bytes (fact 80)."""
        attributes = self.own(pool).attributes
        if not 0 <= value < 1 << 64 or attribute in _CURRENT or (attribute in _CURRENT_OF and value):
            raise invalid("the attribute cannot be set, or not to this value")
        if attribute in _CURRENT_OF:
            value = attributes[_CURRENT_OF[attribute]]
        attributes[attribute] = int(bool(value)) if attribute in _REUSE else value

    def mem_pool_get_attribute(self, pool: int, attribute: PoolAttribute) -> int:
        """Attribute of a pool of this process (fact 82)."""
        return self.own(pool).attributes[attribute]

    def mem_pool_set_access(self, pool: int, grants: tuple[Grant, ...]) -> None:
        """Set the access of processors to all allocations, after a check of every grant (fact 81)."""
        found = self._open[pool]
        refuse_if(not grants, "no access is given")
        for grant in grants:
            self._check_supported(found, grant)
        for grant in grants:
            self._check_grant(found, grant)
        for location, access in grants:
            (found.users.add if access else found.users.discard)(location.processor)

    def mem_pool_get_access(self, pool: int, location: Location) -> int:
        """Access of a location (fact 81)."""
        found = self._open[pool]
        unknown = location.kind == LocationKind.GPU and location not in self._sim.machine.locations
        refuse_if(unknown or location.kind == LocationKind.HOST_NUMA_CURRENT, f"{location} does not exist")
        return int(Access.RW if location.processor in found.users else Access.NONE)

    def mem_alloc_from_pool_async(self, size: int, pool: int, stream: int = 0) -> int:
        """Allocate memory, in reserved memory if it has room; 0 for 0 bytes (fact 80)."""
        self._sim.streams.get(stream)
        own = self.own(pool)
        if size <= 0:
            return 0
        self._sim.arena.check(size)
        physical = self._pages(own, size) if own.pages else None
        with on_failure(self._give_pages, own, physical):
            segment, address = self._room(own, rounded_up(size, UNIT))
        physical = physical or self._sim.arena.take(size)
        own.count(PoolAttribute.USED_MEM_CURRENT, size)
        self.add(own, address, physical, segment)
        return address

    def add(self, pool: SimPool, address: int, physical: Physical, segment: SimSegment | None = None) -> None:
        """Add an allocation of a pool at an address."""
        pool.allocations += 1
        handles = HandleType.NONE if pool.imports else pool.properties.handles
        place = PoolPlace(pool.location, segment.start if segment else address, pool.handle, handles)
        end = address + physical.size
        allocation = SimAllocation(address, end, -1, pool.users, physical, "pooled", pool=place)
        self._allocations.add(allocation)
        self._parts[address] = _Part(pool, allocation, segment)

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        """Free an allocation; 0 is ignored. Its memory comes back with the next synchronisation (fact 80)."""
        self._sim.streams.get(stream)
        if address:
            part = self._part(address)
            self._end(part, at_once=False)
            if part.segment:
                part.pool.attributes[PoolAttribute.USED_MEM_CURRENT] -= part.allocation.size

    def free(self, address: int) -> None:
        """Free an allocation with its memory at once; the bytes in use keep counting it (fact 80)."""
        part = self._part(address)
        if part.pool.destroyed and part.segment:
            raise invalid("its pool is destroyed: on hardware the process dies of SIGFPE (fact 80)")
        self._end(part, at_once=True)
        self._trim(part.pool, part.pool.attributes[PoolAttribute.RELEASE_THRESHOLD])

    def release(self) -> None:
        """Give back what no allocation uses beyond the threshold of each pool, at a synchronisation (fact 80)."""
        for pool in self._open.values():
            for segment in pool.segments:
                segment.freed = FreeRanges()
            self._trim(pool, pool.attributes[PoolAttribute.RELEASE_THRESHOLD])

    def mem_pool_trim_to(self, pool: int, keep: int) -> None:
        """Give back reserved memory that no allocation uses, down to `keep` bytes (fact 80)."""
        self._trim(self.own(pool), keep)

    def _check_supported(self, pool: SimPool, grant: Grant) -> None:
        location, access = grant
        refuse_if(access == Access.R, "access to a pool is none, or read and write", "CUDA_ERROR_NOT_SUPPORTED")
        if location.kind != LocationKind.GPU and (pool.location.kind == LocationKind.GPU or access != Access.RW):
            raise unsupported("the host has access to its own pools, and to no gpu's")

    def _check_grant(self, pool: SimPool, grant: Grant) -> None:
        location, access = grant
        on_gpu = pool.location.kind == LocationKind.GPU
        if location.kind != LocationKind.GPU:
            return
        if location not in self._sim.machine.locations:
            raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"{location} does not exist")
        refuse_if(access not in {Access.NONE, Access.RW}, "access to a pool is none, or read and write")
        if location == pool.location and not access:
            raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", "a pool's own gpu keeps its access")
        known = on_gpu and pool.location in self._sim.machine.locations
        if known and not self._sim.machine.can_access(location.id, pool.location.id):
            raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"{location} cannot access the memory of {pool.location}")

    def _room(self, pool: SimPool, size: int) -> tuple[SimSegment, int]:
        """Segment with room for `size` bytes, and their address in it, with memory; a new segment if none has any."""
        for segment in pool.segments:
            if taken := segment.take(size):
                address, freed = taken
                with on_failure(segment.untake, address, size, freed):
                    self._back(pool, segment, address, size)
                return segment, address
        span = max(_SPAN, rounded_up(size, RESERVED))
        start = self._sim.blocks.take_addresses(span)
        segment = SimSegment(start, span, FreeRanges(start, start + span))
        with on_failure(self._sim.blocks.give_addresses, start, span):
            self._back(pool, segment, start, size)
        segment.take(size)
        pool.segments.append(segment)
        return segment, start

    def _back(self, pool: SimPool, segment: SimSegment, address: int, size: int) -> None:
        """Reserve the memory of units that have none yet."""
        units = segment.units(address, size)
        new = sum(unit not in segment.backed for unit in units) * RESERVED
        limit = rounded_up(pool.properties.max_size, RESERVED)
        if limit and pool.attributes[PoolAttribute.RESERVED_MEM_CURRENT] + new > limit:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "the pool has reserved its maximum size")
        self._sim.budget.take(_budgeted(pool.location), new)
        for unit in units:
            segment.backed[unit] = segment.backed.get(unit, 0) + 1
        pool.count(PoolAttribute.RESERVED_MEM_CURRENT, new)

    def _pages(self, pool: SimPool, size: int) -> Physical:
        assert pool.pages
        offset = pool.pages.take(rounded_up(size, PAGE), PAGE)
        if offset is None:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "the pool's file has no room")
        return Physical(pool.fd, offset, size, tag=pool.tag)

    def _give_pages(self, pool: SimPool, physical: Physical | None) -> None:
        if physical and pool.pages:
            pool.pages.give(physical.offset, rounded_up(physical.size, PAGE))
        elif physical:
            self._sim.arena.give(physical)

    def _part(self, address: int) -> _Part:
        refuse_if(address not in self._parts, "the address is not the start of an allocation of a pool")
        return self._parts[address]

    def _end(self, part: _Part, *, at_once: bool) -> None:
        """Remove an allocation. The bytes of a pool with a file stay in it, where an importer still reads them."""
        pool, allocation, segment = part.pool, part.allocation, part.segment
        self._allocations.remove(allocation)
        del self._parts[allocation.start]
        if segment is None:
            self._sim.blocks.give_addresses(allocation.start, allocation.size)
            del pool.pointers[allocation.physical.offset]
        else:
            size = rounded_up(allocation.size, UNIT)
            segment.give(allocation.start, size, at_once=at_once)
            for unit in segment.units(allocation.start, size):
                segment.backed[unit] -= 1
            self._give_pages(pool, allocation.physical)
        pool.allocations -= 1
        self._settle(pool)

    def _settle(self, pool: SimPool) -> None:
        """Give back all that a destroyed pool without allocations has."""
        if pool.allocations or not pool.destroyed:
            return
        for segment in pool.segments:
            segment.freed = FreeRanges()
        self._trim(pool, 0)
        for segment in pool.segments:
            self._sim.blocks.give_addresses(segment.start, segment.size)
        pool.segments.clear()
        if pool.tag:
            self._sim.files.close(pool.fd)
            pool.tag = None

    def _trim(self, pool: SimPool, keep: int) -> None:
        reserved = PoolAttribute.RESERVED_MEM_CURRENT
        for segment in pool.segments:
            for unit in segment.unused():
                if pool.attributes[reserved] - RESERVED < keep:
                    return
                del segment.backed[unit]
                self._sim.budget.give(_budgeted(pool.location), RESERVED)
                pool.attributes[reserved] -= RESERVED


def _budgeted(location: Location) -> Location:
    return WHOLE_HOST if location.kind == LocationKind.HOST else location
