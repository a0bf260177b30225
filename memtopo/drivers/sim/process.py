"""Process of a simulator: its contexts (fact 8), streams and events (facts 32, 47), and what all parts share."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct, field

from memtopo.driver.types import EventFlags, gpu
from memtopo.drivers.sim import shared_files
from memtopo.drivers.sim.address_space import AllocationBlocks
from memtopo.drivers.sim.calls import Numbered, RefusedCall, WouldBlock, invalid, refuse_if
from memtopo.drivers.sim.devices import SimDevices, SimMemoryBudget
from memtopo.drivers.sim.physical import Arena
from memtopo.drivers.sim.shared_files import Files, Tag, nonce
from memtopo.machine import CONTEXT_BYTES, Machine

FIRST_CONTEXT = 0x5600_0000
_FIRST_CREATED = 0x5700_0000


class Context(Struct, frozen=True):
    """Context of a device: its primary one, or one that the program has created."""

    handle: int
    device: int


class _Stack(threading.local):
    """Contexts pushed on a thread, the current one last."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []


class Contexts:
    """Contexts of one process, and the stack of current contexts of each thread."""

    def __init__(self, devices: SimDevices, budget: SimMemoryBudget) -> None:
        self._devices, self._budget = devices, budget
        self._retains: dict[int, int] = {}
        self._created: Numbered[Context] = Numbered(_FIRST_CREATED, "it is no context", "INVALID_CONTEXT")
        self._stack = _Stack()
        self.flags: dict[int, int] = {}
        """Flags by the handle of a context; of a primary one until it is inactive."""

    def device_primary_ctx_retain(self, device: int) -> int:
        """Retain a device's primary context, which takes device memory while it is active (fact 30)."""
        self._devices.get(device)
        if not self.active(device):
            self._budget.take(gpu(device), CONTEXT_BYTES)
        self._retains[device] = self._retains.get(device, 0) + 1
        return FIRST_CONTEXT + device

    def release(self, device: int) -> None:
        """Release one retain; the last one makes the context inactive."""
        refuse_if(not self.active(device), "the primary context is not retained", "CUDA_ERROR_INVALID_CONTEXT")
        self._retains[device] -= 1
        if not self._retains[device]:
            del self._retains[device]
            self.flags.pop(FIRST_CONTEXT + device, None)
            self._budget.give(gpu(device), CONTEXT_BYTES)

    def is_last(self, device: int) -> bool:
        """Return whether the next release makes a device's primary context inactive."""
        return self._retains.get(device) == 1

    def active(self, device: int) -> bool:
        """Return whether a device's primary context is retained."""
        return device in self._retains

    def device_primary_ctx_get_state(self, device: int) -> bool:
        self._devices.get(device)
        return self.active(device)

    def create(self, device: int) -> Context:
        """Create a context beside the primary one, and make it current."""
        self._devices.get(device)
        self._budget.take(gpu(device), CONTEXT_BYTES)
        handle = self._created.add(Context(0, device))
        self._created[handle] = context = Context(handle, device)
        self._stack.contexts.append(context)
        return context

    def destroy(self, context: Context) -> None:
        """End a created context; on this thread it is not current any more."""
        self._created.remove(context.handle)
        self.flags.pop(context.handle, None)
        self._budget.give(gpu(context.device), CONTEXT_BYTES)
        if self._stack.contexts[-1:] == [context]:
            self._stack.contexts.pop()

    def primary(self, device: int) -> Context:
        """Primary context of a device, active or not."""
        return Context(FIRST_CONTEXT + device, device)

    def get(self, handle: int) -> Context:
        """Context of a handle; that of a primary context is known forever."""
        device = handle - FIRST_CONTEXT
        return self.primary(device) if 0 <= device < self._devices.device_get_count() else self._created[handle]

    def is_live(self, context: Context) -> bool:
        """Return whether a context exists: a created one, or a primary one that is retained."""
        return context.handle in self._created or self.active(context.handle - FIRST_CONTEXT)

    def ctx_push_current(self, context: int) -> None:
        """Make a context current on this thread; one that was released refuses the calls that use it."""
        refuse_if(not context, "the context is 0")
        self._stack.contexts.append(self.get(context))

    def ctx_pop_current(self) -> int:
        """Pop the current context of this thread."""
        refuse_if(not self._stack.contexts, "no context is current", "CUDA_ERROR_INVALID_CONTEXT")
        return self._stack.contexts.pop().handle

    def mem_get_info(self) -> tuple[int, int]:
        location = gpu(self.current())
        return self._budget.free(location), self._budget.total(location)

    def ctx_get_current(self) -> int:
        """Context that is current on this thread; 0 for none."""
        return self._stack.contexts[-1].handle if self._stack.contexts else 0

    def ctx_set_current(self, context: int) -> None:
        """Replace the current context of this thread; 0 removes it."""
        before = self._stack.contexts[-1:]
        if context:
            self.ctx_push_current(context)  # which may be refused, and leaves the other one then
        if before:
            del self._stack.contexts[-2 if context else -1]

    def current(self) -> int:
        """Device whose context is current on this thread."""
        return self.current_context().device

    def current_context(self) -> Context:
        """Context that is current on this thread, and was not released."""
        context = self.selected()
        refuse_if(not self.is_live(context), "the current context was released", "CUDA_ERROR_CONTEXT_IS_DESTROYED")
        return context

    def selected(self) -> Context:
        """Context that is current on this thread, released or not."""
        refuse_if(not self._stack.contexts, "no context is current", "CUDA_ERROR_INVALID_CONTEXT")
        return self._stack.contexts[-1]

    def device(self) -> int | None:
        """Device whose context is current on this thread and was not released; None without one."""
        context = self._stack.contexts[-1] if self._stack.contexts else None
        return context.device if context and self.is_live(context) else None


FIRST_STREAM = 0x5A00_0000
NON_BLOCKING = 1

Work = Callable[[], bool]
"""Does its work unless it has to wait; returns whether it is done."""


class Stream(Struct, eq=False):
    """A stream of a context, with its outstanding work in order."""

    context: Context
    work: deque[Work] = field(default_factory=deque)


class Streams:
    """Streams of one process, and stream 0 of each context."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._open: Numbered[Stream] = Numbered(FIRST_STREAM, "the stream is not open", "INVALID_HANDLE")
        self._destroyed: list[Stream] = []
        self._default: dict[Context, Stream] = {}

    def stream_create(self, flags: int = 1) -> int:
        """Create a stream in the current context."""
        context = self._contexts.current_context()
        refuse_if(flags != NON_BLOCKING, "flags must be 1, which does not wait for stream 0")
        return self._open.add(Stream(context))

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream; its outstanding work remains (fact 58)."""
        refuse_if(not stream, "it is stream 0", "CUDA_ERROR_INVALID_HANDLE")
        self._destroyed.append(self._open.remove(stream))
        self._advance()

    def get(self, stream: int) -> Stream:
        """Return an open stream, or stream 0 of the current context."""
        if stream:
            return self._open[stream]
        context = self._contexts.current_context()
        return self._default.setdefault(context, Stream(context))

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
        if any(stream.work for stream in self._every() if device in {None, stream.context.device}):
            raise WouldBlock

    def drop(self, context: Context) -> None:
        """Destroy all streams of a context."""
        for number in self._open.in_context(context):
            del self._open[number]
        self._default.pop(context, None)

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


class SimProcess:
    """A process on a recorded machine, without what it has laid out: what all parts of the driver use.

    `pid` is the process whose memory is registered, this one if it is None. Processes of one machine share a budget.
    """

    def __init__(self, machine: Machine, budget: SimMemoryBudget | None = None, pid: int | None = None) -> None:
        self.machine, self.devices = machine, SimDevices(machine)
        self.files, self.pid = Files(), pid
        self.arena, self.budget = Arena(self.files), budget or SimMemoryBudget(machine)
        self.blocks, self.contexts = AllocationBlocks(self.budget), Contexts(self.devices, self.budget)
        self.streams = Streams(self.contexts)


FIRST_EVENT = 0x7E00_0000
_EVERY_FLAG = EventFlags.BLOCKING_SYNC | EventFlags.DISABLE_TIMING | EventFlags.INTERPROCESS
_COUNT = 8  # bytes
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL
# Of zero bytes this was measured; of an exporter that has ended or has destroyed the event, nothing was.
_MAP_FAILED = "CUDA_ERROR_MAP_FAILED"


class SimEvent(Struct, eq=False):
    """An event of a context; an interprocess event counts its records in a file with a tag."""

    context: Context
    fd: int | None = None
    tag: Tag | None = None
    imported: bool = False
    records: int = 0


def check_capture_flags(flags: int) -> None:
    """Refuse flags for the capture of streams, which is not simulated."""
    refuse_if(flags == _EXTERNAL, "the flag is for a stream that is captured", "CUDA_ERROR_ILLEGAL_STATE")
    refuse_if(flags, "flags must be 0")


class SimEvents:
    """Events of one process, created or opened.

    A simulator completes all work at once, so a recorded event has always completed. Records of a shared event are
    counted in a file, for every process that has it open.
    """

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
        shared_handle = shared_files.unpack_handle(handle, _MAP_FAILED)
        if shared_handle.is_of(self._sim.files):
            raise RefusedCall("CUDA_ERROR_INVALID_CONTEXT", "an event cannot be opened in the process that created it")
        fd, tag = shared_files.open_handle(shared_handle, self._sim.files, "event", error=_MAP_FAILED)
        return self._open.add(SimEvent(context, fd, tag, imported=True))

    def drop(self, context: Context) -> None:
        """Destroy all events of a context."""
        for number in self._open.in_context(context):
            self.event_destroy(number)
