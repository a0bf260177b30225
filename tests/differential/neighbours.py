"""Sequences whose outcome depends on what lies beside a reservation, which differs between drivers.

That is so from a call on that reaches past the end of its reservation or allocation, or into what was freed, whose
addresses another one may have now.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.calls import OK, Call
from tests.differential.notation import place_of, size_of
from tests.differential.traces import Step

_SIZED = {"free", "map", "unmap", "set"}
_AT = {"get", "retain", "range", "freemem", "fill", "write", "read", "touch"}
_COPIED = 4
GRANULE = 2 << 20


def depends(steps: Sequence[Step]) -> bool:
    """Return whether the last call, or an earlier one that had an effect, depends on neighbours."""
    sizes = {"null": 0, "junk": 0}
    for index, step in enumerate(steps, 1):
        if (step.answer == OK or index == len(steps)) and _reaches_out(Call.parse(step.call), sizes):
            return True
        _note(step, sizes)
    return False


def _note(step: Step, sizes: dict[str, int]) -> None:
    """Keep the size of what a call has made; what it has freed has none."""
    if step.answer != OK:
        return
    call = Call.parse(step.call)
    if call.name in {"reserve", "alloc"}:
        sizes[call.target] = size_of(call.arguments[0])
    elif call.name in {"free", "freemem"}:
        sizes[place_of(call.arguments[0]).symbol] = 0


def _reaches_out(call: Call, sizes: dict[str, int]) -> bool:
    if call.name == "safely":
        return _reaches_out(Call("", call.arguments[2], (call.arguments[1], *call.arguments[3:])), sizes)
    if call.name == "reserve":
        return _aligned_hint(call)
    if call.name not in _SIZED | _AT:
        return False
    place = place_of(call.arguments[0])
    if place.symbol in {"null", "junk"} or place.symbol not in sizes:
        return False
    count = 1
    if call.name in _SIZED:
        count = size_of(call.arguments[1])
    elif call.name in {"fill", "write", "read", "touch"}:
        count = size_of(call.arguments[2]) if call.name == "fill" else _COPIED
    return place.offset + max(count, 1) > sizes[place.symbol]


def _aligned_hint(call: Call) -> bool:
    """A hint at a reservation, whose alignment beyond a granule differs between drivers."""
    if len(call.arguments) < 3 or place_of(call.arguments[2]).symbol in {"null", "junk"}:
        return False
    return size_of(call.arguments[1]) > GRANULE
