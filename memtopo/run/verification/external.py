"""What another API made, in use: waits for its semaphores, a look at its memory, and signals to it.

Its memory is read, at the ends of everything that is mapped of it, and never written. A wait is never waited for within
the driver, where nothing but the signal would end it (fact 58).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.geometry import Geometry, ImportedSemaphore
from memtopo.kinds.layout import Layout, Wait, current
from memtopo.plans.report import Finding, Rate

WINDOW = 64
"""Bytes that are read at each end of what is mapped."""

AFTERWARDS = 0.5
"""Seconds in which what a producer signalled last may still arrive once it is gone."""

_SHORTEST, _LONGEST = 0.0005, 0.05
"""Seconds between two looks at a stream, fewer at first."""


class Unsignalled(MemtopoError):
    """A semaphore, declared at `path`, that did not come to be as this waited for."""

    def __init__(self, message: str, path: Path, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path


@dataclass(frozen=True, slots=True)
class Synchronizing:
    """A turn of a proof: all waits one after another, the lowest value first, the look at the memory, then all signals.

    What another entry here waits for is signalled as soon as its own wait is over. `breathe` is called now and then,
    and raises where somebody asked to stop. Raises `Unsignalled`, and `DriverError`.
    """

    geometry: Geometry
    driver: Driver
    layout: Layout
    breathe: Callable[[], None]

    doing = "waits and signals"
    aspect = "wait"
    verbs = "", "synchronize"
    turns = 1
    volume = 0

    def write(self, turn: int) -> int:
        """Nothing: signals come after waits."""
        del turn
        return 0

    def read(self, turn: int) -> Iterator[Finding]:
        """Wait, look and signal."""
        del turn
        semaphores = sorted(self.geometry.semaphores.values(), key=lambda run: -1 if run.wait is None else run.wait)
        for run in semaphores:
            if run.wait is not None:
                yield self._wait(run, run.wait)
            if run.signal is not None and self._is_needed(run):
                yield self._signal(run, run.signal)
        yield from self._look()
        for run in semaphores:
            if run.signal is not None and not self._is_needed(run):
                yield self._signal(run, run.signal)

    def expected(self, turn: int) -> int:
        """How many waits there are."""
        del turn
        return sum(1 for run in self.geometry.semaphores.values() if run.wait is not None)

    def unseen(self) -> Iterator[tuple[int, str]]:
        """Nothing: whatever is declared is done."""
        return iter(())

    def rates(self) -> Iterator[Rate]:
        """Nothing: it is somebody else who takes the time."""
        return iter(())

    def _is_needed(self, run: ImportedSemaphore) -> bool:
        """Whether another entry waits for the same semaphore."""
        others = (other for other in self.geometry.semaphores.values() if other is not run and other.wait is not None)
        return any(_same(run, other) for other in others)

    def _wait(self, run: ImportedSemaphore, value: int) -> Finding:
        device, waiting = run.place.id, self.layout.waiting
        # Noted first: what may wait in a stream is to be known when that is taken down.
        waiting[device] = Wait(run.name, value, run.origin.of(0)[0])
        self.driver.wait_external_semaphore(self.layout.semaphores[run.name], value, self.layout.streams[device])
        undone = f"did not reach {value:,}" if value else "was not signalled"
        self._finish(run, undone, waiting[device].holder)
        del waiting[device]
        return Finding("wait", _subject(run, value), "done", "done", run.path)

    def _signal(self, run: ImportedSemaphore, value: int) -> Finding:
        stream = self.layout.streams[run.place.id]
        self.driver.signal_external_semaphore(self.layout.semaphores[run.name], value, stream)
        self._finish(run, f"was not signalled by {run.place}", None)
        return Finding("signal", _subject(run, value), "done", "done", run.path)

    def _finish(self, run: ImportedSemaphore, undone: str, holder: str | None) -> None:
        """Wait until a stream is done; where that is up to a holder, only as long as it is there."""
        told = f"semaphore {run.name!r} of {run.origin.of(0)[0]} {undone}"
        start, left_at, pause = time.monotonic(), None, _SHORTEST
        while not self.driver.stream_query(self.layout.streams[run.place.id]):
            self.breathe()
            now = time.monotonic()
            if left_at is None and holder and self.layout.handle_source.gone(holder):
                left_at = now
            if left_at is not None and now - left_at > AFTERWARDS:
                told = f"{told}: {holder} has ended"
                raise Unsignalled(told, run.path, "keep the producer alive until it has signalled")
            if now - start > self.layout.patience:
                told = f"{told} within {self.layout.patience:g} s"
                raise Unsignalled(told, run.path, "see what its producer signals; --timeout gives it longer")
            time.sleep(pause)
            pause = min(_LONGEST, 2 * pause)

    def _look(self) -> Iterator[Finding]:
        for run in self.geometry.external.values():
            for label in run.parts:
                address, size = self.layout.buffers[label]
                ends = dict.fromkeys((0, max(0, size - WINDOW)))
                with current(self.driver, self.layout.contexts[run.place.id]):
                    seen = [self.driver.memcpy_dtoh(address + at, min(WINDOW, size)) for at in ends]
                for at, data in zip(ends, seen, strict=True):
                    subject = f"{label} at {at:#x} by {run.place}"
                    yield Finding("readable", subject, min(WINDOW, size), len(data), run.path)


def _same(one: ImportedSemaphore, other: ImportedSemaphore) -> bool:
    return (one.origin.holders, one.origin.export) == (other.origin.holders, other.origin.export)


def _subject(run: ImportedSemaphore, value: int) -> str:
    """A semaphore with a value, which a binary one has not."""
    return f"{run.name} {value:,}" if value else run.name
