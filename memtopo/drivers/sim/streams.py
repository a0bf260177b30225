"""Streams and their outstanding work (facts 56 and 58).

A simulator completes all work at once except waits for semaphores and the work behind them in their stream. Other
processes signal semaphores at any time, so streams are advanced whenever one is used or queried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from memtopo.drivers.sim.calls import Refused, WouldBlock, invalid

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
