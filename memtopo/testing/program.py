"""Programs of a simulated machine: each call that one makes is decoded, made by the simulator, and recorded."""

from __future__ import annotations

import errno
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock, RLock
from types import CodeType
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from memtopo.common.errors import on_failure
from memtopo.driver.ledger import SIZED, Ledger, key_of
from memtopo.driver.types import WHOLE_HOST, DriverError, LocationKind
from memtopo.driver.values import argument_text
from memtopo.driver.wrappers import METHODS as PROTOCOL
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.allocations import SimAllocation
from memtopo.drivers.sim.calls import RefusedCall, driver_error, invalid
from memtopo.drivers.sim.chunks import Mapping as SimMapping
from memtopo.drivers.sim.devices import LONGEST, VARIABLES, SimDevices, SimMemoryBudget, machine_of, visible_gpus
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.process import FIRST_CONTEXT
from memtopo.machine import Machine
from memtopo.testing import calls
from memtopo.testing.abi import RESULT_BYTES, Function, error_numbers, exported, functions, newest, packed

_INVALID = "CUDA_ERROR_INVALID_VALUE"
_MOST_CALLS = 1 << 16
_OF_KERNELS = {"module_load_data", "module_unload"}

FUNCTIONS: Mapping[str, Function] = functions([*sorted(PROTOCOL - _OF_KERNELS), *calls.METHODS])
"""Simulated functions by exported name. Of two methods with the same function, that of `calls` answers it."""

_BY_NUMBER = tuple(FUNCTIONS.get(name) for name in exported())
LOOKUP = len(_BY_NUMBER)
"""Number of the last call, which looks up a function."""
_CHANGES_MAPPED = frozenset({
    "mem_host_alloc", "mem_alloc_host", "mem_alloc_managed", "mem_free", "mem_free_host", "mem_set_access", "mem_unmap",
    "device_primary_ctx_release", "ctx_destroy",
})  # fmt: skip
"""Calls after which memory is mapped into the program, or not any more."""
_AFTER_ENDS = ("mem_get_info", "ipc_open_mem_handle", "ipc_open_event_handle")
"""Calls whose answers depend on the end of other programs."""
_FREES = {"mem_host_alloc": "mem_free_host", "mem_alloc_host": "mem_free_host", "mem_alloc_managed": "mem_free"}
"""Calls that allocate memory which is mapped into the program, with those that free it."""
_ENDING = ("device_primary_ctx_release", "ctx_destroy")
# Offsets stand beside handles, which are passed in their place by mistake.
_SHOWN_AS_HEXADECIMAL = (
    "handle", "chunk", "context", "stream", "event", "start", "end", "pool", "memory", "semaphore", "address",
    "destination", "source", "offset", "chunk_offset",
)  # fmt: skip


Frames = tuple[tuple[CodeType, int], ...]
"""Code and line of a call, and of its callers."""


class Port(calls.Program, Protocol):
    """Access to a program: its memory and descriptors, and where a call was made."""

    def map(self, address: int, size: int, fd: int, offset: int) -> None:
        """Map a part of a file at an address of the program. Raises `OSError`."""

    def unmap(self, address: int, size: int) -> None:
        """End such a mapping."""

    def store_descriptor(self, pointer: int, fd: int) -> None:
        """Give the program a descriptor, which is closed here, by its number at a pointer."""

    def frames(self) -> Frames:
        """Code and lines of the call that is made and of its callers; none if that is not known."""


class Call(Struct, frozen=True):
    """Call of a program: the C function without its version, the arguments by name, and the result or the error.

    `error` is the driver's name, None for success. `frames` are those of a call that creates something, or is refused.
    """

    function: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: str | None = None
    reason: str | None = None
    frames: Frames = ()
    pid: int = 0

    @property
    def place(self) -> str:
        """File and line of the call and of its callers, `FILE:LINE, from FILE:LINE`; empty if they are not known."""
        return ", from ".join(f"{code.co_filename}:{line}" for code, line in self.frames)

    def __str__(self) -> str:
        text = f"{self.function}({', '.join(_shown(name, value) for name, value in self.arguments.items())})"
        if self.error:
            text += f": {self.error}"
            text += f" ({self.reason})" if self.reason else ""
        return text + (f" at {self.place}" if self.place else "")


class Leak(NamedTuple):
    """Object that a program has not freed: the function and the line that created it, and its address or handle.

    `account` is the account of the ledger that has it, such as `handles`, `size` is in bytes, None for an object
    without one, and `references` the number of references.
    """

    function: str
    place: str
    key: int
    account: str
    size: int | None = None
    references: int = 1
    pid: int = 0

    def __str__(self) -> str:
        place = self.place or (f"process {self.pid}" if self.pid else "")
        amount = f" ({self.size:,} bytes)" if self.size is not None else ""
        many = f" ({self.references} references)" if self.references > 1 else ""
        origin = f"from {self.function}" if self.function else f"of {self.account}"
        return f"{self.key:#x}{amount}{many} {origin}" + (f" at {place}" if place else "")


class Fault(Struct):
    """Failure of calls of a function: the `nth` of them from now on, or each that asks for `size` bytes or more."""

    function: str
    error: str
    nth: int | None
    size: int | None
    made: int = 0

    def meets(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Count a call; return whether it fails."""
        if name != self.function:
            return False
        self.made += 1
        asked = arguments.get("size", arguments.get("count", 0))
        return (self.nth is None or self.made == self.nth) and (self.size is None or asked >= self.size)


@dataclass(slots=True)
class SharedMachine:
    """Common parts of the programs of a simulated machine: its memory, the faults, and the record of calls."""

    machine: Machine
    budget: SimMemoryBudget = field(init=False)
    lock: Lock = field(default_factory=Lock)
    faults: list[Fault] = field(default_factory=list)
    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=_MOST_CALLS))
    left: list[Leak] = field(default_factory=list)
    """Objects that programs had when they ended."""
    refused: Callable[[Call], None] = lambda _: None
    """Function that gets each refused call."""
    settle: Callable[[int], object] = lambda _: None
    """Function that waits until programs that have ended have no memory any more, but for one, by process id."""

    def __post_init__(self) -> None:
        self.budget = SimMemoryBudget(self.machine)


class SimulatedProgram:
    """One program: its driver, and what it has open. `pid` is None for this process."""

    def __init__(self, shared: SharedMachine, port: Port, pid: int | None = None) -> None:
        self.shared, self._port, self.pid = shared, port, pid or 0
        self._use(range(len(shared.machine.devices)))
        self._opened: defaultdict[str, dict[int, Call]] = defaultdict(dict)
        self._mapped: dict[int, SimAllocation | SimMapping] = {}
        self._lock = RLock()  # over a call that opens, closes or maps something, and what is noted of it
        self.initialized = False
        self.kept: frozenset[int] = frozenset()

    def _use(self, gpus: Sequence[int]) -> None:
        """Make the driver of some GPUs of the machine, in the order of the process."""
        machine, budget = self.shared.machine, SimMemoryBudget(self.shared.machine, self.shared.budget, gpus)
        self.sim = SimDriver(machine_of(machine, gpus), budget, self.shared.lock, self.pid or None)
        self.ledger = Ledger(self.sim)
        self._calls = calls.Calls(self.ledger, self.sim, self._port)
        self._methods: dict[str, Callable[..., Any]] = {}

    def _see(self, visible: str | None, order: str | None) -> None:
        """Make the GPUs visible that the environment lists at `cuInit`. Raises `RefusedCall`."""
        with self._lock:
            if self.sim.blocked and not self.sim.closed:
                gpus = visible_gpus(SimDevices(self.shared.machine), visible, order)
                self.sim.close()
                self._use(gpus)

    def succeed(self, earlier: SimulatedProgram | None, environment: Mapping[str, str]) -> None:
        """Go on after an earlier simulation of the same process, whose libraries remember what they have.

        `cuInit` is of a process, and primary contexts that were not released are retained when they are used again.
        """
        if earlier and earlier.initialized:
            try:
                self._see(*map(environment.get, VARIABLES))
            except RefusedCall:
                return
            self._calls.init()
            self.kept = earlier.kept | earlier.ledger.accounts["contexts"].keys()

    def answer(self, number: int, words: Sequence[int]) -> int:
        """Make a call by the number of its function; return the driver's status.

        An exception of memtopo's own code is shown, and the status is that of an unknown error.
        """
        function = _BY_NUMBER[number] if number < LOOKUP else None
        try:
            if number == LOOKUP:
                return self._look_up(*words[:3])
            if function is None:
                name = exported()[number]
                is_kernels = any(word in name for word in ("Launch", "Module", "Library", "Kernel", "Func"))
                reason = "kernels do not run on the simulator" if is_kernels else "it is not simulated"
                if name == "cuGetExportTable":  # it has functions without documentation, by which the runtime begins
                    reason = "the runtime API is not simulated, only the driver API"
                return self._refused(name, {}, "CUDA_ERROR_NOT_SUPPORTED", reason)
            with self._lock if function.is_noted or function.method in _CHANGES_MAPPED else nullcontext():
                return self._answer(function, words)
        except OSError as error:  # of a lookup; calls answer those of theirs
            return self._refused("cuGetProcAddress", {}, "CUDA_ERROR_INVALID_VALUE", error.strerror)
        except Exception as error:  # noqa: BLE001 it cannot pass through C, and the program waits for an answer
            sys.excepthook(*sys.exc_info())
            name = function.name if function else "the simulator"
            return self._refused(name, {}, "CUDA_ERROR_UNKNOWN", f"error of the simulator: {type(error).__name__}")

    def _answer(self, function: Function, words: Sequence[int]) -> int:
        if self.sim.blocked and function.method not in {"init", "driver_get_version"}:
            return self._refused(function.name, {}, *self.sim.blocked)
        arguments: Mapping[str, Any] = {}
        try:
            arguments = function.arguments(self._port, words)
            result = self._made(function, arguments, words)
        except (DriverError, RefusedCall) as error:
            return self._refused(function.name, arguments, error.name, error.reason)
        except (ValueError, OSError) as error:
            refused = _refusal(function.name, error)
            arguments = arguments or function.refused_arguments(self._port, words)
            return self._refused(function.name, arguments, refused.name, refused.reason)
        account = function.declared.opens
        frames = self._port.frames() if account else ()
        self.shared.calls.append(call := Call(function.name, arguments, result, None, None, frames, self.pid))
        if account:
            key = key_of(account, arguments, result)
            is_new = _has_size(account, arguments) or self.ledger.accounts[account].get(key) == 1
            if is_new:  # a reference more has not created it
                self._opened[account][key] = call
        return 0

    @staticmethod
    def names() -> frozenset[str]:
        """Names of the functions that are simulated, without their versions."""
        return frozenset(each.name for each in FUNCTIONS.values())

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address, without a check of access. Raises `DriverError`."""
        return b"".join(physical.read(at, count) for physical, at, count in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Store bytes there."""
        rest = memoryview(data)
        for physical, at, count in self._pieces(address, len(data)):
            physical.write(at, rest[:count])
            rest = rest[count:]

    def _pieces(self, address: int, size: int) -> Iterator[tuple[Physical, int, int]]:
        end = address + size
        while address < end:
            found = self.sim.mappings.find(address) or self.sim.allocations.find(address)
            if found is None or not isinstance(found.physical, Physical):
                raise DriverError("read", _INVALID, f"no memory is mapped or allocated at {address:#x}")
            count = min(end, found.end) - address
            yield found.physical, address - found.start, count
            address += count

    def leaks(self) -> list[Leak]:
        """Objects that are open, but contexts, which programs keep until they end."""
        return [
            self._leak(account, key, value)
            for account, entries in self.ledger.accounts.items()
            if account != "contexts"
            for key, value in list(entries.items())
            if key  # no memory at all was asked for
        ]

    def close(self) -> None:
        """Free what the program has, as the driver does when a process ends."""
        for address, found in self._mapped.items():
            self._port.unmap(address, found.end - found.start)
        self._mapped.clear()
        self.shared.left += self.leaks()
        self.initialized = self.sim.blocked is None
        with self.sim.lock:
            self.sim.process.budget.end()
        self.sim.close()

    def _made(self, function: Function, arguments: Mapping[str, Any], words: Sequence[int]) -> Any:
        if failing := [fault for fault in self.shared.faults if fault.meets(function.name, arguments)]:
            raise RefusedCall(failing[0].error, "the test asked for this failure")
        if not all(words[each.position] for each in function.results if not each.is_optional):
            raise ValueError("a pointer to a result is null")
        if self.kept and "context" in arguments:
            device = arguments["context"] - FIRST_CONTEXT
            if device in self.kept and device < len(self.sim.machine.devices) and not self.sim.contexts.active(device):
                self.ledger.device_primary_ctx_retain(device)
        self._prepare(function, words)
        result = self._method(function.method)(**arguments)
        if function.method in _CHANGES_MAPPED:
            start = arguments.get("address", result) or 0
            with on_failure(self._undo, function.method, result):
                self._share(start, start + arguments.get("size", 0))
        if function.method in _ENDING:
            self._drop_ended()
        results = result if isinstance(result, tuple) and len(function.results) > 1 else (result,)
        for index, each in enumerate(function.results):
            pointer, value = words[each.position], results[index] if index < len(results) else 0
            if pointer and each.type == "shared" and isinstance(value, int):
                self._port.store_descriptor(pointer, value)
            elif pointer:
                self._port.write(pointer, packed(each.type, value))
        return result

    def _prepare(self, function: Function, words: Sequence[int]) -> None:
        """Do what precedes a call: read the environment, await the end of programs, and try the pointers to results."""
        if function.method == "init":
            self._see(*(calls.text_at(self._port, at, LONGEST) if at else None for at in words[1:3]))
        elif function.method in _AFTER_ENDS:
            self.shared.settle(self.pid)
        for each in function.results:
            pointer = words[each.position]
            if pointer:  # a pointer to no memory is refused before the call has made something
                self._port.write(pointer, self._port.read(pointer, RESULT_BYTES[each.type]))

    def _undo(self, method: str, address: int) -> None:
        """Free memory that a call has allocated, and that cannot be mapped into the program."""
        if free := _FREES.get(method):
            self._method(free)(address)

    def _method(self, method: str) -> Callable[..., Any]:
        if method not in self._methods:
            answers: Any = self.sim.devices if method == "driver_get_version" else self.ledger
            self._methods[method] = getattr(self._calls if method in calls.METHODS else answers, method)
        return self._methods[method]

    def _share(self, address: int, end: int) -> None:
        """Map memory of some addresses that the CPU uses, too, into the program, and end mappings of what was freed."""
        for start, memory in [each for each in self._mapped.items() if self._of_cpu(each[0]) is not each[1]]:
            self._port.unmap(start, memory.end - memory.start)
            del self._mapped[start]
        while address < end and (found := self.sim.allocations.find(address) or self.sim.mappings.find(address)):
            if found.start not in self._mapped and self._of_cpu(found.start):
                if isinstance(found, SimMapping) and found.chunk.properties.handles:
                    self.sim.sharing.own_file(found.chunk)  # from where its memory does not move any more
                self._port.map(found.start, found.end - found.start, *self.sim.lend(found.start, writable=True))
                self._mapped[found.start] = found
            address = found.end

    def _drop_ended(self) -> None:
        """Remove what has ended with its context from the ledger."""
        for account in _OF_CONTEXTS:
            for address in [each for each in self.ledger.accounts[account] if not self.sim.allocations.find(each)]:
                del self.ledger.accounts[account][address]
        for account, get in (("events", self.sim.events.records), ("streams", self.sim.streams.get)):
            for number in list(self.ledger.accounts[account]):
                try:
                    get(number)
                except RefusedCall:
                    del self.ledger.accounts[account][number]

    def _of_cpu(self, address: int) -> SimAllocation | SimMapping | None:
        """Memory at an address that the CPU uses, too; registered memory is the program's, and pools share pages."""
        if allocation := self.sim.allocations.find(address):
            return allocation if allocation.by_cpu and allocation.kind not in {"registered", "pooled"} else None
        mapping = self.sim.mappings.find(address)
        on_host = mapping is not None and mapping.chunk.properties.location.kind != LocationKind.GPU
        return mapping if mapping and on_host and mapping.access.get(WHOLE_HOST) else None

    def _refused(self, name: str, arguments: Mapping[str, Any], error: str, reason: str | None) -> int:
        call = Call(name, arguments, None, error, reason, self._port.frames(), self.pid)
        self.shared.calls.append(call)
        self.shared.refused(call)
        return error_numbers()[error]

    def _look_up(self, found: int, symbol: int, version: int) -> int:
        name = calls.text_at(self._port, symbol)
        exact = _OWN.get(name) or newest(name, version & 0xFFFF_FFFF, FUNCTIONS)
        if exact is None and (self.pid or name in _FOUND):  # a program in C has it anyway, by its symbol
            exact = newest(name, version & 0xFFFF_FFFF, exported())
        if exact is None:
            return error_numbers()["CUDA_ERROR_NOT_FOUND"]
        self._port.write(found, exported().index(exact).to_bytes(4, sys.byteorder))
        return 0

    def _leak(self, account: str, key: int, value: int) -> Leak:
        call = self._opened[account].get(key)
        is_sized = account in SIZED if call is None else _has_size(account, call.arguments)
        size, count = (value, 1) if is_sized else (None, value)
        created = (call.function, call.place) if call else ("", "")
        return Leak(*created, key, account, size, count, self.pid)


_FOUND = ("cuGetExportTable",)
"""Functions that are not simulated, and yet found in Python: the runtime API begins with one, and is refused clearly.

Others are not found, so that cuda.bindings raises an error with their names.
"""

_OWN = {name: name for name in ("cuGetErrorName", "cuGetErrorString")} | {"cuGetProcAddress": "cuGetProcAddress_v2"}
"""Functions that need no simulator, each with its version."""

_OF_CONTEXTS = tuple(
    FUNCTIONS[name].declared.opens
    for name in ("cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuIpcOpenMemHandle")
)
"""Accounts of memory that ends with the context in which it was allocated, registered or opened."""


def _has_size(account: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the account has the size of what a call has opened, and not references to it."""
    return account in SIZED and "size" in arguments


def _refusal(name: str, error: ValueError | OSError) -> RefusedCall | DriverError:
    """Error of a call for a value that no caller may give, for a pointer to no memory, or of the system."""
    if isinstance(error, ValueError):
        return invalid(str(error))
    return invalid(error.strerror or "") if error.errno == errno.EFAULT else driver_error(name, error)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"{name}={len(value)} bytes"
    if name in _SHOWN_AS_HEXADECIMAL and isinstance(value, int):
        return f"{name}={value:#x}"
    return argument_text("", name, value)
