"""Each trial, made on the simulator, tells what is so and leaves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.sim import SimDriver, SimExtras
from memtopo.driver.types import DriverError, Grant, MemAttach, gpu
from memtopo.machine import Machine, Trial
from memtopo.machine.probe import probe
from memtopo.machine.probe.messages import ImportAnswer, ImportRequest
from memtopo.machine.probe.trial_resources import TrialResources
from memtopo.machine.probe.trial_table import PlannedTrial, planned_trials
from memtopo.machine.probe.trials import attempt
from tests.helpers.machines import complete, invented


def resources(driver: Driver, simulated: SimDriver) -> TrialResources:
    return TrialResources(driver, SimExtras(simulated), nobody)


def nobody(request: ImportRequest, fds: Sequence[int]) -> ImportAnswer:
    """An importing process that is not there; which is not asked for what stays in one process."""
    raise AssertionError((request, fds))


ALONE = [
    planned
    for planned in planned_trials(invented(2))
    if planned.name == "store"
    or (planned.method.never is None and planned.how in
        ("create", "use", "by_gpu", "by_cpu", "managed", "concurrent") and planned.name != "win32")
]  # fmt: skip


@pytest.mark.parametrize("planned", ALONE, ids=lambda planned: f"{planned.location}-{planned.name}-{planned.device}")
def test_what_one_process_tries(planned: PlannedTrial) -> None:
    """It works on a machine on which everything does, and nothing is open afterwards but contexts, which close"""
    with SimDriver(invented(2)) as simulated:
        simulated.init()
        ledger = Ledger(simulated)
        at = resources(ledger, simulated)
        assert attempt(at, planned)
        at.close()
        assert ledger.empty


@pytest.mark.parametrize("planned", ALONE, ids=lambda planned: f"{planned.location}-{planned.name}-{planned.device}")
def test_a_call_that_fails(planned: PlannedTrial) -> None:
    """Whichever call of a trial fails, the trial raises that or tells no, and leaves nothing"""
    from memtopo.driver.failing import Failing

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
                attempt(at, planned)
            done = failing.calls < number
            at.close()
            assert ledger.empty, number
        if done:
            break


class Weighed(SimDriver):
    """Knows how much it gave out at most, contexts apart."""

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


def test_a_trial_takes_little() -> None:
    """No trial has more than 64 MiB of memory at a time, whosever it is; buffers for rates have as much of a GPU"""
    with Weighed(invented(2)) as simulated:
        simulated.init()
        at = resources(simulated, simulated)
        for planned in ALONE:
            attempt(at, planned)
        assert 0 < simulated.most <= 64 << 20
        at.close()


class Deaf(SimDriver):
    """A machine whose peers' stores are lost on the way, and nobody is told."""

    def parts(self) -> Any:
        contexts, contents = super().parts()
        contents.store = lambda *_: None  # type: ignore[method-assign]
        return contexts, contents


def test_a_lost_store_is_seen() -> None:
    """A store that no error speaks of, and that does not arrive, is no success"""
    with Deaf(invented(2)) as simulated:
        simulated.init()
        assert attempt(resources(simulated, simulated), PlannedTrial(gpu(0), "store", 1)) is False


def test_compression_that_is_left_out() -> None:
    """A chunk that comes back without what it was asked for does not work (fact 41)"""

    class Plain(SimDriver):
        def mem_get_allocation_properties_from_handle(self, handle: int) -> Any:
            return super().mem_get_allocation_properties_from_handle(handle)._replace(compressible=False)

    with Plain(invented(1)) as simulated:
        simulated.init()
        assert attempt(resources(simulated, simulated), PlannedTrial(gpu(0), "compressible", 0)) is False


def test_a_full_gpu_says_nothing_about_what_it_can_do() -> None:
    """Where not even a context has room, it is not known what works, and the error tells why"""
    seen = probe(complete(invented(1, memory=1 << 20)), simulated=True).machine.devices[0].memory.trials
    assert (seen["vmm"].works, seen["vmm"].error) == (None, "CUDA_ERROR_OUT_OF_MEMORY")
    assert seen["fabric"].works is False


def test_what_is_refused_elsewhere() -> None:
    """A refusal in the importing process is told with its call"""
    machine = complete(invented(2))
    seen = probe(machine, simulated=True)
    assert seen.left == seen.notes == ()
    assert seen.machine.devices[1].memory.trials["ipc"] == Trial(works=True)
    assert {timing.what for timing in seen.trials} >= {"gpu0 fd", "gpu1 ipc", "gpu0 store", "host:0 cpu"}
    assert 0 < max(timing.seconds for timing in seen.trials) < seen.seconds


def test_grants_are_made_for_those_who_use_it() -> None:
    """A trial grants access to the GPUs that it names, and to nobody else"""
    granted: list[Grant] = []

    class Watched(SimDriver):
        def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
            granted.extend(grants)
            super().mem_set_access(address, size, grants)

    machine: Machine = invented(3)
    with Watched(machine) as simulated:
        simulated.init()
        attempt(resources(simulated, simulated), PlannedTrial(gpu(0), "store", 2))
    assert {grant.location for grant in granted} == {gpu(0), gpu(2)}
