"""A part of what another API made, at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.layout import Layout, Reservation, current
from memtopo.report import Finding
from memtopo.steps.base import Phase, Reading, Step, memory_thing


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
        if self.label in layout.buffers:
            driver.mem_free(layout.buffers[self.label].address)
            del layout.buffers[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        buffer = layout.buffers[self.label]
        with current(driver, layout.contexts[self.device]):
            seen = driver.mem_get_address_range(buffer.address)
        yield Finding("external", self.label, (hex(buffer.address), self.size), (hex(seen[0]), seen[1]), self.path)

    def reading(self) -> Reading:
        return Reading(self.label, f"gpu{self.device}", self.size, self.memory)

    def thing(self) -> str:
        return f"mapped buffer {self.label}"

    def holds(self) -> tuple[str, ...]:
        return (memory_thing(self.memory),)
