"""Allocations that go from process to process by 64 bytes (facts 31 and 46)."""

from __future__ import annotations

from memtopo.driver.sim import places, tickets
from memtopo.driver.sim.allocations import Allocation, Allocations
from memtopo.driver.sim.arena import Arena
from memtopo.driver.sim.devices import Devices
from memtopo.driver.sim.files import Files, Tag, nonce
from memtopo.driver.sim.refusal import Refused, invalid
from memtopo.driver.types import Location, gpu

LAZY_PEER_ACCESS = 1
_REFUSALS = tickets.Refusals("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_VALUE")


class MemoryHandles:
    """Shares allocations of one process, and opens those of others."""

    def __init__(self, devices: Devices, allocations: Allocations, arena: Arena, files: Files) -> None:
        self._devices, self._allocations = devices, allocations
        self._arena, self._files = arena, files

    def get(self, address: int) -> bytes:
        """64 bytes that lead to the allocation around an address, the same for each address in it."""
        allocation = self._allocations.find(address)
        if allocation is None or allocation.kind != "own":
            raise invalid("the address is in no allocation of this process's device memory")
        tag = allocation.physical.tag or self._move(allocation)
        return tickets.write(allocation.physical.fd, tag)

    def open(self, handle: bytes, flags: int, device: int) -> int:
        """The address of another process's allocation, for the context of a device; each opening is counted."""
        if flags != LAZY_PEER_ACCESS:
            raise invalid("flags must be 1, which enables peer access")
        ticket = tickets.read(handle, _REFUSALS)
        if ticket.is_ours:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "memory cannot be opened in the process that allocated it")
        fd, tag = tickets.redeem(ticket, "allocation", self._files, _REFUSALS)
        try:
            self._check_owner(places.found(tag.place, self._devices), device)
            allocation = self._allocations.opened(tag.nonce)
        except Refused:
            self._files.close(fd)
            raise
        if allocation is None:
            allocation = self._allocations.open(self._arena.adopt(fd, tag), device)
        else:
            self._files.close(fd)
        allocation.opens += 1
        allocation.users.add(device)
        return allocation.start

    def close(self, address: int) -> None:
        """Give one opening back."""
        self._allocations.close(address)

    def _check_owner(self, owner: Location, device: int) -> None:
        # Neither was ever seen on hardware.
        if owner == places.ELSEWHERE:
            raise invalid("the memory is of a gpu that is not here")
        if owner != gpu(device) and not self._devices.can_access_peer(device, owner.id):
            raise Refused("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", f"gpu{device} cannot access the memory of {owner}")

    def _move(self, allocation: Allocation) -> Tag:
        place = places.told(gpu(allocation.device), self._devices)
        tag = Tag("allocation", allocation.size, 1, place, nonce())
        self._arena.share(allocation.physical, tag)
        return tag
