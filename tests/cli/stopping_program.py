"""memtopo on a simulator that stops this process before driver calls, with progress drawn from the first step on.

Arguments: the calls as `mem_map#2,mem_unmap#1`, a method and the number of its call, and those of memtopo.
"""

from __future__ import annotations

import os
import signal
import sys

from memtopo.cli import main
from memtopo.driver.kernels import KernelDriver
from memtopo.drivers import target
from memtopo.drivers.sim.devices import SimMemoryBudget
from memtopo.machine import Machine
from memtopo.output import progress
from tests.run.processes.signalled_worker import SignalAtCall

_simulator = target._simulator


def stopping(machine: Machine, *memory: SimMemoryBudget | None) -> KernelDriver:
    """A simulator that stops this process."""
    driver: KernelDriver = _simulator(machine, *memory)
    for stop in STOPS.split(","):
        method, _, number = stop.partition("#")
        driver = SignalAtCall(driver, int(number), signal.SIGSTOP, os.getpid(), method)
    return driver


if __name__ == "__main__":
    STOPS = sys.argv.pop(1)
    vars(target)["_simulator"] = stopping
    vars(progress).update(DELAY=0.0, INTERVAL=0.001)
    main()
