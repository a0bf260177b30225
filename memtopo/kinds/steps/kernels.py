"""The kernels that prove every byte, in a GPU's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription, kernels_name


@dataclass(frozen=True, slots=True)
class LoadKernels(Step):
    """Loaded before the baseline of free memory is taken, and unloaded after it was looked at again."""

    device: int

    phase = Phase.OPEN
    verb = "load kernels"
    call = "cuModuleLoadData"
    undo_call = "cuModuleUnload"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.modules[self.device] = cast("KernelDriver", driver).module_load_data()

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.modules:
            with current(driver, layout.contexts[self.device]):
                cast("KernelDriver", driver).module_unload(layout.modules[self.device])
            del layout.modules[self.device]

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return kernels_name(self.device)
