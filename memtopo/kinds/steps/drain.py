"""The end of a GPU's outstanding work: unmapping does not wait for it (fact 18)."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class Synchronize(Step):
    """Waits before the layout is handed out, and again before anything of it is taken down.

    A GPU whose stream still waits for somebody else is not waited for: that may never end (fact 58).
    """

    device: int

    phase = Phase.SETTLE
    verb = "synchronize"
    call = "cuCtxSynchronize"
    undo_call = "cuCtxSynchronize"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ctx_synchronize()

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.contexts and self.device not in layout.waiting:
            self.do(driver, layout)

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")
