"""Verification of external memory and semaphores: waits, reads of the memory, and signals.

Both ends of every mapped buffer are read; external memory is never written. The driver is never left to block on a
semaphore, since only the signal would end that (fact 58).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.geometry import Geometry
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.layout import Layout, Wait, current
from memtopo.kinds.semaphores import ImportedSemaphore
from memtopo.kinds.step import Finding
from memtopo.run.verification.verifier import Unsignalled, Verifier

WINDOW = 64
"""Bytes read at each end of a mapped buffer."""

LAST_SIGNAL = 0.5
"""Seconds in which the last signal of a producer that has ended may still arrive."""


def pauses() -> Iterator[float]:
    """Yield the seconds between two queries of a stream: from half a millisecond, doubling, to 50 ms."""
    pause = 0.0005
    while True:
        yield pause
        pause = min(0.05, 2 * pause)


@dataclass(frozen=True, slots=True)
class ExternalVerifier(Verifier):
    """All waits in ascending order of their values, then the reads of memory, then the signals.

    A semaphore that another entry of this process waits for is signalled as soon as its own wait is over. `poll` is
    called while waiting, and raises if a stop of the run was requested. Raises `Unsignalled` and `DriverError`.
    """

    geometry: Geometry
    driver: Driver
    layout: Layout
    poll: Callable[[], None]

    action = "waits and signals"
    aspect = "wait"
    verbs = "", "synchronize"

    def read(self, index: int) -> Iterator[Finding]:
        """Wait, read and signal."""
        del index
        semaphores = sorted(
            self.geometry.of(ImportedSemaphore).values(), key=lambda each: -1 if each.wait is None else each.wait
        )
        for entry in semaphores:
            if entry.wait is not None:
                yield self._wait(entry, entry.wait)
            if entry.signal is not None and self._awaited_here(entry):
                yield self._signal(entry, entry.signal)
        yield from self._read_memory()
        for entry in semaphores:
            if entry.signal is not None and not self._awaited_here(entry):
                yield self._signal(entry, entry.signal)

    def expected(self, index: int) -> int:
        """Number of waits."""
        del index
        return sum(1 for entry in self.geometry.of(ImportedSemaphore).values() if entry.wait is not None)

    def _awaited_here(self, entry: ImportedSemaphore) -> bool:
        """Return whether another entry waits for the same semaphore."""
        others = (
            each for each in self.geometry.of(ImportedSemaphore).values() if each is not entry and each.wait is not None
        )
        return any(other.origin.identity == entry.origin.identity for other in others)

    def _wait(self, entry: ImportedSemaphore, value: int) -> Finding:
        device, waiting = entry.location.id, self.layout.waiting
        # Noted first: the teardown must find every wait that a stream may have.
        waiting[device] = Wait(entry.name, value, entry.origin.of(0)[0])
        self.driver.wait_external_semaphore(self.layout.semaphores[entry.name], value, self.layout.streams[device])
        missing = f"did not reach {value:,}" if value else "was not signalled"
        self._await_stream(entry, missing, waiting[device].holder)
        del waiting[device]
        return Finding("wait", _subject(entry, value), "done", "done", entry.path)

    def _signal(self, entry: ImportedSemaphore, value: int) -> Finding:
        stream = self.layout.streams[entry.location.id]
        self.driver.signal_external_semaphore(self.layout.semaphores[entry.name], value, stream)
        self._await_stream(entry, f"was not signalled by {entry.location}", None)
        return Finding("signal", _subject(entry, value), "done", "done", entry.path)

    def _await_stream(self, entry: ImportedSemaphore, missing: str, holder: str | None) -> None:
        """Poll a stream until it is done, has timed out, or depends on a holder that has ended."""
        message = f"semaphore {entry.name!r} of {entry.origin.of(0)[0]} {missing}"
        start, ended_at, intervals = time.monotonic(), None, pauses()
        while not self.driver.stream_query(self.layout.streams[entry.location.id]):
            self.poll()
            now = time.monotonic()
            if ended_at is None and holder and self.layout.handle_source.gone(holder):
                ended_at = now
            if ended_at is not None and now - ended_at > LAST_SIGNAL:
                message = f"{message}: {holder} has ended"
                raise Unsignalled(message, entry.path, "keep the producer alive until it has signalled")
            if now - start > self.layout.timeout:
                message = f"{message} within {self.layout.timeout:g} s"
                raise Unsignalled(message, entry.path, "see what its producer signals; --timeout gives it longer")
            time.sleep(next(intervals))

    def _read_memory(self) -> Iterator[Finding]:
        for entry in self.geometry.of(ExternalObject).values():
            for label in (part.label for part in entry.mapped):
                address, size = self.layout.buffers[label]
                ends = dict.fromkeys((0, max(0, size - WINDOW)))
                with current(self.driver, self.layout.contexts[entry.location.id]):
                    observed = [self.driver.memcpy_dtoh(address + at, min(WINDOW, size)) for at in ends]
                for at, data in zip(ends, observed, strict=True):
                    subject = f"{label} at {at:#x} by {entry.location}"
                    yield Finding("readable", subject, min(WINDOW, size), len(data), entry.path)


def _subject(entry: ImportedSemaphore, value: int) -> str:
    """Name of a semaphore with its value; a binary one has no value."""
    return f"{entry.name} {value:,}" if value else entry.name
