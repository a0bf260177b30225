from __future__ import annotations

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver, call_name
from memtopo.driver.recorder import CallContext, CallList, Recorder
from memtopo.driver.types import (
    HOST,
    Access,
    Advice,
    DriverError,
    Grant,
    Location,
    LocationKind,
    MemAttach,
    Properties,
    RangeAttribute,
    gpu,
)
from memtopo.driver.wrappers import Renumbered, defaults
from memtopo.drivers.sim import SimDriver
from tests.contract.memory import INVALID_DEVICE, NODE, PLAIN, current, refused
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented

M = 2 << 20
METHODS = [name for name in dir(Driver) if not name.startswith("_")]


def lay_out(driver: Driver) -> None:
    """Nine calls that build a mapping, ask for its access and take it down."""
    driver.init()
    granule = driver.mem_get_allocation_granularity(PLAIN)
    address = driver.mem_address_reserve(granule)
    handle = driver.mem_create(granule, PLAIN)
    driver.mem_map(address, granule, handle)
    driver.mem_get_access(address, gpu(0))
    driver.mem_unmap(address, granule)
    driver.mem_release(handle)
    driver.mem_address_free(address, granule)


CALLS = [
    "cuInit",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemGetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
]


@pytest.mark.parametrize("at", range(1, 10))
def test_the_nth_call_fails(at: int) -> None:
    """The n-th call, queries included, is not made but raises, under the driver's name for it"""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, at)
        with pytest.raises(DriverError) as caught:
            lay_out(failing)
        assert (caught.value.call, caught.value.name) == (CALLS[at - 1], "CUDA_ERROR_UNKNOWN")
        assert (failing.calls, failing.failed) == (at, CALLS[at - 1])


def test_a_failed_call_was_not_made() -> None:
    """The call that fails does not reach the driver behind"""
    with SimDriver(invented()) as sim:
        ledger = Ledger(sim)
        with pytest.raises(DriverError):
            lay_out(Failing(ledger, 7))
        assert ledger.counts() == {"reservations": 1, "handles": 1, "mappings": 1, "contexts": 0}


def test_no_call_fails_beyond_the_last() -> None:
    """With n behind the last call, none fails, and the count says how many there were"""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, 10)
        lay_out(failing)
        assert (failing.calls, failing.failed) == (9, None)


def test_only_named_methods_are_counted() -> None:
    """Counting can be for some methods alone, and the error chosen"""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, 2, error="CUDA_ERROR_OUT_OF_MEMORY", only={"mem_create", "mem_release"})
        with pytest.raises(DriverError) as caught:
            lay_out(failing)
        assert (caught.value.call, caught.value.name) == ("cuMemRelease", "CUDA_ERROR_OUT_OF_MEMORY")
        assert failing.calls == 2


def test_every_call_from_the_nth_on_fails() -> None:
    """All counted calls from the n-th on can be made to fail"""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, 2, only={"mem_create"}, every=True)
        failing.init()
        handle = failing.mem_create(M, PLAIN)
        for _ in range(3):
            with pytest.raises(DriverError):
                failing.mem_create(M, PLAIN)
        failing.mem_release(handle)
        assert failing.calls == 4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_counted(method: str) -> None:
    """Every method of the protocol is counted and can fail, before its arguments are looked at"""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, 1)
        with pytest.raises(DriverError) as caught:
            getattr(failing, method)()
        assert (caught.value.call, caught.value.name) == (call_name(method), "CUDA_ERROR_UNKNOWN")


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("init", "cuInit"),
        ("driver_get_version", "cuDriverGetVersion"),
        ("device_total_mem", "cuDeviceTotalMem"),
        ("device_get_p2p_attribute", "cuDeviceGetP2PAttribute"),
        ("device_get_pci_bus_id", "cuDeviceGetPCIBusId"),
        ("device_primary_ctx_get_state", "cuDevicePrimaryCtxGetState"),
        ("ctx_push_current", "cuCtxPushCurrent"),
        ("mem_get_info", "cuMemGetInfo"),
        ("mem_map", "cuMemMap"),
        ("mem_get_allocation_properties_from_handle", "cuMemGetAllocationPropertiesFromHandle"),
        ("mem_export_to_shareable_handle", "cuMemExportToShareableHandle"),
        ("mem_import_from_shareable_handle", "cuMemImportFromShareableHandle"),
        ("mem_alloc", "cuMemAlloc"),
        ("mem_host_alloc", "cuMemHostAlloc"),
        ("mem_alloc_from_pool_async", "cuMemAllocFromPoolAsync"),
        ("mem_pool_import_from_shareable_handle", "cuMemPoolImportFromShareableHandle"),
        ("mem_host_get_flags", "cuMemHostGetFlags"),
        ("mem_free_host", "cuMemFreeHost"),
        ("ipc_get_mem_handle", "cuIpcGetMemHandle"),
        ("ipc_close_mem_handle", "cuIpcCloseMemHandle"),
        ("ipc_open_event_handle", "cuIpcOpenEventHandle"),
        ("event_synchronize", "cuEventSynchronize"),
        ("stream_wait_event", "cuStreamWaitEvent"),
        ("mem_alloc_managed", "cuMemAllocManaged"),
        ("mem_prefetch_async", "cuMemPrefetchAsync"),
        ("mem_range_get_attribute", "cuMemRangeGetAttribute"),
        ("stream_attach_mem_async", "cuStreamAttachMemAsync"),
        ("pointer_is_managed", "cuPointerGetAttribute"),
        ("import_external_memory", "cuImportExternalMemory"),
        ("external_memory_get_mapped_buffer", "cuExternalMemoryGetMappedBuffer"),
        ("destroy_external_semaphore", "cuDestroyExternalSemaphore"),
        ("signal_external_semaphore", "cuSignalExternalSemaphoresAsync"),
        ("wait_external_semaphore", "cuWaitExternalSemaphoresAsync"),
        ("host_write", "(store by the CPU)"),
        ("host_read", "(load by the CPU)"),
        ("memset_d8", "cuMemsetD8"),
        ("memcpy_htod", "cuMemcpyHtoD"),
        ("memcpy_dtoh", "cuMemcpyDtoH"),
    ],
)
def test_methods_have_the_drivers_names(method: str, call: str) -> None:
    """A method's name gives the driver's name for the call"""
    assert call_name(method) == call


def test_renumbered_translates_ordinals_of_managed_memory() -> None:
    """Advice, prefetches and their attributes have the caller's ordinals; the host stays the host"""
    with SimDriver(invented(2)) as sim:
        driver: Driver = Renumbered(sim, [3, 2])
        driver.init()
        with current(driver, 3):
            address = driver.mem_alloc_managed(M, MemAttach.GLOBAL)

            def attribute(name: RangeAttribute, of: Driver = driver) -> tuple[int, ...]:
                return of.mem_range_get_attribute(address, M, name)

            driver.mem_advise(address, M, Advice.SET_READ_MOSTLY, gpu(3))
            assert attribute(RangeAttribute.READ_MOSTLY) == (1,)
            driver.mem_advise(address, M, Advice.SET_PREFERRED_LOCATION, gpu(2))
            assert attribute(RangeAttribute.PREFERRED_LOCATION) == (2,)
            assert attribute(RangeAttribute.PREFERRED_LOCATION, sim) == (1,)
            driver.mem_prefetch_async(address, M, gpu(3))
            assert attribute(RangeAttribute.LAST_PREFETCH_LOCATION) == (3,)
            assert attribute(RangeAttribute.LAST_PREFETCH_LOCATION, sim) == (0,)
            for location in (gpu(3), Location(LocationKind.HOST), gpu(2)):
                driver.mem_advise(address, M, Advice.SET_ACCESSED_BY, location)
            assert sorted(attribute(RangeAttribute.ACCESSED_BY)) == [HOST, 2, 3]
            driver.mem_prefetch_async(address, M, NODE)
            assert attribute(RangeAttribute.LAST_PREFETCH_LOCATION) == (HOST,)
            with refused(INVALID_DEVICE):
                driver.mem_prefetch_async(address, M, gpu(0))
            driver.mem_free(address)


def test_renumbered_translates_positional_and_keyword_arguments() -> None:
    with SimDriver(invented(3)) as sim:
        driver: Driver = Renumbered(sim, [7, 5])
        driver.init()
        assert driver.device_get_uuid(5) == driver.device_get_uuid(device=5) == sim.device_get_uuid(1)
        assert driver.device_can_access_peer(7, peer=5)
        properties = Properties(gpu(5))
        handle = driver.mem_create(M, properties=properties)
        assert driver.mem_get_allocation_properties_from_handle(handle) == properties
        assert sim.mem_get_allocation_properties_from_handle(handle).location == gpu(1)
        driver.mem_release(handle)
        with refused(INVALID_DEVICE):
            driver.device_get_name(0)


def test_renumbered_grants_access_to_the_gpus_of_the_caller() -> None:
    """A GPU that the process does not see is refused, and no access is changed."""
    with SimDriver(invented(2)) as sim:
        driver: Driver = Renumbered(sim, [3, 2])
        driver.init()
        address, handle = driver.mem_address_reserve(M), driver.mem_create(M, Properties(gpu(3)))
        driver.mem_map(address, M, handle)
        driver.mem_set_access(address, M, (Grant(gpu(3), Access.RW), Grant(gpu(2), Access.R)))
        assert [driver.mem_get_access(address, gpu(each)) for each in (3, 2)] == [Access.RW, Access.R]
        assert [sim.mem_get_access(address, gpu(each)) for each in (0, 1)] == [Access.RW, Access.R]
        with refused(INVALID_DEVICE):
            driver.mem_set_access(address, M, (Grant(gpu(3), Access.NONE), Grant(gpu(0), Access.RW)))
        assert sim.mem_get_access(address, gpu(0)) == Access.RW


@pytest.mark.parametrize(
    ("method", "omitted"),
    [
        ("mem_create", {"flags": 0}),
        ("mem_get_allocation_granularity", {"recommended": False}),
        ("import_external_memory", {"dedicated": False}),
        ("mem_release", {}),
    ],
)
def test_arguments_that_a_caller_leaves_out_have_the_defaults_of_the_protocol(
    method: str, omitted: dict[str, object]
) -> None:
    assert defaults(method) == omitted


def test_a_call_between_two_steps_is_of_none_and_one_within_a_step_of_something_else_is_no_undo() -> None:
    with SimDriver(invented()) as simulator:
        context = CallContext("teardown")
        record = CallList(context)
        driver = Recorder(simulator, record)
        context.begin_step("map", "kv", undo=True)
        with context.within("verify", "page"):
            driver.init()
        driver.device_get_count()
        context.leave()
        driver.device_get_count()
    about = [("verify", "page", False, 1), ("map", "kv", True, 1), ("", "", False, 1)]
    assert [(each.verb, each.subject, each.undo, each.number) for each in record.calls] == about
