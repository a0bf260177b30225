"""Calls of the driver that programs make of the simulator, beside the simulator's own time for them.

In Python, cuda.bindings calls the library, which calls back into Python; a program in C calls the library, which asks
the simulator over a socket. Times are the best of many rounds, in one run. The fixture for pytest is entered and left.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from memtopo import machine
from memtopo.driver.types import Location, LocationKind, Properties
from memtopo.drivers.sim import SimDriver
from memtopo.testing import simulated
from memtopo.testing.library import SOCKET, folder
from memtopo.testing.program import SharedMachine
from memtopo.testing.server import Server

ROUNDS, CALLS, FIXTURES = 60, 100, 20
SIZE = 2 << 20
HEADERS = Path(__file__).parent.parent / "tests" / "programs" / "include"


def main() -> None:
    """Print times of a call in µs, and of the fixture in ms."""
    with SimDriver(machine.load("h200x2")) as sim:
        own = _times(*_of_simulator(sim))
    with simulated("h200x2"):
        python = _times(*_of_bindings())
    library = _in_c()
    print("µs a call, best of rounds          query  create/release")
    print(f"the simulator itself              {own[0]:6.2f}  {own[1]:6.2f}")
    print(f"cuda.bindings, in this process    {python[0]:6.2f}  {python[1]:6.2f}")
    print(f"a program in C, over a socket     {library[0]:6.2f}  {library[1]:6.2f}")
    print(f"the way in Python                 {python[0] - own[0]:6.2f}  {python[1] - own[1]:6.2f}   (at most 10)")
    print(f"the way over a socket             {library[0] - own[0]:6.2f}  {library[1] - own[1]:6.2f}   (at most 30)")
    print(f"the fixture                       {_fixture():6.2f} ms   (at most 50)")


def _times(*calls: tuple[Callable[[], Any], int]) -> list[float]:
    return [_best(call) / count for call, count in calls]


def _best(call: Callable[[], Any]) -> float:
    """Microseconds of a call, in the best of many rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(found)


def _of_simulator(sim: SimDriver) -> list[tuple[Callable[[], Any], int]]:
    sim.init()
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    properties = Properties(Location(LocationKind.GPU, 0))
    return [(sim.mem_get_info, 1), (lambda: sim.mem_release(sim.mem_create(SIZE, properties)), 2)]


def _of_bindings() -> list[tuple[Callable[[], Any], int]]:
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return [(driver.cuMemGetInfo, 1), (lambda: driver.cuMemRelease(driver.cuMemCreate(SIZE, properties, 0)[1]), 2)]


def _in_c() -> list[float]:
    server = Server(SharedMachine(machine.load("h200x2")))
    with tempfile.TemporaryDirectory() as made:
        program = Path(made, "program")
        source = Path(__file__).with_suffix(".c")
        command = ["cc", "-O2", f"-I{HEADERS}", str(source), "-o", str(program), f"-L{folder()}", "-lcuda"]
        subprocess.run(command, check=True)
        variables = {"LD_LIBRARY_PATH": str(folder()), SOCKET: server.address}
        found = subprocess.run([program], env=variables, check=True, capture_output=True, text=True).stdout
    server.close()
    return [float(word) for word in found.split()]


def _fixture() -> float:
    start = time.perf_counter()
    for _ in range(FIXTURES):
        with simulated("h200x2"):
            pass
    return (time.perf_counter() - start) / FIXTURES * 1e3


if __name__ == "__main__":
    main()
