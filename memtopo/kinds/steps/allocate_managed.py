"""Managed memory, which migrates to whoever uses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemAttach
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class AllocateManaged(Step):
    """`size` bytes, allocated in the context of a GPU; `attach` is GLOBAL or HOST (facts 39, 60)."""

    label: str
    size: int
    device: int
    attach: MemAttach

    phase = Phase.CREATE
    verb = "allocate managed"
    call = "cuMemAllocManaged"
    undo_call = "cuMemFree"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.managed[self.label] = Reservation(driver.mem_alloc_managed(self.size, self.attach), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.managed:
            driver.mem_free(layout.managed[self.label].address)
            del layout.managed[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.managed[self.label].address
        with current(driver, layout.contexts[self.device]):
            seen = driver.mem_get_address_range(address)
            managed = driver.pointer_is_managed(address)
        yield Finding("managed", self.label, (hex(address), self.size), (hex(seen[0]), seen[1]), self.path)
        yield Finding("managed", self.label, "managed", "managed" if managed else "not managed", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=f"attached {self.attach.name.lower()}")

    def leak_name(self) -> str:
        return f"managed memory {self.label}"
