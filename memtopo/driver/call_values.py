"""Arguments and results of driver calls as values of JSON. Handles that give access to memory are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from memtopo.driver.functions import CONSTANTS, PLAIN_FLAGS
from memtopo.driver.types import Grant, Location, PoolProperties, Properties

LONGEST = 64
"""Elements of a list that are kept: the kernels of a check take thousands of areas."""

HIDDEN = "hidden"
"""In place of the bytes of a handle, which give access to the memory."""


def jsonable(value: Any, method: str = "", name: str = "") -> Any:
    """Return a value of a call, or of its parameter `name`, as a value of JSON.

    Sizes, addresses and handles are numbers; flags and enumerations the names of `cuda.h`.
    """
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    if name == "flags" and isinstance(value, int) and value and (constants := PLAIN_FLAGS.get(method)):
        return constants.text(value)
    if constants := CONSTANTS.get(type(value)):
        text = constants.text(int(value))
        return int(value) if text.isdecimal() else text
    if isinstance(value, Enum):
        return str(value.name).lower() if value.name else int(value.value)
    if isinstance(value, list | tuple):
        more = [f"{len(value) - LONGEST:,} more"] if len(value) > LONGEST else []
        return [*(jsonable(each) for each in value[:LONGEST]), *more]
    return value


def _properties(value: Properties) -> Mapping[str, Any]:
    return {
        "location": str(value.location),
        "handles": list(value.handles.words),
        "rdma": bool(value.rdma),
        "compressible": bool(value.compressible),
    }


def _pool_properties(value: PoolProperties) -> Mapping[str, Any]:
    return {"location": str(value.location), "handles": list(value.handles.words), "max_size": value.max_size}


def _grant(value: Grant) -> Mapping[str, Any]:
    return {"location": str(value.location), "access": value.access.word}


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    Properties: _properties,
    PoolProperties: _pool_properties,
    Grant: _grant,
    Location: str,
    bytes: lambda _: HIDDEN,
    bytearray: lambda _: HIDDEN,
}
