"""Process that generates sequences and makes their calls on one driver; a supervisor reads what it has written.

Each call is written before it is made, so that a call that ends the process is known.
"""

from __future__ import annotations

import os
import sys
import time

from memtopo.driver.protocol import Driver
from tests.differential.calls import compiled
from tests.differential.generator import LENGTH, Generator
from tests.differential.session import Session

DIRTY = 3
"""Exit status of a worker whose driver refused to give something back."""


def open_driver(name: str) -> Driver:
    """Return the CUDA driver for `gpu`, or a simulator of the machine of another name."""
    driver: Driver
    if name == "gpu":
        from memtopo.driver.cuda.driver import CudaDriver

        driver = CudaDriver()
    else:
        from memtopo import machine
        from memtopo.driver.sim import SimDriver

        driver = SimDriver(machine.load(name))
    driver.init()
    return driver


def retained(driver: Driver) -> list[int]:
    """Retain the primary context of every GPU, which takes long: once in each process."""
    return [driver.device_primary_ctx_retain(device) for device in range(driver.device_get_count())]


def record(driver: Driver, contexts: list[int], seed: int, mode: str, out: int) -> bool:
    """Record one sequence to a descriptor; returns false if its driver could not give everything back."""
    session, generator = Session(driver, contexts), Generator(seed, len(contexts), mode)
    os.write(out, f"# {seed}\n".encode())
    for _ in range(LENGTH):
        call = generator.next()
        os.write(out, f"{call} -> ".encode())
        answer = compiled(call)(session)
        os.write(out, f"{answer}\n".encode())
        generator.note(call, answer)
    return session.close()


def main(name: str, mode: str, path: str, first: int, step: int, seconds: float, most: int) -> int:
    """Record sequences of the seeds `first`, `first + step`, … until time is up or `most` are done."""
    end = time.monotonic() + seconds
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    driver = open_driver(name)
    contexts = retained(driver)
    for number in range(most):
        if time.monotonic() > end:
            break
        if not record(driver, contexts, first + number * step, mode, out):
            return DIRTY
    return 0


if __name__ == "__main__":
    name, mode, path, first, step, seconds, most = sys.argv[1:]
    sys.exit(main(name, mode, path, int(first), int(step), float(seconds), int(most)))
