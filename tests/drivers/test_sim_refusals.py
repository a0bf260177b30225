"""Rules that the simulator enforces one by one: a call that breaks a rule is refused for it, in any state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from memtopo.common.units import KiB, MiB
from memtopo.driver.kernels import Area
from memtopo.driver.types import (
    WHOLE_HOST,
    Access,
    Advice,
    DmaBufFlags,
    DriverError,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    MemoryHandleType,
    PoolAttribute,
    PoolProperties,
    Properties,
    SemaphoreHandleType,
    gpu,
)
from memtopo.drivers.sim import SimDriver, external_api
from tests.contract.memory import HOST, NODE, current
from tests.helpers.machines import WORKS, invented

M = 2 * MiB
GRANT = Grant(gpu(0), Access.RW)
ATTRIBUTE = PoolAttribute
CURRENT_NODE = Location(LocationKind.HOST_NUMA_CURRENT)
Refusal = tuple[str, Callable[[SimDriver, Any], object]]


def rows(*refusals: Refusal) -> list[Refusal]:
    """Refusals by the reason, and the call, which gets the simulator and the objects below."""
    return list(refusals)


@pytest.fixture
def made(sim: SimDriver) -> Iterator[SimpleNamespace]:
    """A range with two mapped chunks, a hole and another one; one object of each kind; GPU 0 is current."""
    with current(sim):
        base, chunk = sim.mem_address_reserve(5 * M), sim.mem_create(M, Properties(gpu(0), HandleType.FD))
        for at in (base, base + M, base + 3 * M):
            sim.mem_map(at, M, chunk)
        pool = sim.mem_pool_create(PoolProperties(gpu(0), HandleType.FD))
        memory = external_api.allocate(sim.device_get_uuid(0), M)
        yield SimpleNamespace(
            base=base,
            chunk=chunk,
            own=sim.mem_alloc(M),
            pinned=sim.mem_host_alloc(4 * KiB, HostFlags.PORTABLE),
            managed=sim.mem_alloc_managed(M, MemAttach.GLOBAL),
            pool=pool,
            pooled=sim.mem_alloc_from_pool_async(4 * KiB, pool),
            plain=sim.event_create(EventFlags.DISABLE_TIMING),
            external=sim.import_external_memory(memory, MemoryHandleType.OPAQUE_FD, M),
            timeline=sim.import_external_semaphore(
                external_api.make_semaphore(timeline=True), SemaphoreHandleType.TIMELINE_FD
            ),
        )


RESERVATIONS = rows(
    ("size is not a multiple", lambda sim, _: sim.mem_address_reserve(M + 4 * KiB)),
    ("not a power of two", lambda sim, _: sim.mem_address_reserve(M, 3 * M)),
    ("not a power of two", lambda sim, _: sim.mem_address_reserve(M, -M)),
    ("hint is not aligned to the granularity", lambda sim, _: sim.mem_address_reserve(M, 0, (1 << 41) + 4 * KiB)),
    ("hint is not aligned as the reservation", lambda sim, _: sim.mem_address_reserve(M, 4 * M, (1 << 41) + M)),
    ("flags must be 0", lambda sim, _: sim.mem_address_reserve(M, flags=1)),
    ("not the start of a reservation", lambda sim, made: sim.mem_address_free(made.base + M, 4 * M)),
    ("size is not the reservation's", lambda sim, made: sim.mem_address_free(made.base, 6 * M)),
    ("size is not the reservation's", lambda sim, made: sim.mem_address_free(made.base, M)),
    ("mapped inside", lambda sim, made: _free_beneath(sim, made)),
)
CHUNKS = rows(
    ("flags must be 0", lambda sim, _: sim.mem_create(M, Properties(gpu(0)), 1)),
    ("size is not a multiple", lambda sim, _: sim.mem_create(M + 4 * KiB, Properties(gpu(0)))),
    ("does not exist", lambda sim, _: sim.mem_create(M, Properties(gpu(2)))),
    ("does not exist", lambda sim, _: sim.mem_create(M, Properties(Location(LocationKind.HOST_NUMA, 7)))),
    ("current NUMA node", lambda sim, _: sim.mem_create(M, Properties(CURRENT_NODE))),
    ("neither rdma nor compressible", lambda sim, _: sim.mem_create(M, Properties(NODE, rdma=True))),
    ("neither rdma nor compressible", lambda sim, _: sim.mem_create(M, Properties(NODE, compressible=True))),
    ("does not support handle types", lambda sim, _: sim.mem_create(M, Properties(HOST, HandleType.FD))),
    ("flags must be 0", lambda sim, made: sim.mem_map(made.base + 2 * M, M, made.chunk, 0, 1)),
    ("offset must be 0", lambda sim, made: sim.mem_map(made.base + 2 * M, M, made.chunk, 4 * KiB)),
    ("size must be the chunk's", lambda sim, made: sim.mem_map(made.base + 2 * M, M // 2, made.chunk)),
    ("address is 0", lambda sim, made: sim.mem_map(0, M, made.chunk)),
    ("not aligned", lambda sim, made: sim.mem_map(made.base + 2 * M + 4 * KiB, M, made.chunk)),
    ("past the end of its reservation", lambda sim, made: sim.mem_map(made.base + 4 * M, 2 * M, sim.mem_create(
        2 * M, Properties(gpu(0))
    ))),
    ("is not reserved", lambda sim, made: sim.mem_unmap(made.base, 5 * M + M)),
    ("part of a mapping", lambda sim, made: sim.mem_unmap(made.base, M + 4 * KiB)),
    ("size is 0", lambda sim, made: sim.mem_unmap(made.base, 0)),
)  # fmt: skip
ACCESS = rows(
    ("no access is given", lambda sim, made: sim.mem_set_access(made.base, M, ())),
    ("none, read or read and write", lambda sim, made: sim.mem_set_access(made.base, M, (Grant(gpu(0), 2),))),  # type: ignore[arg-type]
    ("gpu2 does not exist", lambda sim, made: sim.mem_set_access(made.base, M, (Grant(gpu(2), Access.RW),))),
    ("does not exist", lambda sim, made: sim.mem_set_access(made.base, M, (Grant(CURRENT_NODE, Access.RW),))),
    ("host cannot access", lambda sim, made: sim.mem_set_access(made.base, M, (Grant(WHOLE_HOST, Access.R),))),
    ("begin and end with a mapping", lambda sim, made: sim.mem_set_access(made.base, 3 * M, (GRANT,))),
    ("begin and end with a mapping", lambda sim, made: sim.mem_set_access(made.base + 2 * M, 2 * M, (GRANT,))),
    ("the size is 0", lambda sim, made: sim.mem_set_access(made.base, 0, (GRANT,))),
    ("the address is 0", lambda sim, _: sim.mem_get_access(0, gpu(0))),
    ("gpu2 does not exist", lambda sim, made: sim.mem_get_access(made.base, gpu(2))),
    ("nothing is mapped", lambda sim, made: sim.mem_get_access(made.base + 2 * M, gpu(0))),
    ("not a byte", lambda sim, made: sim.memset_d8(made.own, 256, 1)),
    ("past the end of the allocation", lambda sim, made: sim.memset_d8(made.own, 1, M + 1)),
    ("has no rw access", lambda sim, made: _fill_what_is_read(sim, made)),
)  # fmt: skip
HOST_MEMORY = rows(
    ("a flag is unknown", lambda sim, _: sim.mem_host_alloc(1, HostFlags(8))),
    ("size is negative", lambda sim, _: sim.mem_host_alloc(-1, HostFlags.NONE)),
    ("not the start of an allocation", lambda sim, made: sim.mem_free(made.pinned)),
    ("not the start of page-locked memory", lambda sim, made: sim.mem_free_host(made.own)),
    ("not the start of page-locked memory", lambda sim, made: sim.mem_free_host(made.pinned + 1)),
    ("not the start of registered memory", lambda sim, made: sim.mem_host_unregister(made.pinned)),
    ("in no page-locked memory", lambda sim, made: sim.mem_host_get_device_pointer(made.managed)),
    ("in no memory of the host", lambda sim, made: sim.mem_host_get_flags(made.own)),
    ("flags must be those of memory", lambda sim, _: sim.mem_alloc_managed(M, MemAttach.SINGLE)),
    ("the size is 0", lambda sim, _: sim.mem_alloc_managed(0, MemAttach.GLOBAL)),
    ("host as a whole", lambda sim, made: sim.mem_advise(made.managed, M, Advice.SET_ACCESSED_BY, NODE)),
    ("the bytes are none", lambda sim, made: sim.mem_prefetch_async(made.managed, 0, gpu(0))),
    ("gpu2 does not exist", lambda sim, made: sim.mem_prefetch_async(made.managed, 1, gpu(2))),
    ("past the end", lambda sim, made: sim.mem_prefetch_async(made.managed, M + 1, gpu(0))),
    ("in no managed memory", lambda sim, made: sim.mem_prefetch_async(made.own, 1, gpu(0))),
    ("not the start", lambda sim, made: sim.stream_attach_mem_async(0, made.managed + 1, MemAttach.GLOBAL)),
    ("attached to stream 0", lambda sim, made: sim.stream_attach_mem_async(0, made.managed, MemAttach.SINGLE)),
    ("allocation of the driver", lambda sim, made: sim.mem_host_register(made.pinned, 1, 0)),  # type: ignore[arg-type]
    ("a flag is unknown", lambda sim, made: sim.mem_host_register(made.pinned, 1, 16)),  # type: ignore[arg-type]
    ("in no registered memory", lambda sim, _: sim.mem_host_unregister(4096)),
)
POOLS = rows(
    ("gpu2 does not exist", lambda sim, _: sim.mem_pool_create(PoolProperties(gpu(2)))),
    ("exceeds the addresses", lambda sim, _: sim.mem_pool_create(PoolProperties(gpu(0), max_size=1 << 47))),
    ("cannot be set", lambda sim, made: sim.mem_pool_set_attribute(made.pool, ATTRIBUTE.USED_MEM_HIGH, 1)),
    ("cannot be set", lambda sim, made: sim.mem_pool_set_attribute(made.pool, ATTRIBUTE.USED_MEM_CURRENT, 0)),
    ("cannot be set", lambda sim, made: sim.mem_pool_set_attribute(made.pool, ATTRIBUTE.RELEASE_THRESHOLD, 1 << 64)),
    ("no access is given", lambda sim, made: sim.mem_pool_set_access(made.pool, ())),
    ("read and write", lambda sim, made: sim.mem_pool_set_access(made.pool, (Grant(gpu(1), Access.R),))),
    ("to no gpu's", lambda sim, made: sim.mem_pool_set_access(made.pool, (Grant(WHOLE_HOST, Access.RW),))),
    ("to its own pools", lambda sim, _: sim.mem_pool_set_access(
        sim.mem_pool_create(PoolProperties(WHOLE_HOST)), (Grant(WHOLE_HOST, Access.NONE),)
    )),
    ("keeps its access", lambda sim, made: sim.mem_pool_set_access(made.pool, (Grant(gpu(0), Access.NONE),))),
    ("gpu2 does not exist", lambda sim, made: sim.mem_pool_set_access(made.pool, (Grant(gpu(2), Access.RW),))),
    ("does not exist", lambda sim, made: sim.mem_pool_get_access(made.pool, CURRENT_NODE)),
    ("not the start of an allocation of a pool", lambda sim, made: sim.mem_free_async(made.pooled + 1)),
    ("was not exported", lambda sim, made: sim.mem_pool_export_pointer(made.pooled)),
    ("begins at the address", lambda sim, made: sim.mem_pool_export_pointer(made.pooled + 1)),
    ("is destroyed", lambda sim, made: _free_after_its_pool(sim, made)),
)  # fmt: skip
SHARING = rows(
    ("flags must be 0", lambda sim, made: sim.mem_export_to_shareable_handle(made.chunk, HandleType.FD, 1)),
    ("one at a time", lambda sim, made: sim.mem_export_to_shareable_handle(made.chunk, HandleType.NONE)),
    ("not created with handle type", lambda sim, made: sim.mem_export_to_shareable_handle(
        made.chunk, HandleType.FABRIC
    )),
    ("not a file descriptor", lambda sim, _: sim.mem_import_from_shareable_handle(-1, HandleType.FD)),
    ("in no allocation", lambda sim, made: sim.ipc_get_mem_handle(made.managed)),
    ("flags must be 1", lambda sim, _: sim.ipc_open_mem_handle(bytes(64), 0)),
    ("not a handle of a simulator", lambda sim, _: sim.ipc_open_mem_handle(bytes(64))),
    ("64 bytes", lambda sim, _: sim.ipc_open_mem_handle(bytes(63))),
    ("in the process that allocated it", lambda sim, made: sim.ipc_open_mem_handle(sim.ipc_get_mem_handle(made.own))),
    ("an unknown flag", lambda sim, made: sim.mem_get_handle_for_address_range(made.own, M, DmaBufFlags(2))),
    ("host's pages", lambda sim, made: sim.mem_get_handle_for_address_range(made.own + 1, M)),
    ("host's pages", lambda sim, made: sim.mem_get_handle_for_address_range(made.own, 1)),
    ("no memory that supports", lambda sim, made: sim.mem_get_handle_for_address_range(made.base, 3 * M)),
    ("no memory that supports", lambda sim, made: sim.mem_get_handle_for_address_range(made.pinned, 4 * KiB)),
    ("inside of a unit", lambda sim, made: sim.mem_get_handle_for_address_range(
        sim.mem_alloc_from_pool_async(M, made.pool) // 4096 * 4096 + 4096, 4096
    )),
)  # fmt: skip
STREAMS = rows(
    ("flags must be 1", lambda sim, _: sim.stream_create(0)),
    ("it is stream 0", lambda sim, _: sim.stream_destroy(0)),
    ("not retained", lambda sim, _: sim.device_primary_ctx_release(1)),
    ("the context is 0", lambda sim, _: sim.ctx_push_current(0)),
    ("it is no context", lambda sim, _: sim.ctx_push_current(12345)),
    ("not an event's", lambda sim, _: sim.event_create(EventFlags(8))),
    ("has no timing", lambda sim, _: sim.event_create(EventFlags.INTERPROCESS)),
    ("a stream that is captured", lambda sim, made: sim.stream_wait_event(0, made.plain, 1)),
    ("flags must be 0", lambda sim, made: sim.stream_wait_event(0, made.plain, 2)),
    ("not an interprocess event", lambda sim, made: sim.ipc_get_event_handle(made.plain)),
    ("not open", lambda sim, made: _ask_for_what_is_destroyed(sim, made)),
    ("can be imported", lambda sim, _: sim.import_external_semaphore(0, SemaphoreHandleType(2))),
    ("not a file descriptor", lambda sim, _: sim.import_external_semaphore(-1, SemaphoreHandleType.TIMELINE_FD)),
    ("not a semaphore", lambda sim, _: sim.import_external_semaphore(-1, SemaphoreHandleType.OPAQUE_FD)),
    ("64-bit", lambda sim, made: sim.signal_external_semaphore(made.timeline, 1 << 64, 0)),
    ("the size is 0", lambda sim, _: sim.import_external_memory(0, MemoryHandleType.OPAQUE_FD, 0)),
    ("can be imported", lambda sim, _: sim.import_external_memory(0, MemoryHandleType.OPAQUE_WIN32, 1)),
    ("the size is 0", lambda sim, made: sim.external_memory_get_mapped_buffer(made.external, 0, 0)),
    ("size that was declared", lambda sim, made: sim.external_memory_get_mapped_buffer(made.external, 1, M)),
    ("no kernels are loaded", lambda sim, made: sim.load(made.own)),
    ("not aligned", lambda sim, made: _fill_unaligned(sim, made)),
    ("not a peer of itself", lambda sim, _: sim.device_get_p2p_attribute(1, 0, 0)),
)


def _free_beneath(sim: SimDriver, made: SimpleNamespace) -> None:
    sim.mem_unmap(made.base, 2 * M)
    sim.mem_address_free(made.base, 5 * M)


def _fill_what_is_read(sim: SimDriver, made: SimpleNamespace) -> None:
    sim.mem_set_access(made.base, M, (Grant(gpu(0), Access.R),))
    sim.memset_d8(made.base, 1, 1)


def _free_after_its_pool(sim: SimDriver, made: SimpleNamespace) -> None:
    sim.mem_pool_destroy(made.pool)
    sim.mem_free(made.pooled)


def _ask_for_what_is_destroyed(sim: SimDriver, made: SimpleNamespace) -> None:
    sim.event_destroy(made.plain)
    sim.event_query(made.plain)


def _fill_unaligned(sim: SimDriver, made: SimpleNamespace) -> None:
    sim.module_load_data()
    sim.fill([Area(made.own, 64, 0, first=4)])


@pytest.mark.parametrize(("why", "call"), [*RESERVATIONS, *CHUNKS, *ACCESS, *HOST_MEMORY, *POOLS, *SHARING, *STREAMS])
def test_a_call_is_refused_for_the_rule_that_it_breaks(
    sim: SimDriver, made: SimpleNamespace, why: str, call: Callable[[SimDriver, Any], object]
) -> None:
    with pytest.raises(DriverError, match=why):
        call(sim, made)


def test_compression_is_left_out_of_memory_that_network_cards_reach() -> None:
    """Fact 41"""
    works = {"rdma": WORKS, "compressible": WORKS}
    with SimDriver(invented(trials=works)) as sim:
        sim.init()
        for rdma in (False, True):
            chunk = sim.mem_create(M, Properties(gpu(0), rdma=rdma, compressible=True))
            found = sim.mem_get_allocation_properties_from_handle(chunk)
            assert (found.rdma, found.compressible) == (rdma, not rdma)
