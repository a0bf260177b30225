"""A worker that, as the process MEMTOPO_WRONG_EXPORT, exports its second chunk in place of its first."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import HandleType, Properties
from memtopo.run.processes.worker import main

if TYPE_CHECKING:
    from typing import Any as Anything
else:
    Anything = object


class WrongExport(Anything):  # type: ignore[misc]
    """Forwards every call, and exports the second chunk in place of the first."""

    def __init__(self, driver: KernelDriver) -> None:
        self._driver = driver
        self._created: list[int] = []

    def __getattr__(self, method: str) -> Any:
        return getattr(self._driver, method)

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        self._created.append(self._driver.mem_create(size, properties, flags))
        return self._created[-1]

    def mem_export_to_shareable_handle(self, handle: int, kind: HandleType, flags: int = 0) -> int | bytes:
        wrong = self._created[1] if handle == self._created[0] else handle
        return self._driver.mem_export_to_shareable_handle(wrong, kind, flags)


def wrap(process: str, driver: KernelDriver) -> Any:
    return WrongExport(driver) if process == os.environ["MEMTOPO_WRONG_EXPORT"] else driver


if __name__ == "__main__":
    main(*sys.argv[1:], wrap=wrap)
