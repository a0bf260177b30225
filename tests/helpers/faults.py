"""Faults of a driver, one a class: each reports success for something else than what was requested.

They wrap any driver and know its Protocol alone. A fault named `Silent` also answers queries as if it had not happened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from memtopo.driver.kernels import Area, KernelDriver
from memtopo.driver.types import (
    Access,
    Advice,
    DmaBufFlags,
    DriverError,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    PoolAttribute,
    PoolProperties,
    Properties,
    RegisterFlags,
    gpu,
)
from memtopo.driver.wrappers import Forwarder

GRANULE = 2 << 20
PAGE = 4 << 10
NODE = Location(LocationKind.HOST_NUMA, 0)
_OTHER = {gpu(0): gpu(1), gpu(1): gpu(0)}


class Faulty(Forwarder):
    """A driver with a fault; notes the handles that it creates, and what is mapped, for faults that need them."""

    _driver: KernelDriver

    def __init__(self, driver: KernelDriver) -> None:
        self.created: list[int] = []
        self.mapped: dict[int, int] = {}
        """Handle of each mapping by its address, as requested."""
        super().__init__(driver)

    def close(self) -> None:
        """Close the descriptors that a fault keeps, after the report."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        self.created.append(self._driver.mem_create(size, properties, flags))
        return self.created[-1]

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        assert (offset, flags) == (0, 0)
        self.mapped[address] = handle
        self.map_chunk(address, size, handle)

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        """Map a chunk; a fault may map it otherwise."""
        self._driver.mem_map(address, size, handle)


class CreatesElsewhere(Faulty):
    """Creates the first chunk on the other GPU."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        if not self.created:
            properties = properties._replace(location=_OTHER[properties.location])
        return super().mem_create(size, properties, flags)


class CreatesElsewhereSilently(CreatesElsewhere):
    """Creates the first chunk on the other GPU, and reports the requested one."""

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        found: Properties = self._driver.mem_get_allocation_properties_from_handle(handle)
        return found._replace(location=_OTHER[found.location]) if handle == self.created[0] else found


class CreatesOnHostSilently(Faulty):
    """Creates the first chunk, of a GPU, on the host, and reports the GPU."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        if not self.created:
            self.requested = properties
            properties = properties._replace(location=NODE)
        return super().mem_create(size, properties, flags)

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        found: Properties = self._driver.mem_get_allocation_properties_from_handle(handle)
        return self.requested if handle == self.created[0] else found


class LosesHandleTypes(Faulty):
    """Creates chunks that cannot be exported."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return super().mem_create(size, properties._replace(handles=HandleType.NONE), flags)


class LosesRdma(Faulty):
    """Creates chunks that network cards cannot access."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return super().mem_create(size, properties._replace(rdma=False), flags)


class LosesCompression(Faulty):
    """Creates chunks that are not compressible."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        return super().mem_create(size, properties._replace(compressible=False), flags)


class SilentHandles(Faulty):
    """Reports the handle that was to be mapped at an address."""

    def __init__(self, driver: KernelDriver) -> None:
        self._pretended: list[int] = []
        super().__init__(driver)

    def mem_retain_allocation_handle(self, address: int) -> int:
        self._pretended.append(self.mapped[address])
        return self.mapped[address]

    def mem_release(self, handle: int) -> None:
        if handle in self._pretended:
            self._pretended.remove(handle)
        else:
            self._driver.mem_release(handle)


class SharesMemoryOfChunks(SilentHandles):
    """Gives the second chunk the memory of the first."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        self._driver.mem_map(address, size, self.created[0] if handle == self.created[1] else handle)


class IgnoresAlignment(Faulty):
    """Reserves addresses that are not aligned as requested."""

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        if not alignment:
            return self._driver.mem_address_reserve(size, alignment, address, flags)
        before = self._driver.mem_address_reserve(GRANULE, alignment)
        found: int = self._driver.mem_address_reserve(size)
        self._driver.mem_address_free(before, GRANULE)
        return found


class IgnoresAddress(Faulty):
    """Reserves any address but the requested one."""

    def mem_address_reserve(self, size: int, alignment: int = 0, address: int = 0, flags: int = 0) -> int:
        del address
        return self._driver.mem_address_reserve(size, alignment, 0, flags)


class KeepsAddresses(Faulty):
    """Frees no reservation."""

    def mem_address_free(self, address: int, size: int) -> None:
        pass


class SwapsMappings(Faulty):
    """Maps the first two chunks in place of each other, each at its first mapping."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        first, second = self.created[:2]
        swapped = {first: second, second: first} if len(self.mapped) <= 2 else {}
        self._driver.mem_map(address, size, swapped.get(handle, handle))


class SwapsMappingsSilently(SilentHandles, SwapsMappings):
    """Maps the first two chunks in place of each other, each at its first mapping, and reports the requested ones."""


class MapsFirstInPlaceOfSecond(Faulty):
    """Maps the first chunk in place of the second."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        self._driver.mem_map(address, size, self.created[0] if handle == self.created[1] else handle)


class MapsOneGranuleFurther(Faulty):
    """Maps the last chunk one granule further than requested."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        self._driver.mem_map(address + GRANULE * (handle == self.created[-1]), size, handle)

    def mem_unmap(self, address: int, size: int) -> None:
        moved = self.mapped.get(address) == self.created[-1]
        self._driver.mem_unmap(address + GRANULE * moved, size)

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        moved = self.mapped.get(address) == self.created[-1]
        self._driver.mem_set_access(address + GRANULE * moved, size, grants)


class MapsNothing(Faulty):
    """Does not map the last chunk, nor sets access there."""

    def _missing(self, address: int) -> bool:
        return self.mapped.get(address) == self.created[-1]

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        if not self._missing(address):
            self._driver.mem_map(address, size, handle)

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        if not self._missing(address):
            self._driver.mem_set_access(address, size, grants)


class MapsIntoHole(Faulty):
    """Maps the second chunk once more, `granules` beyond the end of its mapping."""

    granules = 1

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        self._driver.mem_map(address, size, handle)
        if handle == self.created[1]:
            self._driver.mem_map(address + size + self.granules * GRANULE, size, handle)

    def mem_unmap(self, address: int, size: int) -> None:
        self._driver.mem_unmap(address, size)
        if self.mapped.pop(address) == self.created[1]:
            self._driver.mem_unmap(address + size + self.granules * GRANULE, size)


class MapsNextToIt(MapsIntoHole):
    """Maps the second chunk once more, right behind its mapping."""

    granules = 0


class ReportsLongerMappings(Faulty):
    """Reports every mapping one granule longer than it is."""

    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        start, size = self._driver.mem_get_address_range(address)
        return start, size + GRANULE * (address in self.mapped)


class UnmapsNothing(Faulty):
    """Keeps all mappings."""

    def mem_unmap(self, address: int, size: int) -> None:
        pass


class KeepsChunk(Faulty):
    """Keeps one reference to the second chunk."""

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        handle = super().mem_create(size, properties, flags)
        if len(self.created) == 2:
            self._driver.mem_map(reserved := self._driver.mem_address_reserve(size), size, handle)
            self._driver.mem_retain_allocation_handle(reserved)
            self._driver.mem_unmap(reserved, size)
            self._driver.mem_address_free(reserved, size)
        return handle


class GrantsTooMuch(Faulty):
    """Grants gpu1 read and write access as well."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._driver.mem_set_access(address, size, _more(grants, Grant(gpu(1), Access.RW)))


class SilentAccess(Faulty):
    """Reports the access that was requested."""

    def __init__(self, driver: KernelDriver) -> None:
        self._requested: dict[Location, int] = {}
        super().__init__(driver)
        self._areas: list[tuple[int, int, dict[Location, int]]] = []

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._areas.append((address, size, {grant.location: int(grant.access) for grant in grants}))
        self._driver.mem_set_access(address, size, self.granted(grants))

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Access that is set in place of the requested one."""
        return grants

    def mem_get_access(self, address: int, location: Location) -> int:
        found: int = self._driver.mem_get_access(address, location)
        for start, size, requested in self._areas:
            if start <= address < start + size:
                found = requested.get(_user(location), 0)
        return found


def _more(grants: tuple[Grant, ...], more: Grant) -> tuple[Grant, ...]:
    """Grants with one more, unless its location has one."""
    return grants if more.location in dict(grants) else (*grants, more)


def _user(location: Location) -> Location:
    return location if location.kind is LocationKind.GPU else Location(LocationKind.HOST)


class GrantsTooMuchSilently(SilentAccess):
    """Grants gpu1 read and write access as well, and reports none."""

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return _more(grants, Grant(gpu(1), Access.RW))


class GrantsReadingSilently(SilentAccess):
    """Grants gpu1 read access as well, and reports none."""

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return _more(grants, Grant(gpu(1), Access.R))


class GrantsTheHost(Faulty):
    """Grants the host read and write access to host memory as well."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._driver.mem_set_access(address, size, (*grants, Grant(NODE, Access.RW)))


class GrantsTheHostSilently(SilentAccess):
    """Grants the host read and write access to host memory as well, and reports none."""

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return (*grants, Grant(NODE, Access.RW))


class GrantsReadingOnly(Faulty):
    """Grants read access in place of any other."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._driver.mem_set_access(address, size, tuple(each._replace(access=Access.R) for each in grants))


class GrantsReadingOnlySilently(SilentAccess):
    """Grants read access in place of any other, and reports the requested one."""

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return tuple(each._replace(access=Access.R) for each in grants)


class GrantsNothing(Faulty):
    """Grants no access."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        pass


class GrantsNothingSilently(SilentAccess):
    """Grants no access, and reports the requested one."""

    def granted(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return tuple(each._replace(access=Access.NONE) for each in grants)


class GrantsFirstMappingOnly(Faulty):
    """Sets access of the first granule of a call alone."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        del size
        self._driver.mem_set_access(address, GRANULE, grants)


class ReportsHolesAsMapped(Faulty):
    """Reports unmapped addresses as mapped without access."""

    def mem_get_access(self, address: int, location: Location) -> int:
        try:
            return self._driver.mem_get_access(address, location)
        except DriverError:
            return 0


class RefusesNothing(Faulty):
    """Fills memory for any GPU, whatever its access."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        with suppress(DriverError):
            self._driver.memset_d8(address, value, count)


class LosesWrite(Faulty):
    """Loses the second copy to memory, or the one of another number."""

    writes, lost = 0, 2

    def memcpy_htod(self, address: int, data: bytes) -> None:
        self.writes += 1
        if self.writes != self.lost:
            self._driver.memcpy_htod(address, data)


class LosesFillsOfOneGpu(Faulty):
    """Loses what gpu1's kernels store."""

    def fill(self, areas: Sequence[Area]) -> None:
        if _current_gpu(self._driver) != 1:
            self._driver.fill(areas)


class LosesMiddleGranule(Faulty):
    """Loses what is written to the second granule of chunks of three."""

    def fill(self, areas: Sequence[Area]) -> None:
        kept = []
        for each in areas:
            if each.size == 3 * GRANULE:
                kept.append(each._replace(size=GRANULE))
                at = 2 * GRANULE
                kept.append(Area(each.address + at, GRANULE, each.seed, each.first + at))
            else:
                kept.append(each)
        self._driver.fill(kept)


class LosesSecondHalf(Faulty):
    """Loses the second half of each copy to memory and of each area that kernels fill."""

    def memcpy_htod(self, address: int, data: bytes) -> None:
        self._driver.memcpy_htod(address, data[: len(data) // 2])

    def fill(self, areas: Sequence[Area]) -> None:
        self._driver.fill([each._replace(size=each.size // 2) for each in areas])


class FlipsBit(Faulty):
    """Flips a bit in the second copy from memory."""

    reads = 0

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        found: bytes = self._driver.memcpy_dtoh(address, count)
        self.reads += 1
        return bytes([found[0] ^ 1, *found[1:]]) if self.reads == 2 else found


class FlipsBitOnce(Faulty):
    """Changes the first word of the first verified area for one verification."""

    verified = False

    def verify(self, areas: Sequence[Area]) -> Any:
        if self.verified:
            return self._driver.verify(areas)
        self.verified = True
        return self._driver.verify([areas[0]._replace(seed=areas[0].seed ^ 1), *areas[1:]])


class StoresIntoFirstMapping(Faulty):
    """Lets each fill by gpu1 change the first mapping too."""

    def fill(self, areas: Sequence[Area]) -> None:
        self._driver.fill(areas)
        if _current_gpu(self._driver) == 1:
            context = self._driver.device_primary_ctx_retain(0)
            self._driver.ctx_push_current(context)
            self._driver.memset_d8(next(iter(self.mapped)), 0x5A, 64)
            self._driver.ctx_pop_current()
            self._driver.device_primary_ctx_release(0)


class LosesStoresOfCpu(Faulty):
    """Loses what the CPU stores."""

    def host_write(self, address: int, data: bytes) -> None:
        pass


class AllocatesLess(Faulty):
    """Allocates half of each buffer, allocation of a pool, and managed memory."""

    def mem_alloc_from_pool_async(self, size: int, pool: int, stream: int = 0) -> int:
        return self._driver.mem_alloc_from_pool_async(size // 2, pool, stream)

    def mem_alloc(self, size: int) -> int:
        return self._driver.mem_alloc(size // 2)

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return self._driver.mem_alloc_managed(size // 2, flags)


class AllocatesOneBuffer(Faulty):
    """Gives all buffers of one size the same memory."""

    def __init__(self, driver: KernelDriver) -> None:
        self._buffers: dict[int, int] = {}
        super().__init__(driver)

    def mem_alloc(self, size: int) -> int:
        if size not in self._buffers:
            self._buffers[size] = self._driver.mem_alloc(size)
        return self._buffers[size]

    def mem_free(self, address: int) -> None:
        with suppress(DriverError):
            self._driver.mem_free(address)


class AllocatesOnce(Faulty):
    """Gives all allocations of a pool the memory of the first."""

    def __init__(self, driver: KernelDriver) -> None:
        self._first: dict[int, int] = {}
        super().__init__(driver)

    def mem_alloc_from_pool_async(self, size: int, pool: int, stream: int = 0) -> int:
        if pool not in self._first:
            self._first[pool] = self._driver.mem_alloc_from_pool_async(size, pool, stream)
        return self._first[pool]

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        with suppress(DriverError):
            self._driver.mem_free_async(address, stream)


class CreatesPoolElsewhere(Faulty):
    """Creates pools on the other GPU."""

    def mem_pool_create(self, properties: PoolProperties) -> int:
        other = gpu(1 - properties.location.id)
        return self._driver.mem_pool_create(properties._replace(location=other))


class IgnoresPoolAttributes(Faulty):
    """Sets no attribute of a pool."""

    def mem_pool_set_attribute(self, pool: int, attribute: PoolAttribute, value: int) -> None:
        pass


class IgnoresPoolAccess(Faulty):
    """Sets no access to a pool."""

    def mem_pool_set_access(self, pool: int, grants: tuple[Grant, ...]) -> None:
        pass


class IgnoresPoolAccessSilently(IgnoresPoolAccess):
    """The same, and the query denies it."""

    def mem_pool_get_access(self, pool: int, location: Location) -> int:
        del pool, location
        return int(Access.RW)


class KeepsPoolAllocations(Faulty):
    """Frees no allocation of a pool."""

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        pass


class AllocatesOnOtherGpu(Faulty):
    """Allocates buffers on the other GPU."""

    def mem_alloc(self, size: int) -> int:
        other = 1 - _current_gpu(self._driver)
        context = self._driver.device_primary_ctx_retain(other)
        self._driver.ctx_push_current(context)
        try:
            return self._driver.mem_alloc(size)
        finally:
            self._driver.ctx_pop_current()
            self._driver.device_primary_ctx_release(other)


class KeepsBuffers(Faulty):
    """Frees no buffer and no managed memory."""

    def mem_free(self, address: int) -> None:
        pass


class AllocatesDeviceMemory(Faulty):
    """Allocates memory of the GPU in place of managed memory."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        del flags
        return self._driver.mem_alloc(size)

    def pointer_is_managed(self, *_: object) -> bool:
        return False

    def mem_range_get_attribute(self, *_: object) -> tuple[int, ...]:
        return ()

    def mem_advise(self, *_: object) -> None:
        pass

    def mem_prefetch_async(self, *_: object) -> None:
        pass

    def stream_attach_mem_async(self, *_: object) -> None:
        pass


class IgnoresAdvice(Faulty):
    """Ignores all advice."""

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        pass


class IgnoresPrefetch(Faulty):
    """Migrates nothing."""

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        pass


class AttachesGlobally(Faulty):
    """Attaches managed memory to all streams."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        del flags
        return self._driver.mem_alloc_managed(size, MemAttach.GLOBAL)

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        del flags
        self._driver.stream_attach_mem_async(stream, address, MemAttach.GLOBAL)


class AttachesNothing(Faulty):
    """Attaches managed memory to no stream."""

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        pass


class PinsLess(Faulty):
    """Allocates half of pinned memory."""

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        return self._driver.mem_host_alloc(size // 2, flags)


class PinsOnce(Faulty):
    """Gives all pinned allocations of one size the same memory."""

    def __init__(self, driver: KernelDriver) -> None:
        self._pinned: dict[int, int] = {}
        super().__init__(driver)

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        if size not in self._pinned:
            self._pinned[size] = self._driver.mem_host_alloc(size, flags)
        return self._pinned[size]

    def mem_free_host(self, address: int) -> None:
        with suppress(DriverError):
            self._driver.mem_free_host(address)


class PinsWithoutFlags(Faulty):
    """Allocates and registers memory without flags."""

    def mem_host_alloc(self, size: int, flags: HostFlags) -> int:
        del flags
        return self._driver.mem_host_alloc(size, HostFlags.NONE)

    def mem_host_register(self, address: int, size: int, flags: RegisterFlags) -> None:
        del flags
        self._driver.mem_host_register(address, size, RegisterFlags.NONE)


class PinsElsewhere(Faulty):
    """Gives another address of page-locked memory to the second GPU."""

    def mem_host_get_device_pointer(self, address: int) -> int:
        return self._driver.mem_host_get_device_pointer(address) + (_current_gpu(self._driver) << 40)


class LosesFills(Faulty):
    """Fills nothing, by calls or by kernels."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        pass

    def fill(self, areas: Sequence[Area]) -> None:
        pass


class LoadsOtherBytes(Faulty):
    """Loads a wrong bit for each fingerprint."""

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(each ^ 1 for each in self._driver.fingerprint(parts))


class KeepsPinned(Faulty):
    """Frees no pinned memory."""

    def mem_free_host(self, address: int) -> None:
        pass


class KeepsRegistered(Faulty):
    """Unregisters nothing."""

    def mem_host_unregister(self, address: int) -> None:
        pass


class RecordsNoEvent(Faulty):
    """Records no event."""

    def event_record(self, event: int, stream: int = 0) -> None:
        pass


class CompletesNoEvent(Faulty):
    """Reports all events as not complete."""

    def event_query(self, *_: object) -> bool:
        return False


class ExportsAnotherChunk(Faulty):
    """Exports the second chunk in place of the first."""

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        wrong = self.created[1] if handle == self.created[0] else handle
        exported: int | bytes = self._driver.mem_export_to_shareable_handle(wrong, kind, flags)
        return exported


class ImportsAnotherChunk(Faulty):
    """Gives each import memory of its own on the right GPU."""

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        del shared, kind
        handle: int = self._driver.mem_create(GRANULE, Properties(gpu(0)))
        return handle


class ImportsFromOtherGpu(Faulty):
    """Reports imported chunks on the other GPU."""

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        found: Properties = self._driver.mem_get_allocation_properties_from_handle(handle)
        return found._replace(location=_OTHER[found.location])


class ImportsOneChunk(SilentHandles):
    """Gives every import the memory of the first one."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        del handle
        self._driver.mem_map(address, size, next(iter(self.mapped.values())))


class ExportsAnotherAllocation(Faulty):
    """Exports the pointer of a pool's first allocation in place of each other one."""

    def __init__(self, driver: KernelDriver) -> None:
        self._first = 0
        super().__init__(driver)

    def mem_pool_export_pointer(self, address: int) -> bytes:
        self._first = self._first or address
        return self._driver.mem_pool_export_pointer(self._first)


class ImportsOneAllocation(Faulty):
    """Gives every import of an allocation the memory of the first one."""

    def __init__(self, driver: KernelDriver) -> None:
        self._first: dict[int, int] = {}
        super().__init__(driver)

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        if pool not in self._first:
            self._first[pool] = self._driver.mem_pool_import_pointer(pool, data)
        return self._first[pool]

    def mem_free(self, address: int) -> None:
        with suppress(DriverError):
            self._driver.mem_free(address)


class ImportsAnotherAllocation(Faulty):
    """Gives each import of an allocation memory of its own."""

    def mem_pool_import_pointer(self, pool: int, data: bytes) -> int:
        del pool, data
        context = self._driver.device_primary_ctx_retain(0)
        self._driver.ctx_push_current(context)
        try:
            return self._driver.mem_alloc(GRANULE)
        finally:
            self._driver.ctx_pop_current()
            self._driver.device_primary_ctx_release(0)


class ExportsShorterDmaBuf(Faulty):
    """Exports the first page alone."""

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        del size
        return self._driver.mem_get_handle_for_address_range(address, PAGE, flags)


class ExportsAnotherDmaBuf(Faulty):
    """Exports the chunk that was mapped first in place of any memory of its size."""

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        found = next(iter(self.mapped)) if size == GRANULE else address
        return self._driver.mem_get_handle_for_address_range(found, size, flags)


class KeepsDmaBufOpen(Faulty):
    """Keeps a descriptor of each dma-buf until it is closed."""

    def __init__(self, driver: KernelDriver) -> None:
        self._kept: list[int] = []
        super().__init__(driver)

    def close(self) -> None:
        for fd in self._kept:
            os.close(fd)

    def mem_get_handle_for_address_range(self, address: int, size: int, flags: DmaBufFlags = DmaBufFlags.NONE) -> int:
        fd: int = self._driver.mem_get_handle_for_address_range(address, size, flags)
        self._kept.append(os.dup(fd))
        return fd


def _current_gpu(driver: KernelDriver) -> int:
    """Ordinal of the GPU whose context is current."""
    context = driver.ctx_pop_current()
    driver.ctx_push_current(context)
    for device in range(driver.device_get_count()):
        found = driver.device_primary_ctx_retain(device)
        driver.device_primary_ctx_release(device)
        if found == context:
            return device
    raise AssertionError("no context is current")


class AddsNothing(Faulty):
    """Adds no GPU to a multicast object."""

    def multicast_add_device(self, *_: object) -> None:
        pass


class BindsNothing(Faulty):
    """Binds no memory to a multicast object."""

    def multicast_bind_mem(self, *_: object) -> None:
        pass


class UnbindsNothing(Faulty):
    """Unbinds no memory from a multicast object."""

    def multicast_unbind(self, *_: object) -> None:
        pass


class MapsFirstObject(Faulty):
    """Maps the first multicast object in place of every one."""

    def __init__(self, driver: KernelDriver) -> None:
        self._objects: list[int] = []
        super().__init__(driver)

    def multicast_create(self, devices: int, size: int, handles: HandleType, flags: int = 0) -> int:
        self._objects.append(self._driver.multicast_create(devices, size, handles, flags))
        return self._objects[-1]

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        self._driver.mem_map(address, size, self._objects[0] if handle in self._objects else handle, offset, flags)
