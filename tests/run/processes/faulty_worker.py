"""A worker whose driver has the fault that MEMTOPO_FAULT names for its process: `reader=KeepsChunk`."""

from __future__ import annotations

import os
import sys

from memtopo.driver.kernels import KernelDriver
from memtopo.run.processes.worker import main
from tests.helpers import faults


def wrap(process: str, driver: KernelDriver) -> KernelDriver:
    faulty, _, name = os.environ["MEMTOPO_FAULT"].partition("=")
    found: KernelDriver = getattr(faults, name)(driver) if process == faulty else driver
    return found


if __name__ == "__main__":
    main(*sys.argv[1:], wrap=wrap)
