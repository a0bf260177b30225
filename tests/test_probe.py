"""Trials show what works beside what is advertised, leave nothing behind, and are shown as they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from memtopo import facts
from memtopo.driver.sim import SimDriver
from memtopo.driver.types import DriverError, gpu
from memtopo.machine import Machine, Trial, dump, parse
from memtopo.probe import probe
from memtopo.render.probe import probe_text
from tests.machines import TRIALS, invented

REFUSED = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_SUPPORTED")


class FailingReleases(SimDriver):
    """A simulator whose releases of some numbers fail, before they do anything."""

    def __init__(self, machine: Machine, fails: range) -> None:
        super().__init__(machine)
        self._fails, self._releases = fails, 0

    def mem_release(self, handle: int) -> None:
        self._releases += 1
        if self._releases - 1 in self._fails:
            raise DriverError("cuMemRelease", "CUDA_ERROR_INVALID_VALUE")
        super().mem_release(handle)


def probed(driver: SimDriver, recorded: str | None = None) -> Machine:
    driver.init()
    return probe(driver, facts.read(driver, numa_nodes=[0]), recorded=recorded)


def free(driver: SimDriver, device: int) -> int:
    driver.ctx_push_current(driver.device_primary_ctx_retain(device))
    amount = driver.mem_get_info()[0]
    driver.ctx_pop_current()
    driver.device_primary_ctx_release(device)
    return amount


def shown(machine: Machine, name: str = "ours", *, simulated: bool = True, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(probe_text(machine, name, simulated))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("changes", [{}, {"rdma": REFUSED, "compressible": REFUSED}, {"fd": REFUSED}])
def test_probing_a_simulated_machine_gives_its_trials_back(changes: dict[str, Trial]) -> None:
    """Each trial that was recorded comes out again, on every GPU and on the host's nodes"""
    attributes = {"GENERIC_COMPRESSION_SUPPORTED": 1, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 1}
    with SimDriver(invented(2, trials=changes, attributes=attributes)) as driver:
        seen = probed(driver)
    for device in seen.devices:
        assert {name: device.memory.trials[name] for name in TRIALS} == TRIALS | changes
        assert device.memory.trials["vmm"] == Trial(advertised=True, works=True)
    assert seen.host["host:0"].trials["fd"].works


def test_what_is_advertised_need_not_work() -> None:
    """Fabric, and fd with fabric, are advertised and refused (fact 4)"""
    with SimDriver(invented(1)) as driver:
        trials = probed(driver).devices[0].memory.trials
    refused = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_PERMITTED")
    assert (trials["fabric"], trials["fd+fabric"]) == (refused, refused)


def test_what_no_attribute_speaks_of_is_not_advertised() -> None:
    """No attribute tells whether a node's memory can be exported; only the trial does"""
    with SimDriver(invented(1)) as driver:
        assert probed(driver).host["host:0"].trials["fd"] == Trial(advertised=None, works=True)


def test_an_attribute_that_was_not_answered_advertises_nothing() -> None:
    """Neither yes nor no is known of an attribute that the driver does not know"""
    device = invented(1).devices[0]
    known = {name: value for name, value in device.attributes.items() if "FABRIC" not in name}
    machine = facts.changed(invented(1), devices=[device.model_copy(update={"attributes": known})])
    with SimDriver(machine) as driver:
        trials = probed(driver).devices[0].memory.trials
    assert trials["fabric"].advertised is None
    assert trials["fd+fabric"].advertised is None


def test_a_full_device_says_nothing_about_what_it_can_do() -> None:
    """Out of memory is neither works nor works not"""
    with SimDriver(invented(1, memory=1 << 20)) as driver:
        trials = probed(driver).devices[0].memory.trials
    assert trials["vmm"] == Trial(advertised=True, works=None, error="CUDA_ERROR_OUT_OF_MEMORY")
    assert not trials["fabric"].works


def test_a_probe_leaves_nothing_behind() -> None:
    """Memory is free again as it was, on every GPU"""
    with SimDriver(invented(2)) as driver:
        driver.init()
        before = [free(driver, device) for device in range(2)]
        probed(driver)
        assert [free(driver, device) for device in range(2)] == before


@pytest.mark.parametrize("number", range(16))
def test_a_release_that_fails_is_made_again(number: int) -> None:
    """Nothing stays although any one release fails"""
    with FailingReleases(invented(2), range(number, number + 1)) as driver:
        driver.init()
        before = [free(driver, device) for device in range(2)]
        probed(driver)
        assert [free(driver, device) for device in range(2)] == before


def test_a_release_that_never_succeeds_is_told() -> None:
    """A probe that leaves memory behind does not end well"""
    with FailingReleases(invented(1), range(1000)) as driver, pytest.raises(DriverError, match="cuMemRelease"):
        probed(driver)


def test_a_probe_can_be_written_and_read_again() -> None:
    """Date and trials survive their file, and the machine sees its trials"""
    with SimDriver(invented(2)) as driver:
        seen = probed(driver, recorded="2026-01-02")
    assert parse(dump(seen).encode(), "test") == seen
    assert seen.recorded == "2026-01-02"
    assert seen.locations[gpu(1)].trials


@pytest.mark.parametrize("gpus", [0, 1, 2, 8, 16])
def test_a_machine_fits_into_80_columns(gpus: int) -> None:
    """No line is wider, and no word is cut"""
    with SimDriver(invented(gpus)) as driver:
        text = shown(probed(driver))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "None" not in text


def test_the_first_line_says_whether_it_is_simulated() -> None:
    """A report of the simulator cannot be taken for one of hardware"""
    assert "ours (simulated): " in shown(invented(2)).splitlines()[0]
    assert "simulated" not in shown(invented(2), simulated=False)


def test_advertised_and_works_are_two_columns() -> None:
    """Equal GPUs are one entry, and the driver's error stands beside what it refused"""
    with SimDriver(invented(4)) as driver:
        rows = [line.split() for line in shown(probed(driver)).splitlines()]
    assert ["gpu0", "to", "gpu3", "vmm", "yes", "yes"] in rows
    assert ["fabric", "yes", "no", "CUDA_ERROR_NOT_PERMITTED"] in rows
    assert ["fd", "not", "told", "yes"] in rows


def test_granularity_that_is_the_same_for_all_is_one_line() -> None:
    """Sixteen equal rows tell no more than one"""
    text = " ".join(shown(invented(2)).split())
    assert "gpu0, gpu1, host, host:0: 2 MiB minimum and recommended for every set of properties asked" in text


def test_granularity_that_differs_is_a_row_for_each_set() -> None:
    """What changes with the properties is shown with them (fact 1)"""
    device = invented(1).devices[0]
    first, *rest = device.memory.granularity
    memory = device.memory.model_copy(
        update={"granularity": [first.model_copy(update={"recommended": 4 << 20}), *rest]}
    )
    rows = shown(facts.changed(invented(1), devices=[device.model_copy(update={"memory": memory})])).splitlines()
    assert ["gpu0", "none", "no", "no", "2", "MiB", "4", "MiB"] in [line.split() for line in rows]


def test_what_was_not_tried_is_said_to_be_so() -> None:
    """Facts without trials claim nothing"""
    with SimDriver(invented(2)) as driver:
        driver.init()
        assert "gpu0, gpu1, host, host:0: not tried" in shown(facts.read(driver, numa_nodes=[0]))


def test_names_from_a_file_are_shown_as_they_are() -> None:
    """A recorded machine's texts are neither markup nor commands to the terminal"""
    text = shown(invented(1, name="[red]GPU\x1b[2J"), "[bold]x")
    assert "[red]GPU\\x1b[2J" in text
    assert "[bold]x" in text
    assert "\x1b" not in text
