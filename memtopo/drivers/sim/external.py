"""External memory: imported objects, and the buffers that are mapped from them (facts 53 to 55, 57 and 59)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType, gpu
from memtopo.drivers.sim.allocations import Allocations
from memtopo.drivers.sim.calls import CallGate, Refused, driver_call, invalid, unsupported
from memtopo.drivers.sim.devices import Contexts, Devices
from memtopo.drivers.sim.events import Stream, Streams
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.semaphores import BINARY, TIMELINE, Semaphores
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

    def __init__(self, devices: Devices, allocations: Allocations, files: Files) -> None:
        self._devices, self._allocations, self._files = devices, allocations, files
        self._numbers = count(FIRST_MEMORY, 16)
        self._open: dict[int, Memory] = {}

    def import_fd(self, fd: int, kind: MemoryHandleType, size: int, device: int, *, dedicated: bool = False) -> int:
        """Import an object by a descriptor, which is closed, also if it is refused as unknown (fact 54).

        Neither the size nor the kind of object is checked, so that a semaphore is accepted (facts 53, 55).
        """
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
        number = next(self._numbers)
        self._open[number] = Memory(device, size, own, tag, dedicated)
        return number

    def _imports_dma_bufs(self, device: int) -> bool:
        """Return whether a trial of the machine has shown that dma-bufs can be imported (fact 84)."""
        found = self._devices.get(device).memory.trials.get("external-dmabuf")
        return found is not None and found.works is True

    def map(self, memory: int, offset: int, size: int) -> int:
        """Map a part of an object; returns the address. The buffer outlives the object (fact 53)."""
        found = self._get(memory)
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

    def destroy(self, memory: int) -> None:
        """Destroy an object; its buffers remain (fact 53)."""
        self._files.close(self._get(memory).fd)
        del self._open[memory]

    def drop(self, device: int) -> None:
        """Destroy all objects of a device's context."""
        for number in [number for number, memory in self._open.items() if memory.device == device]:
            self.destroy(number)

    def _get(self, memory: int) -> Memory:
        if memory not in self._open:
            raise invalid("the object is not open: on hardware the process dies of SIGSEGV")
        return self._open[memory]


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


class ExternalCalls(CallGate):
    """Driver calls for external memory, external semaphores, and streams."""

    _contexts: Contexts
    _external: ExternalMemory
    _semaphores: Semaphores
    _streams: Streams

    @driver_call
    def stream_create(self, flags: int = 1) -> int:
        return self._streams.create(flags, self._contexts.current())

    @driver_call
    def stream_destroy(self, stream: int) -> None:
        self._streams.destroy(stream)

    @driver_call
    def stream_query(self, stream: int) -> bool:
        return self._streams.is_done(stream, None if stream else self._contexts.current())

    @driver_call
    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        return self._external.import_fd(fd, kind, size, self._contexts.current(), dedicated=dedicated)

    @driver_call
    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        return self._external.map(memory, offset, size)

    @driver_call
    def destroy_external_memory(self, memory: int) -> None:
        self._external.destroy(memory)

    @driver_call
    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        return self._semaphores.import_fd(fd, kind, self._contexts.current())

    @driver_call
    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        self._semaphores.signal(semaphore, value, self._stream(stream))

    @driver_call
    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        self._semaphores.wait(semaphore, value, self._stream(stream))

    @driver_call
    def destroy_external_semaphore(self, semaphore: int) -> None:
        self._semaphores.destroy(semaphore)

    def _stream(self, stream: int) -> Stream:
        return self._streams.get(stream, None if stream else self._contexts.current())
