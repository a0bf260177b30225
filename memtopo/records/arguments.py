"""Arguments of recorded calls as the driver takes them, from numbers or the names of `cuda.h`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from memtopo.common.errors import UsageError
from memtopo.common.text import printable
from memtopo.common.units import shorten
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import (
    PROPERTY_FLAGS,
    WHOLE_HOST,
    Access,
    AllocationType,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolProperties,
    Properties,
    gpu,
)
from memtopo.driver.values import CONSTANTS, PLAIN_FLAGS
from memtopo.plans.trace import TracedCall

Place = Callable[[int], int]
"""Ordinal of a GPU by that of the process in the record."""

_LONGEST = 300


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
        return _enumerated(type_, value)
    if name == "flags" and isinstance(value, str):
        return _numbers({name: number for number, name in PLAIN_FLAGS[method].names.items()}, value)
    if not isinstance(value, type_):
        raise ValueError(f"{name} is {value!r}")  # noqa: TRY004 a value of a record
    return place(value) if name in ("device", "peer") else value


def location(text: str, place: Place) -> Location:
    """Return a location by its name: `gpu0`, `host`, `host:0`. Raises `ValueError`."""
    if text == "host":
        return WHOLE_HOST
    if text == "host:current":
        return Location(LocationKind.HOST_NUMA_CURRENT)
    if text.startswith("host:"):
        return Location(LocationKind.HOST_NUMA, int(text.removeprefix("host:")))
    if not text.startswith("gpu"):
        raise ValueError(f"there is no location {text!r}")
    return gpu(place(int(text.removeprefix("gpu"))))


@cache
def _types(method: str) -> Mapping[str, Any]:
    return get_type_hints(getattr(KernelDriver, method))


def _properties(value: Mapping[str, Any], place: Place) -> Properties:
    flags = [word for word in PROPERTY_FLAGS if value.get(word)]
    found = Properties.with_flags(location(value["location"], place), _handles(value.get("handles", ())), flags)
    return found._replace(type=AllocationType[value["type"].upper()]) if "type" in value else found


def _pool_properties(value: Mapping[str, Any], place: Place) -> PoolProperties:
    handles, most = _handles(value.get("handles", ())), value.get("max_size", 0)
    if not isinstance(most, int):
        raise ValueError(f"max_size is {most!r}")  # noqa: TRY004 a value of a record
    return PoolProperties(location(value["location"], place), handles, most)


def _grants(value: Sequence[Mapping[str, Any]], place: Place) -> tuple[Grant, ...]:
    return tuple(Grant(location(each["location"], place), Access[each["access"].upper()]) for each in value)


_DECODERS: Mapping[object, Callable[[Any, Place], Any]] = {
    Location: location,
    Properties: _properties,
    PoolProperties: _pool_properties,
    "grants": _grants,
}


def _handles(words: Any) -> HandleType:
    found = HandleType.NONE
    for word in words:
        try:
            found |= HandleType[word.upper()]
        except KeyError as error:
            raise ValueError(f"there is no handle type {word!r}") from error
    return found


def _enumerated(type_: type[Enum], value: Any) -> Any:
    """Member of an enumeration by its number, its own name, or names of `cuda.h` joined by `|`."""
    if isinstance(value, int):
        return type_(value)
    members = {name.lower(): int(each.value) for name, each in type_.__members__.items()}
    if type_ in CONSTANTS:
        members |= {name: number for number, name in CONSTANTS[type_].names.items()}
    return type_(_numbers(members, value))


def _numbers(members: Mapping[str, int], text: str) -> int:
    """Sum of named bits. Raises `ValueError`."""
    number = 0
    for word in text.split(" | "):
        if word not in members:
            raise ValueError(f"there is no constant {word!r}")
        number |= members[word]
    return number
