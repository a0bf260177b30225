"""Calls for events, streams, managed memory and legacy IPC, in text as in `calls`, and those of the second process.

`there` makes a call in the second process: `a0 = there alloc 64K`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memtopo.driver.types import Advice, EventFlags, MemAttach, RangeAttribute
from tests.differential.calls import CALLS, OK, Action, at_address, at_place
from tests.differential.external_calls import EXTERNAL_CALLS, ResourceAction, after
from tests.differential.host_calls import HOST_CALLS
from tests.differential.notation import location_of, place_of, size_of, size_text
from tests.differential.pool_calls import POOL_CALLS
from tests.differential.resources import Needs, ResourceSession, reached

ADVICE = {"mostly": Advice.SET_READ_MOSTLY, "prefer": Advice.SET_PREFERRED_LOCATION, "by": Advice.SET_ACCESSED_BY}
ATTRIBUTES = {
    "mostly": RangeAttribute.READ_MOSTLY,
    "prefer": RangeAttribute.PREFERRED_LOCATION,
    "by": RangeAttribute.ACCESSED_BY,
    "last": RangeAttribute.LAST_PREFETCH_LOCATION,
}
DONE, BUSY = "done", "busy"
_SOON = 0.003
"""Seconds for which a stream that waits is observed."""


def needs_of(calls: Iterable[str]) -> Needs:
    """Return what given calls need."""
    names = {call.rpartition(" = ")[2].partition(" ")[0] for call in calls}
    return Needs(not names.isdisjoint(RESOURCE_CALLS), "there" in names, not names.isdisjoint({"make", "timeline"}))


def _there(*words: str) -> Action:
    named = words[0] in CALLS or words[0] in RESOURCE_CALLS
    target, name, arguments = ((), words[0], words[1:]) if named else (words[:1], words[1], words[2:])
    inner = (CALLS.get(name) or RESOURCE_CALLS[name])(*target, *arguments)

    def action(session: ResourceSession) -> str:
        assert session.there
        return inner(session.there)

    return action  # type: ignore[return-value]  # sessions of a family are ResourceSessions


def _event(symbol: str, flags: str) -> ResourceAction:
    given = EventFlags(int(flags))

    def action(session: ResourceSession) -> str:
        session.events[symbol] = session.driver.event_create(given)
        return OK

    return action


def _end_event(symbol: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.driver.event_destroy(session.events[symbol])
        del session.events[symbol]
        return OK

    return action


def _record(symbol: str, stream: str) -> ResourceAction:
    return lambda session: after(session.driver.event_record, session.events[symbol], session.streams[stream])


def _event_done(symbol: str) -> ResourceAction:
    """Poll: a record takes a moment on hardware."""
    return lambda session: _done(reached(lambda: session.driver.event_query(session.events[symbol])))


def _event_sync(symbol: str) -> ResourceAction:
    return lambda session: after(session.driver.event_synchronize, session.events[symbol])


def _stream_wait(stream: str, symbol: str) -> ResourceAction:
    return lambda session: after(session.driver.stream_wait_event, session.streams[stream], session.events[symbol])


def _stream(symbol: str, flags: str = "1") -> ResourceAction:
    given = int(flags)

    def action(session: ResourceSession) -> str:
        session.streams[symbol] = session.driver.stream_create(given)
        return OK

    return action


def _end_stream(symbol: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.driver.stream_destroy(session.streams[symbol])
        del session.streams[symbol]
        return OK

    return action


def _stream_done(symbol: str) -> ResourceAction:
    return lambda session: _done(session.is_idle(session.streams[symbol]))


def _stream_busy(symbol: str) -> ResourceAction:
    """Observe for a moment: the stream is expected to wait."""
    return lambda session: _done(session.is_idle(session.streams[symbol], _SOON))


def _copy(to: str, source: str, size: str, stream: str) -> ResourceAction:
    """Copy in a stream, and wait for it."""
    places, count = (place_of(to), place_of(source)), size_of(size)

    def action(session: ResourceSession) -> str:
        addresses, number = [at_place(session, each) for each in places], session.streams[stream]
        session.driver.memcpy_async(addresses[0], addresses[1], count, number)
        return OK if session.is_idle(number) else BUSY

    return action


def _managed(symbol: str, size: str, flags: str) -> ResourceAction:
    count, given = size_of(size), int(flags)

    def action(session: ResourceSession) -> str:
        address = session.driver.mem_alloc_managed(count, given)  # type: ignore[arg-type]  # wrong ones too
        session.addresses[symbol] = address
        session.allocations[address] = count, symbol
        return OK

    return action


def _advise(at: str, size: str, advice: str, location: str) -> ResourceAction:
    place, count, where = place_of(at), size_of(size), location_of(location)
    return lambda session: after(session.driver.mem_advise, at_place(session, place), count, ADVICE[advice], where)


def _attribute(at: str, size: str, attribute: str) -> ResourceAction:
    place, count, asked = place_of(at), size_of(size), ATTRIBUTES[attribute]

    def action(session: ResourceSession) -> str:
        found = session.driver.mem_range_get_attribute(at_place(session, place), count, asked)
        return " ".join(map(str, sorted(found))) or "none"

    return action


def _attach(stream: str, at: str, flags: str) -> ResourceAction:
    place, given = place_of(at), MemAttach(int(flags))

    def action(session: ResourceSession) -> str:
        session.driver.stream_attach_mem_async(session.streams[stream], at_place(session, place), given)
        session.driver.ctx_synchronize()
        return OK

    return action


def _prefetch(at: str, size: str, location: str, stream: str) -> ResourceAction:
    place, count, where = place_of(at), size_of(size), location_of(location)

    def action(session: ResourceSession) -> str:
        session.driver.mem_prefetch_async(at_place(session, place), count, where, session.streams[stream])
        session.driver.ctx_synchronize()
        return OK

    return action


def _is_managed(at: str) -> ResourceAction:
    place = place_of(at)
    return lambda session: "yes" if session.driver.pointer_is_managed(at_place(session, place)) else "no"


def _host_write(at: str, data: str) -> ResourceAction:
    place, given = place_of(at), bytes.fromhex(data)
    return lambda session: after(session.driver.host_write, at_place(session, place), given)


def _host_read(at: str, size: str) -> ResourceAction:
    place, count = place_of(at), size_of(size)
    return lambda session: session.driver.host_read(at_place(session, place), count).hex()


def _share(symbol: str, at: str) -> ResourceAction:
    def share(session: ResourceSession, address: int) -> None:
        session.handed[symbol] = session.driver.ipc_get_mem_handle(address)

    return at_address(at, share)


def _open(symbol: str, handle: str, flags: str = "1") -> ResourceAction:
    given = int(flags)

    def action(session: ResourceSession) -> str:
        address = session.driver.ipc_open_mem_handle(session.handed[handle], given)
        again = address in session.opened_memory
        session.opened_memory.append(address)
        session.addresses[symbol] = address
        return "again" if again else OK

    return action


def _close_opened(at: str) -> ResourceAction:
    def close(session: ResourceSession, address: int) -> None:
        session.driver.ipc_close_mem_handle(address)
        session.opened_memory.remove(address)

    return at_address(at, close)


def _size_at(at: str) -> ResourceAction:
    """Offset from the base, and size: the base of opened memory may have several symbols."""
    place = place_of(at)

    def action(session: ResourceSession) -> str:
        address = at_place(session, place)
        base, size = session.driver.mem_get_address_range(address)
        return f"{size_text(address - base)} {size_text(size)}"

    return action


def _share_event(symbol: str, event: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.handed[symbol] = session.driver.ipc_get_event_handle(session.events[event])
        return OK

    return action


def _open_event(symbol: str, handle: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.events[symbol] = session.driver.ipc_open_event_handle(session.handed[handle])
        return OK

    return action


def _done(done: bool) -> str:
    return DONE if done else BUSY


RESOURCE_CALLS: dict[str, Callable[..., Callable[..., str]]] = {
    "there": _there, "event": _event, "endevent": _end_event, "record": _record, "eventdone": _event_done,
    "eventsync": _event_sync, "streamwait": _stream_wait, "stream": _stream, "endstream": _end_stream,
    "streamdone": _stream_done, "streambusy": _stream_busy, "copy": _copy, "managed": _managed, "advise": _advise,
    "attribute": _attribute, "attach": _attach, "prefetch": _prefetch, "ismanaged": _is_managed,
    "hostwrite": _host_write, "hostread": _host_read, "share": _share, "open": _open, "closeopened": _close_opened,
    "sizeat": _size_at, "shareevent": _share_event, "openevent": _open_event, **EXTERNAL_CALLS, **POOL_CALLS,
    **HOST_CALLS,
}  # fmt: skip
