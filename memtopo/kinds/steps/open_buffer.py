"""A buffer that another process allocated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.common.errors import InternalError
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.steps.base import HandleRequest, Phase, Step, StepDescription
from memtopo.kinds.steps.held import seated
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class OpenBuffer(Step):
    """Opens the handle of a buffer, with lazy peer access; each open wants a close of its own (fact 46)."""

    label: str
    size: int
    device: int
    ask: HandleRequest

    phase = Phase.IMPORT
    verb = "open buffer"
    call = "cuIpcOpenMemHandle"
    undo_call = "cuIpcCloseMemHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.ask.taken(layout.handle_source)
        if isinstance(handle, int):
            raise InternalError(f"{self.ask.text} came as a file descriptor")
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.ipc_open_mem_handle(handle), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.buffers:
            with current(driver, layout.contexts[self.device]):
                driver.ipc_close_mem_handle(layout.buffers[self.label].address)
            del layout.buffers[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("buffer", self.label, *seated(driver, layout, self.label, self.device, self.size), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.ask.text, self.size, self.ask.holder, "ipc")

    def leak_name(self) -> str:
        return f"opened buffer {self.label}"
