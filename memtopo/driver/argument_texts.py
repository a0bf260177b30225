"""Arguments of driver calls as text: structures by the words of a spec, constants without their prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from memtopo.common.units import exact
from memtopo.driver.functions import CONSTANTS, PLAIN_FLAGS
from memtopo.driver.types import PROPERTY_FLAGS, HandleType, Location, PoolProperties, Properties


def argument_text(method: str, name: str, value: Any) -> str:
    """Structure of an argument in braces, `{gpu0 rw}`, or another argument with its name, `kind=FABRIC`."""
    match value:
        case Properties() | PoolProperties():
            return f"{{{', '.join((str(value.location), *property_flags(value)))}}}"
        case tuple() if name == "grants":
            return f"{{{', '.join(f'{each.location} {each.access.word}' for each in value)}}}"
    text = constant_text(method, name, value)
    return text if isinstance(value, Location | str) else f"{name}={text}"


def property_flags(value: Properties | PoolProperties) -> Iterator[str]:
    """Fields of properties that are set, besides the location: `compressionType=GENERIC`."""
    if value.handles:
        yield f"requestedHandleTypes={_short(CONSTANTS[HandleType].text(value.handles))}"
    if isinstance(value, PoolProperties):
        if value.max_size:
            yield f"maxSize={exact(value.max_size)}"
        return
    for field, number in map(PROPERTY_FLAGS.__getitem__, value.flags):
        yield f"{field}={_short(number)}"


def _short(constants: str) -> str:
    """Constants without the prefixes that their type implies."""
    for prefix in _PREFIXES:
        constants = constants.replace(prefix, "")
    return constants.replace(" | ", "|")


_PREFIXES = (
    "CU_MEM_HANDLE_TYPE_", "CU_MEM_ACCESS_FLAGS_PROT_", "CU_MEM_LOCATION_TYPE_", "CU_MEM_ATTACH_", "CU_MEM_ADVISE_",
    "CU_MEM_ALLOCATION_COMP_",
    "CU_MEMPOOL_ATTR_", "CU_MEMHOSTALLOC_", "CU_MEMHOSTREGISTER_", "CU_EVENT_", "CU_MEM_RANGE_FLAG_", "CU_STREAM_",
    "CU_IPC_MEM_", "CU_MEM_RANGE_HANDLE_TYPE_",
)  # fmt: skip


def constant_text(method: str, name: str, value: Any) -> str:
    """Value of an argument: a constant, a location, or a number."""
    if isinstance(value, Location | str):
        return _short(str(value))
    constants = PLAIN_FLAGS.get(method) if name == "flags" else None
    constants = constants or CONSTANTS.get(type(value))
    if constants:
        return _short(constants.text(int(value)))
    return value.name.lower() if isinstance(value, Enum) and value.name else str(value)
