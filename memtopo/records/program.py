"""Calls of one process of a record as a program makes them: with names for what they make, and with its contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from memtopo.common.errors import Failed
from memtopo.driver.functions import function
from memtopo.driver.recorder import DriverCall
from memtopo.driver.values import OBJECTS
from memtopo.driver.wrappers import METHODS, defaults, returned
from memtopo.plans.trace import TracedCall
from memtopo.records.calls import argument, arguments_of, places
from memtopo.records.player import DEFAULT_POOL, IMPORTS, LEFT_OUT, as_protocol
from memtopo.records.record import Record

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
    return list(_Calls(record.gpus[process]).convert(calls, last))


def changes_something(method: str) -> bool:
    """Return whether a call of the protocol changes something: a query returns a value, and makes no object."""
    is_query = method not in METHODS or (returned(method) != "None" and not function(method).makes)
    return not is_query or method == "ctx_pop_current"


class _Calls:
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
            arguments = {name: self._argument(method, name, value) for name, value in given.items()}
        except (ValueError, KeyError, TypeError) as error:
            message = f"call {call.number} of the record has a value that memtopo's protocol does not have"
            raise NoProgram(f"{message}: {error}") from error
        kind = function(method).makes
        if method == "device_primary_ctx_retain":
            self._contexts[arguments["device"]] = call.result
        subject = f"gpu{arguments['device']}" if kind == "context" else self._name(kind, call)
        yield DriverCall(method, arguments, call.result, None, PHASE, "make", subject)

    def _name(self, kind: str, call: TracedCall) -> str:
        if not kind:
            return f"call {call.number}"
        if isinstance(call.result, int):
            self._objects.add((kind, call.result))
        self._made[kind] += 1
        return f"made.{self._made[kind] - 1}"

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
        context: Mapping[str, Any] = {"context": self._contexts[device]}
        yield DriverCall("ctx_push_current", context, None, None, PHASE, "make", "context")

    def _argument(self, method: str, name: str, value: Any) -> Any:
        if name == "stream":
            return value if ("stream", value) in self._objects else 0
        return value if name in OBJECTS else argument(method, name, value, self._place)
