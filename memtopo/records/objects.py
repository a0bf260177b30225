"""Objects that driver calls make, as a record knows them, the exports of imported ones, and the sources of all.

A source is the library or Python module that made a call, by its stack.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from memtopo.plans.trace import TracedCall

PHYSICAL = ("chunks", "buffers", "allocations", "managed", "pinned")
"""Kinds of memory that is allocated by the call that makes the object."""


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
