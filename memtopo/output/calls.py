"""Driver calls as text: as in C, with the names of a spec in place of addresses and handles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any

from memtopo.common.units import exact
from memtopo.driver.functions import ADDRESSES, CONSTANTS, PLAIN_FLAGS
from memtopo.driver.recorder import DriverCall
from memtopo.driver.types import HandleType, Location, PoolProperties, Properties
from memtopo.plans.calls import Exchange, NamedCall, Object, ObjectAddress, reference

_SIZES = ("size", "count", "alignment", "offset", "max_size")
TEST = "a test: not kept, importers get handles of their own"
"""Note on an export that a plan makes to find errors while it builds."""

_CONTEXT = ("ctx_push_current", "ctx_pop_current")


def in_short(calls: Sequence[DriverCall]) -> str:
    """Functions of the calls of one step with the flags that matter, but those that make a context current.

    Locations and sizes are left out, which the row of a plan has.
    """
    found: dict[str, list[str]] = {}
    for call in calls:
        if call.method not in _CONTEXT:
            found.setdefault(call.function, list(_flags(call)))
    return ", ".join(" ".join((name, *flags)) for name, flags in found.items())


def _flags(call: DriverCall) -> Iterator[str]:
    for name, value in call.arguments.items():
        if isinstance(value, Properties | PoolProperties):
            yield from _property_flags(value)
        elif name in ("kind", "advice", "attribute", "flags") and value:
            yield f"{name}={_constant(call.method, name, value)}"
        elif name == "value":
            yield f"value={value:#x}" if value > 1 << 20 else f"value={value}"
        elif name in ("alignment", "address") and call.method == "mem_address_reserve" and value:
            yield f"{name}={exact(value) if name == 'alignment' else hex(value)}"


def _property_flags(value: Properties | PoolProperties) -> Iterator[str]:
    if value.handles:
        yield f"requestedHandleTypes={_short(CONSTANTS[HandleType].text(value.handles))}"
    if isinstance(value, PoolProperties):
        if value.max_size:
            yield f"maxSize={exact(value.max_size)}"
        return
    if value.rdma:
        yield "gpuDirectRDMACapable=1"
    if value.compressible:
        yield "compressionType=GENERIC"


def _short(constants: str) -> str:
    """Constants without the prefixes that their type implies."""
    for prefix in _PREFIXES:
        constants = constants.replace(prefix, "")
    return constants.replace(" | ", "|")


_PREFIXES = (
    "CU_MEM_HANDLE_TYPE_", "CU_MEM_ACCESS_FLAGS_PROT_", "CU_MEM_LOCATION_TYPE_", "CU_MEM_ATTACH_", "CU_MEM_ADVISE_",
    "CU_MEMPOOL_ATTR_", "CU_MEMHOSTALLOC_", "CU_MEMHOSTREGISTER_", "CU_EVENT_", "CU_MEM_RANGE_FLAG_", "CU_STREAM_",
    "CU_IPC_MEM_", "CU_MEM_RANGE_HANDLE_TYPE_",
)  # fmt: skip


def _constant(method: str, name: str, value: Any) -> str:
    if isinstance(value, Location | str):
        return _short(str(value))
    constants = PLAIN_FLAGS.get(method) if name == "flags" else None
    constants = constants or CONSTANTS.get(type(value))
    if constants:
        return _short(constants.text(int(value)))
    return value.name.lower() if isinstance(value, Enum) and value.name else str(value)


def line(call: NamedCall) -> str:
    """One call as in C: `cuMemMap(kv+2MiB, size=2MiB, offset=0, page.1, flags=0)`."""
    arguments = [
        *([f"&{call.made.label}"] if call.made else []),
        *(_argument(call.method, *each) for each in call.arguments),
    ]
    note = f" /* {TEST} */" if call.is_test else ""
    return f"{call.function}({', '.join(each for each in arguments if each)}){note}"


def _argument(method: str, name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, Enum):
        return _number(method, name, value)
    if isinstance(value, Object | Exchange):
        return f"fd=<from {value.peer}>" if isinstance(value, Exchange) and name == "fd" else str(reference(value))
    match value:
        case ObjectAddress(held, offset):
            return f"{held.label}+{exact(offset)}" if offset else held.label
        case Properties() | PoolProperties():
            return f"{{{', '.join((str(value.location), *_property_flags(value)))}}}"
        case tuple() if name == "grants":
            return f"{{{', '.join(f'{each.location} {each.access.word}' for each in value)}}}"
    text = _constant(method, name, value)
    return text if isinstance(value, Location | str) else f"{name}={text}"


def _number(method: str, name: str, value: int) -> str:
    if name == "0":
        return "0"
    if name in _SIZES:
        return f"{name}={exact(value)}"
    return f"{name}={value:#x}" if name in ADDRESSES and value else f"{name}={_constant(method, name, value)}"


def exchange(what: Exchange) -> str:
    """Exchange with another process, as a comment."""
    match what.action:
        case "receive":
            return f"/* receive {what.export}.{what.number} from {what.peer} */"
        case "send":
            return f"/* send {what.export}.{what.number} to {what.peer} */"
        case "leave":
            return "/* report that all that was imported is released */"
        case _:
            return "/* wait until all others have released what they imported */"


def listing(calls: Mapping[str, Sequence[NamedCall | Exchange]]) -> Iterator[str]:
    """Lines of `memtopo plan --calls`: the calls by process and phase."""
    for label, entries in calls.items():
        if label:
            yield from (label, "")
        for phase, group in groupby(entries, key=lambda each: each.phase):
            yield f"  {phase}"
            yield from (f"    {line(each) if isinstance(each, NamedCall) else exchange(each)}" for each in group)
            yield ""


_LARGE = 1 << 32


def value_text(value: Any) -> str:
    """A value of a trace: large numbers, which are addresses and handles, in hexadecimal digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={value_text(each)}" for name, each in value.items() if each) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(value_text, value)) + "}"
    if isinstance(value, int) and value >= _LARGE:
        return f"{value:#x}"
    return str(value)
