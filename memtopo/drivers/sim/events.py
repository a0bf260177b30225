"""Events, also shared between processes (facts 32 and 47).

A simulator completes all work at once, so a recorded event has always completed. Records of a shared event are counted
in a file, for every process that has it open.
"""

from __future__ import annotations

import os

from msgspec import Struct

from memtopo.driver.types import EventFlags, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.calls import Numbered, RefusedCall, invalid
from memtopo.drivers.sim.process import Context, SimProcess
from memtopo.drivers.sim.shared_files import Tag, nonce

FIRST_EVENT = 0x7E00_0000
_EVERY_FLAG = EventFlags.BLOCKING_SYNC | EventFlags.DISABLE_TIMING | EventFlags.INTERPROCESS
_COUNT = 8  # bytes
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL
# Of zero bytes this was measured; of an exporter that has ended or has destroyed the event, nothing was.
_ERRORS = shared_files.HandleErrors("CUDA_ERROR_MAP_FAILED", "CUDA_ERROR_MAP_FAILED", "CUDA_ERROR_MAP_FAILED")


class SimEvent(Struct, eq=False):
    """An event of a context; an interprocess event counts its records in a file with a tag."""

    context: Context
    fd: int | None = None
    tag: Tag | None = None
    imported: bool = False
    records: int = 0


def check_capture_flags(flags: int) -> None:
    """Refuse flags for the capture of streams, which is not simulated."""
    if flags == _EXTERNAL:
        raise RefusedCall("CUDA_ERROR_ILLEGAL_STATE", "the flag is for a stream that is captured")
    if flags:
        raise invalid("flags must be 0")


class SimEvents:
    """Events of one process, created or opened."""

    def __init__(self, sim: SimProcess) -> None:
        self._sim = sim
        self._open: Numbered[SimEvent] = Numbered(FIRST_EVENT, "the event is not open", "INVALID_HANDLE")

    def event_create(self, flags: EventFlags) -> int:
        """Create an event in the current context."""
        context = self._sim.contexts.current_context()
        if flags & ~int(_EVERY_FLAG):  # a flag without a name is in no complement of an enumeration
            raise invalid("the flags are not an event's")
        if not flags & EventFlags.INTERPROCESS:
            return self._open.add(SimEvent(context))
        if not flags & EventFlags.DISABLE_TIMING:
            raise invalid("an interprocess event has no timing: it must also be created with DISABLE_TIMING")
        tag = Tag("event", _COUNT, 1, self._sim.devices.location_name(gpu(context.device)), nonce())
        return self._open.add(SimEvent(context, self._sim.files.create(tag), tag))

    def event_destroy(self, event: int) -> None:
        """Destroy an event in this process; other processes keep theirs."""
        found = self._open.remove(event)
        if found.fd is not None:
            self._sim.files.close(found.fd)

    def event_record(self, event: int, stream: int = 0) -> None:
        """Record an event, which completes at once; records of all processes are counted."""
        context, found = self._sim.streams.get(stream).context, self._open[event]
        if found.context != context:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "the event and the stream belong to different contexts")
        if found.fd is None:
            found.records += 1
            return
        with shared_files.exclusive(found.fd):  # so that no process's record is lost
            value = int.from_bytes(os.pread(found.fd, _COUNT, 0), "little")
            os.pwrite(found.fd, (value + 1).to_bytes(_COUNT, "little"), 0)

    def event_query(self, event: int) -> bool:
        return bool(self._open[event])

    def event_synchronize(self, event: int) -> None:
        self._open[event]

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        """Make a stream wait for an event, which has completed already."""
        context, found = self._sim.streams.get(stream).context, self._open[event]
        if found.fd is not None and found.context.device != context.device:
            reason = "the interprocess event is another gpu's: on hardware the process dies (fact 76)"
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", reason)
        check_capture_flags(flags)

    def records(self, event: int) -> int:
        """Number of records of an event by all processes that share it."""
        found = self._open[event]
        return found.records if found.fd is None else int.from_bytes(os.pread(found.fd, _COUNT, 0), "little")

    def ipc_get_event_handle(self, event: int) -> bytes:
        """IPC handle of an interprocess event of this process, in its device's context (facts 47, 78)."""
        device, found = self._sim.contexts.current(), self._open[event]
        if found.fd is None or found.tag is None or found.imported:
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", "the event is not an interprocess event of this process")
        if found.context.device != device:
            reason = f"the event belongs to gpu{found.context.device}: on hardware the process may die (fact 78)"
            raise RefusedCall("CUDA_ERROR_INVALID_HANDLE", reason)
        return shared_files.pack_handle(self._sim.files, found.fd, found.tag)

    def ipc_open_event_handle(self, handle: bytes) -> int:
        """Open another process's event in the current context; returns a new event each time (fact 47)."""
        context = self._sim.contexts.current_context()
        shared_handle = shared_files.unpack_handle(handle, _ERRORS)
        if shared_handle.is_of(self._sim.files):
            raise RefusedCall("CUDA_ERROR_INVALID_CONTEXT", "an event cannot be opened in the process that created it")
        fd, tag = shared_files.open_handle(shared_handle, self._sim.files, _ERRORS, "event")
        return self._open.add(SimEvent(context, fd, tag, imported=True))

    def drop(self, context: Context) -> None:
        """Destroy all events of a context."""
        for number in self._open.in_context(context):
            self.event_destroy(number)
