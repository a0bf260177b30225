"""A buffer, handed out by legacy IPC."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class TryExportBuffer(Step):
    """Asks for the first of `count` handles once, so that a refusal comes now; its bytes are a secret, and not kept."""

    label: str
    buffer: str
    device: int
    count: int

    phase = Phase.EXPORT
    verb = "export buffer"
    call = "cuIpcGetMemHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_mem_handle(layout.buffers[self.buffer].address)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def describe(self) -> StepDescription:
        return StepDescription(
            self.label, self.buffer.partition(".")[0], note=f"ipc, {self.count:,} handles" if self.count > 1 else "ipc"
        )
