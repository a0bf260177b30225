"""Causes of errors by call: those that the simulator states a reason for are made there, or compared with its code."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable

import pytest

from memtopo import machine
from memtopo.diagnostics.explanations import causes, causes_of, causes_with_reason, facts
from memtopo.driver.types import (
    Access,
    AllocationType,
    DriverError,
    EventFlags,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    MemAttach,
    PoolProperties,
    Properties,
    gpu,
)
from memtopo.drivers.sim import SimDriver
from memtopo.testing.abi import exported
from memtopo.testing.program import SharedMachine, SimulatedProgram
from memtopo.testing.server import RemoteProgram
from tests.helpers.refusals import reasons

M = 2 << 20
FD, NONE, FABRIC = HandleType.FD, HandleType.NONE, HandleType.FABRIC
HOST = Location(LocationKind.HOST)
PLAIN = Properties(gpu(0))
READ = (Grant(gpu(0), Access.R),)

Make = Callable[[SimDriver], object]


def chunk(sim: SimDriver, properties: Properties = PLAIN) -> int:
    return sim.mem_create(M, properties)


def mapping(sim: SimDriver, *grants: Grant, size: int = M) -> int:
    address = sim.mem_address_reserve(size)
    sim.mem_map(address, M, chunk(sim))
    if grants:
        sim.mem_set_access(address, M, grants)
    return address


def in_context(sim: SimDriver, then: Callable[[], object]) -> object:
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    return then()


def after_release(sim: SimDriver) -> None:
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    sim.device_primary_ctx_release(0)
    sim.ctx_synchronize()


def twice(call: Callable[[int], object], made: int) -> None:
    call(made)
    call(made)


def imported(sim: SimDriver) -> int:
    fd = sim.mem_export_to_shareable_handle(chunk(sim, Properties(gpu(0), FD)), FD)
    assert isinstance(fd, int)
    try:
        return sim.mem_import_from_shareable_handle(fd, FD)
    finally:
        os.close(fd)


def closed() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)
    return reading


def illegal(sim: SimDriver) -> None:
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    sim.module_load_data()
    address = mapping(sim, *READ)
    sim.store(address, 1)
    sim.ctx_synchronize()


def own_ipc(sim: SimDriver) -> None:
    sim.ctx_push_current(sim.device_primary_ctx_retain(0))
    sim.ipc_open_mem_handle(sim.ipc_get_mem_handle(sim.mem_alloc(M)))


def in_program(name: str, *arguments: int | bytes) -> None:
    """Make a call of a program in C, with words, or the bytes of structures that it points to."""
    shared = SharedMachine(machine.load("h200x2"))
    program = SimulatedProgram(shared, port := RemoteProgram(os.getpid()))
    structures = [ctypes.create_string_buffer(each) for each in arguments if isinstance(each, bytes)]
    pointers = map(ctypes.addressof, structures)
    words = [next(pointers) if isinstance(each, bytes) else each for each in arguments]
    for function, given in (("cuInit", []), (name, words)):
        program.answer(exported().index(function), [*given, *[0] * (8 - len(given))])
    port.ended()
    program.close()
    refused = shared.calls[-1]
    raise DriverError(refused.function, str(refused.error), refused.reason)


MADE: dict[str, list[Make]] = {
    "Every call": [
        lambda _: SimDriver(machine.load("h200x2")).device_get_count(),
        lambda sim: sim.memset_d8(mapping(sim, *READ), 0, 1),
        after_release,
    ],
    "cuMemAddressReserve": [
        lambda sim: sim.mem_address_reserve(M + 1),
        lambda sim: sim.mem_address_reserve(M, 3 * M),
        lambda sim: sim.mem_address_reserve(M, 0, (1 << 41) + 4096),
        lambda sim: sim.mem_address_reserve(M, 0, 0, 1),
        lambda sim: sim.mem_address_reserve(1 << 47),
    ],
    "cuMemAddressFree": [
        lambda sim: sim.mem_address_free(mapping(sim), M),
        lambda sim: sim.mem_address_free(sim.mem_address_reserve(2 * M), M),
    ],
    "cuMemCreate": [
        lambda sim: sim.mem_create(M + 1, PLAIN),
        lambda sim: sim.mem_create(M, PLAIN._replace(type=AllocationType.MANAGED)),
        lambda _: in_program("cuMemCreate", bytes(8), M, struct.pack("=iiii16x", 1, 0, 0, 0), 0),
        lambda sim: sim.mem_create(M, Properties(HOST, FD)),
        lambda sim: sim.mem_create(M, PLAIN, 1),
        lambda sim: sim.mem_create(32 << 40, PLAIN),
        lambda sim: sim.mem_create(M, Properties(gpu(9))),
        lambda sim: sim.mem_create(M, Properties(gpu(0), FABRIC)),
    ],
    "cuMemRelease": [lambda sim: twice(sim.mem_release, chunk(sim))],
    "cuMemMap": [
        lambda sim: sim.mem_map(sim.mem_address_reserve(2 * M) + 4096, M, chunk(sim)),
        lambda sim: sim.mem_map(mapping(sim), M, chunk(sim)),
        lambda sim: sim.mem_map(1 << 42, M, chunk(sim)),
        lambda sim: sim.mem_map(sim.mem_address_reserve(M), 2 * M, sim.mem_create(2 * M, PLAIN)),
        lambda sim: sim.mem_map(sim.mem_address_reserve(M), M, 0),
        lambda sim: sim.mem_map(sim.mem_address_reserve(M), M, 0, chunk(sim)),
        lambda sim: sim.mem_map(sim.mem_address_reserve(M), M, chunk(sim), 0, 1),
        lambda sim: sim.mem_map(0, M, chunk(sim)),
        lambda sim: sim.mem_map(sim.mem_address_reserve(2 * M), 2 * M, chunk(sim)),
        lambda sim: sim.mem_map(sim.mem_address_reserve(M), M, chunk(sim), 4096),
    ],
    "cuMemUnmap": [
        lambda sim: sim.mem_unmap(mapping(sim), M // 2),
        lambda sim: sim.mem_unmap(1 << 42, M),
    ],
    "cuMemSetAccess": [
        lambda sim: sim.mem_set_access(sim.mem_address_reserve(M), M, READ),
        lambda sim: sim.mem_set_access(mapping(sim), M, (Grant(gpu(9), Access.R),)),
        lambda sim: sim.mem_set_access(mapping(sim), M, ()),
        lambda _: in_program("cuMemSetAccess", M, M, struct.pack("=iii", 0, 0, 3), 1),
        lambda sim: sim.mem_set_access(mapping(sim), M, (Grant(gpu(0), Access(5)),)),
        lambda sim: sim.mem_set_access(mapping(sim), M, (Grant(HOST, Access.R),)),
    ],
    "cuMemGetAccess": [
        lambda sim: sim.mem_get_access(sim.mem_address_reserve(M), gpu(0)),
        lambda sim: sim.mem_get_access(mapping(sim), gpu(9)),
    ],
    "cuMemExportToShareableHandle": [
        lambda sim: sim.mem_export_to_shareable_handle(chunk(sim), FD),
        lambda sim: sim.mem_export_to_shareable_handle(imported(sim), FD),
        lambda sim: sim.mem_export_to_shareable_handle(chunk(sim, Properties(gpu(0), FD)), NONE),
    ],
    "cuMemImportFromShareableHandle": [
        lambda sim: sim.mem_import_from_shareable_handle(closed(), FD),
        lambda sim: sim.mem_import_from_shareable_handle(0, NONE),
    ],
    "cuMemcpyHtoD": [
        lambda sim: in_context(sim, lambda: sim.memcpy_htod(mapping(sim, *READ), b"1")),
        lambda sim: in_context(sim, lambda: sim.memcpy_htod(sim.mem_alloc(M), b"1" * (M + 1))),
        lambda sim: sim.memcpy_htod(mapping(sim, *READ), b"1"),
    ],
    "cuMemcpyDtoH": [
        lambda sim: in_context(sim, lambda: sim.memcpy_dtoh(mapping(sim), 1)),
        lambda sim: in_context(sim, lambda: sim.memcpy_dtoh(sim.mem_alloc(M), M + 1)),
        lambda sim: sim.memcpy_dtoh(mapping(sim, *READ), 1),
    ],
    "cuMemsetD8": [
        lambda sim: in_context(sim, lambda: sim.memset_d8(mapping(sim, *READ), 1, 1)),
        lambda sim: sim.memset_d8(mapping(sim, *READ), 1, 1),
    ],
    "cuCtxSynchronize": [illegal, lambda sim: sim.ctx_synchronize()],
    "cuMemAlloc": [
        lambda sim: in_context(sim, lambda: sim.mem_alloc(32 << 40)),
        lambda sim: in_context(sim, lambda: sim.mem_alloc(0)),
        lambda sim: sim.mem_alloc(M),
    ],
    "cuMemFree": [lambda sim: in_context(sim, lambda: sim.mem_free(mapping(sim)))],
    "cuIpcGetMemHandle": [
        lambda sim: in_context(sim, lambda: sim.ipc_get_mem_handle(mapping(sim))),
        lambda sim: sim.ipc_get_mem_handle(M),
    ],
    "cuIpcOpenMemHandle": [own_ipc, lambda sim: in_context(sim, lambda: sim.ipc_open_mem_handle(bytes(64), 1))],
    "cuMemHostUnregister": [lambda sim: sim.mem_host_unregister(1 << 42)],
    "cuMemGetHandleForAddressRange": [
        lambda sim: in_context(sim, lambda: sim.mem_get_handle_for_address_range(mapping(sim), 100)),
    ],
    "cuMemPoolImportFromShareableHandle": [
        lambda sim: sim.mem_pool_import_from_shareable_handle(closed(), FD),
    ],
    "cuEventCreate": [
        lambda sim: in_context(sim, lambda: sim.event_create(EventFlags.INTERPROCESS)),
        lambda sim: sim.event_create(EventFlags.DISABLE_TIMING),
    ],
    "cuIpcGetEventHandle": [
        lambda sim: in_context(sim, lambda: sim.ipc_get_event_handle(sim.event_create(EventFlags.DISABLE_TIMING)))
    ],
    "cuMemHostAlloc": [
        lambda sim: sim.mem_host_alloc(M, HostFlags.NONE),
        lambda sim: in_context(sim, lambda: sim.mem_host_alloc(M, HostFlags(64))),
    ],
    "cuMemAllocManaged": [lambda sim: in_context(sim, lambda: sim.mem_alloc_managed(0, MemAttach.GLOBAL))],
    "cuMemPoolDestroy": [lambda sim: twice(sim.mem_pool_destroy, sim.mem_pool_create(PoolProperties(gpu(0))))],
}
"""Calls that have the causes of the page that need one process."""


def test_each_reason_of_the_page_is_one_of_the_simulator() -> None:
    """The two may differ in what is filled in."""
    stated = [re.escape(reason).replace("…", ".+") for reason in reasons()]
    for cause in causes():
        for reason in cause.reasons:
            text = reason.replace("…", "gpu0")
            assert any(re.match(each, text) or each.startswith(re.escape(text)) for each in stated) or any(
                re.match(re.escape(reason).replace("…", ".+"), each) for each in reasons()
            ), reason


@pytest.mark.parametrize(("call", "make"), [(call, make) for call, makes in MADE.items() for make in makes])
def test_a_refused_call_has_a_cause_of_the_page(call: str, make: Make) -> None:
    with SimDriver(machine.load("h200x2")) as sim:
        sim.init()
        with pytest.raises(DriverError) as raised:
            make(sim)
    error = raised.value
    assert call in {error.call, "Every call"}
    found = causes_with_reason(call, error.name.removeprefix("CUDA_ERROR_"), str(error.reason))
    assert found
    assert {number for cause in found for number in cause.facts} <= set(facts())


def test_each_cause_that_needs_one_process_is_made_here() -> None:
    """Others have no reason, or need a second process or memory that is not there."""
    made = {call: len(makes) for call, makes in MADE.items()}
    stated_here = {call: sum(bool(cause.reasons) for cause in causes() if cause.call == call) for call in made}
    assert {call for call, number in made.items() if number < stated_here[call]} <= {
        "cuIpcOpenMemHandle",
        "cuMemGetHandleForAddressRange",
        "cuMemPoolImportFromShareableHandle",
    }


def test_each_cause_cites_facts_or_names_its_source() -> None:
    for cause in causes():
        assert set(cause.facts) <= set(facts())
        assert cause.facts or cause.sources
        assert set(cause.sources) <= {"doc", "reports"}


def test_causes_are_found_by_call_error_and_both() -> None:
    assert {cause.error for cause in causes_of("cuMemMap", None)} == {"INVALID_VALUE", "NOT_SUPPORTED", "ILLEGAL_STATE"}
    assert {cause.call for cause in causes_of(None, "EBADF")} >= {"pidfd_getfd", "mmap"}
    assert len(causes_of("cuMemMap", "NOT_SUPPORTED")) == 2
    assert causes_of("cuMemMap", "NOT_PERMITTED") == []
    assert [cause.call for cause in causes_of("cuMemMap", "NOT_INITIALIZED")] == ["Every call"]
    assert causes_of("cuGraphCreate", None) == []
