"""Steps of semaphores."""

from __future__ import annotations

import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import SemaphoreHandleType
from memtopo.kinds.layout import LateError, Layout, Wait, current
from memtopo.kinds.resources import DeviceStep
from memtopo.kinds.step import ErrorHint, Phase, Step, StepDescription

GRACE = 5.0
"""Seconds that teardown waits for a signal of the producer."""

LAST_SIGNAL = 1.5
"""Seconds after the end of a producer in which its last signal may arrive and other waiting processes give up, so that
they do not take a signal from here for one of the producer."""

_PAUSE = 0.002


@dataclass(frozen=True, slots=True)
class ImportSemaphore(Step):
    """Import the descriptor; the driver takes ownership of it. The driver has no query for semaphores."""

    label: str
    device: int
    kind: SemaphoreHandleType

    phase = Phase.IMPORT
    verb = "import semaphore"
    undo_verb = "destroy"
    call = "cuImportExternalSemaphore"
    undo_call = "cuDestroyExternalSemaphore"
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "what was received for {subject} is not the descriptor of a semaphore (fact 54)",
            "see what the producer sends",
        )
    }
    renews_needs = True

    @property
    def provides(self) -> Hashable:
        return ("semaphore", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("descriptor", self.label),)

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            layout.semaphores[self.label] = driver.import_external_semaphore(fd, self.kind)
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Destroy the semaphore, at most once: a second call would end the process (fact 57)."""
        if self.label in layout.semaphores:
            driver.destroy_external_semaphore(layout.semaphores.pop(self.label))

    def describe(self) -> StepDescription:
        kind = "timeline" if self.kind is SemaphoreHandleType.TIMELINE_FD else "binary"
        return StepDescription(self.label, f"gpu{self.device}", note=kind)

    def leak_name(self) -> str:
        return f"semaphore {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)


@dataclass(frozen=True, slots=True)
class AwaitStream(DeviceStep):
    """Poll a stream until its waits have ended. A wait in the driver could block forever (fact 58).

    `undo` signals a semaphore itself if its producer has disconnected; a process that starts to wait afterwards takes
    this for a signal of the producer. If the wait does not end, `stays` has the leak names of the resources that cannot
    be released before the process ends.
    """

    stays: tuple[str, ...]

    phase = Phase.SETTLE
    verb = "await stream"
    call = "cuStreamQuery"
    undo_call = "cuStreamQuery"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("stream", self.device),)

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.stream_query(layout.streams[self.device])

    def undo(self, driver: Driver, layout: Layout) -> None:
        wait = layout.waiting.get(self.device)
        if wait is None:
            return
        ended = self._done(driver, layout, min(GRACE, layout.timeout), wait)
        if not ended and layout.handle_source.gone(wait.holder) and not self._done(driver, layout, LAST_SIGNAL):
            with suppress(LateError):  # it is signalled; the wait is what counts
                self._signal(driver, layout, wait)
            self._done(driver, layout, GRACE)
        if self.device in layout.waiting:
            value = f" to reach {wait.value:,}" if wait.value else ""
            message = f"it waits for semaphore {wait.semaphore!r} of {wait.holder}{value}, which was not signalled"
            raise MemtopoError(f"{message}; the end of this process ends the wait")

    def leak_name(self) -> str:
        return f"wait of gpu{self.device}"

    def blocks(self) -> tuple[str, ...]:
        return self.stays

    def _done(self, driver: Driver, layout: Layout, seconds: float, wait: Wait | None = None) -> bool:
        """Return true if the stream is done in time. Returns early if the producer of `wait` disconnects."""
        until = time.monotonic() + seconds
        while not driver.stream_query(layout.streams[self.device]):
            if time.monotonic() > until or (wait and layout.handle_source.gone(wait.holder)):
                return False
            time.sleep(_PAUSE)
        del layout.waiting[self.device]
        return True

    def _signal(self, driver: Driver, layout: Layout, wait: Wait) -> None:
        """Signal in another stream, since this one is blocked."""
        with current(driver, layout.contexts[self.device]):
            stream = driver.stream_create()
            try:
                driver.signal_external_semaphore(layout.semaphores[wait.semaphore], wait.value, stream)
            finally:
                driver.stream_destroy(stream)
