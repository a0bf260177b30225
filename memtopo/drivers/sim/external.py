"""External memory, with the buffers that are mapped from it, and external semaphores (facts 53 to 59).

The payload of a semaphore is 8 bytes of a file, which every process that shares it reads and writes (fact 56).
"""

from __future__ import annotations

import os

from msgspec import Struct

from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType, gpu
from memtopo.drivers.sim.allocations import SimAllocations
from memtopo.drivers.sim.calls import Numbered, RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.process import Context, SimProcess, Stream
from memtopo.drivers.sim.shared_files import Tag, check_descriptor, close_descriptor, exclusive

FIRST_MEMORY = 0x6E00_0000


class SimMemory(Struct, eq=False):
    """An object in a context, imported with a declared size."""

    context: Context
    size: int
    fd: int
    tag: Tag
    dedicated: bool


class SimImportedMemory:
    """Objects that one process has imported."""

    def __init__(self, sim: SimProcess, allocations: SimAllocations) -> None:
        self._sim, self._allocations = sim, allocations
        self._open: Numbered[SimMemory] = Numbered(
            FIRST_MEMORY, "the object is not open: on hardware the process dies of SIGSEGV"
        )

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        """Import an object by a descriptor, which is closed, also if it is refused as unknown (fact 54).

        Neither the size nor the kind of object is checked, so that a semaphore is accepted (facts 53, 55).
        """
        context = self._sim.contexts.current_context()
        device = context.device
        tried = self._sim.devices.get(device).memory.trials.get("external-dmabuf")  # of their import (fact 84)
        _check(check_descriptor(fd), kind, size, dma_bufs=bool(tried and tried.works), dedicated=dedicated)
        if kind == MemoryHandleType.DMABUF_FD:
            found = self._sim.files.adopt_dma_buf(fd)
        else:
            found = self._sim.files.adopt_descriptor(fd, "memory", "chunk", TIMELINE, BINARY)
        close_descriptor(fd)
        if found is None:
            raise RefusedCall("CUDA_ERROR_UNKNOWN", "the file descriptor is not a memory object; it is now closed")
        own, tag = found
        if tag.kind != "dmabuf" and not _is_semaphore(tag) and self._sim.devices.locate(tag.location) != gpu(device):
            self._sim.files.close(own)
            raise RefusedCall(
                "CUDA_ERROR_UNKNOWN", f"the memory is not of gpu{device}; its file descriptor is closed now"
            )
        return self._open.add(SimMemory(context, size, own, tag, dedicated))

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        """Map a part of an object; returns the address. The buffer outlives the object (fact 53)."""
        found = self._open[memory]
        refuse_if(offset < 0 or size <= 0, "the size is 0")
        refuse_if(offset and found.dedicated, "a dedicated object can be mapped only from its start")
        refuse_if(offset + size > found.size, f"the buffer runs past the size that was declared, {found.size} bytes")
        refuse_if(_is_semaphore(found.tag), "the object is a semaphore")
        if offset + size > found.tag.size:
            raise invalid(f"the buffer runs past the end of the memory, which has {found.tag.size} bytes")
        physical = Physical(self._sim.files.duplicate(found.fd), offset, size, tag=found.tag)
        return self._allocations.map(physical, found.context.device, "buffer", found.context).start

    def destroy_external_memory(self, memory: int) -> None:
        """Destroy an object; its buffers remain (fact 53)."""
        self._sim.files.close(self._open.remove(memory).fd)

    def drop(self, context: Context) -> None:
        """Destroy all objects of a context."""
        for number in self._open.in_context(context):
            self.destroy_external_memory(number)


def _check(fd: int, kind: MemoryHandleType, size: int, *, dma_bufs: bool, dedicated: bool) -> None:
    """Refuse what is refused for any descriptor, which stays open (facts 54, 84)."""
    refuse_if(size <= 0, "the size is 0")
    if kind == MemoryHandleType.OPAQUE_FD:
        return
    if kind == MemoryHandleType.DMABUF_FD:
        refuse_if(fd < 0 or dedicated, "not a file descriptor, or dedicated memory")
        if dma_bufs:
            return
    raise unsupported("only opaque file descriptors can be imported")


def _is_semaphore(tag: Tag) -> bool:
    return tag.kind in {TIMELINE, BINARY}


SIZE = 8
"""Bytes of a payload: a timeline's value, or 1 for a signalled binary semaphore."""

TIMELINE, BINARY = "timeline", "binary"

FIRST_SEMAPHORE = 0x7A00_0000
_KINDS = {SemaphoreHandleType.OPAQUE_FD: BINARY, SemaphoreHandleType.TIMELINE_FD: TIMELINE}
_VALUES = 1 << 64


class SimSemaphore(Struct, eq=False):
    """A semaphore in a context, with the kind that it was imported as, which may be wrong (fact 55)."""

    context: Context
    kind: str
    fd: int
    tag: Tag


class SimSemaphores:
    """Semaphores that one process has imported."""

    def __init__(self, sim: SimProcess) -> None:
        self._sim = sim
        self._open: Numbered[SimSemaphore] = Numbered(
            FIRST_SEMAPHORE, "the semaphore is not open: destroying it again ends the process on hardware"
        )

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        """Import a semaphore by a descriptor, which is closed; its GPU and type are not checked (facts 54, 55)."""
        context = self._sim.contexts.current_context()
        refuse_if(kind not in _KINDS, "only opaque file descriptors can be imported", "CUDA_ERROR_NOT_SUPPORTED")
        refuse_if(check_descriptor(fd) < 0 and kind == SemaphoreHandleType.TIMELINE_FD, "not a file descriptor")
        found = self._sim.files.adopt_descriptor(fd, TIMELINE, BINARY, "memory")
        if found is None:
            raise RefusedCall("CUDA_ERROR_UNKNOWN", "the file descriptor is not a semaphore")
        close_descriptor(fd)
        return self._open.add(SimSemaphore(context, _KINDS[kind], *found))

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Make a stream signal; a timeline may be set to a lower value, too (fact 56)."""
        queue = self._sim.streams.get(stream)
        found = self.usable(semaphore, value, queue)

        def work() -> bool:
            signal(found.fd, found.kind, value)
            return True

        self._sim.streams.add(queue, work)

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Make a stream wait for at least a value of a timeline, or for a binary semaphore's signal (fact 56)."""
        queue = self._sim.streams.get(stream)
        found = self.usable(semaphore, value, queue)
        self._sim.streams.add(queue, lambda: try_wait(found.fd, found.kind, value))

    def destroy_external_semaphore(self, semaphore: int) -> None:
        """Destroy a semaphore once no stream has outstanding work (fact 58)."""
        found = self._open[semaphore]
        self._sim.streams.check_done()
        del self._open[semaphore]
        self._sim.files.close(found.fd)

    def drop(self, context: Context) -> None:
        """Close all semaphores of a context, whose streams are done."""
        for number in self._open.in_context(context):
            self._sim.files.close(self._open.remove(number).fd)

    def usable(self, semaphore: int, value: int, stream: Stream) -> SimSemaphore:
        """Return an open semaphore; refuses one that a stream cannot signal or wait for."""
        found = self._open[semaphore]
        refuse_if(not 0 <= value < _VALUES, "the value is not a 64-bit number")
        if stream.context != found.context:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "the semaphore and the stream belong to different contexts")
        if found.kind != found.tag.kind:
            raise invalid(f"the object imported as a {found.kind} semaphore has a different kind: {found.tag.kind}")
        return found


def payload(fd: int) -> int:
    """Value of a timeline; for a binary semaphore 1 if it is signalled, else 0."""
    return int.from_bytes(os.pread(fd, SIZE, 0), "little")


def signal(fd: int, kind: str, value: int) -> None:
    """Set a timeline's value, also to a lower one, or signal a binary semaphore, whose value is ignored."""
    if kind == TIMELINE:
        os.pwrite(fd, value.to_bytes(SIZE, "little"), 0)
        return
    with exclusive(fd) as own:
        os.pwrite(own, (1).to_bytes(SIZE, "little"), 0)


def try_wait(fd: int, kind: str, value: int) -> bool:
    """Return whether a wait is over. It consumes a binary semaphore's signal, so that only one of several waits is."""
    if kind == TIMELINE:
        return payload(fd) >= value
    with exclusive(fd) as own:
        signalled = payload(own) != 0
        if signalled:
            os.pwrite(own, bytes(SIZE), 0)
        return signalled
