"""The simulator as the CUDA driver of tests: of this process, of those that it starts, and of programs in any language.

Within `simulated`, the calls that `cuda.bindings.driver` and `cuda.core` make are answered by the simulator: functions,
types and errors are those of the packages, and no GPU is needed. The plugin for pytest has the fixture
`simulated_gpus`. The library needs a C compiler, unless memtopo was installed from a wheel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock

from memtopo.common.errors import UsageError
from memtopo.common.units import shorten
from memtopo.driver.functions import plain_name
from memtopo.driver.types import gpu
from memtopo.machine import Machine, load
from memtopo.testing.abi import error_numbers
from memtopo.testing.library import OwnProgram, answer_calls, refuse_calls, require_no_driver, variables
from memtopo.testing.program import Call, Fault, Leak, SharedMachine, SimulatedProgram
from memtopo.testing.server import Server

__all__ = ["Call", "Leak", "Simulation", "simulated"]

_earlier: SimulatedProgram | None = None
_entered = Lock()
"""Held while a simulation runs in this process."""


class Simulation:
    """Simulated machine of a test, within `simulated`.

    `machine` is the record of the machine. The programs of the machine are this process and those that it starts.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shared = SharedMachine(machine)
        self._own = SimulatedProgram(self._shared, OwnProgram())
        self._own.succeed(_earlier, os.environ)
        self._server = Server(self._shared)

    @property
    def calls(self) -> Sequence[Call]:
        """Calls of all programs, the last 65,536 of them, in the order in which they ended."""
        return tuple(self._shared.calls.copy())  # which other threads may add to

    @property
    def leaks(self) -> Sequence[Leak]:
        """Objects that programs have not freed and that run still, each with the line that created it.

        Contexts are no leaks, since programs keep them until they end. Descriptors of exports are not counted: those
        that stay open keep the memory on hardware (fact 29), but not here.
        """
        return tuple(leak for program in self._programs() for leak in program.leaks())

    @property
    def left(self) -> Sequence[Leak]:
        """Objects that processes had not freed when they ended, and that the driver freed then."""
        self._programs()
        return tuple(self._shared.left)

    def why(self, error: object = None) -> str:
        """Return the call that was refused last, with the rule that it broke and the fact that the rule rests on.

        `error` is a result of `cuda.bindings.driver`, an exception with its name, a number, or a name such as
        `CUDA_ERROR_INVALID_VALUE`; without, it is that of any refused call. Returns an empty text if there was none.
        Raises `UsageError` for what names no error.
        """
        wanted = None if error is None else _errors_in(error)
        refused = (call for call in reversed(self.calls) if call.error and (wanted is None or call.error in wanted))
        return next(map(str, refused), "")

    def fail(
        self, function: str, error: str = "CUDA_ERROR_OUT_OF_MEMORY", *, nth: int | None = None, size: int | None = None
    ) -> None:
        """Make calls of a C function fail from now on, without an effect.

        `nth` counts from 1: that call alone fails. With `size`, the calls that ask for so many bytes or more fail.
        Without either, all do. Raises `UsageError` for a function that is not simulated, an unknown error, or a number
        below 1.
        """
        name = plain_name(function)
        if name not in SimulatedProgram.names():
            raise UsageError(f"{function!r} is not a simulated function", hint="the names are those of cuda.h")
        if error not in error_numbers() or error == "CUDA_SUCCESS":
            raise UsageError(
                f"{error!r} is not an error of the driver", hint="write CUDA_ERROR_OUT_OF_MEMORY, or another"
            )
        if nth is not None and nth < 1:
            raise UsageError(f"there is no call number {nth}", hint="calls are counted from 1")
        self._shared.faults.append(Fault(name, error, nth, size))

    def clear_faults(self) -> None:
        """End what `fail` has asked for."""
        self._shared.faults.clear()

    def free(self, device: int = 0) -> int:
        """Bytes of a GPU that no program has taken. Raises `UsageError` for a GPU that the machine has not."""
        if not 0 <= device < len(self.machine.devices):
            raise UsageError(f"the machine has no gpu{device}", hint=f"it has {len(self.machine.devices)}")
        self._programs()  # so that nothing is counted of those that have ended
        return self._shared.budget.free(gpu(device))

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address of this process, whichever GPU has access. Raises `DriverError` where nothing is."""
        return self._own.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Store bytes there."""
        self._own.write(address, data)

    def _programs(self) -> list[SimulatedProgram]:
        """Programs that run. Those that have ended have been closed."""
        return [self._own, *self._server.programs()]

    def _end(self) -> None:
        global _earlier  # noqa: PLW0603 the library is one for a process
        _earlier = self._own
        with ExitStack() as ends:
            ends.callback(self._own.close)
            ends.callback(self._server.close)
            refuse_calls()


def _errors_in(error: object) -> str:
    """Names of errors in an error of cuda.bindings, in an exception, or in a text."""
    names = {number: name for name, number in error_numbers().items()}
    text = names.get(int(error), str(int(error))) if isinstance(error, int) else str(getattr(error, "name", error))
    if not any(name in text for name in error_numbers()):
        raise UsageError(f"{shorten(text)!r} names no error of the driver", hint="write CUDA_ERROR_INVALID_VALUE")
    return text


@contextmanager
def simulated(machine: str | os.PathLike[str] | Machine = "h200x2") -> Iterator[Simulation]:
    """Have a recorded machine simulated for this process, and for those that it starts meanwhile.

    `machine` is the name of a shipped one ('memtopo machines' lists them), the path of a record, or a record. Processes
    find the simulator by LD_LIBRARY_PATH and MEMTOPO_SIMULATOR, which are set in `os.environ` meanwhile. After the end,
    calls of the driver return CUDA_ERROR_DEINITIALIZED.

    Raises `UsageError` if a simulation runs in this process, or if it has loaded a driver of this computer,
    `Unavailable` if there is no such machine, and `NoLibrary` without a C compiler.
    """
    if not isinstance(machine, str | Machine | os.PathLike):
        raise UsageError(f"{machine!r} is no machine", hint="name one: 'memtopo machines' lists them")
    record = machine if isinstance(machine, Machine) else load(os.fspath(machine))
    require_no_driver()
    pid = os.getpid()
    if not _entered.acquire(blocking=False):
        raise UsageError("a simulation runs in this process already", hint="leave the other 'with' before, or use it")
    with ExitStack() as ends:
        ends.callback(lambda: _entered.release() if os.getpid() == pid else None)
        simulation = Simulation(record)
        # A process that was forked leaves the parent's alone.
        ends.callback(lambda: simulation._end() if os.getpid() == pid else None)  # noqa: SLF001
        answer_calls(simulation._own.answer)  # noqa: SLF001
        with _environment(variables(simulation._server.address)), _synchronizing_by_the_driver():  # noqa: SLF001
            yield simulation


@contextmanager
def _synchronizing_by_the_driver() -> Iterator[None]:
    """Replace the one function of the runtime API, which is not simulated, that cuda.core calls, if it is imported."""
    runtime, driver = (sys.modules.get(f"cuda.bindings.{name}") for name in ("runtime", "driver"))
    before = getattr(runtime, "cudaDeviceSynchronize", None)
    if runtime and driver:
        status = vars(runtime)["cudaError_t"]  # which has the driver's numbers
        vars(runtime)["cudaDeviceSynchronize"] = lambda: (status(int(driver.cuCtxSynchronize()[0])),)
    try:
        yield
    finally:
        if runtime:
            vars(runtime)["cudaDeviceSynchronize"] = before


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
