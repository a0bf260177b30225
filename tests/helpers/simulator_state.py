"""State of a simulated program as plain values, so that what a call has changed is seen by a comparison."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from hashlib import sha256
from itertools import count
from typing import Any

from memtopo.drivers.sim.physical import Physical
from memtopo.testing.program import SimulatedProgram

State = dict[str, object]
"""Values by the names of the attributes, keys and indices that lead to them."""

_PACKAGES = ("memtopo.drivers.sim", "memtopo.driver.", "memtopo.testing.")
_SKIPPED = frozenset({
    "machine", "shared", "_port", "_program", "_methods",  # of no program, or what never changes
    "_checked", "_latest", "_advised",  # results that are kept, and objects that are found elsewhere
    "_default", "_shared",  # entries without an object are added by looking them up
    "touched",  # only a hint at what is to be copied
})  # fmt: skip


def state_of(program: SimulatedProgram) -> State:
    """All that a program has, and the memory that is taken of its machine."""
    found: State = {}
    _add(found, "", (program, program.shared.budget.used), set())
    return found


def difference(before: State, after: State) -> dict[str, tuple[object, object]]:
    """What differs, before and after."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: (before.get(name), after.get(name)) for name in names}


def _add(found: State, path: str, value: Any, seen: set[int]) -> None:
    if value is None or isinstance(value, int | float | str | bytes | Enum):
        found[path] = value
    elif isinstance(value, count | set | frozenset):  # a counter's text has its next number
        found[path] = repr(value) if isinstance(value, count) else sorted(map(str, value))
    elif id(value) not in seen:
        seen.add(id(value))
        for name, each in _parts(value):
            _add(found, f"{path}.{name}", each, seen)


def _parts(value: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(value, tuple | list | deque):
        return enumerate(value)
    parts = list(value.items()) if isinstance(value, dict) else []
    if type(value).__module__.startswith(_PACKAGES):
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        names = {*slots, *getattr(value, "__dict__", {})} - _SKIPPED
        parts += [(name, getattr(value, name)) for name in sorted(names) if hasattr(value, name)]
    return [*parts, ("bytes", _bytes_of(value))] if type(value) is Physical else parts


def _bytes_of(physical: Physical) -> str:
    """Digest of the touched bytes."""
    digest = sha256()
    for start, end in physical.extents(0, physical.size):
        data = physical.read(start, end - start)
        if any(data):
            digest.update(f"{start} ".encode() + data.rstrip(b"\0"))
    return digest.hexdigest()
