from __future__ import annotations

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.driver.types import (
    PLACE_ATTRIBUTES,
    Access,
    Attribute,
    DriverError,
    Grant,
    HandleType,
    HostFlags,
    Location,
    LocationKind,
    Properties,
    gpu,
)
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.devices import SimMemoryBudget
from memtopo.machine import Granularity, Memory, Trial
from tests.contract.memory import NODE, created, laid_out, mapped, refused, reserved
from tests.helpers.machines import invented, with_nodes

M = 2 * MiB


@pytest.mark.parametrize(
    ("handles", "error"),
    [
        (HandleType.FABRIC, "CUDA_ERROR_NOT_PERMITTED"),
        (HandleType.FD | HandleType.FABRIC, "CUDA_ERROR_NOT_PERMITTED"),
        (HandleType.WIN32, "CUDA_ERROR_INVALID_VALUE"),
        (HandleType.WIN32_KMT, "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_trial_decides(sim: SimDriver, handles: HandleType, error: str) -> None:
    """Fact 4: what a recorded trial showed to fail fails in the same way, whatever is advertised"""
    assert sim.device_get_attribute(0, Attribute.HANDLE_TYPE_FABRIC_SUPPORTED) == 1
    with refused(error):
        sim.mem_create(M, Properties(gpu(0), handles))


def test_rare_features_need_a_successful_trial() -> None:
    """Fact 4: what was never tried is refused where it is rare (fabric, win32), and works where it is common (fd)"""
    never = Trial(advertised=True)
    with SimDriver(invented(trials={"fd": never, "fabric": never, "win32": never})) as sim:
        sim.init()
        for handles, error in ((HandleType.FABRIC, "NOT_SUPPORTED"), (HandleType.WIN32, "INVALID_VALUE")):
            with refused(f"CUDA_ERROR_{error}"):
                sim.mem_create(M, Properties(gpu(0), handles))
        with created(sim, M, Properties(gpu(0), HandleType.FD)) as handle:
            assert sim.mem_get_allocation_properties_from_handle(handle).handles == HandleType.FD


@pytest.mark.parametrize("what", ["rdma", "compressible"])
def test_a_failed_trial_refuses_creation(what: str) -> None:
    """Fact 4: a property whose trial failed fails with the recorded error"""
    with SimDriver(invented(trials={what: Trial(works=False, error="CUDA_ERROR_NOT_SUPPORTED")})) as sim:
        sim.init()
        with refused("CUDA_ERROR_NOT_SUPPORTED"):
            sim.mem_create(M, Properties(gpu(0), rdma=what == "rdma", compressible=what == "compressible"))


def test_memory_that_is_not_free_is_refused_before_handles_that_failed_in_a_trial() -> None:
    """Fact 65."""
    never = Trial(works=False, error="CUDA_ERROR_NOT_PERMITTED")
    with SimDriver(invented(trials={"fabric": never})) as sim:
        sim.init()
        for size, error in ((1024 * GiB, "CUDA_ERROR_OUT_OF_MEMORY"), (M, "CUDA_ERROR_NOT_PERMITTED")):
            with refused(error):
                sim.mem_create(size, Properties(gpu(0), HandleType.FABRIC))


def test_fabric_handles_work_where_a_trial_succeeded() -> None:
    """Fact 4: fabric works where a trial showed it to, alone and beside fd, and on the host's nodes"""
    with SimDriver(invented(trials={"fabric": Trial(advertised=True, works=True)})) as sim:
        sim.init()
        with created(sim, M, Properties(gpu(0), HandleType.FD | HandleType.FABRIC)) as handle:
            assert sim.mem_get_allocation_properties_from_handle(handle).handles.words == ("fd", "fabric")
        with created(sim, M, Properties(NODE, HandleType.FABRIC)) as handle:
            assert sim.mem_get_allocation_properties_from_handle(handle).handles == HandleType.FABRIC


def test_granularity_is_the_machines() -> None:
    """Granularity is what was recorded for exactly the properties, else that of plain chunks there"""
    machine = invented(granule=64 << 10)
    wide = Granularity(handles=[], rdma=True, compressible=False, minimum=16 * MiB, recommended=32 * MiB)
    plain = machine.devices[0].memory.granularity[0]
    first = machine.devices[0].model_copy(update={"memory": Memory(granularity=[plain, wide])})
    with SimDriver(machine.model_copy(update={"devices": [first, machine.devices[1]]})) as sim:
        sim.init()
        assert sim.mem_get_allocation_granularity(Properties(gpu(0), rdma=True)) == 16 * MiB
        assert sim.mem_get_allocation_granularity(Properties(gpu(0), rdma=True), recommended=True) == 32 * MiB
        assert sim.mem_get_allocation_granularity(Properties(gpu(0), compressible=True)) == 64 << 10
        with created(sim, 16 * MiB, Properties(gpu(0), rdma=True)) as handle, reserved(sim, 32 * MiB) as address:
            at = -(-address // (16 * MiB)) * 16 * MiB
            with refused("CUDA_ERROR_INVALID_VALUE"):
                sim.mem_map(at + (64 << 10), 16 * MiB, handle)
            with mapped(sim, at, 16 * MiB, handle):
                assert sim.mem_retain_allocation_handle(at) == handle
                sim.mem_release(handle)


def test_a_grant_without_peer_access_is_refused() -> None:
    """The grants before the refused one stay (fact 62)"""
    with SimDriver(invented(peers=False)) as sim:
        sim.init()
        assert sim.device_can_access_peer(1, 0) is False
        both = (Grant(gpu(0), Access.RW), Grant(gpu(1), Access.R))
        with laid_out(sim, (M,)) as address:
            with refused("CUDA_ERROR_NOT_SUPPORTED"):
                sim.mem_set_access(address, M, both)
            assert sim.mem_get_access(address, gpu(0)) == Access.RW
            assert sim.mem_get_access(address, gpu(1)) == 0
        with laid_out(sim, (M,), properties=Properties(NODE)) as address:
            sim.mem_set_access(address, M, both)
            assert sim.mem_get_access(address, gpu(1)) == Access.R


def test_what_was_not_recorded_is_not_known() -> None:
    """An attribute that the machine's record lacks is one that the driver does not know"""
    machine = invented(1)
    bare = machine.devices[0].model_copy(update={"attributes": {}})
    with SimDriver(machine.model_copy(update={"devices": [bare]})) as sim:
        sim.init()
        with refused("CUDA_ERROR_INVALID_VALUE"):
            sim.device_get_attribute(0, Attribute.ECC_ENABLED)


def test_recorded_names_are_given() -> None:
    """A recorded UUID and bus id are what the driver gives"""
    machine = invented(1)
    update = {"uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff", "bus_id": "0001:1b:0c.0"}
    with SimDriver(machine.model_copy(update={"devices": [machine.devices[0].model_copy(update=update)]})) as sim:
        sim.init()
        assert sim.device_get_uuid(0).hex() == "00112233445566778899aabbccddeeff"
        assert sim.device_get_pci_bus_id(0) == "0001:1b:0c.0"
        assert [sim.device_get_attribute(0, each) for each in PLACE_ATTRIBUTES] == [1, 0x1B, 0x0C]


def test_memory_of_the_host_is_that_of_its_nodes() -> None:
    """A node has no more than its own; memory of any node, pinned memory as well, has what the nodes have left."""
    with SimDriver(with_nodes(invented(1), 3 * GiB, 2 * GiB)) as sim:
        sim.init()
        nodes = [Properties(Location(LocationKind.HOST_NUMA, node)) for node in (0, 1)]
        lacking(sim, nodes[1], 3 * GiB, "host:1 has 2 GiB free")
        held = sim.mem_create(2 * GiB, nodes[0])
        lacking(sim, nodes[0], 2 * GiB, "host:0 has 1 GiB free")
        lacking(sim, Properties(Location(LocationKind.HOST)), 4 * GiB, "the host has 3 GiB free")
        anywhere = sim.mem_create(2 * GiB, Properties(Location(LocationKind.HOST)))
        lacking(sim, nodes[1], 2 * GiB, "host:1 has 1 GiB free")
        sim.ctx_push_current(sim.device_primary_ctx_retain(0))
        with pytest.raises(DriverError) as caught:
            sim.mem_host_alloc(2 * GiB, HostFlags.PORTABLE)
        assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
        for handle in (held, anywhere):
            sim.mem_release(handle)
        sim.mem_free_host(sim.mem_host_alloc(5 * GiB, HostFlags.PORTABLE))
        sim.mem_release(sim.mem_create(3 * GiB, nodes[0]))


def test_memory_of_a_process_that_ends_is_free_for_the_others_which_keep_theirs() -> None:
    machine = invented(1)
    budgets = [SimMemoryBudget(machine, of=shared) for shared in [SimMemoryBudget(machine)] for _ in range(2)]
    ended, other = (SimDriver(machine, budget) for budget in budgets)
    with ended, other:
        ended.init()
        other.init()
        ended.mem_create(60 * GiB, Properties(gpu(0)))
        other.mem_create(20 * GiB, Properties(gpu(0)))
        lacking(other, Properties(gpu(0)), M, "gpu0 has 0 B free")
        ended.process.budget.end()
        lacking(other, Properties(gpu(0)), 60 * GiB + M, "gpu0 has 60 GiB free")
        other.mem_create(60 * GiB, Properties(gpu(0)))


def lacking(sim: SimDriver, properties: Properties, size: int, reason: str) -> None:
    with pytest.raises(DriverError) as caught:
        sim.mem_create(size, properties)
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert reason in str(caught.value)
