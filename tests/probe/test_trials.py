"""Each trial on the simulator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Grant, Location, LocationKind, MemAttach, gpu
from memtopo.drivers.sim import SimDriver, SimTrialCalls
from memtopo.machine import Machine, Trial
from memtopo.machine.queries import changed
from memtopo.probe import _worst, probe, tried
from memtopo.probe.supervisor import ImportAnswer, ImportRequest
from memtopo.probe.trial_table import PlannedTrial, planned_trials
from memtopo.probe.trials import Trials
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import complete, invented


def resources(driver: Driver, simulated: SimDriver) -> Trials:
    return Trials(driver, SimTrialCalls(simulated), no_importer)


def no_importer(request: ImportRequest, handle: Handle) -> ImportAnswer:
    """Fail at a request to import: the trials of `ALONE` make none."""
    raise AssertionError((request, handle))


ALONE = [
    planned
    for planned in planned_trials(invented(2))
    if planned.name == "store"
    or (planned.method.never is None and planned.how in
        ("create", "use", "by_gpu", "by_cpu", "managed", "concurrent") and planned.name != "win32")
]  # fmt: skip


@pytest.mark.parametrize("planned", ALONE, ids=lambda planned: f"{planned.location}-{planned.name}-{planned.device}")
def test_a_trial_works_and_releases_everything(planned: PlannedTrial) -> None:
    with SimDriver(invented(2)) as simulated:
        simulated.init()
        ledger = Ledger(simulated)
        at = resources(ledger, simulated)
        assert at.attempt(planned)
        at.close()
        assert ledger.empty


@pytest.mark.parametrize("planned", ALONE, ids=lambda planned: f"{planned.location}-{planned.name}-{planned.device}")
def test_a_trial_with_a_failing_call_raises_or_fails_and_releases_everything(planned: PlannedTrial) -> None:
    for number in range(1, 40):
        with SimDriver(invented(2)) as simulated:
            simulated.init()
            ledger = Ledger(simulated)
            failing = Failing(ledger, number, only={"mem_create", "mem_map", "mem_set_access", "memset_d8",
                                                    "memcpy_dtoh", "mem_address_reserve"})  # fmt: skip
            at = resources(failing, simulated)
            if failing.calls >= number:
                break
            with suppress(DriverError):
                at.attempt(planned)
            done = failing.calls < number
            at.close()
            assert ledger.empty, number
        if done:
            break


class MostMemory(SimDriver):
    """Counts the most memory allocated at a time, contexts excepted."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._out: dict[int, int] = {}
        self.most = 0

    def _given(self, what: int, size: int) -> int:
        self._out[what] = size
        self.most = max(self.most, sum(self._out.values()))
        return what

    def mem_create(self, size: int, *more: Any) -> int:
        return self._given(super().mem_create(size, *more), size)

    def mem_alloc(self, size: int) -> int:
        return self._given(super().mem_alloc(size), size)

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        return self._given(super().mem_alloc_managed(size, flags), size)

    def mem_release(self, handle: int) -> None:
        super().mem_release(handle)
        self._out.pop(handle, None)

    def mem_free(self, address: int) -> None:
        super().mem_free(address)
        self._out.pop(address, None)


def test_a_trial_uses_at_most_64_mib() -> None:
    """The limit is the same for each location; buffers for rates use as much of a GPU"""
    with MostMemory(invented(2)) as simulated:
        simulated.init()
        at = resources(simulated, simulated)
        for planned in ALONE:
            at.attempt(planned)
        assert 0 < simulated.most <= 64 << 20
        at.close()


class LosesStores(SimDriver):
    """Machine on which stores to peers are lost without an error."""

    def store_by_kernel(self, address: int, data: bytes) -> None:
        pass


def test_a_store_that_does_not_arrive_fails() -> None:
    with LosesStores(invented(2)) as simulated:
        simulated.init()
        assert resources(simulated, simulated).attempt(PlannedTrial(gpu(0), "store", 1)) is False


def test_a_chunk_without_a_requested_property_fails() -> None:
    """The driver created it without an error (fact 41)"""

    class Plain(SimDriver):
        def mem_get_allocation_properties_from_handle(self, handle: int) -> Any:
            return super().mem_get_allocation_properties_from_handle(handle)._replace(compressible=False)

    with Plain(invented(1)) as simulated:
        simulated.init()
        assert resources(simulated, simulated).attempt(PlannedTrial(gpu(0), "compressible", 0)) is False


def test_out_of_memory_leaves_the_result_unknown() -> None:
    """A GPU that is too full for a context is not reported as unable"""
    seen = probe(complete(invented(1, memory=1 << 20)), simulated=True).machine.devices[0].memory.trials
    assert (seen["vmm"].works, seen["vmm"].error) == (None, "CUDA_ERROR_OUT_OF_MEMORY")
    assert seen["fabric"].works is False


def test_an_import_is_part_of_a_trial() -> None:
    machine = complete(invented(2))
    seen = probe(machine, simulated=True)
    assert seen.left == seen.notes == ()
    assert seen.machine.devices[1].memory.trials["ipc"] == Trial(works=True)
    assert {timing.what for timing in seen.seconds.trials} >= {"gpu0 fd", "gpu1 ipc", "gpu0 store", "host:0 cpu"}
    assert 0 < max(timing.seconds for timing in seen.seconds.trials) < seen.seconds.total


def test_access_is_granted_to_the_gpus_of_the_trial_only() -> None:
    granted: list[Grant] = []

    class Watched(SimDriver):
        def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
            granted.extend(grants)
            super().mem_set_access(address, size, grants)

    machine: Machine = invented(3)
    with Watched(machine) as simulated:
        simulated.init()
        resources(simulated, simulated).attempt(PlannedTrial(gpu(0), "store", 2))
    assert {grant.location for grant in granted} == {gpu(0), gpu(2)}


def test_host_memory_is_as_usable_as_by_the_gpu_that_can_use_it_least() -> None:
    tried = [(PlannedTrial(Location(LocationKind.HOST), "create", n), Trial(works=n != 1)) for n in range(3)]
    assert [each.works for each in _worst(tried).values()] == [False]
    unknown = [(planned, Trial(works=None if trial.works is False else True)) for planned, trial in tried]
    assert [each.works for each in _worst(unknown).values()] == [None]
    stores = [(PlannedTrial(gpu(0), "store", n), Trial(works=n != 1)) for n in (1, 2)]
    assert [each.works for each in _worst(stores).values()] == [False, True]


def test_trials_that_are_made_for_a_spec_leave_those_of_the_record_and_the_free_memory_of_each_gpu() -> None:
    """Also trials that only a later memtopo makes."""
    machine, free = invented(2), (70 << 30, 60 << 30)
    no, later = Trial(advertised=True, works=False, error="CUDA_ERROR_UNKNOWN"), Trial(works=True)
    known = ({"vmm": no, "later": later}, {"later": later})
    devices = [
        device.model_copy(update={"memory": device.memory.model_copy(update={"trials": trials}), "free_bytes": size})
        for device, size, trials in zip(machine.devices, free, known, strict=True)
    ]
    found = tried(changed(machine, devices=devices), {"vmm"}, simulated=True)
    assert found.devices[0].memory.trials == known[0]
    assert found.devices[1].memory.trials == {"later": later, "vmm": Trial(advertised=True, works=True)}
    assert tuple(device.free_bytes for device in found.devices) == free


def test_a_trial_that_failed_leaves_no_context_current() -> None:
    with SimDriver(invented(2)) as simulated:
        simulated.init()
        at = resources(Failing(simulated, 1, only={"memset_d8"}), simulated)
        planned = next(each for each in ALONE if each.name == "vmm")
        with pytest.raises(DriverError, match="cuMemsetD8"):
            at.attempt(planned)
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_CONTEXT"):
            simulated.ctx_pop_current()
        assert at.attempt(planned)
        at.close()
        assert not simulated.device_primary_ctx_get_state(0)
