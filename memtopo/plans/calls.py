"""Driver calls with names in place of numbers: what a call made has the name of its resource where later calls use it.

Addresses are places: an object and an offset in it. The names are those of a spec (`kv`, `page.3`), so that a plan that
was only listed and a run on any machine give equal calls.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from memtopo.driver.functions import function
from memtopo.driver.recorder import DriverCall
from memtopo.driver.values import ADDRESSES, AT_ADDRESSES, OBJECTS, jsonable
from memtopo.machine import MachineLine


class Object(Struct, frozen=True):
    """Object that a call makes: its kind (`chunk`, `range`, `context`), and the resource that it is of."""

    kind: str
    label: str


class ObjectAddress(Struct, frozen=True):
    """Address: an object that has addresses, and an offset in it in bytes."""

    object: Object
    offset: int


Action = Literal["receive", "send", "leave", "await"]


class Exchange(Struct, frozen=True):
    """Exchange of a process with another one between its calls.

    It receives a handle, `number` of an `export` of another process; or sends the one that its last calls made to
    another. At its teardown it leaves its exporters, once it has released all imports, and awaits that
    all that import from it have left (`peer` is then empty).
    """

    action: Action
    peer: str = ""
    export: str = ""
    number: int = 0
    phase: str = ""


class NamedCall(Struct, frozen=True):
    """One call with names: arguments in the order of the C function, without the result.

    `made` is what it makes. The `value` of an argument is an object, a place, a received handle, or as the protocol has
    it. `error` is that of a call that was made.
    """

    method: str
    made: Object | None
    arguments: tuple[tuple[str, Any], ...]
    phase: str
    verb: str
    subject: str
    undo: bool
    error: str | None = None

    @property
    def function(self) -> str:
        """Name of the C function."""
        return function(self.method).name

    @property
    def is_test(self) -> bool:
        """True if a shareable handle is made and sent to nobody: so that an error is found while building."""
        return self.made is not None and self.made.kind in ("shared", "secret") and self.verb != "send"


PlannedCall = DriverCall | Exchange


class ListedCall(Struct, frozen=True):
    """One call of a listing. `makes` is the name of what it makes, `arguments` those of the C function.

    An address is the name of an object, with `+` and an offset in bytes behind its start; a handle is a name.
    """

    phase: str
    step: str
    undo: bool
    function: str
    makes: str | None
    arguments: dict[str, Any]


class ListedCalls(Struct, frozen=True):
    """Calls of one process, in order, with its exchanges with others between them."""

    process: str
    calls: tuple[ListedCall | Exchange, ...]


class CallsDocument(Struct, frozen=True):
    """Driver calls of a plan by process; one process without a name, if the spec declares none."""

    memtopo_calls: Literal[1]
    name: str
    machine: MachineLine
    processes: tuple[ListedCalls, ...]


def listing_entry(call: NamedCall | Exchange) -> ListedCall | Exchange:
    """One entry of a listing."""
    if isinstance(call, Exchange):
        return call
    arguments = {name: reference(value, call.method, name) for name, value in call.arguments}
    step = f"{call.verb} {call.subject}"
    return ListedCall(call.phase, step, call.undo, call.function, call.made.label if call.made else None, arguments)


def reference(value: Any, method: str = "", name: str = "") -> Any:
    """Value of an argument in JSON, with names."""
    match value:
        case Object(_, label):
            return label
        case ObjectAddress(held, offset):
            return f"{held.label}+{offset}"
        case Exchange(_, peer, export, number):
            return f"{peer}/{export}.{number}"
    return jsonable(value, method, name)


def named(entries: Iterable[PlannedCall], *, steps_only: bool = True) -> Iterator[NamedCall | Exchange]:
    """Give names to calls in order, without calls that are made for no step if `steps_only`."""
    names = CallNames()
    for entry in entries:
        if isinstance(entry, Exchange) or entry.of_step or not steps_only:
            yield names.name_call(entry)


class CallNames:
    """Names of the objects that exist after some calls of one process."""

    def __init__(self) -> None:
        self._numbered: dict[tuple[str, int], Object] = {}
        self._starts: list[int] = []
        self._at: list[Object] = []
        self._received: Exchange | None = None

    def name_call(self, entry: PlannedCall) -> NamedCall | Exchange:
        """Give names to the next call."""
        if isinstance(entry, Exchange):
            self._received = entry if entry.action == "receive" else None
            return entry
        call, found, given = entry, function(entry.method), entry.arguments
        if call.method == "mem_host_register" and call.error is None:  # of memory that no call has made
            self._add(Object("registered", call.subject), given["address"])
        arguments = tuple([(name, self._value(call.method, name, given.get(name))) for name in found.arguments])
        made = None
        if found.makes and call.error is None:
            made = Object(found.makes, call.subject)
            self._add(made, call.result)
        return NamedCall(call.method, made, arguments, call.phase, call.verb, call.subject, call.undo, call.error)

    def _add(self, made: Object, result: Any) -> None:
        if made.kind in AT_ADDRESSES:
            at = bisect_left(self._starts, result)
            end = at + (at < len(self._starts) and self._starts[at] == result)
            self._starts[at:end], self._at[at:end] = [result], [made]
        elif isinstance(result, int):
            self._numbered[made.kind, result] = made

    def _value(self, method: str, name: str, value: Any) -> Any:
        external = name == "fd" and self._received  # a descriptor of another API, from a holder
        if name in ("shared", "data") or (name == "handle" and isinstance(value, bytes)) or external:
            return self._received or "a handle"
        if name == "kind" or not isinstance(value, int) or isinstance(value, bool):
            return name if value is None else value  # a constant of the C function
        if name == "0":
            return 0
        if name in ADDRESSES and value and method != "mem_address_reserve":
            at = bisect_right(self._starts, value) - 1
            return ObjectAddress(self._at[at], value - self._starts[at]) if at >= 0 else value
        if name in OBJECTS:
            return self._numbered.get((OBJECTS[name], value), value)
        return value
