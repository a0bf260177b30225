"""An event, handed out by legacy IPC."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class TryExportEvent(Step):
    """Asks for the handle once, so that a refusal comes now; its 64 bytes are a secret, and are not kept."""

    label: str
    event: str
    device: int

    phase = Phase.EXPORT
    verb = "export event"
    call = "cuIpcGetEventHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_event_handle(layout.events[self.event])

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.event, note="ipc")
