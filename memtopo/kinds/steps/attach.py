"""The connection to whoever holds what is imported from outside; while it is open, the holder knows its importer."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class Attach(Step):
    """Connects to a held layout or a socket, and has it say what it exports."""

    holder: str

    phase = Phase.IMPORT
    verb = "attach"
    call = "connect"
    undo_call = "close"

    def do(self, driver: Driver, layout: Layout) -> None:
        del driver
        layout.attached[self.holder] = layout.handle_source.attach(self.holder)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver
        if self.holder in layout.attached:
            layout.handle_source.detach(self.holder)
            del layout.attached[self.holder]

    def describe(self) -> StepDescription:
        return StepDescription(self.holder, "")
