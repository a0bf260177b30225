"""Steps of buffers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.step import ErrorHint, Finding, HandleReference, Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class AllocateBuffer(Step):
    """Allocate `size` bytes of GPU memory (fact 45)."""

    label: str
    size: int
    device: int

    phase = Phase.CREATE
    verb = "allocate"
    call = "cuMemAlloc"
    undo_call = "cuMemFree"

    @property
    def provides(self) -> Hashable:
        return ("buffer", self.label)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.mem_alloc(self.size), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        free_buffer(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding(
            "buffer", self.label, *address_range(driver, layout, self.label, self.device, self.size), self.path
        )

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size)

    def leak_name(self) -> str:
        return f"buffer {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


@dataclass(frozen=True, slots=True)
class OpenBuffer(Step):
    """Open the handle of a buffer, with lazy peer access; each open requires a close (fact 46)."""

    label: str
    size: int
    device: int
    source: HandleReference

    phase = Phase.IMPORT
    verb = "open buffer"
    call = "cuIpcOpenMemHandle"
    undo_call = "cuIpcCloseMemHandle"
    hints: ClassVar = {
        "INVALID_CONTEXT": ErrorHint(
            "a handle cannot be opened in the process that created it (fact 31)", "import it in another process"
        ),
        "INVALID_HANDLE": ErrorHint(
            "the exporter has ended (fact 46), or runs in another pid namespace",
            "keep it alive for as long as its memory is used; containers have to share a pid namespace (--pid)",
        ),
        "INVALID_VALUE": ErrorHint(
            "the exporter has freed the memory (fact 46)", "keep it allocated for as long as it is used"
        ),
    }

    @property
    def provides(self) -> Hashable:
        return ("buffer", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.source.holder),)

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.source.fetch_bytes(layout.handle_source)
        with current(driver, layout.contexts[self.device]):
            layout.buffers[self.label] = Reservation(driver.ipc_open_mem_handle(handle), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.buffers:
            with current(driver, layout.contexts[self.device]):
                driver.ipc_close_mem_handle(layout.buffers[self.label].address)
            del layout.buffers[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding(
            "buffer", self.label, *address_range(driver, layout, self.label, self.device, self.size), self.path
        )

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, "ipc")

    def leak_name(self) -> str:
        return f"opened buffer {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


@dataclass(frozen=True, slots=True)
class TryExportBuffer(Step):
    """Request the first of `count` handles as a test. Its bytes are secret, and are not kept."""

    label: str
    buffer: str
    device: int
    count: int

    phase = Phase.EXPORT
    verb = "export buffer"
    call = "cuIpcGetMemHandle"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("buffer", self.buffer),)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_mem_handle(layout.buffers[self.buffer].address)

    def describe(self) -> StepDescription:
        return StepDescription(
            self.label, self.buffer.partition(".")[0], note=f"ipc, {self.count:,} handles" if self.count > 1 else "ipc"
        )


def free_buffer(driver: Driver, layout: Layout, label: str) -> None:
    """Free the allocated or mapped buffer with a label."""
    if label in layout.buffers:
        driver.mem_free(layout.buffers[label].address)
        del layout.buffers[label]


def address_range(
    driver: Driver, layout: Layout, label: str, device: int, size: int
) -> tuple[tuple[str, int], tuple[str, int] | str]:
    """Expected address and size of a buffer, and what the driver reports in the context of a GPU."""
    address = layout.buffers[label].address
    with current(driver, layout.contexts[device]):
        try:
            base, observed = driver.mem_get_address_range(address)
        except DriverError as error:
            if error.name != "CUDA_ERROR_NOT_FOUND":
                raise
            return (hex(address), size), f"nothing that gpu{device} has access to"
    return (hex(address), size), (hex(base), observed)
