"""Access rights of mappings and allocations (facts 19 to 23), and the fills and copies that need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import add, itemgetter

from memtopo.driver.types import HOST, WHOLE_HOST, Access, Grant, Location, LocationKind, RegisterFlags, gpu
from memtopo.drivers.sim.allocations import SimAllocation, SimAllocations
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.chunks import Mapping, SimMappings
from memtopo.drivers.sim.physical import PAGE, PIECE, Physical
from memtopo.drivers.sim.process import SimProcess, Stream

_GPU = LocationKind.GPU
"""Looked up once, since each chunk needs it several times."""


class AccessRules:
    """Sets, queries and enforces access to mappings and allocations."""

    def __init__(self, sim: SimProcess, mappings: SimMappings, allocations: SimAllocations) -> None:
        self._sim, self._mappings, self._allocations = sim, mappings, allocations

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        """Set access of whole mappings without a hole; of two grants for one location the last applies (fact 20)."""
        refuse_if(not grants, "no access is given")
        for grant in grants:
            if not self._is_known(grant.location):
                raise invalid(f"{grant.location} does not exist")
            refuse_if(grant.access not in {0, 1, 3}, "access must be none, read or read and write")
        allowed: dict[Location, tuple[tuple[Grant, ...], RefusedCall | None]] = {}
        for mapping in self._mappings.contiguous(address, size):
            owner = mapping.chunk.properties.location
            if owner not in allowed:
                allowed[owner] = self._until_refused(grants, owner)
            before, refused = allowed[owner]
            _apply(mapping, before)
            if refused:
                raise refused

    def mem_get_access(self, address: int, location: Location) -> int:
        """Access of one location at an address (facts 22, 42); always none for an allocation (fact 45)."""
        refuse_if(not address, "the address is 0")
        if not self._is_known(location):
            raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"{location} does not exist")
        mapping = self._mappings.find(address)
        if mapping is None:
            if self._allocations.find(address):
                return 0
            mapping = self._mappings.around(address)
        if location.kind is _GPU:
            return mapping.access.get(location, 0)
        return mapping.access.get(_last_changed(mapping) if location.kind == LocationKind.HOST else WHOLE_HOST, 0)

    def mem_get_address_range(self, address: int) -> tuple[int, int]:
        """Base and size of the mapping or allocation around an address, if the current device has access to it."""
        device = self._sim.contexts.current()
        allocation = self._allocations.find(address)
        if allocation and device in allocation.users:
            return allocation.start, allocation.size
        mapping = self._mappings.find(address)
        if mapping is None or not mapping.access.get(gpu(device)):
            raise RefusedCall("CUDA_ERROR_NOT_FOUND", f"{gpu(device)} has no access to anything there")
        on_gpu = mapping.chunk.properties.location.kind == LocationKind.GPU
        return mapping.start if on_gpu else 0, mapping.end - mapping.start  # fact 66

    def reach(
        self, address: int, count: int, device: int, wanted: Access, *, copying: bool
    ) -> list[Mapping] | list[SimAllocation]:
        """Mappings, or the one allocation, behind `count` bytes; checks the device's access (facts 23, 40)."""
        if allocation := self._allocations.find(address):
            if count:
                self._check_use(allocation, address + count, device, wanted, copying=copying)
            return [allocation]
        found, at = [], address
        while at < address + count:
            found.append(self._mappings.around(at))
            at = found[-1].end
        if copying and any(mapping.on_host for mapping in found):
            _check_host_copy(found, device, wanted)
        elif any(mapping.access.get(gpu(device), 0) & wanted != wanted for mapping in found):
            raise invalid(f"{gpu(device)} has no {wanted.word} access there")
        if not (copying or device) and any(_last_changed(mapping) == WHOLE_HOST for mapping in found[1:]):
            raise invalid("the bytes run into host memory to which access was last changed for the host (fact 67)")
        return found

    def parts(
        self, device: int, address: int, count: int, wanted: Access, *, copying: bool
    ) -> Iterator[tuple[Physical, int, int]]:
        """Yield the physical memory behind addresses as (memory, offset, size), after all access is checked."""
        end = address + count
        for area in self.reach(address, count, device, wanted, copying=copying):
            low, high = max(address, area.start), min(end, area.end)
            yield area.physical, low - area.start, high - low

    def gpu_mappings(self, address: int, end: int, user: Location, wanted: int) -> list[Mapping]:
        """Mappings of GPUs' chunks behind addresses, if the user has access to all; none says nothing about others."""
        mappings = []
        while address < end:
            found = self._mappings.find(address)
            if found is None or found.on_host or found.access.get(user, 0) & wanted != wanted:
                return []
            mappings.append(found)
            address = found.end
        return mappings

    def cpu_reach(self, address: int, count: int, wanted: Access) -> tuple[Physical, int]:
        """Memory and offset for a load or store by the CPU (facts 21, 39); on hardware a refusal ends the process."""
        area = self._allocations.find(address) or self._mappings.around(address)
        allowed = area.by_cpu if isinstance(area, SimAllocation) else area.access.get(WHOLE_HOST, 0) & wanted == wanted
        if not allowed or address + count > area.end:
            raise invalid("the CPU has no such access there: on hardware, SIGSEGV ends the process")
        return area.physical, address - area.start

    def pointer_is_managed(self, address: int) -> bool:
        """Return whether an address is in managed memory; refuses an address where nothing is mapped or allocated."""
        self._sim.contexts.current()
        found = self._allocations.find(address)
        if found is None:
            self._mappings.around(address)
        return found is not None and found.advised is not None

    def check_program_copy(self, address: int) -> None:
        """Refuse copies between a program's memory and that of a pool of the host (fact 81)."""
        found = self._allocations.find(address)
        if found and found.kind == "pooled" and HOST in found.users:
            raise invalid("only cuMemcpyAsync can copy memory of a host pool")

    def _check_use(self, allocation: SimAllocation, end: int, device: int, wanted: Access, *, copying: bool) -> None:
        # From a peer's context copies work, fills do not (facts 46, 55, 68). What else is refused was never tried.
        copied = allocation.kind in ("own", "opened") or (allocation.kind == "buffer" and wanted == Access.R)
        peer = copying and copied and self._sim.machine.can_access(device, allocation.device)
        if device not in allocation.users and not peer:
            raise invalid(f"{gpu(device)} has no access to the allocation")
        refuse_if(end > allocation.end, "the bytes run past the end of the allocation")
        if wanted == Access.RW and allocation.kind == "registered" and allocation.flags & RegisterFlags.READ_ONLY:
            raise invalid("the memory is registered as read-only (fact 85)")

    def _until_refused(
        self, grants: tuple[Grant, ...], owner: Location
    ) -> tuple[tuple[Grant, ...], RefusedCall | None]:
        """Grants before the first one that is refused for memory of an owner, and the refusal."""
        for index, grant in enumerate(grants):
            if refused := self._refusal(grant, owner):
                return grants[:index], refused
        return grants, None

    def _refusal(self, grant: Grant, owner: Location) -> RefusedCall | None:
        if grant.location.kind != LocationKind.GPU:
            if owner.kind == LocationKind.GPU and grant.access:
                return unsupported("the host cannot access a gpu's memory")
            return None
        # Never seen on hardware: every pair of GPUs that was measured could access each other.
        # A GPU that this process does not have is no exception (fact 43).
        known = owner.kind == LocationKind.GPU and owner in self._sim.machine.locations
        if known and not self._sim.machine.can_access(grant.location.id, owner.id):
            return unsupported(f"{grant.location} cannot access the memory of {owner}")
        return None

    def _is_known(self, location: Location) -> bool:
        """Return whether a location is accepted: an existing GPU, the host, or any NUMA node, existing or not."""
        if location.kind is _GPU:
            return location in self._sim.machine.locations
        return location.kind != LocationKind.HOST_NUMA_CURRENT


def _apply(mapping: Mapping, grants: tuple[Grant, ...]) -> None:
    """Change access of one mapping, grant by grant; what was changed last is kept at the end (fact 42).

    What is refused on account of the chunk's anchor has no access any more (fact 64).
    """
    anchor, owner = mapping.chunk.anchor, mapping.chunk.properties.location
    for location, access in grants:
        user = location if location.kind is _GPU else WHOLE_HOST
        if mapping.access.get(user, 0) == access:
            continue
        mapping.access.pop(user, None)
        if anchor and user != WHOLE_HOST:
            anchor.grant(mapping.start, access, peer=user != owner)
        if access:
            mapping.access[user] = int(access)


def _last_changed(mapping: Mapping) -> Location:
    """GPU 0 or the host, whose access of the two was changed last (facts 42, 67)."""
    return next((user for user in reversed(mapping.access) if user in {WHOLE_HOST, gpu(0)}), gpu(0))


def _check_host_copy(mappings: list[Mapping], device: int, wanted: Access) -> None:
    """Refuse copies of host memory, made by the CPU if the host has any access, else by the device (facts 40, 67)."""
    user = gpu(device)
    if wanted == Access.RW and any(mapping.access.get(user, 0) == Access.R for mapping in mappings):
        raise invalid("the device has only read access there")
    hosts = [mapping.access.get(WHOLE_HOST, 0) for mapping in mappings]
    if not any(hosts):
        survives = all(mapping.access.get(user, 0) & wanted == wanted for mapping in mappings)
    elif len(mappings) == 1 and wanted == Access.R:
        survives = True
    else:
        survives = all(host & wanted == wanted for host in hosts)
    refuse_if(not survives, "the CPU would make this copy but has no access: on hardware, SIGSEGV ends the process")


class MemoryOperations:
    """Fills and copies of simulated memory (fact 23), by a device or by the CPU.

    Copies in a stream are made at once unless work is outstanding before them.
    """

    def __init__(self, sim: SimProcess, access: AccessRules, allocations: SimAllocations) -> None:
        self._sim, self._access, self._allocations = sim, access, allocations

    def memset_d8(self, address: int, value: int, count: int) -> None:
        """Set `count` bytes to one value, across adjacent mappings."""
        refuse_if(value not in range(256), "the value is not a byte")
        self.memset(address, bytes([value]), count)

    def memset(self, address: int, element: bytes, count: int) -> None:
        """Set memory to `count` equal elements of 1, 2 or 4 bytes, across adjacent mappings."""
        device, whole = self._sim.contexts.current(), count * len(element)
        refuse_if(count and address % len(element), "the address is not aligned to the elements")
        block = memoryview(element * (min(whole, PIECE) // len(element)))
        for physical, at, size in self._access.parts(device, address, whole, Access.RW, copying=False):
            for done in range(0, size, PIECE):
                physical.write(at + done, block[: size - done])

    def check_copy(self, address: int, count: int, wanted: Access) -> None:
        """Refuse a copy between memory and the program as a whole, before it is made in pieces."""
        self._access.check_program_copy(address)
        self._access.reach(address, count, self._sim.contexts.current(), wanted, copying=True)

    def memcpy_htod(self, address: int, data: bytes) -> None:
        """Copy bytes to memory, across adjacent mappings."""
        device = self._sim.contexts.current()
        self._access.check_program_copy(address)
        rest = memoryview(data)
        for physical, at, size in self._access.parts(device, address, len(data), Access.RW, copying=True):
            physical.write(at, rest[:size])
            rest = rest[size:]

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        """Copy bytes from memory, across adjacent mappings."""
        device = self._sim.contexts.current()
        self._access.check_program_copy(address)
        parts = self._access.parts(device, address, count, Access.R, copying=True)
        return b"".join(physical.read(at, size) for physical, at, size in parts)

    def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
        """Copy bytes between two addresses in the order of a stream; untouched bytes stay untouched."""
        queue = self._sim.streams.get(stream)
        device = self._copying(queue)
        sources = list(self._access.parts(device, source, count, Access.R, copying=True))
        targets = list(self._access.parts(device, destination, count, Access.RW, copying=True))

        def work() -> bool:
            for (physical, at, size), (other, from_at) in _aligned(targets, sources):
                physical.copy(at, other, from_at, size)
            return True

        if count:
            self._sim.streams.add(queue, work)

    def _copying(self, stream: Stream) -> int:
        return self._sim.contexts.current() if self._sim.contexts.ctx_get_current() else stream.context.device

    def transfer(self, copies: Sequence[tuple[int, int, int]], stream: int) -> bool:
        """Copy small spans between one page-locked allocation and chunks; return false, with none copied, for others.

        Each is given by destination, source and bytes. Raises `RefusedCall` before anything is copied.
        """
        queue = self._sim.streams.get(stream)
        if queue.work:
            return False
        device = self._copying(queue)
        reading = self._allocations.is_pinned(copies[0][0], copies[0][2])
        places = copies if reading else [(place, address, count) for address, place, count in copies]
        counts = [count for _, _, count in places]
        low, end = min(places)[0], max(map(add, map(itemgetter(0), places), counts))
        if not self._allocations.is_pinned(low, end - low) or max(counts) > PAGE or 0 in counts:
            return False
        theirs, ours = (Access.R, Access.RW) if reading else (Access.RW, Access.R)
        spans = _joined(self._spans(device, places, low, theirs), written=not reading)
        ((staged, at, size),) = self._access.parts(device, low, end - low, ours, copying=True)
        data = bytearray(staged.read(at, size))
        for place, physical, offset, count in spans:
            if reading:
                data[place : place + count] = physical.read(offset, count)
            elif any(data[place : place + count]):
                physical.write(offset, data[place : place + count])
            else:  # so that untouched bytes stay untouched
                physical.copy(offset, staged, at + place, count)
        if reading:
            staged.write(at, data)
        return True

    def _spans(self, device: int, places: Sequence[tuple[int, int, int]], low: int, wanted: Access) -> list[_Span]:
        """Memory behind addresses, each given by its place in other memory, the address and bytes."""
        spans: list[_Span] = []
        access, user, needed = self._access, gpu(device), int(wanted)
        for place, address, count in places:
            end = address + count
            mappings = access.gpu_mappings(address, end, user, needed)
            for area in mappings or access.reach(address, count, device, wanted, copying=True):
                first, last = max(address, area.start), min(end, area.end)
                spans.append((place - low + first - address, area.physical, first - area.start, last - first))
        return spans

    def store_by_kernel(self, address: int, data: bytes) -> None:
        """Store bytes as a kernel of the current context does, without kernels that are loaded."""
        device = self._sim.contexts.current()
        for physical, at, _ in self._access.parts(device, address, len(data), Access.RW, copying=False):
            physical.write(at, data)

    def host_write(self, address: int, data: bytes) -> None:
        """Store bytes as the CPU does."""
        physical, at = self._access.cpu_reach(address, len(data), Access.RW)
        physical.write(at, data)

    def host_read(self, address: int, count: int) -> bytes:
        """Load bytes as the CPU does."""
        physical, at = self._access.cpu_reach(address, count, Access.R)
        return physical.read(at, count)


_Part = tuple[Physical, int, int]
_Span = tuple[int, Physical, int, int]
"""Bytes at a place of page-locked memory that are copied from or to other memory, at an offset, with their number."""


def _joined(spans: Sequence[_Span], *, written: bool) -> Iterator[_Span]:
    """Spans; ones that follow one another in both memories are one, as the ends of chunks in the arena."""
    place, physical, offset, size = spans[0]
    for at, other, start, count in islice(spans, 1, None):
        if at == place + size and other.fd == physical.fd and other.offset + start == physical.offset + offset + size:
            size += count
            other.touched |= written
        else:
            yield place, physical, offset, size
            place, physical, offset, size = at, other, start, count
    yield place, physical, offset, size


def _aligned(targets: list[_Part], sources: list[_Part]) -> Iterator[tuple[_Part, tuple[Physical, int]]]:
    """Parts of the targets with the memory and offset that each is copied from, split where a source ends."""
    rest = iter(sources)
    source, from_at, left = next(rest)
    for target, at, size in targets:
        done = 0
        while done < size:
            if not left:
                source, from_at, left = next(rest)
            count = min(size - done, left)
            yield (target, at + done, count), (source, from_at)
            done, from_at, left = done + count, from_at + count, left - count
