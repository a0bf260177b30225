"""Events, also shared between processes (facts 32 and 47).

A simulator completes all work at once, so a recorded event has always completed. Records of a shared event are counted
in a file, for every process that has it open.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from memtopo.driver.types import EventFlags, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.calls import Numbered, RefusedCall, WouldBlock, invalid
from memtopo.drivers.sim.devices import Contexts, SimDevices
from memtopo.drivers.sim.shared_files import Files, Tag, nonce

FIRST_STREAM = 0x5A00_0000
NON_BLOCKING = 1

Work = Callable[[], bool]
"""Does its work unless it has to wait; returns whether it is done."""


@dataclass(slots=True, eq=False)
class Stream:
    """A stream of a device's context, with its outstanding work in order."""

    device: int
    work: deque[Work] = field(default_factory=deque)


class Streams:
    """Streams of one process, and stream 0 of each context."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._open: Numbered[Stream] = Numbered(FIRST_STREAM, "the stream is not open", "INVALID_HANDLE")
        self._destroyed: list[Stream] = []
        self._default: dict[int, Stream] = {}

    def stream_create(self, flags: int = 1) -> int:
        """Create a stream in the current context."""
        device = self._contexts.current()
        if flags != NON_BLOCKING:
            raise invalid("flags must be 1, which does not wait for stream 0")
        return self._open.add(Stream(device))

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream; its outstanding work remains (fact 58)."""
        if not stream:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "it is stream 0")
        self._destroyed.append(self._open.remove(stream))
        self._advance()

    def get(self, stream: int) -> Stream:
        """Return an open stream, or stream 0 of the current context."""
        if stream:
            return self._open[stream]
        device = self._contexts.current()
        return self._default.setdefault(device, Stream(device))

    def add(self, stream: Stream, work: Work) -> None:
        """Add work to the end of a stream."""
        stream.work.append(work)
        self._advance()

    def stream_query(self, stream: int) -> bool:
        """Return whether all work of a stream is done."""
        found = self.get(stream)
        self._advance()
        return not found.work

    def check_done(self, device: int | None = None) -> None:
        """Make a call wait while a stream of a device's context, or of any context, has outstanding work (fact 58).

        Hardware waits for ever if the semaphore is never signalled; memtopo calls `stream_query` first.
        """
        self._advance()
        if any(stream.work for stream in self._every() if device in {None, stream.device}):
            raise WouldBlock

    def drop(self, device: int) -> None:
        """Destroy all streams of a device's context."""
        for number in self._open.in_context(device):
            del self._open[number]
        self._default.pop(device, None)

    def _every(self) -> list[Stream]:
        return [*self._open.values(), *self._default.values(), *self._destroyed]

    def _advance(self) -> None:
        """Do all work that need not wait; a signal of one stream may end a wait of another."""
        progress = True
        while progress:
            progress = False
            for stream in self._every():
                while stream.work and stream.work[0]():
                    stream.work.popleft()
                    progress = True
        self._destroyed = [stream for stream in self._destroyed if stream.work]


FIRST_EVENT = 0x7E00_0000
_EVERY_FLAG = EventFlags.BLOCKING_SYNC | EventFlags.DISABLE_TIMING | EventFlags.INTERPROCESS
_COUNT = 8  # bytes
# Of zero bytes this was measured; of an exporter that has ended or has destroyed the event, nothing was.
_ERRORS = shared_files.HandleErrors("CUDA_ERROR_MAP_FAILED", "CUDA_ERROR_MAP_FAILED", "CUDA_ERROR_MAP_FAILED")


@dataclass(slots=True, eq=False)
class SimEvent:
    """An event of a device's context; an interprocess event counts its records in a file with a tag."""

    device: int
    fd: int | None = None
    tag: Tag | None = None
    imported: bool = False
    records: int = 0


class SimEvents:
    """Events of one process, created or opened."""

    def __init__(self, devices: SimDevices, contexts: Contexts, streams: Streams, files: Files) -> None:
        self._devices, self._contexts, self._streams, self._files = devices, contexts, streams, files
        self._open: Numbered[SimEvent] = Numbered(FIRST_EVENT, "the event is not open", "INVALID_HANDLE")

    def event_create(self, flags: EventFlags) -> int:
        """Create an event in the current context."""
        device = self._contexts.current()
        if flags & ~int(_EVERY_FLAG):  # a flag without a name is in no complement of an enumeration
            raise invalid("the flags are not an event's")
        if not flags & EventFlags.INTERPROCESS:
            return self._open.add(SimEvent(device))
        if not flags & EventFlags.DISABLE_TIMING:
            raise invalid("an interprocess event keeps no time: it is created with DISABLE_TIMING too")
        tag = Tag("event", _COUNT, 1, self._devices.location_name(gpu(device)), nonce())
        return self._open.add(SimEvent(device, self._files.create(tag), tag))

    def event_destroy(self, event: int) -> None:
        """Destroy an event in this process; other processes keep theirs."""
        found = self._open.remove(event)
        if found.fd is not None:
            self._files.close(found.fd)

    def event_record(self, event: int, stream: int = 0) -> None:
        """Record an event, which completes at once; records of all processes are counted."""
        device, found = self._streams.get(stream).device, self._open[event]
        if found.device != device:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "the event and the stream are of different contexts")
        if found.fd is None:
            found.records += 1
        else:
            _count_one(found.fd)

    def event_query(self, event: int) -> bool:
        return bool(self._open[event])

    def event_synchronize(self, event: int) -> None:
        self._contexts.current(), self._open[event]

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        """Make a stream wait for an event, which has completed already."""
        device, found = self._streams.get(stream).device, self._open[event]
        if found.fd is not None and found.device != device:
            reason = "the interprocess event is another gpu's: on hardware the process dies (fact 76)"
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", reason)
        if flags:
            raise invalid("flags must be 0")

    def records(self, event: int) -> int:
        """Number of records of an event by all processes that share it."""
        found = self._open[event]
        return found.records if found.fd is None else int.from_bytes(os.pread(found.fd, _COUNT, 0), "little")

    def ipc_get_event_handle(self, event: int) -> bytes:
        """IPC handle of an interprocess event of this process, in its device's context (facts 47, 78)."""
        device, found = self._contexts.current(), self._open[event]
        if found.fd is None or found.tag is None or found.imported:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "the event is no interprocess event of this process")
        if found.device != device:
            reason = f"the event is of gpu{found.device}: on hardware the process may die (fact 78)"
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", reason)
        return shared_files.pack_handle(found.fd, found.tag)

    def ipc_open_event_handle(self, handle: bytes) -> int:
        """Open another process's event in the current context; returns a new event each time (fact 47)."""
        device = self._contexts.current()
        shared_handle = shared_files.unpack_handle(handle, _ERRORS)
        if shared_handle.is_own:
            raise RefusedCall("CUDA_ERROR_INVALID_CONTEXT", "an event cannot be opened in the process that created it")
        fd, tag = shared_files.open_handle(shared_handle, self._files, _ERRORS, "event")
        return self._open.add(SimEvent(device, fd, tag, imported=True))

    def drop(self, device: int) -> None:
        """Destroy all events of a device's context."""
        for number in self._open.in_context(device):
            self.event_destroy(number)


def _count_one(fd: int) -> None:
    """Increment the count in a shared file, under a lock, so that no process's record is lost."""
    with shared_files.exclusive(fd):
        value = int.from_bytes(os.pread(fd, _COUNT, 0), "little")
        os.pwrite(fd, (value + 1).to_bytes(_COUNT, "little"), 0)
