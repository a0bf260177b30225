"""Step of exports via dmabuf."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DmaBufFlags
from memtopo.kinds.dmabuf.memory import DmaBufMemory
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    PROBE_ADVICE,
    ErrorHint,
    Finding,
    Phase,
    Step,
    StepDescription,
    handles_tested,
)


@dataclass(frozen=True, slots=True)
class TryExportDmaBuf(Step):
    """Export the first of `count` dma-bufs as a test, after all chunks are mapped.

    The descriptor is closed, since an open one pins the memory (fact 84); each importer gets a new one on request.
    """

    label: str
    object: str
    offset: int
    size: int
    flags: DmaBufFlags
    count: int
    needed: tuple[Hashable, ...]
    memory: DmaBufMemory = field(compare=False)
    first: int = field(compare=False)

    phase = Phase.SETTLE
    verb = "export"
    call = "cuMemGetHandleForAddressRange"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "the driver exports no dma-buf of this memory (fact 83): it needs the open kernel modules, and Linux 5.12",
            PROBE_ADVICE,
        ),
        "INVALID_VALUE": ErrorHint(
            "a dma-buf is of mapped memory of one GPU, in whole pages of the host (fact 83)", DEFECT_ADVICE
        ),
        "UNKNOWN": ErrorHint("the driver exports no dma-buf of compressible memory (fact 83)", DEFECT_ADVICE),
        "OPERATING_SYSTEM": ErrorHint("this process has too many open files (fact 83)", "raise the limit: ulimit -n"),
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return self.needed

    def do(self, driver: Driver, layout: Layout) -> None:
        os.close(export_dma_buf(driver, layout, self.memory, self.first))

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the size of a dma-buf, which its descriptor reports."""
        fd = export_dma_buf(driver, layout, self.memory, self.first)
        try:
            yield Finding("dma-buf", self.object, self.size, os.lseek(fd, 0, os.SEEK_END), self.path)
        finally:
            os.close(fd)

    def describe(self) -> StepDescription:
        note = handles_tested(["dmabuf", *(["pcie"] if self.flags else [])], self.count)
        return StepDescription(self.label, self.object.partition(".")[0], note=note)


def export_dma_buf(driver: Driver, layout: Layout, memory: DmaBufMemory, index: int) -> int:
    """Export one object in the context of its GPU; returns a descriptor, which the caller closes (fact 83).

    Raises `KeyError` if it has no memory in the present state of the layout.
    """
    address, fd = memory.address(layout, index), -1
    try:
        with current(driver, layout.contexts[memory.location(index).id]):
            fd = driver.mem_get_handle_for_address_range(address, memory.size, memory.flags)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    return fd
