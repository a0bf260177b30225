"""Verification of external memory and semaphores: waits, reads of the memory, and signals.

Both ends of every mapped buffer are read; external memory is never written. The driver is never left to block on a
semaphore, since only the signal would end that (fact 58).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import ALIGNED, KernelDriver, fingerprint
from memtopo.driver.protocol import Driver
from memtopo.geometry import Geometry
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.layout import Layout, Wait, current
from memtopo.kinds.pinned import PinnedGroup
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


_COMPARED = 64
"""Bytes that are compared at each end, from a multiple of 16 on; at the second end up to 15 more."""

TRIES = 8
"""Number of tries to read the same bytes of a file before and after a GPU has read them."""

_ASPECT = "shared file"


class _FileWindow(NamedTuple):
    """Bytes of an object of an entry, at an offset in it and at one in the file, as one GPU reads them."""

    label: str
    at: int
    file_at: int
    size: int
    device: int
    fd: int
    path: Path

    @property
    def subject(self) -> str:
        """Place of the bytes, and the GPU that loads them."""
        return f"{self.label} at {self.at:#x} by gpu{self.device}"


@dataclass(frozen=True, slots=True)
class SharedFileVerifier(Verifier):
    """The ends of all registered objects of a process. `kernels` is true if they are loaded and may be used.

    Bytes that the other program writes at the time are not counted.
    """

    geometry: Geometry
    driver: KernelDriver
    layout: Layout
    kernels: bool

    action = "comparison with shared files"
    aspect = _ASPECT
    verbs = "", "compare"

    def read(self, index: int) -> Iterator[Finding]:
        """Compare. Raises `DriverError`."""
        del index
        for window in self._windows() if self.kernels else ():
            yield from self._compare(window)

    def expected(self, index: int) -> int:
        """Number of windows that are compared."""
        del index
        return sum(1 for _ in self._windows()) if self.kernels else 0

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """All windows, without kernels."""
        if not self.kernels and (count := sum(1 for _ in self._windows())):
            yield count, "a GPU's own load of host memory takes '--check full'"

    def _windows(self) -> Iterator[_FileWindow]:
        for entry in self.geometry.of(PinnedGroup).values():
            if entry.registered and entry.name in self.layout.files:
                fd = self.layout.files[entry.name].fd
                for index, device in product(range(entry.count), entry.gpus):
                    for at, size in _ends(index * entry.size, entry.size):
                        file_at = entry.offset + index * entry.size + at
                        yield _FileWindow(entry.label(index), at, file_at, size, device, fd, entry.path)

    def _compare(self, window: _FileWindow) -> Iterator[Finding]:
        """Compare the bytes of a window, unless the other program writes them all the time."""
        address = self.layout.address(window.label) + window.at
        for _ in range(TRIES):
            before = os.pread(window.fd, window.size, window.file_at)
            if len(before) < window.size:
                seen = f"{len(before)} bytes: the file was shortened"
                yield Finding(_ASPECT, window.subject, f"{window.size} bytes", seen, window.path)
                return
            with current(self.driver, self.layout.contexts[window.device]):
                (loaded,) = self.driver.fingerprint([(address, window.size)])
            if os.pread(window.fd, window.size, window.file_at) == before:
                expected = f"fingerprint {fingerprint(before, 0):#018x}"
                yield Finding(_ASPECT, window.subject, expected, f"fingerprint {loaded:#018x}", window.path)
                return


def _ends(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and size of the bytes at both ends of an object that begins at `start` of its memory.

    Kernels load from multiples of 16 on.
    """
    first = -start % ALIGNED
    last = max(first, (start + size - _COMPARED) // ALIGNED * ALIGNED - start)
    if first < last:
        yield first, min(_COMPARED, last - first)
    if last < size:
        yield last, size - last
