"""Differences that an entry of docs/simulator.md explains."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.calls import Call
from tests.differential.neighbours import depends
from tests.differential.notation import KiB, place_of, size_of
from tests.differential.traces import Step

PAGE = 4 * KiB
_ALWAYS = {
    ("streamwait", "died SIGSEGV", "INVALID_HANDLE"): "stream_wait_event",
    **{("shareevent", each, "INVALID_HANDLE"): "ipc_get_event_handle" for each in ("ok", "died 1", "died SIGSEGV")},
}
"""Entries by call, answer, and what is simulated."""


def explanation(steps: Sequence[Step], simulated: str) -> str:
    """Name of the entry that explains why the last of `steps` is simulated differently, or an empty text."""
    call, answer = _own(steps[-1].call), steps[-1].answer
    match call.name, answer, simulated:
        case ("map" | "unmap") as name, "ok", "INVALID_VALUE" if depends(steps):
            return f"mem_{name}"
        case "open", _, _ if _is_in_freed_block(steps, answer, simulated):
            return "ipc_open_mem_handle"
        case "hostread", _, _ if not simulated.isupper() and _may_be_stale(steps[:-1], call.arguments[0]):
            return "host_read"
        case "register", _, _ if _ends_with_first_byte_of_page(call):
            return "mem_host_register"
        case "mapbuffer", "ok", "INVALID_VALUE" if _is_dedicated(steps, call.arguments[0]):
            return "external_memory_get_mapped_buffer"
    return _ALWAYS.get((call.name, answer, simulated), "")


def _own(text: str) -> Call:
    """A call, also of the second process, without its place."""
    call = Call.parse(text)
    return Call(call.target, call.arguments[0], call.arguments[1:]) if call.name == "there" else call


def _is_in_freed_block(steps: Sequence[Step], answer: str, simulated: str) -> bool:
    """True if an opening is of freed memory, or of memory in the block of freed memory that is open (fact 72)."""
    if simulated == "ok" and answer == "ALREADY_MAPPED":
        opened = [_own(step.call) for step in steps if step.answer in ("ok", "again")]
        return any(call.name == "open" and _is_freed(steps, call.arguments[0]) for call in opened)
    if simulated == "INVALID_VALUE" and answer in ("ok", "again", "NOT_PERMITTED"):
        return _is_freed(steps, _own(steps[-1].call).arguments[0])
    return False


def _is_freed(steps: Sequence[Step], handle: str) -> bool:
    """True if the allocation behind an IPC handle was freed before."""
    calls = [_own(step.call) for step in steps]
    shared = next(call.arguments[0].partition("+")[0] for call in calls if call.target == handle)
    return any(call.name == "freemem" and call.arguments[0] == shared for call in calls)


def _is_dedicated(steps: Sequence[Step], memory: str) -> bool:
    """True if an imported object is a dedicated allocation of Vulkan."""
    calls = {call.target: call for step in steps if (call := _own(step.call)).target}
    return "dedicated" in calls[calls[memory].arguments[0]].arguments


def _ends_with_first_byte_of_page(call: Call) -> bool:
    """True if the last registered byte is the first of a page (fact 85)."""
    return (place_of(call.arguments[0]).offset + size_of(call.arguments[1])) % PAGE == 1


def _may_be_stale(steps: Sequence[Step], place: str) -> bool:
    """True if memory is read-mostly and was prefetched to a GPU, and a copy has written it since (fact 60)."""
    found = ""
    for call in (_own(step.call) for step in steps if step.answer == "ok"):
        if call.arguments and call.arguments[0].partition("+")[0] == place.partition("+")[0]:
            found += f"{' '.join((call.name, *call.arguments))}; "
    return " mostly " in found and "write " in found.partition(" gpu0 ")[2]
