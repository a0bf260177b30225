"""A semaphore that another API made."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import SemaphoreHandleType
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class ImportSemaphore(Step):
    """Hands the descriptor to the driver, whose it is from then on. There is no query for it, and none for its kind."""

    label: str
    device: int
    kind: SemaphoreHandleType

    phase = Phase.IMPORT
    verb = "import semaphore"
    call = "cuImportExternalSemaphore"
    undo_call = "cuDestroyExternalSemaphore"

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            layout.semaphores[self.label] = driver.import_external_semaphore(fd, self.kind)
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Forgotten first, so that nobody tries a second time, which would end the process (fact 57)."""
        if self.label in layout.semaphores:
            driver.destroy_external_semaphore(layout.semaphores.pop(self.label))

    def describe(self) -> StepDescription:
        kind = "timeline" if self.kind is SemaphoreHandleType.TIMELINE_FD else "binary"
        return StepDescription(self.label, f"gpu{self.device}", note=kind)

    def leak_name(self) -> str:
        return f"semaphore {self.label}"
