"""An event that another process created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.common.errors import InternalError
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import HandleRequest, Phase, Step, StepDescription
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class OpenEvent(Step):
    """Opens the handle of an event; what is opened is destroyed like one of this process's own (fact 47)."""

    label: str
    device: int
    ask: HandleRequest

    phase = Phase.IMPORT
    verb = "open event"
    call = "cuIpcOpenEventHandle"
    undo_call = "cuEventDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.ask.taken(layout.handle_source)
        if isinstance(handle, int):
            raise InternalError(f"{self.ask.text} came as a file descriptor")
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.ipc_open_event_handle(handle)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        del driver
        yield Finding("event", self.label, "open", "open" if self.label in layout.events else "gone", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.ask.text, like=self.ask.holder, note="ipc")

    def leak_name(self) -> str:
        return f"opened event {self.label}"
