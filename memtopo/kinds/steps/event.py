"""An event of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import EventFlags
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class CreateEvent(Step):
    """Without timing; `shared` is for other processes too, which must be said when it is created (fact 32)."""

    label: str
    device: int
    shared: bool

    phase = Phase.CREATE
    verb = "create event"
    call = "cuEventCreate"
    undo_call = "cuEventDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        flags = EventFlags.DISABLE_TIMING | (EventFlags.INTERPROCESS if self.shared else EventFlags(0))
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.event_create(flags)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """An event that nobody recorded yet is complete (fact 47)."""
        yield Finding("event", self.label, "complete", _state(driver, layout.events[self.label]), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", note="interprocess" if self.shared else "")

    def leak_name(self) -> str:
        return f"event {self.label}"


def _state(driver: Driver, event: int) -> str:
    return "complete" if driver.event_query(event) else "not ready"
