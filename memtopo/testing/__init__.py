"""The simulator as the CUDA driver of tests: of this process, of those that it starts, and of programs in any language.

Within `simulated`, the calls that `cuda.bindings.driver` and `cuda.core` make are answered by the simulator: functions,
types and errors are those of the packages, and no GPU is needed. The plugin for pytest has the fixture
`simulated_gpus`. The library needs a C compiler, unless memtopo was installed from a wheel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memtopo.common.errors import UsageError
from memtopo.driver.types import gpu
from memtopo.machine import Machine, load
from memtopo.testing.abi import error_numbers
from memtopo.testing.library import SOCKET, OwnProgram, answer_calls, folder, require_no_driver
from memtopo.testing.program import Call, Fault, Leak, SharedMachine, SimulatedProgram
from memtopo.testing.server import Server

__all__ = ["Call", "Leak", "Simulation", "simulated"]

_earlier: SimulatedProgram | None = None
_running: Simulation | None = None


class Simulation:
    """Simulated machine of a test, within `simulated`.

    `machine` is the record of the machine. The programs of the machine are this process and those that it starts.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shared = SharedMachine(machine)
        self._own = SimulatedProgram(self._shared, OwnProgram())
        self._own.succeed(_earlier)
        self._server = Server(self._shared)

    @property
    def calls(self) -> Sequence[Call]:
        """Calls of all programs, the last 65,536 of them, in the order in which they ended."""
        return tuple(self._shared.calls)

    @property
    def leaks(self) -> Sequence[Leak]:
        """Objects that programs which are running have not freed, each with the line that created it.

        Contexts are no leaks, since programs keep them until they end.
        """
        return tuple(leak for program in self._programs() for leak in program.leaks())

    def why(self, error: object = None) -> str:
        """Return the call that was refused last, with the rule that it broke and the fact that the rule rests on.

        `error` is a result of `cuda.bindings.driver`, an exception that has its name, or a name such as
        `CUDA_ERROR_INVALID_VALUE`; without, it is that of any refused call. Returns an empty text if there was none.
        """
        wanted = None if error is None else str(getattr(error, "name", error))
        refused = (call for call in reversed(self._shared.calls) if call.error and (not wanted or call.error in wanted))
        return next(map(str, refused), "")

    def fail(
        self, function: str, error: str = "CUDA_ERROR_OUT_OF_MEMORY", *, nth: int | None = None, size: int | None = None
    ) -> None:
        """Make calls of a C function fail from now on, without an effect.

        `nth` counts from 1: that call alone fails. With `size`, the calls that ask for so many bytes or more fail.
        Without either, all do. Raises `UsageError` for a function that is not simulated, or an unknown error.
        """
        if function not in SimulatedProgram.names():
            raise UsageError(f"{function!r} is no function that is simulated", hint="the names are those of cuda.h")
        if error not in error_numbers() or error == "CUDA_SUCCESS":
            raise UsageError(f"{error!r} is no error of the driver", hint="write CUDA_ERROR_OUT_OF_MEMORY, or another")
        self._shared.faults.append(Fault(function, error, nth, size))

    def clear_faults(self) -> None:
        """End what `fail` has asked for."""
        self._shared.faults.clear()

    def free(self, device: int = 0) -> int:
        """Bytes of a GPU that no program has taken."""
        self._programs()
        return self._shared.budget.free(gpu(device))

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address of this process, whichever GPU has access. Raises `DriverError` where nothing is."""
        return self._own.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Store bytes there."""
        self._own.write(address, data)

    def _programs(self) -> list[SimulatedProgram]:
        return [self._own, *self._server.programs()]

    def _end(self) -> None:
        global _earlier  # noqa: PLW0603 the library is one for a process
        _earlier = self._own
        answer_calls(None)
        self._server.close()
        self._own.close()


@contextmanager
def simulated(machine: str | Machine = "h200x2") -> Iterator[Simulation]:
    """Have a recorded machine simulated for this process, and for those that it starts meanwhile.

    `machine` is the name of a shipped one ('memtopo machines' lists them), the path of a record, or a record. Processes
    find the simulator by LD_LIBRARY_PATH and MEMTOPO_SIMULATOR, which are set in `os.environ` meanwhile. After the end,
    calls of the driver return CUDA_ERROR_DEINITIALIZED.

    Raises `UsageError` if a simulation runs in this process, or if it has loaded a driver of this computer,
    `Unavailable` if there is no such machine, and `NoLibrary` without a C compiler.
    """
    global _running  # noqa: PLW0603 the library is one for a process
    if _running:
        raise UsageError("a simulation runs in this process already", hint="leave the other 'with' before, or use it")
    record = load(machine) if isinstance(machine, str) else machine
    require_no_driver()
    path = os.pathsep.join(filter(None, [str(folder()), os.environ.get("LD_LIBRARY_PATH")]))
    _running = simulation = Simulation(record)
    before = {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", SOCKET)}
    try:
        answer_calls(simulation._own.answer)  # noqa: SLF001
        os.environ.update({"LD_LIBRARY_PATH": path, SOCKET: simulation._server.address})  # noqa: SLF001
        yield simulation
    finally:
        _running = None
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        simulation._end()  # noqa: SLF001
