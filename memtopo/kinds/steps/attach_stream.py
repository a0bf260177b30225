"""Managed memory that belongs to one stream of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemAttach
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class AttachStream(Step):
    """Attaches all of an allocation to its GPU's own stream, since stream 0 is refused (fact 60).

    There is nothing to undo: it ends with the memory, and no query tells of it.
    """

    label: str
    device: int

    phase = Phase.CREATE
    verb = "attach to stream"
    call = "cuStreamAttachMemAsync"

    def do(self, driver: Driver, layout: Layout) -> None:
        address = layout.managed[self.label].address
        with current(driver, layout.contexts[self.device]):
            driver.stream_attach_mem_async(layout.streams[self.device], address, MemAttach.SINGLE)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}")
