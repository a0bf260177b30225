"""A stream of a GPU, beside the one that everybody has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class CreateStream(Step):
    """It waits for semaphores without holding up the GPU's other work, and may have managed memory of its own.

    It is destroyed at once, also while it waits (fact 58).
    """

    device: int

    phase = Phase.CREATE
    verb = "create stream"
    call = "cuStreamCreate"
    undo_call = "cuStreamDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.streams[self.device] = driver.stream_create()

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.streams:
            driver.stream_destroy(layout.streams[self.device])
            del layout.streams[self.device]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        seen = "idle" if driver.stream_query(layout.streams[self.device]) else "busy"
        yield Finding("stream", f"gpu{self.device}", "idle", seen, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return f"stream of gpu{self.device}"
