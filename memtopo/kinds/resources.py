"""Resources that groups share: primary contexts, streams and kernels of GPUs, and connections to holders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import Finding, Phase, Step, StepDescription, context_name, kernels_name


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

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        """Contexts of all GPUs, whichever of them waits, and their kernels."""
        del device
        return context_name(self.device), kernels_name(self.device)


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


@dataclass(frozen=True, slots=True)
class CreateStream(Step):
    """It waits for semaphores without holding up the GPU's other work, and may have managed memory of its own.

    It is destroyed at once, also while it waits (fact 58).
    """

    device: int

    phase = Phase.CREATE
    verb = "create stream"
    call = "cuStreamCreate"
    undo_call = "cuStreamDestroy"

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.streams[self.device] = driver.stream_create()

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.streams:
            driver.stream_destroy(layout.streams[self.device])
            del layout.streams[self.device]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        seen = "idle" if driver.stream_query(layout.streams[self.device]) else "busy"
        yield Finding("stream", f"gpu{self.device}", "idle", seen, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return f"stream of gpu{self.device}"


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
