"""The trials, one function for each way of trying; each gives whether it worked, and raises what the driver raised.

Each leaves nothing behind, and uses a granule or two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from memtopo.driver.trying import WORD, ForeignSemaphore
from memtopo.driver.types import (
    DriverError,
    EventFlags,
    HandleType,
    MemAttach,
    MemoryHandleType,
    Properties,
    SemaphoreHandleType,
    gpu,
)
from memtopo.machine.probe.trial_resources import FIRST, SECOND, THIRD, Bench, users, word
from memtopo.machine.probe.trial_table import STORE, Ask, way

BUFFER = 64 << 10
PATIENCE = 5.0
"""Seconds that another API is waited for."""
_SHARED_EVENT = EventFlags.DISABLE_TIMING | EventFlags.INTERPROCESS


def attempt(bench: Bench, ask: Ask) -> bool:
    """Make one trial. Raises `DriverError`."""
    how = STORE if ask.name == STORE else way(ask.place, ask.name).how
    return _TRIALS[how](bench, ask)


def _create(bench: Bench, ask: Ask) -> bool:
    with bench.chunk(way(ask.place, ask.name).properties(ask.place)):
        return True


def _use(bench: Bench, ask: Ask) -> bool:
    """Created with all it was asked for, written, and read back."""
    properties = way(ask.place, ask.name).properties(ask.place)
    with bench.chunk(properties) as (handle, size), bench.mapped(handle, size, [ask.place]) as address:
        bench.fill(ask.by, address, FIRST)
        created = bench.driver.mem_get_allocation_properties_from_handle(handle)
        # A driver may create a chunk and leave out what it cannot do; the properties of the handle tell (fact 41).
        kept = (created.rdma, created.compressible) == (properties.rdma, properties.compressible)
        return kept and bench.blocks(ask.by, address, FIRST)


def _share(bench: Bench, ask: Ask) -> bool:
    """Exported in each of its handle types, imported in another process, and written by either for the other."""
    properties = way(ask.place, ask.name).properties(ask.place)
    kinds = [kind for kind in (HandleType.FD, HandleType.FABRIC) if kind in properties.handles]
    with bench.chunk(properties) as (handle, size), bench.mapped(handle, size, [gpu(ask.by)]) as address:
        return all(_seen(bench, ask.by, (handle, size, address), kind) for kind in kinds)


def _seen(bench: Bench, by: int, chunk: tuple[int, int, int], kind: HandleType) -> bool:
    handle, size, address = chunk
    bench.fill(by, address, FIRST)
    shared = bench.driver.mem_export_to_shareable_handle(handle, kind)
    return bench.import_(by, shared, what="chunk", kind=int(kind), size=size) and bench.blocks(by, address, SECOND)


def _by_gpu(bench: Bench, ask: Ask) -> bool:
    """Host memory that a kernel stores into, and the CPU reads."""
    with (
        bench.chunk(Properties(ask.place)) as (handle, size),
        bench.mapped(handle, size, users(ask.place, ask.by)) as address,
    ):
        bench.driver.host_write(address, bytes(WORD))
        with bench.current(ask.by):
            bench.extras.store(address, int.from_bytes(word(FIRST), "little"))
        return bench.driver.host_read(address, WORD) == word(FIRST)


def _by_cpu(bench: Bench, ask: Ask) -> bool:
    """Host memory that the CPU writes, and a copy by the GPU's context reads."""
    with (
        bench.chunk(Properties(ask.place)) as (handle, size),
        bench.mapped(handle, size, users(ask.place, ask.by)) as address,
    ):
        bench.driver.host_write(address, word(SECOND))
        return bench.blocks(ask.by, address, SECOND) and bench.driver.host_read(address, WORD) == word(SECOND)


def _store(bench: Bench, ask: Ask) -> bool:
    """A kernel's store into the memory of a peer, read there: a link may lose it and tell nobody."""
    owner = ask.place
    with (
        bench.chunk(Properties(owner)) as (handle, size),
        bench.mapped(handle, size, [owner, gpu(ask.by)]) as address,
    ):
        bench.fill(owner.id, address, THIRD)
        with bench.current(ask.by):
            bench.extras.store(address, int.from_bytes(word(FIRST), "little"))
        return bench.blocks(owner.id, address, FIRST)


def _managed(bench: Bench, ask: Ask) -> bool:
    """The GPU sees what the CPU wrote, and the other way round (fact 39)."""
    with bench.current(ask.by), ExitStack() as undo:
        address = bench.driver.mem_alloc_managed(BUFFER, MemAttach.GLOBAL)
        undo.callback(bench.driver.mem_free, address)
        bench.driver.host_write(address, word(FIRST))
        read = bench.driver.memcpy_dtoh(address, WORD)
        bench.extras.store(address, int.from_bytes(word(SECOND), "little"))
        return read == word(FIRST) and bench.driver.host_read(address, WORD) == word(SECOND)


def _concurrent(bench: Bench, ask: Ask) -> bool:
    """The CPU writes managed memory while a kernel waits for just that."""
    with bench.current(ask.by), ExitStack() as undo:
        address = bench.driver.mem_alloc_managed(BUFFER, MemAttach.GLOBAL)
        undo.callback(bench.driver.mem_free, address)
        return bench.extras.meet(address, int.from_bytes(word(FIRST), "little"))


def _ipc(bench: Bench, ask: Ask) -> bool:
    """Memory of `cuMemAlloc`, opened in another process, and written by either for the other (facts 31, 46)."""
    with bench.current(ask.by), ExitStack() as undo:
        address = bench.driver.mem_alloc(BUFFER)
        undo.callback(bench.driver.mem_free, address)
        bench.fill(ask.by, address, FIRST)
        shared = bench.driver.ipc_get_mem_handle(address)
        return bench.import_(ask.by, shared, what="ipc") and bench.blocks(ask.by, address, SECOND)


def _ipc_event(bench: Bench, ask: Ask) -> bool:
    """An event that this process records and another one waits for (facts 32, 47)."""
    with bench.current(ask.by), ExitStack() as undo:
        event = bench.driver.event_create(_SHARED_EVENT)
        undo.callback(bench.driver.event_destroy, event)
        bench.driver.event_record(event)
        return bench.import_(ask.by, bench.driver.ipc_get_event_handle(event), what="ipc_event")


def _pool(bench: Bench, ask: Ask) -> bool:
    """A pool that can be shared so, imported in another process."""
    kind = way(ask.place, ask.name).handles
    with bench.current(ask.by), ExitStack() as undo:
        pool = bench.extras.mem_pool_create(ask.place, kind)
        undo.callback(bench.extras.mem_pool_destroy, pool)
        shared = bench.extras.mem_pool_export_to_shareable_handle(pool, kind)
        return bench.import_(ask.by, shared, what="pool", kind=int(kind))


def _external_memory(bench: Bench, ask: Ask) -> bool:
    """Memory that another API allocated on this GPU: each sees what the other wrote (fact 35)."""
    with bench.foreign(ask.by) as other, bench.current(ask.by), ExitStack() as undo:
        memory = other.allocate(BUFFER)
        memory.write(0, word(FIRST))
        object_ = bench.driver.import_external_memory(memory.fd(), MemoryHandleType.OPAQUE_FD, memory.whole)
        undo.callback(bench.driver.destroy_external_memory, object_)
        address = bench.driver.external_memory_get_mapped_buffer(object_, 0, BUFFER)
        undo.callback(bench.driver.mem_free, address)
        found = bench.blocks(ask.by, address, FIRST)
        bench.fill(ask.by, address, SECOND)
        return found and memory.read(0, WORD) == word(SECOND)


def _external_semaphore(bench: Bench, ask: Ask) -> bool:
    """A timeline semaphore and a binary one of another API: each end waits for what the other signals (fact 36)."""
    with bench.foreign(ask.by) as other, bench.current(ask.by), ExitStack() as undo:
        stream = bench.driver.stream_create()
        undo.callback(bench.driver.stream_destroy, stream)
        timeline, binary = other.timeline(), other.binary()
        return _relayed(bench, undo, stream, timeline, SemaphoreHandleType.TIMELINE_FD) and _relayed(
            bench, undo, stream, binary, SemaphoreHandleType.OPAQUE_FD
        )


def _relayed(
    bench: Bench, undo: ExitStack, stream: int, semaphore: ForeignSemaphore, kind: SemaphoreHandleType
) -> bool:
    driver = bench.driver
    imported = driver.import_external_semaphore(semaphore.fd(), kind)
    undo.callback(driver.destroy_external_semaphore, imported)
    driver.signal_external_semaphore(imported, 1, stream)
    heard = _done(bench, stream) and semaphore.wait(1, PATIENCE)
    semaphore.signal(2)
    driver.wait_external_semaphore(imported, 2, stream)
    return _done(bench, stream) and heard


def _done(bench: Bench, stream: int) -> bool:
    """Whether a stream came to its end; a wait that is never answered ends with the trial's process (fact 58)."""
    while not bench.driver.stream_query(stream):
        time.sleep(0.001)
    return True


_TRIALS: dict[str, Callable[[Bench, Ask], bool]] = {
    "create": _create,
    "use": _use,
    "share": _share,
    "by_gpu": _by_gpu,
    "by_cpu": _by_cpu,
    STORE: _store,
    "managed": _managed,
    "concurrent": _concurrent,
    "ipc": _ipc,
    "ipc_event": _ipc_event,
    "pool": _pool,
    "external_memory": _external_memory,
    "external_semaphore": _external_semaphore,
}


Request = dict[str, Any]


def import_answer(bench: Bench, request: Request, fds: Sequence[int]) -> dict[str, Any]:
    """The import_answer to one request: whether the bytes were there, or which call was refused and how."""
    try:
        shared = fds[0] if fds else bytes.fromhex(request["shared"])
        return {"same": _OPENERS[request["what"]](bench, request, shared)}
    except DriverError as error:
        return {"error": error.name, "call": error.call}


def _open_chunk(bench: Bench, request: Request, shared: int | bytes) -> bool:
    by = request["by"]
    handle = bench.driver.mem_import_from_shareable_handle(shared, HandleType(request["kind"]))
    with ExitStack() as undo:
        undo.callback(bench.driver.mem_release, handle)
        address = undo.enter_context(bench.mapped(handle, request["size"], [gpu(by)]))
        return _exchange(bench, by, address)


def _open_ipc(bench: Bench, request: Request, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    by = request["by"]
    with bench.current(by), ExitStack() as undo:
        address = bench.driver.ipc_open_mem_handle(shared)
        undo.callback(bench.driver.ipc_close_mem_handle, address)
        return _exchange(bench, by, address)


def _open_ipc_event(bench: Bench, request: Request, shared: int | bytes) -> bool:
    assert isinstance(shared, bytes)
    with bench.current(request["by"]), ExitStack() as undo:
        event = bench.driver.ipc_open_event_handle(shared)
        undo.callback(bench.driver.event_destroy, event)
        bench.driver.event_synchronize(event)
        return bench.driver.event_query(event)


def _open_pool(bench: Bench, request: Request, shared: int | bytes) -> bool:
    with bench.current(request["by"]):
        pool = bench.extras.mem_pool_import_from_shareable_handle(shared, HandleType(request["kind"]))
        bench.extras.mem_pool_destroy(pool)
        return True


def _exchange(bench: Bench, by: int, address: int) -> bool:
    found = bench.blocks(by, address, FIRST)
    bench.fill(by, address, SECOND)
    return found


_OPENERS: dict[str, Callable[[Bench, Request, int | bytes], bool]] = {
    "chunk": _open_chunk,
    "ipc": _open_ipc,
    "ipc_event": _open_ipc_event,
    "pool": _open_pool,
}
