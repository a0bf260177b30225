"""Step of exports via dmabuf."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DmaBufFlags
from memtopo.kinds.layout import Layout
from memtopo.kinds.objects import TryExport
from memtopo.kinds.step import DEFECT_ADVICE, PROBE_ADVICE, ErrorHint, Finding, Phase


class TryExportDmaBuf(TryExport, frozen=True):
    """Export a dma-buf of `size` bytes at an offset as a test, after all chunks are mapped.

    The descriptor is closed, since an open one pins the memory (fact 84).
    """

    offset: int
    size: int
    flags: DmaBufFlags
    needed: tuple[Hashable, ...]

    phase = Phase.SETTLE
    verb = "export"
    call = "cuMemGetHandleForAddressRange"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "the driver exports no dma-buf of this memory (fact 83): it needs the open kernel modules, and Linux 5.12",
            PROBE_ADVICE,
        ),
        "INVALID_VALUE": ErrorHint(
            "a dma-buf requires mapped memory of one GPU, in whole pages of the host (fact 83)", DEFECT_ADVICE
        ),
        "UNKNOWN": ErrorHint("the driver exports no dma-buf of compressed memory (fact 83)", DEFECT_ADVICE),
        "OPERATING_SYSTEM": ErrorHint("this process has too many open files (fact 83)", "raise the limit: ulimit -n"),
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return self.needed

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the size of a dma-buf, which its descriptor reports."""
        handle = self.export(driver, layout)
        assert handle.fd is not None
        try:
            yield Finding("dma-buf", self.object, self.size, os.lseek(handle.fd, 0, os.SEEK_END), self.path)
        finally:
            handle.close()
