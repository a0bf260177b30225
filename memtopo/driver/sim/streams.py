"""Streams, and what is still to be done in each (facts 56 and 58).

A simulator does everything at once but waits for semaphores, and what stands behind one in its stream. Others end a
wait without telling, so whenever it is asked for something, it looks how far its streams have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from memtopo.driver.sim.calls import Outstanding, Refused, invalid

FIRST_STREAM = 0x5A00_0000
NON_BLOCKING = 1

Work = Callable[[], bool]
"""Does its work, where nothing keeps it from that, and tells whether it did."""


@dataclass(slots=True, eq=False)
class Stream:
    """One stream of a device's context, with its work in order."""

    device: int
    work: deque[Work] = field(default_factory=deque)


class Streams:
    """Every stream of one process, and stream 0 of each context."""

    def __init__(self) -> None:
        self._numbers = count(FIRST_STREAM, 16)
        self._open: dict[int, Stream] = {}
        self._given_up: list[Stream] = []
        self._zeroth: dict[int, Stream] = {}

    def create(self, flags: int, device: int) -> int:
        """Create a stream in the context of a device."""
        if flags != NON_BLOCKING:
            raise invalid("flags must be 1, which does not wait for stream 0")
        number = next(self._numbers)
        self._open[number] = Stream(device)
        return number

    def destroy(self, stream: int) -> None:
        """Give up a stream; what is left of its work stays to be done (fact 58)."""
        self._given_up.append(self.get(stream))
        del self._open[stream]
        self._advance()

    def get(self, stream: int, device: int | None = None) -> Stream:
        """A stream that is open, or stream 0 of a device's context."""
        if not stream and device is not None:
            return self._zeroth.setdefault(device, Stream(device))
        if stream not in self._open:
            raise Refused("CUDA_ERROR_INVALID_HANDLE", "the stream is not open" if stream else "it is stream 0")
        return self._open[stream]

    def add(self, stream: Stream, work: Work) -> None:
        """Have a stream do something after all that it has to do already."""
        stream.work.append(work)
        self._advance()

    def is_done(self, stream: int, device: int | None = None) -> bool:
        """Whether all work of a stream is done."""
        found = self.get(stream, device)
        self._advance()
        return not found.work

    def check_done(self, device: int | None = None) -> None:
        """Have a call wait while a stream, of a device's context or of any, still has work to do (fact 58).

        Hardware waits for ever where nothing ends that, and memtopo makes no such call then: it looks with
        `stream_query` first.
        """
        self._advance()
        if any(stream.work for stream in self._every() if device in {None, stream.device}):
            raise Outstanding

    def drop(self, device: int) -> None:
        """End every stream of a device's context."""
        self._open = {number: stream for number, stream in self._open.items() if stream.device != device}
        self._zeroth.pop(device, None)

    def _every(self) -> list[Stream]:
        return [*self._open.values(), *self._zeroth.values(), *self._given_up]

    def _advance(self) -> None:
        """Do what can be done: what one stream signals may end what another one waits for."""
        moving = True
        while moving:
            moving = False
            for stream in self._every():
                while stream.work and stream.work[0]():
                    stream.work.popleft()
                    moving = True
        self._given_up = [stream for stream in self._given_up if stream.work]
