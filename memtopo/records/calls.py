"""Recorded calls: their arguments as the driver takes them, the objects that they make, and the sources of both.

Arguments are numbers or the names of `cuda.h`. A source is the library or Python module that made a call, by its stack.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, get_type_hints

from msgspec import Struct

from memtopo.common.errors import UsageError
from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.driver import types
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.values import CONSTANTS, PLAIN_FLAGS
from memtopo.plans.trace import TracedCall

PHYSICAL = ("chunks", "buffers", "allocations", "managed", "pinned")
"""Kinds of memory that is allocated by the call that makes the object."""


Place = Callable[[int], int]
"""Ordinal of a GPU by that of the process in the record."""

_LONGEST = 300


class Memory(Struct, eq=False):
    """An object of a process: memory, an import of it, a pool or an event.

    `kind` is the section of a spec that declares such objects. `size` is in bytes, and 0 for an imported chunk until it
    is mapped. `address` is None for what has to be mapped. `details` are the arguments of the call that made it, and
    what later calls set.
    """

    kind: str
    process: str
    location: str
    size: int
    call: TracedCall
    time: float
    details: dict[str, Any] = {}
    address: int | None = None
    imported: bool = False
    context: str = ""
    """GPU of the context that was current when it was made."""
    token: str | None = None
    """Digest of the handle that it was imported by, if the record has one."""
    pool: Memory | None = None
    references: int = 1
    """Handles of a chunk, which exists as long as it has a handle or a mapping."""
    mappings: int = 0

    @property
    def physical(self) -> int:
        """Bytes of memory of this process: 0 for an import, a pool and an event."""
        return 0 if self.imported or self.kind not in PHYSICAL else self.size

    def set_user(self, location: str, *, granted: bool = True) -> None:
        """Note in `details` that a location uses the memory, or that it does not any more."""
        users = dict.fromkeys(self.details.get("accessed_by", ()))
        if granted:
            users[location] = None
        else:
            users.pop(location, None)
        self.details["accessed_by"] = list(users)


class Mapped(Struct, eq=False):
    """A chunk at an address, with the access of locations as words: `rw`."""

    address: int
    size: int
    chunk: Memory
    grants: Mapping[str, str]


class Reservation(Struct, eq=False):
    """Reserved addresses."""

    address: int
    size: int
    alignment: int
    call: TracedCall


class Exported(Struct, frozen=True):
    """A handle that a process made of an object, by a transport of a spec: `fd`, `fabric`, `ipc`, `dmabuf`."""

    memory: Memory
    via: str
    token: str | None
    time: float


def paired(imports: Iterable[tuple[int, Memory]], exports: Sequence[Exported]) -> Iterator[Exported | None]:
    """Yield the export of each object that a process, by index, has imported; None if the record does not have it."""
    by_token = {each.token: each for each in exports if each.token}
    taken: dict[int, set[int]] = defaultdict(set)
    for process, memory in imports:
        if not memory.imported:  # a chunk of its own, which the process has exported
            found = next((each for each in exports if each.memory is memory), None)
        elif memory.token:
            found = by_token.get(memory.token)
        else:
            others = [each for each in exports if each.via != "ipc" or each.memory.process != memory.process]
            found = _likely_export(memory, others, taken[process])
        if found:
            taken[process].add(id(found.memory))
        yield found


def _likely_export(memory: Memory, exports: Sequence[Exported], taken: set[int]) -> Exported | None:
    """Return the most likely export of an object that was imported by a descriptor."""
    first: dict[str, Exported] = {}
    latest: dict[int, float] = {}
    for each in exports:
        same = each.memory.kind == memory.kind and memory.size in (0, each.memory.size)
        known = not memory.location or memory.location == each.memory.location
        if not same or not known or each.time > memory.time:
            continue
        latest[id(each.memory)] = each.time
        if id(each.memory) not in taken:
            first.setdefault(each.memory.process, each)
    return max(
        first.values(),
        key=lambda each: (each.memory.process != memory.process, latest[id(each.memory)]),
        default=None,
    )


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


_T = TypeVar("_T", bound=_Sized)


class AddressTable(Generic[_T]):
    """Objects by their first address, in its order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._at: dict[int, _T] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[_T]:
        return (self._at[start] for start in self._starts)

    def items(self) -> list[tuple[int, _T]]:
        """Return the objects with their addresses."""
        return [(start, self._at[start]) for start in self._starts]

    def add(self, address: int, found: _T) -> None:
        """Add an object, in place of one that has the address. Raises `TypeError` for what is no address."""
        if type(address) is not int:
            raise TypeError(address)
        if address not in self._at:
            insort(self._starts, address)
        self._at[address] = found

    def pop(self, address: int) -> _T | None:
        """Remove and return the object that begins at an address; None if there is none."""
        found = self._at.pop(address, None)
        if found is not None:
            del self._starts[bisect_left(self._starts, address)]
        return found

    def within(self, address: int, size: int) -> list[_T]:
        """Return the objects that begin in a range of addresses."""
        first, last = bisect_left(self._starts, address), bisect_left(self._starts, address + size)
        return [self._at[start] for start in self._starts[first:last]]

    def around(self, address: int) -> _T | None:
        """Return the last object that begins at an address or before it."""
        index = bisect_right(self._starts, address) - 1
        return self._at[self._starts[index]] if index >= 0 else None

    def at(self, address: int) -> _T | None:
        """Return the object that has an address; one of unknown size, which is 0, has its first address alone."""
        found = self.around(address)
        index = bisect_right(self._starts, address) - 1
        return found if found and address - self._starts[index] < max(found.size, 1) else None


_RUNTIME = re.compile(r"lib(cuda|cudart|cupti|c|pthread|stdc\+\+|gcc_s|python[0-9.]*)\.so|ld-linux")
_LIBRARY = re.compile(r"(?:lib)?([A-Za-z0-9_+-]+?)(?:[.-][0-9.]+)?\.so")
_PYTHON = re.compile(r"([A-Za-z0-9_-]+)\.py:[0-9]+ (.*)")
_FAMILIES = (("torch", "torch"), ("c10", "torch"), ("nccl", "nccl"), ("cublas", "cublas"), ("cudnn", "cudnn"))


def source_of(call: TracedCall) -> str:
    """Name of the library or Python module that made a call: the first of its stack that is no part of the runtime.

    It is empty for a call without a stack.
    """
    for frame in call.stack:
        if match := _PYTHON.fullmatch(frame):
            return match[1]
        if _RUNTIME.match(frame):
            continue
        if match := _LIBRARY.match(frame):
            return next((name for start, name in _FAMILIES if match[1].lower().startswith(start)), match[1])
    return ""


# Arguments


def places(gpus: Sequence[int]) -> Place:
    """Return the ordinals of GPUs by those of a process that sees `gpus`; others are as they are."""
    return lambda ordinal: gpus[ordinal] if 0 <= ordinal < len(gpus) else ordinal


@contextmanager
def arguments_of(call: TracedCall, process: str = "") -> Iterator[None]:
    """Raise `UsageError`, which names the call, if its arguments are not those of its function."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        where = f"call {call.number} of the record{f', of process {process},' if process else ''}"
        message = f"{where} does not have the arguments of {call.call}: {call.arguments}"
        raise UsageError(shorten(printable(message), _LONGEST)) from error


def argument(method: str, name: str, value: Any, place: Place) -> Any:
    """Return an argument of a call as the protocol has it. Raises `ValueError` for a value that it does not have."""
    type_ = _types(method)[name]
    decode = _DECODERS.get("grants" if name == "grants" else type_)
    if decode:
        return decode(value, place)
    if isinstance(type_, type) and issubclass(type_, Enum):
        if isinstance(value, int):
            return type_(value)
        members = {name.lower(): int(each.value) for name, each in type_.__members__.items()}
        if type_ in CONSTANTS:
            members |= {name: number for number, name in CONSTANTS[type_].names.items()}
        return type_(_numbers(members, value))
    if name == "flags" and isinstance(value, str):
        return _numbers({name: number for number, name in PLAIN_FLAGS[method].names.items()}, value)
    if not isinstance(value, type_):
        raise ValueError(f"{name} is {value!r}")  # noqa: TRY004 a value of a record
    return place(value) if name in ("device", "peer") else value


def location(text: str, place: Place) -> types.Location:
    """Return a location by its name: `gpu0`, `host`, `host:0`. Raises `ValueError`."""
    if text == "host":
        return types.WHOLE_HOST
    if text == "host:current":
        return types.Location(types.LocationKind.HOST_NUMA_CURRENT)
    if text.startswith("host:"):
        return types.Location(types.LocationKind.HOST_NUMA, int(text.removeprefix("host:")))
    if not text.startswith("gpu"):
        raise ValueError(f"there is no location {text!r}")
    return types.gpu(place(int(text.removeprefix("gpu"))))


@cache
def _types(method: str) -> Mapping[str, Any]:
    return get_type_hints(getattr(KernelDriver, method))


def _properties(value: Mapping[str, Any], place: Place) -> types.Properties:
    flags = [word for word in types.PROPERTY_FLAGS if value.get(word)]
    found = types.Properties.with_flags(location(value["location"], place), _handles(value.get("handles", ())), flags)
    return found._replace(type=types.AllocationType[value["type"].upper()]) if "type" in value else found


def _pool_properties(value: Mapping[str, Any], place: Place) -> types.PoolProperties:
    handles, most = _handles(value.get("handles", ())), value.get("max_size", 0)
    if not isinstance(most, int):
        raise ValueError(f"max_size is {most!r}")  # noqa: TRY004 a value of a record
    return types.PoolProperties(location(value["location"], place), handles, most)


def _grants(value: Sequence[Mapping[str, Any]], place: Place) -> tuple[types.Grant, ...]:
    return tuple(types.Grant(location(each["location"], place), types.Access[each["access"].upper()]) for each in value)


_DECODERS: Mapping[object, Callable[[Any, Place], Any]] = {
    types.Location: location,
    types.Properties: _properties,
    types.PoolProperties: _pool_properties,
    "grants": _grants,
}


def _handles(words: Any) -> types.HandleType:
    found = types.HandleType.NONE
    for word in words:
        try:
            found |= types.HandleType[word.upper()]
        except KeyError as error:
            raise ValueError(f"there is no handle type {word!r}") from error
    return found


def _numbers(members: Mapping[str, int], text: str) -> int:
    """Sum of named bits. Raises `ValueError`."""
    number = 0
    for word in text.split(" | "):
        if word not in members:
            raise ValueError(f"there is no constant {word!r}")
        number |= members[word]
    return number


_NUMBERS = ("size", "address", "offset", "alignment", "pitch", "height", "device", "value")


def require_numbers(call: TracedCall) -> None:
    """Raise `ValueError` for an argument that is no number where the function takes one."""
    for name in _NUMBERS:
        given = call.arguments.get(name, 0)
        if type(given) is not int or not 0 <= given < 1 << 64:
            raise ValueError(name)


def token_of(value: Any) -> str | None:
    """Digest of a handle; None for a descriptor, which has another number in each process."""
    return value if isinstance(value, str) and value.startswith("handle:") else None


def has_flag(value: Any, flag: Any) -> bool:
    """Return whether a flag is set in a value: a number, or the names of `cuda.h` joined by `|`."""
    if isinstance(value, int):
        return bool(value & int(flag))
    return CONSTANTS[type(flag)].text(int(flag)) in str(value).split(" | ")


def is_member(value: Any, member: Any) -> bool:
    """Return whether a value is a member of an enumeration: its number, or its name in `cuda.h`."""
    return bool(value == int(member)) or value == CONSTANTS[type(member)].names.get(int(member))
