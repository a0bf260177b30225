"""The primary context of a GPU: needed to copy bytes and to count free memory."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription, context_name


@dataclass(frozen=True, slots=True)
class RetainContext(Step):
    """Retained and released, never reset: other users of the process keep theirs."""

    device: int

    phase = Phase.OPEN
    verb = "retain context"
    call = "cuDevicePrimaryCtxRetain"
    undo_call = "cuDevicePrimaryCtxRelease"

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.contexts[self.device] = driver.device_primary_ctx_retain(self.device)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.contexts:
            driver.device_primary_ctx_release(self.device)
            del layout.contexts[self.device]

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return context_name(self.device)
