"""Memory that another API made, as an object of the driver's."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemoryHandleType
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription, external_memory_name


@dataclass(frozen=True, slots=True)
class ImportMemory(Step):
    """Hands the descriptor to the driver, whose it is from then on, in the context of the memory's own GPU (fact 55).

    Any size is taken: whether it is true shows when it is mapped (fact 53). There is no query for it.
    """

    label: str
    size: int
    device: int
    kind: MemoryHandleType
    dedicated: bool

    phase = Phase.IMPORT
    verb = "import memory"
    call = "cuImportExternalMemory"
    undo_call = "cuDestroyExternalMemory"

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            memory = driver.import_external_memory(fd, self.kind, self.size, dedicated=self.dedicated)
            layout.external[self.label] = memory
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Forgotten first, so that nobody tries a second time, which would end the process (fact 57)."""
        if self.label in layout.external:
            driver.destroy_external_memory(layout.external.pop(self.label))

    def describe(self) -> StepDescription:
        words = [self.kind.name.lower(), *(["dedicated"] if self.dedicated else [])]
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=", ".join(words))

    def leak_name(self) -> str:
        return external_memory_name(self.label)
