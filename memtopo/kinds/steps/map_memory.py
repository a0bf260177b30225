"""A part of what another API made, at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription, external_memory_name
from memtopo.kinds.steps.held import free_buffer, seated
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class MapExternal(Step):
    """`size` bytes from `offset` on of the external memory of a label, as a buffer (fact 53)."""

    label: str
    memory: str
    device: int
    offset: int
    size: int

    phase = Phase.MAP
    verb = "map buffer"
    call = "cuExternalMemoryGetMappedBuffer"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            address = driver.external_memory_get_mapped_buffer(layout.external[self.memory], self.offset, self.size)
            layout.buffers[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        free_buffer(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("external", self.label, *seated(driver, layout, self.label, self.device, self.size), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, self.memory)

    def leak_name(self) -> str:
        return f"mapped buffer {self.label}"

    def blocks(self) -> tuple[str, ...]:
        return (external_memory_name(self.memory),)
