"""`memtopo simulator`: run programs whose CUDA driver is the simulator."""

from __future__ import annotations

import os
from typing import Annotated

from memtopo.cli.options import MachineName, argument, option
from memtopo.cli.programs import require_program, run_program
from memtopo.common.errors import UsageError
from memtopo.machine import load
from memtopo.output import plain
from memtopo.testing.library import folder, variables
from memtopo.testing.program import SharedMachine
from memtopo.testing.server import Refusals, Server, report_left

Command = Annotated[list[str] | None, argument("[COMMAND…]", "A program and its arguments.")]
_PATH = "Print the folder of libcuda.so.1, for LD_LIBRARY_PATH, and exit."
Path = Annotated[bool, option("--path", _PATH, variable="MEMTOPO_SIMULATOR_PATH")]


def simulator_command(command: Command = None, machine: MachineName = "h200x2", path: Path = False) -> int:
    """Run a program on a simulated machine.

    The program and its children get the simulator as their CUDA driver, libcuda.so.1. Memory, pools, events and copies
    work; kernels do not run. Refused calls are reported with their reasons, and memory and objects that a program did
    not free. The exit status is the program's.
    """
    if path:
        plain.print_lines([str(folder())])
        return 0
    if not command:
        raise UsageError("no program was given", hint="name one: memtopo simulator -- COMMAND…")
    require_program("simulator", command[0])
    shared = SharedMachine(load(machine), refused=Refusals())
    server = Server(shared)
    try:
        status = run_program(command, {**os.environ, **variables(server.address)})
        server.programs()  # which waits for the last to be noticed
    finally:
        server.close()
    report_left(shared.left)
    return status
