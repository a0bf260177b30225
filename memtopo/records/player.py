"""Calls of one process of a record, made on a driver, or as a program makes them.

On a driver, handles and addresses are its own in place of the recorded ones; a program has names for what its calls
make, and makes its contexts. A call that cannot be made on a driver is left out, with a reason: its function is none of
memtopo's protocol, or what it needs is not in the record.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import Failed
from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.driver.functions import function
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.recorder import DriverCall
from memtopo.driver.types import DriverError, PoolProperties, gpu
from memtopo.driver.values import ADDRESSES, AT_ADDRESSES, OBJECTS
from memtopo.driver.wrappers import METHODS, defaults, parameters, returned
from memtopo.plans.trace import TracedCall
from memtopo.records import Record
from memtopo.records.calls import AddressTable, argument, arguments_of, places

LEFT_OUT = {
    **dict.fromkeys(("module_load_data", "module_unload"), "kernels of a check"),
    **dict.fromkeys(("fill", "verify", "fingerprint", "store", "load"), "kernels of a check"),
    **dict.fromkeys(("host_write", "host_read"), "the CPU's own access"),
    "memcpy_htod": "its bytes are not in the record",
    "import_external_memory": "its memory belongs to another API",
    "import_external_semaphore": "its semaphore belongs to another API",
}
"""Calls that are not made, with the reason."""

_MADE: Mapping[str, str] = {"mem_retain_allocation_handle": "chunk", "ctx_pop_current": "context"}
"""Kinds of objects that calls return which the table of functions does not have."""

_FREEING = {
    "mem_address_free", "mem_free", "mem_free_async", "mem_free_host", "mem_host_unregister", "ipc_close_mem_handle",
}  # fmt: skip
"""Calls after which addresses are those of no object."""

_BUILDING = {
    "mem_map", "mem_set_access", "mem_export_to_shareable_handle", "mem_alloc_from_pool_async",
    "mem_pool_export_to_shareable_handle", "multicast_add_device", "multicast_bind_mem", "multicast_bind_addr",
}  # fmt: skip
"""Calls that a process can make only with what its own calls have made."""

DEFAULT_POOL = ("device_get_default_mem_pool", "device_get_mem_pool", "device_set_mem_pool")
_PAGE = 4096
_UNKNOWN = "of an object that no call of the record has created"

IMPORTS: Mapping[str, str] = {
    "mem_import_from_shareable_handle": "chunks",
    "mem_pool_import_from_shareable_handle": "pools",
    "ipc_open_event_handle": "events",
    "ipc_open_mem_handle": "",
    "mem_pool_import_pointer": "",
}
"""Calls that import an object, with the kind of those that have a number; the others have an address."""


def as_protocol(call: TracedCall) -> tuple[str, Mapping[str, Any]]:
    """Method and arguments of a call by a function of memtopo's protocol that does the same, if there is one."""
    given = call.arguments
    if call.method == "mem_alloc_host":
        return "mem_host_alloc", {"size": given["size"], "flags": 0}
    if call.method == "mem_alloc_pitch":
        return "mem_alloc", {"size": given["pitch"] * given["height"]}
    return call.method, given


class LeftOut(Exception):
    """A call that is not made, and the reason."""


class _Missing(Exception):
    """An object that no call of the record has made."""


class Played(NamedTuple):
    """End of a call: the driver's error, with the simulator's reason, or why it was not made; and what it shares."""

    error: str | None = None
    reason: str | None = None
    left_out: str | None = None
    shared: Handle | None = None


class _Placed(Struct, frozen=True):
    """Addresses of an object in the record and here; a size of 0 is not known."""

    recorded: int
    size: int
    address: int


class Player:
    """Player of the calls of one process. `gpus` are the driver's ordinals by those of the process."""

    def __init__(self, driver: KernelDriver, gpus: Sequence[int] = ()) -> None:
        self._driver, self._place = driver, places(gpus)
        self._numbered: dict[tuple[str, int], int] = {}
        self._placed: AddressTable[_Placed] = AddressTable()
        self._contexts: dict[int, int] = {}
        self._pools: dict[int, int] = {}
        """Pool in place of the default one, by GPU."""
        self._memory: dict[int, mmap.mmap] = {}

    def play(self, call: TracedCall, shared: Handle | None = None) -> Played:
        """Make a recorded call, with the handle that it imports, and remember what it makes."""
        try:
            if call.method in DEFAULT_POOL:
                with arguments_of(call):
                    self._play_default_pool(call)
                return Played()
            with self._in_context(call):
                return self._made(call, *self._translated(call, shared))
        except DriverError as error:
            return Played(error.name, error.reason)
        except LeftOut as left_out:
            return Played(left_out=str(left_out))
        except _Missing as missing:
            if call.method in _BUILDING:
                return Played("CUDA_ERROR_INVALID_VALUE", f"no call of the record has created {missing}")
            return Played(left_out=_UNKNOWN)

    def _made(self, call: TracedCall, method: str, arguments: Mapping[str, Any]) -> Played:
        keywords = getattr(KernelDriver, method).__kwdefaults__ or {}  # drivers name the others otherwise
        given = [value for name, value in arguments.items() if name not in keywords]
        named = {name: value for name, value in arguments.items() if name in keywords}
        result: Any = None if method == "init" else getattr(self._driver, method)(*given, **named)
        kind = _MADE.get(method) or function(method).makes
        if kind in ("shared", "secret"):
            return Played(shared=Handle.of(result))
        if kind in AT_ADDRESSES and isinstance(call.result, int):
            pitched = call.arguments.get("pitch", 0) * call.arguments.get("height", 0)
            self._placed.add(call.result, _Placed(call.result, call.arguments.get("size", pitched), result))
        elif kind and isinstance(call.result, int):
            self._numbered[kind, call.result] = result
        if method in _FREEING:
            self._placed.pop(call.arguments["address"])
            self._memory.pop(arguments["address"], None)
        return Played()

    def _default_pool(self, device: int) -> int:
        """Return the driver's number of the pool that is in place of the default one of a GPU."""
        if device not in self._pools:
            self._pools[device] = self._driver.mem_pool_create(PoolProperties(gpu(device)))
        return self._pools[device]

    def _play_default_pool(self, call: TracedCall) -> None:
        """Use a pool of its own in place of the default one, or another one that the program has set."""
        device = self._place(call.arguments["device"])
        if call.method == "device_set_mem_pool":
            self._pools[device] = self._object("pool", call.arguments["pool"])
        elif isinstance(call.result, int):
            self._numbered["pool", call.result] = self._default_pool(device)

    # Arguments

    def _translated(self, call: TracedCall, shared: Handle | None) -> tuple[str, dict[str, Any]]:
        """Method and arguments, in its order, for the driver.

        Raises `LeftOut`, `_Missing`, and `UsageError` for a damaged call.
        """
        found: dict[str, Any] = {}
        with arguments_of(call):
            if reason := LEFT_OUT.get(call.method):
                raise LeftOut(reason)
            method, given = as_protocol(call)
            if method == "mem_alloc_async":
                method, given = (
                    "mem_alloc_from_pool_async",
                    {**given, "pool": self._default_pool(self._place(call.device or 0))},
                )
            if method not in METHODS:
                raise LeftOut("memtopo's protocol does not have it")
            for name in parameters(method):
                if name in given:
                    found[name] = self._argument(call, method, name, given[name], shared)
                elif name in defaults(method):
                    found[name] = defaults(method)[name]
                else:
                    raise LeftOut(f"its {name} is not in the record")
        return method, found

    def _argument(self, call: TracedCall, method: str, name: str, value: Any, shared: Handle | None) -> Any:
        if name in ("shared", "data") or (name == "handle" and isinstance(value, str)):
            if shared is None:
                raise LeftOut("its handle does not belong to an export in the record")
            return shared.shared
        if name == "pool" and method != call.method:
            return value  # the driver's own
        try:
            if name in ADDRESSES and method == "mem_host_register":
                return self._registered(value, call.arguments["size"])
            if name in ADDRESSES:
                return self._address(value, hint=method == "mem_address_reserve")
            if name in OBJECTS:
                return self._object(OBJECTS[name], value)
            return argument(method, name, value, self._place)
        except (ValueError, KeyError, TypeError) as error:
            shown = shorten(printable(repr(value)))
            raise LeftOut(f"memtopo's protocol does not have it with {name}={shown}") from error

    def _object(self, kind: str, number: int) -> int:
        if kind == "stream" and 0 <= number <= 2:  # noqa: PLR2004 stream 0, and by name the legacy one and a thread's own
            return 0
        if (found := self._numbered.get((kind, number))) is not None:
            return found
        if kind == "stream":
            found = self._numbered[kind, number] = self._driver.stream_create()
            return found
        raise _Missing(f"{kind} {number:#x}")

    def _address(self, address: int, *, hint: bool) -> int:
        found = self._placed.around(address) if address else None
        if found and (not found.size or address - found.recorded < found.size + hint):
            return found.address + address - found.recorded
        if hint or not address:
            return address
        raise _Missing(f"memory at {address:#x}")

    def _registered(self, address: int, size: int) -> int:
        """Return memory of this process in place of that which a program registers."""
        try:
            memory = mmap.mmap(-1, size + _PAGE)
        except (OSError, OverflowError) as error:
            raise LeftOut("there is no such memory here") from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + address % _PAGE
        self._memory[start] = memory
        self._placed.add(address, _Placed(address, size, start))
        return start

    @contextmanager
    def _in_context(self, call: TracedCall) -> Iterator[None]:
        """Make the context current that was current when a program made a call; runs of memtopo do so by calls."""
        if call.thread is None or call.device is None or call.method.startswith("device_primary_ctx"):
            yield
            return
        device = self._place(call.device)
        active = self._driver.device_primary_ctx_get_state(device)
        if not active or device not in self._contexts:
            # It is retained for all calls if no call of the record retains it.
            self._contexts[device] = self._driver.device_primary_ctx_retain(device)
            if active:
                self._driver.device_primary_ctx_release(device)
        self._driver.ctx_push_current(self._contexts[device])
        try:
            yield
        finally:
            with suppress(DriverError):
                self._driver.ctx_pop_current()


PHASE = "calls"
_FIRST_CONTEXT, _FIRST_POOL = 1 << 60, 1 << 61
"""Numbers of contexts and pools that no call of the record has made; more than those of a driver."""

_NUMBERED = ("handle", "chunk", "event", "pool", "memory", "semaphore")
"""Parameters that are objects which a call of the record must have made."""


class NoProgram(Failed):
    """A process of a record whose calls no program of them alone can make."""


def program_calls(record: Record, process: int, last: TracedCall | None) -> list[DriverCall]:
    """Return the calls of a process, without those that failed, up to the `last`, which is made in any case.

    Queries are left out. Raises `NoProgram` for a process that imports from another one.
    """
    calls = [each.call for each in record.calls if each.process == process and each.call.seconds is not None]
    if last is not None:
        calls = calls[: calls.index(last) + 1]
    return list(_Program(record.gpus[process]).convert(calls, last))


def changes_something(method: str) -> bool:
    """Return whether a call of the protocol changes something: a query returns a value, and makes no object."""
    is_query = method not in METHODS or (returned(method) != "None" and not function(method).makes)
    return not is_query or method == "ctx_pop_current"


class _Program:
    """The contexts, names and references of a program while its calls are listed."""

    def __init__(self, gpus: tuple[int, ...]) -> None:
        self._place = places(gpus)
        self._made: Counter[str] = Counter()
        self._contexts: dict[int, int] = {}
        self._current: int | None = None
        self._retained: Counter[int] = Counter()
        self._objects: set[tuple[str, int]] = set()
        self._pools: dict[int, int] = {}
        """Pool in place of the default one, by GPU."""

    def convert(self, calls: Iterable[TracedCall], last: TracedCall | None) -> Iterator[DriverCall]:
        """Yield the calls of a program for those of a record."""
        for call in calls:
            if call.error is not None and call is not last:
                continue
            with arguments_of(call):
                if call.method in DEFAULT_POOL:
                    yield from self._default_pool(call)
                elif call.method == "mem_alloc_async":
                    yield from self._from_default_pool(call)
                elif self._is_kept(call):
                    yield from self._with_context(call)

    def _is_kept(self, call: TracedCall) -> bool:
        """Return whether a program makes a call: not a query, nor the release of what a query has retained."""
        if call.method in IMPORTS:
            what = f"call {call.number} of the record imports an export of another process"
            raise NoProgram(f"{what}, but a program is for one process", hint="omit --as")
        if call.method == "mem_retain_allocation_handle":
            self._retained[call.result] += 1
            return False
        if call.method == "mem_release" and self._retained[call.arguments["handle"]]:
            self._retained[call.arguments["handle"]] -= 1
            return False
        if call.method in LEFT_OUT or call.method == "init" or not changes_something(as_protocol(call)[0]):
            return False
        used = ((OBJECTS[name], value) for name, value in call.arguments.items() if name in _NUMBERED)
        return all(each in self._objects for each in used if isinstance(each[1], int))

    def _default_pool(self, call: TracedCall) -> Iterator[DriverCall]:
        """Yield the call that makes a pool in place of a default one, as a replay does."""
        device = self._place(call.arguments["device"])
        if call.method == "device_set_mem_pool":
            self._pools[device] = call.arguments["pool"]
        elif device not in self._pools:
            self._pools[device] = call.result
            given = {"properties": {"location": f"gpu{call.arguments['device']}"}}
            yield from self._with_context(replace(call, method="mem_pool_create", arguments=given))

    def _from_default_pool(self, call: TracedCall) -> Iterator[DriverCall]:
        device = call.device or 0
        if self._place(device) not in self._pools:
            yield from self._default_pool(replace(call, arguments={"device": device}, result=_FIRST_POOL + device))
        given = {**call.arguments, "pool": self._pools[self._place(device)]}
        yield from self._with_context(replace(call, method="mem_alloc_from_pool_async", arguments=given))

    def _with_context(self, call: TracedCall) -> Iterator[DriverCall]:
        """Yield a call, after those that make its context current; runs of memtopo have these in the record."""
        method, given = as_protocol(call)
        given = {**defaults(method), **given}
        device = None if call.device is None else self._place(call.device)
        if call.thread is not None and device is not None and not method.startswith("device_primary_ctx"):
            yield from self._made_current(device)
        try:
            if "stream" in given and ("stream", given["stream"]) not in self._objects:
                given["stream"] = 0
            arguments = {
                name: value if name in OBJECTS else argument(method, name, value, self._place)
                for name, value in given.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            message = f"call {call.number} of the record has a value that memtopo's protocol does not have"
            raise NoProgram(f"{message}: {error}") from error
        kind = function(method).makes
        if method == "device_primary_ctx_retain":
            self._contexts[arguments["device"]] = call.result
        subject = f"call {call.number}"
        if kind == "context":
            subject = f"gpu{arguments['device']}"
        elif kind:
            subject = f"made.{self._made[kind]}"
            self._made[kind] += 1
            if isinstance(call.result, int):
                self._objects.add((kind, call.result))
        yield DriverCall(method, arguments, call.result, None, PHASE, "make", subject)

    def _made_current(self, device: int) -> Iterator[DriverCall]:
        if device == self._current:
            return
        if device not in self._contexts:
            number = self._contexts[device] = _FIRST_CONTEXT + device
            yield DriverCall(
                "device_primary_ctx_retain", {"device": device}, number, None, PHASE, "make", f"gpu{device}"
            )
        if self._current is not None:
            yield DriverCall("ctx_pop_current", {}, None, None, PHASE, "make", "context")
        self._current = device
        given = {"context": self._contexts[device]}
        yield DriverCall("ctx_push_current", given, None, None, PHASE, "make", "context")
