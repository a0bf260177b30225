"""Process that generates sequences and makes their calls on one driver; a supervisor reads what it has written.

Each call is written before it is made, so that a call that ends the process is known.
"""

from __future__ import annotations

import os
import sys
import time

from memtopo import machine
from memtopo.driver.protocol import Driver
from memtopo.machine import Machine
from tests.differential.calls import compiled
from tests.differential.families import generator, length, needs
from tests.differential.resources import Surroundings
from tests.differential.session import Session
from tests.helpers.vulkan import why_unavailable

DIRTY = 3
"""Exit status of a worker whose driver refused to give something back."""
UNAVAILABLE = 4
"""Exit status of a worker whose family needs Vulkan, where none works."""


def open_driver(name: str) -> Driver:
    """Return the CUDA driver for `gpu`, or a simulator of the machine of another name."""
    driver: Driver
    if name == "gpu":
        from memtopo.drivers.cuda.driver import CudaDriver

        driver = CudaDriver()
    else:
        from memtopo.drivers.sim import SimDriver

        driver = SimDriver(machine.load(name))
    driver.init()
    return driver


def retained(driver: Driver) -> list[int]:
    """Retain the primary context of every GPU, which takes long: once in each process."""
    return [driver.device_primary_ctx_retain(device) for device in range(driver.device_get_count())]


def record(session: Session, family: str, seed: int, out: int) -> bool:
    """Record one sequence to a descriptor; returns false if its driver could not give everything back."""
    calls = generator(family, seed, len(session.contexts))
    before = f"# {seed}\n"
    for _ in range(length(family)):
        call = calls.next()
        os.write(out, f"{before}{call} -> ".encode())
        answer = compiled(call)(session)
        before = f"{answer}\n"
        calls.note(call, answer)
    os.write(out, before.encode())
    return session.close()


def simulated(name: str) -> Machine | None:
    """Return the machine of this name, or None for `gpu`."""
    return None if name == "gpu" else machine.load(name)


def main(name: str, family: str, path: str, first: int, step: int, seconds: float, most: int) -> int:
    """Record sequences of the seeds `first`, `first + step`, … until time is up or `most` are done."""
    end = time.monotonic() + seconds
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    driver = open_driver(name)
    if needs(family).maker and name == "gpu" and (reason := why_unavailable(driver.device_get_uuid(0))):
        print(f"{family}: {reason}", file=sys.stderr)
        return UNAVAILABLE
    contexts = retained(driver)
    with Surroundings(simulated(name)) as surroundings:
        for number in range(most):
            if time.monotonic() > end:
                break
            session = surroundings.session(driver, contexts, needs(family))
            if not record(session, family, first + number * step, out):
                return DIRTY
    return 0


if __name__ == "__main__":
    name, family, path, first, step, seconds, most = sys.argv[1:]
    sys.exit(main(name, family, path, int(first), int(step), float(seconds), int(most)))
