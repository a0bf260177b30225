"""Calls by name: their arguments in text, and their execution with an answer that no address or handle is in.

An answer is `ok`, a value, or the driver's error without its `CUDA_ERROR_`. To add a call: a function here that takes
the texts of its arguments and returns a function of a session, with its name in `CALLS`; a method of `Generator` with
its frequency; and a method of `Shadow` if it makes or ends something.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from memtopo.driver.types import Access, DriverError, HandleType, Location, LocationKind
from tests.differential.notation import (
    Place,
    grants_of,
    location_of,
    place_of,
    properties_of,
    properties_text,
    size_of,
    size_text,
)
from tests.differential.session import Session

S = TypeVar("S", bound=Session)

Action = Callable[[Session], str]
OK = "ok"
UNDEFINED = "undefined"
"""Answer of a call that uses a symbol without a value."""
NODE = Location(LocationKind.HOST_NUMA, 0)


class Call(NamedTuple):
    """A call in text: its result's symbol or an empty one, its name and its arguments."""

    target: str
    name: str
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Call:
        target, _, call = text.rpartition(" = ")
        name, *arguments = call.split()
        return cls(target, name, tuple(arguments))

    @property
    def spoken(self) -> str:
        """Name of the call, also where the second process makes it: `there alloc`."""
        return self.name if self.name != "there" else f"there {self.arguments[0]}"


@lru_cache(1 << 16)
def compiled(text: str) -> Action:
    """Return the function that makes a call; cached, since sequences repeat the same texts."""
    call = Call.parse(text)
    targets = (call.target,) if call.target else ()
    action = (CALLS.get(call.name) or _resource_call(call.name))(*targets, *call.arguments)

    def answer(session: Session) -> str:
        try:
            return action(session)
        except DriverError as error:
            return error.name.removeprefix("CUDA_ERROR_")
        except KeyError:
            return UNDEFINED

    return answer


def _resource_call(name: str) -> Callable[..., Action]:
    from tests.differential.resource_calls import RESOURCE_CALLS  # which builds on this module

    return RESOURCE_CALLS[name]


def _reserve(symbol: str, size: str, alignment: str = "0", hint: str = "null", flags: str = "0") -> Action:
    count, aligned, wanted, given = size_of(size), size_of(alignment), place_of(hint), int(flags)

    def action(session: Session) -> str:
        address = session.driver.mem_address_reserve(count, aligned, at_place(session, wanted), given)
        session.addresses[symbol] = address
        session.reservations[address] = count, symbol
        return OK if not aligned or address % aligned == 0 else "unaligned"

    return action


def _free(at: str, size: str) -> Action:
    place, count = place_of(at), size_of(size)

    def action(session: Session) -> str:
        address = at_place(session, place)
        session.driver.mem_address_free(address, count)
        session.reservations.pop(address, None)
        return OK

    return action


def _create(symbol: str, size: str, properties: str, flags: str = "0") -> Action:
    count, wanted, given = size_of(size), properties_of(properties), int(flags)

    def action(session: Session) -> str:
        session.opened(symbol, session.driver.mem_create(count, wanted, given))
        return OK

    return action


def _release(chunk: str) -> Action:
    def action(session: Session) -> str:
        handle = session.handles[chunk]
        session.driver.mem_release(handle)
        session.references[handle] -= 1
        return OK

    return action


def _map(at: str, size: str, chunk: str, offset: str = "0", flags: str = "0") -> Action:
    place, count, begin, given = place_of(at), size_of(size), size_of(offset), int(flags)

    def action(session: Session) -> str:
        address = at_place(session, place)
        session.driver.mem_map(address, count, session.handles[chunk], begin, given)
        session.mappings[address] = count
        return OK

    return action


def _unmap(at: str, size: str) -> Action:
    place, count = place_of(at), size_of(size)

    def action(session: Session) -> str:
        address = at_place(session, place)
        session.driver.mem_unmap(address, count)
        session.unmapped(address, count)
        return OK

    return action


def _set_access(at: str, size: str, grants: str) -> Action:
    place, count, given = place_of(at), size_of(size), grants_of(grants)

    def action(session: Session) -> str:
        session.driver.mem_set_access(at_place(session, place), count, given)
        return OK

    return action


def _get_access(at: str, location: str) -> Action:
    place, where = place_of(at), location_of(location)
    return lambda session: str(session.driver.mem_get_access(at_place(session, place), where))


def _retain(at: str) -> Action:
    place = place_of(at)

    def action(session: Session) -> str:
        handle = session.driver.mem_retain_allocation_handle(at_place(session, place))
        session.references[handle] = session.references.get(handle, 0) + 1
        return session.names.get(handle, "?")

    return action


def _properties(chunk: str) -> Action:
    def action(session: Session) -> str:
        return properties_text(session.driver.mem_get_allocation_properties_from_handle(session.handles[chunk]))

    return action


def _address_range(at: str) -> Action:
    place = place_of(at)

    def action(session: Session) -> str:
        base, size = session.driver.mem_get_address_range(at_place(session, place))
        return f"{session.name_of(base)} {size_text(size)}"

    return action


def _export(symbol: str, chunk: str, kind: str, flags: str = "0") -> Action:
    handle_type = properties_of(f"gpu0/{kind}").handles
    given = int(flags)

    def action(session: Session) -> str:
        shared = session.driver.mem_export_to_shareable_handle(session.handles[chunk], handle_type, given)
        if isinstance(shared, int):
            session.fds[symbol] = shared
        return OK

    return action


def _import(symbol: str, fd: str) -> Action:
    def action(session: Session) -> str:
        session.opened(symbol, session.driver.mem_import_from_shareable_handle(session.fds[fd], HandleType.FD))
        return OK

    return action


def _close(fd: str) -> Action:
    def action(session: Session) -> str:
        os.close(session.fds.pop(fd))
        return OK

    return action


def _alloc(symbol: str, size: str) -> Action:
    count = size_of(size)

    def action(session: Session) -> str:
        address = session.driver.mem_alloc(count)
        session.addresses[symbol] = address
        session.allocations[address] = count, symbol
        return OK

    return action


def _free_allocation(at: str) -> Action:
    def free(session: Session, address: int) -> None:
        session.driver.mem_free(address)
        session.allocations.pop(address, None)

    return at_address(at, free)


def _push(device: str) -> Action:
    number = int(device[3:])

    def action(session: Session) -> str:
        session.driver.ctx_push_current(session.contexts[number])
        session.pushed += 1
        return OK

    return action


def _pop() -> Action:
    def action(session: Session) -> str:
        context = session.driver.ctx_pop_current()
        session.pushed -= 1
        return f"gpu{list(session.contexts).index(context)}"

    return action


def _fill(at: str, value: str, size: str) -> Action:
    """Fill and wait: what still runs when its mapping goes fails the whole context."""
    place, byte, count = place_of(at), int(value), size_of(size)

    def action(session: Session) -> str:
        session.driver.memset_d8(at_place(session, place), byte, count)
        session.driver.ctx_synchronize()
        return OK

    return action


def _write(at: str, data: str) -> Action:
    place, given = place_of(at), bytes.fromhex(data)

    def action(session: Session) -> str:
        session.driver.memcpy_htod(at_place(session, place), given)
        session.driver.ctx_synchronize()
        return OK

    return action


def _read(at: str, size: str) -> Action:
    place, count = place_of(at), size_of(size)
    return lambda session: session.driver.memcpy_dtoh(at_place(session, place), count).hex() or OK


def _touch(at: str, size: str) -> Action:
    """Read bytes that nothing has written: their values are not compared."""
    place, count = place_of(at), size_of(size)

    def action(session: Session) -> str:
        session.driver.memcpy_dtoh(at_place(session, place), count)
        return OK

    return action


def _if_survived(device: str, at: str, call: str, *arguments: str) -> Action:
    """Copy host memory, unless the CPU would make the copy and may not, which ends the process (fact 40)."""
    place, where = place_of(at), location_of(device)
    copy = CALLS[call](at, *arguments)
    survives = _write_survives if call == "write" else _read_survives

    def action(session: Session) -> str:
        address, driver = at_place(session, place), session.driver
        host, granted = driver.mem_get_access(address, NODE), driver.mem_get_access(address, where)
        return copy(session) if survives(host, granted) else f"not tried {host} {granted}"

    return action


def _write_survives(host: int, device: int) -> bool:
    return host == Access.RW or device == Access.R or (device == Access.RW and not host)


def _read_survives(host: int, device: int) -> bool:
    return bool(host or device)


def _granularity(properties: str, recommended: str = "") -> Action:
    wanted = properties_of(properties)

    def action(session: Session) -> str:
        return size_text(session.driver.mem_get_allocation_granularity(wanted, recommended=bool(recommended)))

    return action


def _state(device: str) -> Action:
    number = int(device[3:])
    return lambda session: str(session.driver.device_primary_ctx_get_state(number))


def at_address(at: str, effect: Callable[[S, int], None]) -> Callable[[S], str]:
    """Return the function of a call without a result, whose effect is at the address of a place."""
    place = place_of(at)

    def action(session: S) -> str:
        effect(session, at_place(session, place))
        return OK

    return action


def at_place(session: Session, place: Place) -> int:
    """Address of a place. Raises `KeyError` if its symbol has no value."""
    return session.addresses[place.symbol] + place.offset


CALLS: dict[str, Callable[..., Action]] = {
    "reserve": _reserve,
    "free": _free,
    "create": _create,
    "release": _release,
    "map": _map,
    "unmap": _unmap,
    "set": _set_access,
    "get": _get_access,
    "retain": _retain,
    "props": _properties,
    "range": _address_range,
    "export": _export,
    "import": _import,
    "close": _close,
    "alloc": _alloc,
    "freemem": _free_allocation,
    "push": _push,
    "pop": _pop,
    "fill": _fill,
    "write": _write,
    "read": _read,
    "touch": _touch,
    "safely": _if_survived,
    "gran": _granularity,
    "state": _state,
}
