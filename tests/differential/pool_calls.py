"""Calls for memory pools and their allocations, in text as in `calls`: `v0 = poolalloc 8M l0 0`.

Stream-ordered calls are waited for, since what a pool reserves depends on the work that is done.
"""

from __future__ import annotations

from collections.abc import Callable

from memtopo.driver.types import HandleType, PoolAttribute, PoolProperties
from tests.differential.calls import OK, at_address, at_place
from tests.differential.external_calls import ResourceAction, after
from tests.differential.notation import grants_of, location_of, place_of, properties_of, size_of, size_text
from tests.differential.resources import ResourceSession

POOL_ATTRIBUTES = {
    "events": PoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES,
    "opportunistic": PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC,
    "internal": PoolAttribute.REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    "threshold": PoolAttribute.RELEASE_THRESHOLD,
    "reserved": PoolAttribute.RESERVED_MEM_CURRENT,
    "reservedhigh": PoolAttribute.RESERVED_MEM_HIGH,
    "used": PoolAttribute.USED_MEM_CURRENT,
    "usedhigh": PoolAttribute.USED_MEM_HIGH,
}
_KINDS = {"none": HandleType.NONE, "fd": HandleType.FD, "fabric": HandleType.FABRIC}


def _pool(symbol: str, properties: str, most: str) -> ResourceAction:
    wanted, limit = properties_of(properties), size_of(most)

    def action(session: ResourceSession) -> str:
        number = session.driver.mem_pool_create(PoolProperties(wanted.location, wanted.handles, limit))
        session.pools[symbol] = number
        return OK

    return action


def _end_pool(pool: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.driver.mem_pool_destroy(session.pools[pool])
        del session.pools[pool]
        return OK

    return action


def _allocate(symbol: str, size: str, pool: str, stream: str) -> ResourceAction:
    count = size_of(size)

    def action(session: ResourceSession) -> str:
        number = session.streams[stream]
        address = session.driver.mem_alloc_from_pool_async(count, session.pools[pool], number)
        session.is_idle(number)
        session.addresses[symbol] = address
        if address:
            session.pooled[address] = False
        return OK if address else "null"

    return action


def _free(at: str, stream: str) -> ResourceAction:
    place = place_of(at)

    def action(session: ResourceSession) -> str:
        address, number = at_place(session, place), session.streams[stream]
        session.driver.mem_free_async(address, number)
        session.is_idle(number)
        session.pooled.pop(address, None)
        return OK

    return action


def _free_now(at: str) -> ResourceAction:
    def free(session: ResourceSession, address: int) -> None:
        session.driver.mem_free(address)
        session.pooled.pop(address, None)

    return at_address(at, free)


def _set(pool: str, attribute: str, value: str) -> ResourceAction:
    asked, given = POOL_ATTRIBUTES[attribute], size_of(value)
    return lambda session: after(session.driver.mem_pool_set_attribute, session.pools[pool], asked, given)


def _get(pool: str, attribute: str) -> ResourceAction:
    asked = POOL_ATTRIBUTES[attribute]
    return lambda session: size_text(session.driver.mem_pool_get_attribute(session.pools[pool], asked))


def _grant(pool: str, grants: str) -> ResourceAction:
    given = grants_of(grants)
    return lambda session: after(session.driver.mem_pool_set_access, session.pools[pool], given)


def _access(pool: str, location: str) -> ResourceAction:
    where = location_of(location)
    return lambda session: str(session.driver.mem_pool_get_access(session.pools[pool], where))


def _trim(pool: str, keep: str) -> ResourceAction:
    count = size_of(keep)
    return lambda session: after(session.driver.mem_pool_trim_to, session.pools[pool], count)


def _export(symbol: str, pool: str, kind: str, flags: str = "0") -> ResourceAction:
    wanted, given = _KINDS[kind], int(flags)

    def action(session: ResourceSession) -> str:
        shared = session.driver.mem_pool_export_to_shareable_handle(session.pools[pool], wanted, given)
        if isinstance(shared, int):
            session.fds[symbol] = shared
        return OK

    return action


def _import(symbol: str, fd: str, kind: str = "fd", flags: str = "0") -> ResourceAction:
    wanted, given = _KINDS[kind], int(flags)

    def action(session: ResourceSession) -> str:
        number = session.driver.mem_pool_import_from_shareable_handle(session.fds[fd], wanted, given)
        again = number in session.pools.values()
        session.pools[symbol] = number
        session.imported_pools.add(symbol)
        return "again" if again else OK

    return action


def _pointer(symbol: str, at: str) -> ResourceAction:
    place = place_of(at)

    def action(session: ResourceSession) -> str:
        session.handed[symbol] = session.driver.mem_pool_export_pointer(at_place(session, place))
        return OK

    return action


def _open(symbol: str, pool: str, pointer: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        address = session.driver.mem_pool_import_pointer(session.pools[pool], session.handed[pointer])
        again = address in session.pooled
        session.addresses[symbol] = address
        session.pooled[address] = True
        return "again" if again else OK

    return action


def _sync() -> ResourceAction:
    return lambda session: after(session.driver.ctx_synchronize)


POOL_CALLS: dict[str, Callable[..., ResourceAction]] = {
    "pool": _pool, "endpool": _end_pool, "poolalloc": _allocate, "poolfree": _free, "poolfreenow": _free_now,
    "poolset": _set, "poolget": _get, "poolgrant": _grant, "poolaccess": _access, "pooltrim": _trim,
    "poolexport": _export, "poolimport": _import, "poolpointer": _pointer, "poolopen": _open, "sync": _sync,
}  # fmt: skip
