"""Proof from both sides: what a GPU stores the CPU reads, and what the CPU writes a GPU loads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memtopo.driver.kernels import Area
from memtopo.driver.ledger import Ledger
from memtopo.driver.sim import SimDriver
from memtopo.driver.types import Access, Grant, LocationKind
from memtopo.plans.report import Check, Report
from memtopo.run import apply
from memtopo.run.request import RunRequest
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

MACHINE = invented(2)
HOST = """
ranges: {r: {size: 4MiB}}
chunks: {h: {location: host, size: 2MiB}, n: {location: host:0, size: 2MiB}}
map: {r: [h, n]}
access: {r: {gpu0: GPU, gpu1: r, host: CPU}}
"""
SHARED = HOST.replace("GPU", "rw").replace("CPU", "rw")
MANAGED = "managed: {m: {size: 2MiB, accessed_by: [gpu0, gpu1]}}\n"


def applied(text: str, driver: SimDriver, check: Check = "fast", *, told: bool = False) -> Report:
    """A run on a driver; `told` whether the machine's facts are."""
    with driver:
        driver.init()
        made = run_request(text, driver.machine, check)
        if told:
            made = RunRequest(made.plan, made.geometry, made.machine, check=check, machine_facts=driver.machine)
        return apply.apply(made, Ledger(driver))


def looked(report: Report) -> tuple[int, int, int]:
    """How often both sides were looked at, how often they were as declared, and how often not looked at."""
    assert report.checks
    found = [tally for tally in report.checks.tallies if tally.aspect == "both sides"]
    return (found[0].looked_at, found[0].as_declared, found[0].not_checked) if found else (0, 0, 0)


@pytest.mark.parametrize(
    ("gpu", "cpu", "check", "expected"),
    [
        # Two ends of two chunks: by the CPU, and in a full check by the kernels of two GPUs.
        ("rw", "rw", "fast", (4, 4, 8)),
        ("rw", "rw", "full", (12, 12, 0)),
        ("rw", "r", "fast", (4, 4, 0)),
        ("rw", "r", "full", (4, 4, 0)),
        ("r", "rw", "fast", (0, 0, 8)),
        ("r", "rw", "full", (8, 8, 0)),
        ("r", "r", "fast", (0, 0, 0)),
        ("rw", "none", "fast", (0, 0, 0)),
    ],
)
def test_host_chunks(gpu: str, cpu: str, check: Check, expected: tuple[int, int, int]) -> None:
    """The CPU reads what a GPU stored, and kernels load what the CPU wrote; neither is tried where it may not be"""
    report = applied(HOST.replace("GPU", gpu).replace("CPU", cpu), SimDriver(MACHINE), check)
    assert report.outcome == "ok", report
    assert looked(report) == expected


@pytest.mark.parametrize("check", ["fast", "full"])
def test_managed_memory(check: Check) -> None:
    """Managed memory is looked at by the CPU, and by each GPU that it is for"""
    report = applied(MANAGED, SimDriver(MACHINE), check)
    assert (report.outcome, looked(report)) == ("ok", (6, 6, 0)), report


@pytest.mark.parametrize("attach", ["host", "single"])
def test_gpus_without_concurrent_access(attach: str) -> None:
    """What is the host's, or one stream's, is left to the CPU where GPUs cannot use it at the same time"""
    machine = invented(1, attributes={"CONCURRENT_MANAGED_ACCESS": 0})
    text = f"managed: {{m: {{size: 2MiB, attach: {attach}}}}}\n"
    report = applied(text, SimDriver(machine), told=True)
    assert (report.outcome, looked(report)) == ("ok", (0, 0, 0)), report


class LosesStores(SimDriver):
    """Loses whatever GPUs set."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        pass

    def fill(self, areas: Sequence[Area]) -> None:
        pass


class LosesWrites(SimDriver):
    """Loses whatever the CPU writes."""

    def host_write(self, address: int, data: bytes) -> None:
        pass


@pytest.mark.parametrize(
    ("driver", "text", "check"),
    [
        (LosesStores, SHARED, "fast"),
        (LosesStores, SHARED, "full"),
        (LosesStores, MANAGED, "fast"),
        (LosesStores, MANAGED, "full"),
        (LosesWrites, SHARED, "full"),
        (LosesWrites, MANAGED, "fast"),
        (LosesWrites, MANAGED, "full"),
    ],
)
def test_what_one_side_does_not_see(driver: type[SimDriver], text: str, check: Check) -> None:
    """Where one side does not see what the other did, the run says so and fails its check"""
    report = applied(text, driver(MACHINE), check)
    assert (report.outcome, report.exit_code) == ("different", 6)
    assert report.checks
    assert {each.aspect for each in report.checks.differences} <= {"both sides", "every byte"}
    assert "both sides" in {each.aspect for each in report.checks.differences}


class KeepsTheHostOut(SimDriver):
    """Grants the host nothing, and ends the test where the CPU touches memory all the same."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        gpus = [each for each in grants if each.location.kind is LocationKind.GPU]
        hosts = [each._replace(access=Access.NONE) for each in grants if each not in gpus]
        super().mem_set_access(address, size, (*gpus, *hosts))

    def host_read(self, address: int, count: int) -> bytes:
        raise AssertionError(f"on hardware the process would be dead at {address:#x}, of {count}")

    def host_write(self, address: int, data: bytes) -> None:
        raise AssertionError(f"on hardware the process would be dead at {address:#x}, of {len(data)}")


@pytest.mark.parametrize("check", ["fast", "full"])
def test_the_cpu_never_goes_where_it_may_not(check: Check) -> None:
    """The CPU touches only what the driver says it may, since the process would not survive it (facts 40, 42)"""
    report = applied(SHARED, KeepsTheHostOut(MACHINE), check)
    assert (report.outcome, report.exit_code) == ("different", 6), report
