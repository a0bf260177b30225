"""Events, also shared between processes (facts 32 and 47).

A simulator completes all work at once, so a recorded event has always completed. Records of a shared event are counted
in a file, for every process that has it open.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from memtopo.driver.types import EventFlags, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.calls import CallGate, Refused, WouldBlock, driver_call, invalid
from memtopo.drivers.sim.devices import Contexts, Devices
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

    def __init__(self) -> None:
        self._numbers = count(FIRST_STREAM, 16)
        self._open: dict[int, Stream] = {}
        self._destroyed: list[Stream] = []
        self._default: dict[int, Stream] = {}

    def create(self, flags: int, device: int) -> int:
        """Create a stream in the context of a device."""
        if flags != NON_BLOCKING:
            raise invalid("flags must be 1, which does not wait for stream 0")
        number = next(self._numbers)
        self._open[number] = Stream(device)
        return number

    def destroy(self, stream: int) -> None:
        """Destroy a stream; its outstanding work remains (fact 58)."""
        self._destroyed.append(self.get(stream))
        del self._open[stream]
        self._advance()

    def get(self, stream: int, device: int | None = None) -> Stream:
        """Return an open stream, or stream 0 of a device's context."""
        if not stream and device is not None:
            return self._default.setdefault(device, Stream(device))
        if stream not in self._open:
            raise Refused("CUDA_ERROR_INVALID_HANDLE", "the stream is not open" if stream else "it is stream 0")
        return self._open[stream]

    def add(self, stream: Stream, work: Work) -> None:
        """Add work to the end of a stream."""
        stream.work.append(work)
        self._advance()

    def is_done(self, stream: int, device: int | None) -> bool:
        """Return whether all work of a stream is done."""
        found = self.get(stream, device)
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
        self._open = {number: stream for number, stream in self._open.items() if stream.device != device}
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
class Event:
    """An event of a device's context; an interprocess event counts its records in a file with a tag."""

    device: int
    fd: int | None = None
    tag: Tag | None = None
    imported: bool = False
    records: int = 0


class Events:
    """Events of one process, created or opened."""

    def __init__(self, devices: Devices, streams: Streams, files: Files) -> None:
        self._devices, self._streams, self._files = devices, streams, files
        self._numbers = count(FIRST_EVENT, 16)
        self._open: dict[int, Event] = {}

    def create(self, flags: int, device: int) -> int:
        """Create an event in the context of a device."""
        if flags & ~int(_EVERY_FLAG):  # a flag without a name is in no complement of an enumeration
            raise invalid("the flags are not an event's")
        if not flags & EventFlags.INTERPROCESS:
            return self._add(Event(device))
        if not flags & EventFlags.DISABLE_TIMING:
            raise invalid("an interprocess event keeps no time: it is created with DISABLE_TIMING too")
        tag = Tag("event", _COUNT, 1, self._devices.location_name(gpu(device)), nonce())
        return self._add(Event(device, self._files.create(tag), tag))

    def get(self, event: int) -> Event:
        """Return an open event."""
        if event not in self._open:
            raise Refused("CUDA_ERROR_INVALID_HANDLE", "the event is not open")
        return self._open[event]

    def destroy(self, event: int) -> None:
        """Destroy an event in this process; other processes keep theirs."""
        found = self.get(event)
        del self._open[event]
        if found.fd is not None:
            self._files.close(found.fd)

    def record(self, event: int, stream: int, device: int | None) -> None:
        """Record an event, which completes at once; records of all processes are counted."""
        found = self.get(event)
        if found.device != self._streams.get(stream, device).device:
            raise Refused("CUDA_ERROR_INVALID_HANDLE", "the event and the stream are of different contexts")
        if found.fd is None:
            found.records += 1
        else:
            _count_one(found.fd)

    def wait(self, event: int, stream: int, flags: int, device: int | None) -> None:
        """Make a stream wait for an event, which has completed already."""
        found = self.get(event)
        if found.fd is not None and found.device != self._streams.get(stream, device).device:
            reason = "the interprocess event is another gpu's: on hardware the process dies (fact 76)"
            raise Refused("CUDA_ERROR_INVALID_HANDLE", reason)
        if flags:
            raise invalid("flags must be 0")

    def records(self, event: int) -> int:
        """Number of records of an event by all processes that share it."""
        found = self.get(event)
        return found.records if found.fd is None else int.from_bytes(os.pread(found.fd, _COUNT, 0), "little")

    def share(self, event: int, device: int) -> bytes:
        """IPC handle of an interprocess event of this process, in its device's context (facts 47, 78)."""
        found = self.get(event)
        if found.fd is None or found.tag is None or found.imported:
            raise Refused("CUDA_ERROR_INVALID_HANDLE", "the event is no interprocess event of this process")
        if found.device != device:
            reason = f"the event is of gpu{found.device}: on hardware the process may die (fact 78)"
            raise Refused("CUDA_ERROR_INVALID_HANDLE", reason)
        return shared_files.pack_handle(found.fd, found.tag)

    def open(self, handle: bytes, device: int) -> int:
        """Open another process's event in a device's context; returns a new event each time (fact 47)."""
        shared_handle = shared_files.unpack_handle(handle, _ERRORS)
        if shared_handle.is_own:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT", "an event cannot be opened in the process that created it")
        fd, tag = shared_files.open_handle(shared_handle, "event", self._files, _ERRORS)
        return self._add(Event(device, fd, tag, imported=True))

    def drop(self, device: int) -> None:
        """Destroy all events of a device's context."""
        for number in [number for number, event in self._open.items() if event.device == device]:
            self.destroy(number)

    def _add(self, event: Event) -> int:
        number = next(self._numbers)
        self._open[number] = event
        return number


def _count_one(fd: int) -> None:
    """Increment the count in a shared file, under a lock, so that no process's record is lost."""
    fcntl.lockf(fd, fcntl.LOCK_EX)
    try:
        value = int.from_bytes(os.pread(fd, _COUNT, 0), "little")
        os.pwrite(fd, (value + 1).to_bytes(_COUNT, "little"), 0)
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


class EventCalls(CallGate):
    """Driver calls for events."""

    _contexts: Contexts
    _events: Events

    def event_records(self, event: int) -> int:
        """Number of records of an open event by all processes that share it; a real driver does not report it."""
        with self.lock:
            return self._events.records(event)

    @driver_call
    def event_create(self, flags: EventFlags) -> int:
        return self._events.create(flags, self._contexts.current())

    @driver_call
    def event_destroy(self, event: int) -> None:
        self._events.destroy(event)

    @driver_call
    def event_record(self, event: int, stream: int = 0) -> None:
        self._events.record(event, stream, None if stream else self._contexts.current())

    @driver_call
    def event_query(self, event: int) -> bool:
        self._events.get(event)
        return True

    @driver_call
    def event_synchronize(self, event: int) -> None:
        self._contexts.current()
        self._events.get(event)

    @driver_call
    def ipc_get_event_handle(self, event: int) -> bytes:
        return self._events.share(event, self._contexts.current())

    @driver_call
    def ipc_open_event_handle(self, handle: bytes) -> int:
        return self._events.open(handle, self._contexts.current())

    @driver_call
    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        self._events.wait(event, stream, flags, None if stream else self._contexts.current())
