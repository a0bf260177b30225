"""A buffer of `cuMemAlloc`, the memory that legacy IPC can share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription
from memtopo.kinds.steps.held import free_buffer, seated
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class AllocateBuffer(Step):
    """`size` bytes of a GPU's memory (fact 45)."""

    label: str
    size: int
    device: int

    phase = Phase.CREATE
    verb = "allocate"
    call = "cuMemAlloc"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.mem_alloc(self.size), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        free_buffer(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("buffer", self.label, *seated(driver, layout, self.label, self.device, self.size), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size)

    def leak_name(self) -> str:
        return f"buffer {self.label}"
