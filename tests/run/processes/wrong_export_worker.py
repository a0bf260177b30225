"""A worker that, as the process MEMTOPO_WRONG_EXPORT, exports its second chunk in place of its first."""

from __future__ import annotations

import os
import sys
from typing import Any

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import HandleType
from memtopo.run.processes.worker import main
from tests.helpers.forwarding import HandleRecorder


class WrongExport(HandleRecorder):
    """Forwards every call, and exports the second chunk in place of the first."""

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        wrong = self._created[1] if handle == self._created[0] else handle
        exported: int | bytes = self._driver.mem_export_to_shareable_handle(wrong, kind, flags)
        return exported


def wrap(process: str, driver: KernelDriver) -> Any:
    return WrongExport(driver) if process == os.environ["MEMTOPO_WRONG_EXPORT"] else driver


if __name__ == "__main__":
    main(*sys.argv[1:], wrap=wrap)
