"""External memory: imported objects, and the buffers that are mapped from them (facts 53 to 55, 57 and 59)."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.types import MemoryHandleType, gpu
from memtopo.drivers.sim.allocations import Allocations
from memtopo.drivers.sim.calls import Numbered, Refused, invalid, unsupported
from memtopo.drivers.sim.devices import Contexts, Devices
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.semaphores import BINARY, TIMELINE
from memtopo.drivers.sim.shared_files import Files, Tag, check_descriptor, close_descriptor

FIRST_MEMORY = 0x6E00_0000


@dataclass(slots=True, eq=False)
class Memory:
    """An object in a device's context, imported with a declared size."""

    device: int
    size: int
    fd: int
    tag: Tag
    dedicated: bool


class ExternalMemory:
    """Objects that one process has imported."""

    def __init__(self, devices: Devices, contexts: Contexts, allocations: Allocations, files: Files) -> None:
        self._devices, self._contexts, self._allocations, self._files = devices, contexts, allocations, files
        self._open: Numbered[Memory] = Numbered(
            FIRST_MEMORY, "the object is not open: on hardware the process dies of SIGSEGV"
        )

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        """Import an object by a descriptor, which is closed, also if it is refused as unknown (fact 54).

        Neither the size nor the kind of object is checked, so that a semaphore is accepted (facts 53, 55).
        """
        device = self._contexts.current()
        _check(check_descriptor(fd), kind, size, dma_bufs=self._imports_dma_bufs(device), dedicated=dedicated)
        if kind == MemoryHandleType.DMABUF_FD:
            found = self._files.adopt_dma_buf(fd)
        else:
            found = self._files.adopt_descriptor(fd, "memory", "chunk", TIMELINE, BINARY)
        close_descriptor(fd)
        if found is None:
            raise Refused("CUDA_ERROR_UNKNOWN", "the file descriptor is no memory's; it is closed now")
        own, tag = found
        if tag.kind != "dmabuf" and not _is_semaphore(tag) and self._devices.locate(tag.location) != gpu(device):
            self._files.close(own)
            raise Refused("CUDA_ERROR_UNKNOWN", f"the memory is not of gpu{device}; its file descriptor is closed now")
        return self._open.add(Memory(device, size, own, tag, dedicated))

    def _imports_dma_bufs(self, device: int) -> bool:
        """Return whether a trial of the machine has shown that dma-bufs can be imported (fact 84)."""
        found = self._devices.get(device).memory.trials.get("external-dmabuf")
        return found is not None and found.works is True

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        """Map a part of an object; returns the address. The buffer outlives the object (fact 53)."""
        found = self._open[memory]
        if offset < 0 or size <= 0:
            raise invalid("the size is 0")
        if offset and found.dedicated:
            raise invalid("a dedicated object is mapped from its begin alone")
        if offset + size > found.size:
            raise invalid(f"the buffer runs past the size that was declared, {found.size} bytes")
        if _is_semaphore(found.tag):
            raise invalid("the object is a semaphore")
        if offset + size > found.tag.size:
            raise invalid(f"the buffer runs past the end of the memory, which has {found.tag.size} bytes")
        physical = Physical(self._files.duplicate(found.fd), offset, size, tag=found.tag)
        return self._allocations.map(physical, found.device)

    def destroy_external_memory(self, memory: int) -> None:
        """Destroy an object; its buffers remain (fact 53)."""
        self._files.close(self._open.remove(memory).fd)

    def drop(self, device: int) -> None:
        """Destroy all objects of a device's context."""
        for number in self._open.in_context(device):
            self.destroy_external_memory(number)


def _check(fd: int, kind: MemoryHandleType, size: int, *, dma_bufs: bool, dedicated: bool) -> None:
    """Refuse what is refused for any descriptor, which stays open (facts 54, 84)."""
    if size <= 0:
        raise invalid("the size is 0")
    if kind == MemoryHandleType.OPAQUE_FD:
        return
    if kind == MemoryHandleType.DMABUF_FD:
        if fd < 0 or dedicated:
            raise invalid("that is no file descriptor, or dedicated memory")
        if dma_bufs:
            return
    raise unsupported("only opaque file descriptors can be imported")


def _is_semaphore(tag: Tag) -> bool:
    return tag.kind in {TIMELINE, BINARY}
