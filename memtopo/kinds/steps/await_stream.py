"""The end of what a GPU's stream waits for, before anything is taken down."""

from __future__ import annotations

import time
from dataclasses import dataclass

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, Wait, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription

GRACE = 5.0
"""Seconds that a wait has to end by itself when all is taken down."""

LAST = 1.5
"""Seconds after the end of a producer in which what it signalled last may arrive, and in which others who wait for it
give up: a signal from here must not be taken for the producer's."""

_PAUSE = 0.002


@dataclass(frozen=True, slots=True)
class AwaitStream(Step):
    """Asks a stream whether it is done. It never waits in the driver, which would do so for ever (fact 58).

    A wait whose other end is gone is signalled here, since nobody else will; whoever begins to wait after that takes it
    for the producer's. Where it still stands then, `stays` names
    what cannot be undone because of it; the end of the process ends it all.
    """

    device: int
    stays: tuple[str, ...]

    phase = Phase.SETTLE
    verb = "await stream"
    call = "cuStreamQuery"
    undo_call = "cuStreamQuery"

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.stream_query(layout.streams[self.device])

    def undo(self, driver: Driver, layout: Layout) -> None:
        wait = layout.waiting.get(self.device)
        if wait is None:
            return
        ended = self._done(driver, layout, min(GRACE, layout.patience), wait)
        if not ended and layout.handle_source.gone(wait.holder) and not self._done(driver, layout, LAST):
            self._signal(driver, layout, wait)
            self._done(driver, layout, GRACE)
        if self.device in layout.waiting:
            value = f" to reach {wait.value:,}" if wait.value else ""
            told = f"it waits for semaphore {wait.semaphore!r} of {wait.holder}{value}, which nobody signalled"
            raise MemtopoError(f"{told}; the end of this process ends the wait")

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return f"wait of gpu{self.device}"

    def blocks(self) -> tuple[str, ...]:
        return self.stays

    def _done(self, driver: Driver, layout: Layout, seconds: float, wait: Wait | None = None) -> bool:
        """Whether the stream comes to an end in time; of a wait, as long as its other end is there."""
        until = time.monotonic() + seconds
        while not driver.stream_query(layout.streams[self.device]):
            if time.monotonic() > until or (wait and layout.handle_source.gone(wait.holder)):
                return False
            time.sleep(_PAUSE)
        del layout.waiting[self.device]
        return True

    def _signal(self, driver: Driver, layout: Layout, wait: Wait) -> None:
        """From another stream, which does not wait for this one."""
        with current(driver, layout.contexts[self.device]):
            stream = driver.stream_create()
        try:
            driver.signal_external_semaphore(layout.semaphores[wait.semaphore], wait.value, stream)
        finally:
            driver.stream_destroy(stream)
