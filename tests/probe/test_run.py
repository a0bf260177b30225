"""Selection of the trials of a probe: what is never tried, which child tries what, and what the record keeps."""

from __future__ import annotations

import sys

import pytest

from memtopo.driver.types import WHOLE_HOST, gpu
from memtopo.machine import Surroundings, Trial
from memtopo.machine.queries import changed
from memtopo.probe import Limits, _lanes, _shares, _without_trial, probe
from memtopo.probe.trial_table import STORE, PlannedTrial, advertised, planned_trials, recorded
from tests.helpers.machines import complete, invented

MACHINE = complete(invented(2))
AROUND = Surroundings(container=False, wsl=False, imex_channels=0, open_files=9, vulkan=False)


@pytest.mark.parametrize(
    ("name", "around", "note"),
    [
        ("pool-fabric", AROUND, "no IMEX channel"),
        ("pool-fabric", AROUND.model_copy(update={"imex_channels": 1}), None),
        ("external-memory", AROUND, "no Vulkan driver"),
        ("external-semaphore", AROUND.model_copy(update={"imex_channels": 1}), "no Vulkan driver"),
        ("multicast", AROUND, "others share its switch"),
        ("multicast", None, None),
        ("fd", AROUND, None),
        (STORE, AROUND, None),
    ],
)
def test_what_may_end_or_disturb_other_processes_is_not_tried(
    name: str, around: Surroundings | None, note: str | None
) -> None:
    found = _without_trial(MACHINE, PlannedTrial(gpu(0), name, 1), around, simulated=False)
    assert (found and (found.works, found.note)) == (note and (None, note))


def test_of_a_simulated_machine_only_what_worked_is_tried() -> None:
    for each in planned_trials(MACHINE):
        known = recorded(MACHINE, each)
        found = _without_trial(MACHINE, each, AROUND, simulated=True)
        assert found == (None if known is None or known.works else known)


def test_each_gpu_has_a_child_and_all_pairs_have_one() -> None:
    due = [*enumerate(planned_trials(MACHINE))]
    lanes = _lanes(due, simulated=False)
    assert sorted(number for lane in lanes for number, _ in lane) == [number for number, _ in due]
    assert [{each.device for _, each in lane if each.name != STORE} for lane in lanes[:2]] == [{0}, {1}]
    assert {each.name for _, each in lanes[2]} == {STORE}
    assert _lanes(due, simulated=True) == [due]


def test_a_child_imports_what_trials_share_and_nothing_else() -> None:
    sharing = {each.name for each in planned_trials(MACHINE) if _shares(each)}
    assert sharing == {"fd", "fabric", "fd+fabric", "ipc", "ipc-event", "pool-fd", "pool-fabric"}


def test_a_record_has_the_date_of_its_trials_and_no_free_memory() -> None:
    """Trials that a later version knows are kept."""
    machine = invented(1)
    memory = machine.devices[0].memory.model_copy(update={"trials": {"later": Trial(works=True)}})
    devices = [each.model_copy(update={"free_bytes": 5, "memory": memory}) for each in machine.devices]
    host = {name: each.model_copy(update={"trials": {}}) for name, each in machine.host.items()}
    found = probe(changed(machine, devices=devices, host=host), simulated=True, date="2026-01-31").machine
    assert found.recorded == "2026-01-31"
    assert (found.devices[0].free_bytes, found.devices[0].memory.trials) == (None, {"later": Trial(works=True)})


WAITING = "import socket, sys\ns = socket.socket(fileno=int(sys.argv[-1]))\nwhile s.recv(1 << 20):\n    pass"
"""A child that reports nothing, until its connection ends."""


def test_a_child_that_does_not_start_in_time_is_killed_and_nothing_is_known() -> None:
    found = probe(
        MACHINE,
        simulated=True,
        limits=Limits(start=0.1),
        child=[sys.executable, "-c", WAITING],
    )
    result = found.machine.devices[0].memory.trials["vmm"]
    assert (result.works, result.note) == (None, "its process did not start in time")
    assert not found.left


FD, FABRIC = "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "HANDLE_TYPE_FABRIC_SUPPORTED"


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("pool-fd", {"MEMPOOL_SUPPORTED_HANDLE_TYPES": 8}, False),
        ("pool-fabric", {"MEMPOOL_SUPPORTED_HANDLE_TYPES": 8}, True),
        ("pool-fd", {}, None),
        (
            "fd+fabric",
            {FD: 1, FABRIC: 1},
            True,
        ),
        ("fd+fabric", {FD: 1, FABRIC: 0}, False),
        ("fd+fabric", {FD: 1}, None),
        ("ipc", {"IPC_EVENT_SUPPORTED": 1}, None),
    ],
)
def test_all_attributes_of_a_trial_advertise_it_and_of_a_mask_one_bit(
    name: str, attributes: dict[str, int], expected: bool | None
) -> None:
    devices = [MACHINE.devices[0], MACHINE.devices[1].model_copy(update={"attributes": attributes})]
    assert advertised(changed(MACHINE, devices=devices), PlannedTrial(gpu(1), name, 1)) is expected


@pytest.mark.parametrize(
    ("values", "expected"), [((0, 1), True), ((1, 0), True), ((0, 0), False), ((None, 1), True), ((None, None), None)]
)
def test_memory_of_the_host_is_advertised_by_any_gpu(values: tuple[int | None, ...], expected: bool | None) -> None:
    name = "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
    found = [{} if value is None else {name: value} for value in values]
    pairs = zip(MACHINE.devices, found, strict=True)
    machine = changed(MACHINE, devices=[each.model_copy(update={"attributes": own}) for each, own in pairs])
    assert advertised(machine, PlannedTrial(WHOLE_HOST, "vmm", 0)) is expected
