"""Multicast objects on the simulator, as the documentation has them (fact 87), and their refusal by the CUDA driver."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memtopo.common.units import MiB
from memtopo.driver.kernels import Kernels
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import MULTICAST_SLOTS, Access, DriverError, Grant, HandleType, Properties, gpu
from memtopo.drivers.cuda.driver import CudaDriver, RefusedMulticast
from memtopo.drivers.sim import SimDriver
from memtopo.machine import load, shipped
from tests.contract.memory import INVALID_VALUE, OUT_OF_MEMORY, current, refused
from tests.helpers.machines import invented, with_multicast
from tests.helpers.simulator import DOCUMENTED

M = 2 * MiB
FD = HandleType.FD
RW = Grant(gpu(0), Access.RW)
PACKAGE = Path(__file__).parent.parent.parent / "memtopo"


@pytest.fixture
def sim() -> Iterator[SimDriver]:
    with SimDriver(with_multicast(invented(2))) as driver:
        driver.init()
        yield driver


def chunk(sim: Driver, device: int, size: int = M, handles: HandleType = FD) -> int:
    return sim.mem_create(size, Properties(gpu(device), handles))


def team(sim: Driver, size: int = 2 * M, handles: HandleType = FD) -> int:
    """An object for two GPUs that are both added."""
    handle = sim.multicast_create(2, size, handles)
    for device in (0, 1):
        sim.multicast_add_device(handle, device)
    return handle


def mapped(sim: Driver, handle: int, size: int) -> int:
    address = sim.mem_address_reserve(size)
    sim.mem_map(address, size, handle)
    sim.mem_set_access(address, size, (RW,))
    return address


def test_a_copy_to_a_multicast_address_reaches_all_bound_memory(sim: SimDriver) -> None:
    handle, chunks = team(sim), [chunk(sim, device) for device in (0, 1)]
    for each in chunks:
        sim.multicast_bind_mem(handle, M, each, 0, M)
    address, views = mapped(sim, handle, 2 * M), [mapped(sim, each, M) for each in chunks]
    with current(sim):
        sim.memcpy_htod(address + M - 4, b"12345678")
        assert [sim.memcpy_dtoh(view, 4) for view in views] == [b"5678", b"5678"]
        sim.memcpy_htod(address + M + 1, b"in")
        assert [sim.memcpy_dtoh(view, 4) for view in views] == [b"5in8", b"5in8"]
        source = mapped(sim, chunk(sim, 0), M)
        sim.memcpy_htod(source, b"abcdefgh")
        sim.memcpy_async(address + M - 4, source, 8)
        assert [sim.memcpy_dtoh(view, 4) for view in views] == [b"efgh", b"efgh"]
        with refused(INVALID_VALUE):
            sim.memcpy_dtoh(address, 8)


def test_memory_is_bound_where_it_is_mapped(sim: SimDriver) -> None:
    handle, bound = team(sim), chunk(sim, 1, 2 * M)
    view = mapped(sim, bound, 2 * M)
    sim.multicast_bind_addr(handle, 0, view + M, M)
    address = mapped(sim, handle, 2 * M)
    with current(sim):
        sim.memset_d8(address, 7, 16)
        assert (sim.memcpy_dtoh(view, 1), sim.memcpy_dtoh(view + M, 1)) == (b"\0", b"\7")


def test_nothing_is_bound_or_mapped_before_all_gpus_are_added(sim: SimDriver) -> None:
    handle, each = sim.multicast_create(2, M, FD), chunk(sim, 0)
    sim.multicast_add_device(handle, 0)
    with pytest.raises(DriverError, match="the gpu is added already"):
        sim.multicast_add_device(handle, 0)
    address = sim.mem_address_reserve(M)
    with pytest.raises(DriverError, match="1 of the 2 GPUs"):
        sim.multicast_bind_mem(handle, 0, each, 0, M)
    with pytest.raises(DriverError, match="1 of the 2 GPUs"):
        sim.mem_map(address, M, handle)
    shared = sim.mem_export_to_shareable_handle(handle, FD)
    assert isinstance(shared, int)
    imported = sim.mem_import_from_shareable_handle(shared, FD)
    os.close(shared)
    sim.multicast_add_device(imported, 1)  # as another process does
    sim.multicast_bind_mem(handle, 0, each, 0, M)
    sim.mem_map(address, M, handle)


WRONG: list[tuple[str, Callable[[SimDriver, int], object]]] = [
    ("multiples", lambda sim, team: sim.multicast_bind_mem(team, 0, chunk(sim, 0), 0, M // 2)),
    ("multiples", lambda sim, team: sim.multicast_bind_mem(team, 4096, chunk(sim, 0), 0, M)),
    ("multiples", lambda sim, team: sim.multicast_bind_mem(team, 0, team, 0, M)),
    ("past the end", lambda sim, team: sim.multicast_bind_mem(team, 0, chunk(sim, 0), M, M)),
    ("past the end", lambda sim, team: sim.multicast_bind_mem(team, 2 * M, chunk(sim, 0), 0, M)),
    ("shareable memory", lambda sim, team: sim.multicast_bind_mem(team, 0, chunk(sim, 0, M, HandleType.NONE), 0, M)),
    ("flags", lambda sim, team: sim.multicast_bind_mem(team, 0, chunk(sim, 0), 0, M, 1)),
    ("not in the team", lambda sim, team: sim.multicast_bind_mem(team, 0, chunk(sim, 2), 0, M)),
    ("added already", lambda sim, team: sim.multicast_add_device(team, 0)),
    ("all 2 GPUs", lambda sim, team: sim.multicast_add_device(team, 2)),
    ("not a multicast object", lambda sim, _: sim.multicast_add_device(chunk(sim, 0), 0)),
    ("nothing was bound", lambda sim, team: sim.multicast_unbind(team, 0, 0, M)),
    ("multiple", lambda sim, _: sim.multicast_create(2, M + 1, FD)),
    ("empty", lambda sim, _: sim.multicast_create(0, M, FD)),
    ("flags", lambda sim, _: sim.multicast_create(2, M, FD, 1)),
    ("not documented", lambda sim, team: sim.mem_get_allocation_properties_from_handle(team)),
]


@pytest.mark.parametrize(("why", "call"), WRONG)
def test_a_refusal_says_that_it_is_from_documentation(why: str, call: Callable[[SimDriver, int], object]) -> None:
    with SimDriver(with_multicast(invented(3))) as sim:
        sim.init()
        with pytest.raises(DriverError) as error:
            call(sim, team(sim))
    assert why in str(error.value.reason)
    assert "fact 87: from documentation, not tried on hardware" in str(error.value.reason)


def test_an_object_that_can_be_shared_accepts_only_memory_that_can_be_wherever_it_is_imported(sim: SimDriver) -> None:
    own, alone = team(sim), team(sim, handles=HandleType.NONE)
    fd = sim.mem_export_to_shareable_handle(own, FD)
    imported, unshared = sim.mem_import_from_shareable_handle(fd, FD), chunk(sim, 0, handles=HandleType.NONE)
    os.close(int(fd))
    for handle in (own, imported):
        with refused(INVALID_VALUE):
            sim.multicast_bind_mem(handle, 0, unshared, 0, M)
        sim.multicast_bind_mem(handle, 0, chunk(sim, 0), 0, M)
    sim.multicast_bind_mem(alone, 0, unshared, 0, M)


def test_two_bindings_of_one_gpu_do_not_overlap(sim: SimDriver) -> None:
    handle = team(sim)
    sim.multicast_bind_mem(handle, 0, chunk(sim, 0), 0, M)
    sim.multicast_bind_mem(handle, 0, chunk(sim, 1), 0, M)
    with refused(INVALID_VALUE):
        sim.multicast_bind_mem(handle, 0, chunk(sim, 0), 0, M)
    sim.multicast_unbind(handle, 0, 0, M)
    sim.multicast_bind_mem(handle, M, chunk(sim, 0), 0, M)
    with refused(INVALID_VALUE):
        sim.multicast_bind_mem(handle, 0, chunk(sim, 0, 2 * M), 0, 2 * M)
    sim.multicast_bind_mem(handle, 0, chunk(sim, 0), 0, M)


def test_unbinding_freed_memory_is_an_error_and_done(sim: SimDriver) -> None:
    """As pytorch#163750 saw."""
    handle, each = team(sim), chunk(sim, 0)
    sim.multicast_bind_mem(handle, 0, each, 0, M)
    sim.mem_release(each)
    with pytest.raises(DriverError, match="was freed before"):
        sim.multicast_unbind(handle, 0, 0, M)
    with pytest.raises(DriverError, match="nothing was bound"):
        sim.multicast_unbind(handle, 0, 0, M)


def test_a_switch_has_slots_for_128_objects(sim: SimDriver) -> None:
    """As nccl#2077 saw; an object takes a slot with its first binding, and gives it back with its last."""
    objects = [team(sim) for _ in range(MULTICAST_SLOTS + 1)]
    for handle in objects[:-1]:
        sim.multicast_bind_mem(handle, 0, chunk(sim, 0), 0, M)
    with refused(OUT_OF_MEMORY):
        sim.multicast_bind_mem(objects[-1], 0, chunk(sim, 0), 0, M)
    sim.multicast_bind_mem(objects[0], M, chunk(sim, 0), 0, M)
    sim.multicast_unbind(objects[0], 0, 0, M)
    with refused(OUT_OF_MEMORY):
        sim.multicast_bind_mem(objects[-1], 0, chunk(sim, 0), 0, M)
    sim.multicast_unbind(objects[0], 0, M, M)
    sim.multicast_bind_mem(objects[-1], 0, chunk(sim, 0), 0, M)


def test_the_ledger_counts_objects_and_bindings(sim: SimDriver) -> None:
    ledger = Ledger(sim)
    handle, each = team(ledger), chunk(ledger, 0)
    ledger.multicast_bind_mem(handle, 0, each, 0, M)
    assert ledger.counts() == {"reservations": 0, "handles": 2, "mappings": 0, "contexts": 0, "bindings": 1}
    ledger.multicast_unbind(handle, 0, 0, M)
    ledger.mem_release(each)
    ledger.mem_release(handle)
    assert ledger.empty


@pytest.mark.parametrize("name", shipped())
def test_no_shipped_machine_makes_multicast_objects(name: str) -> None:
    with SimDriver(load(name)) as sim:
        sim.init()
        with pytest.raises(DriverError, match="multicast was tried on no gpu") as error:
            sim.multicast_create(2, M, FD)
    assert error.value.name == "CUDA_ERROR_NOT_SUPPORTED"


def test_every_documented_answer_is_one_of_a_call() -> None:
    assert set(DOCUMENTED) <= set(dir(Driver)) | set(dir(Kernels))
    assert {name for name in dir(Driver) if name.startswith("multicast")} <= set(DOCUMENTED)


def test_the_cuda_driver_refuses_every_multicast_call() -> None:
    calls = [name for name in dir(Driver) if name.startswith("multicast")]
    assert len(calls) == 5
    for name in calls:
        assert getattr(CudaDriver, name) is getattr(RefusedMulticast, name)
        parameters = inspect.signature(getattr(Driver, name)).parameters.values()
        required = [each for each in parameters if each.name != "self" and each.default is each.empty]
        with pytest.raises(DriverError, match="makes no multicast calls on GPUs"):
            getattr(RefusedMulticast(), name)(*[0] * len(required))


def test_no_module_makes_a_multicast_call() -> None:
    """Calls of the driver are attributes of the bindings: none begins with cuMulticast."""
    modules = sorted(PACKAGE.rglob("*.py"))
    assert any("cuda.cuMemCreate" in module.read_text() for module in modules)
    assert [module for module in modules if ".cuMulticast" in module.read_text()] == []
