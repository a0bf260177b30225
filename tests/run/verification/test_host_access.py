"""Verification of memory that the CPU and GPUs share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from memtopo.driver.kernels import Area
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant, LocationKind
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Check, Report, Tally
from memtopo.run import apply
from tests.helpers.faults import GRANULE, NODE
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
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


def apply_on_driver(text: str, driver: SimDriver, check: Check = "fast", *, machine_facts: bool = False) -> Report:
    """Apply a spec on a driver, with the facts of its machine or without."""
    with driver:
        driver.init()
        made = run_request(text, driver.machine, check)
        if machine_facts:
            made = replace(made, machine_facts=driver.machine)
        return apply.apply(made, Ledger(driver))


def counts(report: Report) -> tuple[int, int, int]:
    """Number of observations of both sides, how many were as declared, and how many were not checked."""
    found = tallies(report.checks).get("both sides", Tally("both sides", 0, 0))
    return found.looked_at, found.as_declared, found.not_checked


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
def test_host_memory_is_verified_from_both_sides_as_far_as_access_permits(
    gpu: str, cpu: str, check: Check, expected: tuple[int, int, int]
) -> None:
    report = apply_on_driver(HOST.replace("GPU", gpu).replace("CPU", cpu), SimDriver(MACHINE), check)
    assert report.outcome == "ok", report
    assert counts(report) == expected


@pytest.mark.parametrize("check", ["fast", "full"])
def test_managed_memory_is_verified_by_the_cpu_and_each_of_its_gpus(check: Check) -> None:
    report = apply_on_driver(MANAGED, SimDriver(MACHINE), check)
    assert (report.outcome, counts(report)) == ("ok", (6, 6, 0)), report


@pytest.mark.parametrize("attach", ["host", "single"])
def test_managed_memory_without_concurrent_access_is_not_verified_by_gpus(attach: str) -> None:
    machine = invented(1, attributes={"CONCURRENT_MANAGED_ACCESS": 0})
    text = f"managed: {{m: {{size: 2MiB, attach: {attach}}}}}\n"
    report = apply_on_driver(text, SimDriver(machine), machine_facts=True)
    assert (report.outcome, counts(report)) == ("ok", (0, 0, 0)), report


class Waits(SimDriver):
    """Counts the waits for GPUs since one of them has written, at each access of the CPU."""

    def __init__(self) -> None:
        super().__init__(MACHINE)
        self.waits, self.found = 0, list[int]()

    def memset_d8(self, address: int, value: int, count: int) -> None:
        self.waits = 0
        super().memset_d8(address, value, count)

    def fill(self, areas: Sequence[Area]) -> None:
        self.waits = 0
        super().fill(areas)

    def ctx_synchronize(self) -> None:
        self.waits += 1
        super().ctx_synchronize()

    def host_read(self, address: int, size: int) -> bytes:
        self.found.append(self.waits)
        return super().host_read(address, size)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_the_cpu_reads_what_gpus_write_after_all_of_them_were_waited_for(check: Check) -> None:
    driver = Waits()
    assert apply_on_driver(MANAGED, driver, check).outcome == "ok"
    assert driver.found
    assert min(driver.found) >= 2


class LosesStores(SimDriver):
    """Loses the writes of GPUs."""

    def memset_d8(self, address: int, value: int, count: int) -> None:
        pass

    def fill(self, areas: Sequence[Area]) -> None:
        pass


class LosesWrites(SimDriver):
    """Loses the writes of the CPU."""

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
def test_a_lost_write_of_either_side_is_a_difference(driver: type[SimDriver], text: str, check: Check) -> None:
    report = apply_on_driver(text, driver(MACHINE), check)
    assert (report.outcome, report.exit_code) == ("different", 6)
    assert report.checks
    # A fill that does nothing is not refused either.
    assert {each.aspect for each in report.checks.differences} <= {"both sides", "every byte", "refused"}
    assert "both sides" in {each.aspect for each in report.checks.differences}


class KeepsTheHostOut(SimDriver):
    """Grants the host nothing, and fails the test if the CPU accesses memory."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        gpus = [each for each in grants if each.location.kind is LocationKind.GPU]
        hosts = [each._replace(access=Access.NONE) for each in grants if each not in gpus]
        super().mem_set_access(address, size, (*gpus, *hosts))

    def host_read(self, address: int, count: int) -> bytes:
        raise AssertionError(f"on hardware the process would be dead at {address:#x}, of {count}")

    def host_write(self, address: int, data: bytes) -> None:
        raise AssertionError(f"on hardware the process would be dead at {address:#x}, of {len(data)}")


class RevokesTheHost(KeepsTheHostOut):
    """Grants the host its access, and takes it away with the first fill."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        SimDriver.mem_set_access(self, address, size, grants)

    def memset_d8(self, address: int, value: int, count: int) -> None:
        super().memset_d8(address, value, count)
        super().mem_set_access(address - address % GRANULE, GRANULE, (Grant(NODE, Access.NONE),))


@pytest.mark.parametrize("driver", [KeepsTheHostOut, RevokesTheHost])
@pytest.mark.parametrize("check", ["fast", "full"])
def test_the_cpu_accesses_memory_only_with_access(driver: type[SimDriver], check: Check) -> None:
    """Without access the process would end (facts 40, 42)."""
    report = apply_on_driver(SHARED, driver(MACHINE), check)
    assert (report.outcome, report.exit_code) == ("different", 6), report
