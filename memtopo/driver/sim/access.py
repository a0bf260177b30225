"""Access rights of mappings and allocations (facts 19 to 23), and the fills and copies that need them."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.driver.sim.allocations import Allocation, Allocations
from memtopo.driver.sim.calls import Refused, invalid, unsupported
from memtopo.driver.sim.mappings import Mapping, Mappings
from memtopo.driver.sim.physical import Physical
from memtopo.driver.sim.streams import Work
from memtopo.driver.types import Access, Grant, Location, LocationKind, gpu
from memtopo.machine import Machine

HOST = Location(LocationKind.HOST)


class AccessRules:
    """Sets, queries and enforces access to mappings and allocations."""

    def __init__(self, machine: Machine, mappings: Mappings, allocations: Allocations) -> None:
        self._machine, self._mappings, self._allocations = machine, mappings, allocations

    def grant(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        """Set access of whole mappings without a hole; of two grants for one location the last applies (fact 20)."""
        if not grants:
            raise invalid("no access is given")
        mappings = self._mappings.whole(address, size)
        owners = {mapping.chunk.properties.location for mapping in mappings}
        for grant in grants:
            self._check(grant, owners)
        granted = {_user(grant.location): int(grant.access) for grant in grants}
        for mapping in mappings:
            mapping.access.update(granted)

    def granted(self, address: int, location: Location) -> int:
        """Access of one location at an address (facts 22, 42); always none for an allocation (fact 45)."""
        if not self._is_known(location):
            raise Refused("CUDA_ERROR_INVALID_DEVICE", f"{location} does not exist")
        if self._allocations.find(address):
            return 0
        mapping = self._mappings.around(address)
        own = mapping.access.get(_user(location), 0)
        if own or location.kind != LocationKind.HOST or mapping.chunk.properties.location.kind == LocationKind.GPU:
            return own
        return max(mapping.access.values(), default=0)

    def address_range(self, address: int, device: int) -> tuple[int, int]:
        """Base and size of the mapping or allocation around an address, if the device has access to it."""
        allocation = self._allocations.find(address)
        if allocation and device in allocation.users:
            return allocation.start, allocation.size
        mapping = self._mappings.find(address)
        if mapping is None or not mapping.access.get(gpu(device)):
            raise Refused("CUDA_ERROR_NOT_FOUND", f"{gpu(device)} has no access to anything there")
        return mapping.start, mapping.end - mapping.start

    def reach(
        self, address: int, count: int, device: int, wanted: Access, *, copying: bool
    ) -> list[Mapping] | list[Allocation]:
        """Mappings, or the one allocation, behind `count` bytes; checks the device's access (facts 23, 40)."""
        if allocation := self._allocations.find(address):
            self._check_use(allocation, address + count, device, reads=copying and wanted == Access.R)
            return [allocation]
        found, at, user = [], address, gpu(device)
        while at < address + count:
            mapping = self._mappings.around(at)
            granted = mapping.access.get(user, 0)
            if copying and mapping.chunk.properties.location.kind != LocationKind.GPU:
                _check_host_copy(granted, mapping.access.get(HOST, 0), wanted)
            elif granted & wanted != wanted:
                raise invalid(f"{user} has no {wanted.word} access there")
            found.append(mapping)
            at = mapping.end
        return found

    def cpu_reach(self, address: int, count: int, wanted: Access) -> tuple[Physical, int]:
        """Memory and offset for a load or store by the CPU (facts 21, 39); on hardware a refusal ends the process."""
        area = self._allocations.find(address) or self._mappings.around(address)
        allowed = area.advised if isinstance(area, Allocation) else area.access.get(HOST, 0) & wanted == wanted
        if not allowed or address + count > area.end:
            raise invalid("the CPU may not do this there: on hardware the process dies of SIGSEGV")
        return area.physical, address - area.start

    def is_managed(self, address: int) -> bool:
        """Return whether an address is in managed memory; refuses an address where nothing is mapped or allocated."""
        found = self._allocations.find(address)
        if found is None:
            self._mappings.around(address)
        return found is not None and found.advised is not None

    def _check_use(self, allocation: Allocation, end: int, device: int, *, reads: bool) -> None:
        # A copy from a buffer of external memory works from a peer's context too (fact 55). Otherwise what is refused
        # here was never tried on hardware.
        peer = allocation.kind == "buffer" and reads and self._machine.can_access(device, allocation.device)
        if device not in allocation.users and not peer:
            raise invalid(f"{gpu(device)} has no access to the allocation")
        if end > allocation.end:
            raise invalid("the bytes run past the end of the allocation")

    def _check(self, grant: Grant, owners: set[Location]) -> None:
        if not self._is_known(grant.location):
            raise invalid(f"{grant.location} does not exist")
        if grant.access not in {0, 1, 3}:
            raise invalid("access must be none, read or read and write")
        if grant.location.kind == LocationKind.GPU:
            self._check_peers(grant.location.id, owners)
        elif any(owner.kind == LocationKind.GPU for owner in owners):
            raise unsupported("the host cannot access a gpu's memory")

    def _is_known(self, location: Location) -> bool:
        """Return whether a location is accepted: an existing GPU, the host, or any NUMA node, existing or not."""
        if location.kind == LocationKind.GPU:
            return location in self._machine.locations
        return location.kind != LocationKind.HOST_NUMA_CURRENT

    def _check_peers(self, device: int, owners: set[Location]) -> None:
        # Never seen on hardware: every pair of GPUs that was measured could access each other.
        # A GPU that this process does not have is no exception (fact 43).
        for owner in owners & self._machine.locations.keys():
            if owner.kind == LocationKind.GPU and not self._machine.can_access(device, owner.id):
                raise unsupported(f"gpu{device} cannot access the memory of {owner}")


def _user(location: Location) -> Location:
    """Location under which access is kept: the host and its NUMA nodes share theirs."""
    return location if location.kind == LocationKind.GPU else HOST


def _check_host_copy(device: int, host: int, wanted: Access) -> None:
    """Refuse copies of host memory: made by the CPU if the host has any access, otherwise by the device (fact 40)."""
    if wanted == Access.R:
        survives = bool(host or device)
    elif device == Access.R:
        raise invalid("the device may only read there")
    else:
        survives = host == Access.RW or (device == Access.RW and not host)
    if not survives:
        raise invalid("the CPU would make this copy and may not: on hardware the process dies of SIGSEGV")


BLOCK = 1 << 20


class MemoryOperations:
    """Fills and copies of simulated memory (fact 23), by a device or by the CPU."""

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
        """Copy bytes to memory, across adjacent mappings."""
        rest = memoryview(data)
        for physical, at, size in self.parts(device, address, len(data), Access.RW, copying=True):
            physical.write(at, rest[:size])
            rest = rest[size:]

    def read(self, device: int, address: int, count: int) -> bytes:
        """Copy bytes from memory, across adjacent mappings."""
        parts = self.parts(device, address, count, Access.R, copying=True)
        return b"".join(physical.read(at, size) for physical, at, size in parts)

    def copy(self, device: int, destination: int, source: int, count: int) -> Work:
        """Work of a stream that copies bytes between two addresses; untouched bytes stay untouched."""
        sources = list(self.parts(device, source, count, Access.R, copying=True))
        targets = list(self.parts(device, destination, count, Access.RW, copying=True))

        def work() -> bool:
            for (physical, at, size), (other, from_at) in _aligned(targets, sources):
                physical.copy(at, other, from_at, size)
            return True

        return work

    def store(self, device: int, address: int, data: bytes) -> None:
        """Store bytes as a kernel of a device does."""
        for physical, at, _ in self.parts(device, address, len(data), Access.RW, copying=False):
            physical.write(at, data)

    def host_write(self, address: int, data: bytes) -> None:
        """Store bytes as the CPU does."""
        physical, at = self._access.cpu_reach(address, len(data), Access.RW)
        physical.write(at, data)

    def host_read(self, address: int, count: int) -> bytes:
        """Load bytes as the CPU does."""
        physical, at = self._access.cpu_reach(address, count, Access.R)
        return physical.read(at, count)

    def parts(
        self, device: int, address: int, count: int, wanted: Access, *, copying: bool
    ) -> Iterator[tuple[Physical, int, int]]:
        """Yield the physical memory behind addresses as (memory, offset, size), after all access is checked."""
        end = address + count
        for area in self._access.reach(address, count, device, wanted, copying=copying):
            low, high = max(address, area.start), min(end, area.end)
            yield area.physical, low - area.start, high - low


_Part = tuple[Physical, int, int]


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
