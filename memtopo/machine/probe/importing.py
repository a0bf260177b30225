"""What the importing process does with what it is handed: opens it, looks for the bytes, and writes others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from memtopo.driver.types import DriverError, HandleType, gpu
from memtopo.machine.probe.trial_resources import FIRST, SECOND, Bench

Request = dict[str, Any]


def answer(bench: Bench, request: Request, fds: Sequence[int]) -> dict[str, Any]:
    """The answer to one request: whether the bytes were there, or which call was refused and how."""
    try:
        shared = fds[0] if fds else bytes.fromhex(request["shared"])
        return {"same": _OPENERS[request["what"]](bench, request, shared)}
    except DriverError as error:
        return {"error": error.name, "call": error.call}


def _chunk(bench: Bench, request: Request, shared: int | bytes) -> bool:
    by = request["by"]
    handle = bench.driver.mem_import_from_shareable_handle(shared, HandleType(request["kind"]))
    with ExitStack() as undo:
        undo.callback(bench.driver.mem_release, handle)
        address = undo.enter_context(bench.mapped(handle, request["size"], [gpu(by)]))
        return _exchanged(bench, by, address)


def _ipc(bench: Bench, request: Request, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    by = request["by"]
    with bench.current(by), ExitStack() as undo:
        address = bench.driver.ipc_open_mem_handle(shared)
        undo.callback(bench.driver.ipc_close_mem_handle, address)
        return _exchanged(bench, by, address)


def _ipc_event(bench: Bench, request: Request, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    with bench.current(request["by"]), ExitStack() as undo:
        event = bench.driver.ipc_open_event_handle(shared)
        undo.callback(bench.driver.event_destroy, event)
        bench.driver.event_synchronize(event)
        return bench.driver.event_query(event)


def _pool(bench: Bench, request: Request, shared: int | bytes) -> bool:
    with bench.current(request["by"]):
        pool = bench.extras.mem_pool_import_from_shareable_handle(shared, HandleType(request["kind"]))
        bench.extras.mem_pool_destroy(pool)
        return True


def _exchanged(bench: Bench, by: int, address: int) -> bool:
    found = bench.blocks(by, address, FIRST)
    bench.fill(by, address, SECOND)
    return found


_OPENERS: dict[str, Callable[[Bench, Request, int | bytes], bool]] = {
    "chunk": _chunk,
    "ipc": _ipc,
    "ipc_event": _ipc_event,
    "pool": _pool,
}
