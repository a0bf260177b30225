"""Isolation of ranges: holes, ends, and access that the driver reports falsely."""

from __future__ import annotations

from typing import Any

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, Location
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.machine.queries import changed
from memtopo.plans.report import Check, Report
from memtopo.run.apply import apply
from memtopo.run.verification.isolation import MAX_HOLE_QUERIES, Hole, Holes, holes
from tests.helpers import faults
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import geometry_of, run_request

GRANULE = 2 << 20
HOLE = """
ranges: {kv: {size: 16MiB}}
chunks: {first: {location: gpu0, size: 2MiB}, second: {location: gpu0, size: 2MiB}, last: {location: gpu0, size: 2MiB}}
map: {kv: [first, second, {chunk: last, offset: 14MiB}]}
access: {kv: {gpu0: rw}}
"""
LARGE = """
ranges: {kv: {size: 64GiB}, empty: {size: 2MiB, count: 3}}
chunks: {first: {location: gpu0, size: 2MiB}}
map: {kv: first}
access: {kv: {gpu0: rw}}
"""


def differences(report: Report) -> set[tuple[str, str]]:
    assert report.checks
    return {(each.aspect, each.subject) for each in report.checks.differences}


@pytest.mark.parametrize("granules", range(5))
def test_a_mapping_in_any_granule_of_a_hole_is_found(granules: int) -> None:
    class MapsThere(faults.MapsIntoHole):
        pass

    MapsThere.granules = granules
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(run_request(HOLE, machine), Ledger(MapsThere(driver)))
    low = 2 * GRANULE + granules * GRANULE
    # The end of a hole is queried besides.
    expected = {("hole", f"kv at {low:#x}")} | ({("hole", "kv at 0xdfffff")} if granules == 4 else set())
    assert differences(report) == expected
    assert report.exit_code == 6


@pytest.mark.parametrize("query", ["mem_get_access", "mem_get_address_range"])
def test_a_query_of_a_hole_or_an_end_that_fails_otherwise_fails_the_run(query: str) -> None:
    """Only one error means that nothing is mapped, and one that there is no access; the last query is that of both."""
    machine = invented(1)

    def applied(at: int) -> tuple[Report, Failing]:
        with SimDriver(machine) as driver:
            driver.init()
            failing = Failing(driver, at, only={query})
            return apply(run_request(HOLE, machine), Ledger(failing)), failing

    report, failing = applied(0)
    assert (report.outcome, failing.calls > 0) == ("ok", True)
    report, failing = applied(failing.calls)
    assert (report.outcome, failing.failed is not None, report.leaks) == ("failed", True, ())


def test_queries_of_large_holes_are_limited_and_the_rest_is_not_checked() -> None:
    machine = invented(1)
    found = holes(geometry_of(LARGE, machine))
    granules = (64 << 30) // GRANULE - 1 + 3
    assert len(found.holes) == 4
    with SimDriver(machine) as driver:
        driver.init()
        counted = Failing(driver, 0, only={"mem_get_access"})
        report = apply(run_request(LARGE, machine), Ledger(counted))
    tally = tallies(report.checks)["hole"]
    assert (report.exit_code, tally.looked_at, tally.not_checked) == (0, tally.as_declared, found.unqueried)
    assert counted.calls <= MAX_HOLE_QUERIES + 2 * len(found.holes) + 1
    assert 0 < found.unqueried < granules
    assert granules - found.unqueried > MAX_HOLE_QUERIES // 2


def test_holes_are_queried_by_the_smallest_granule_of_a_chunk() -> None:
    """Of a chunk of the host, where the range itself has the granule of a GPU's chunk."""
    machine = changed(invented(1), host=invented(1, granule=64 << 10).host)
    text = """
ranges: {r: {size: 8MiB}}
chunks: {g: {location: gpu0, size: 2MiB}, h: {location: "host:0", size: 64KiB}}
map: {r: [g, h]}
access: {r: {gpu0: rw}}
"""
    assert holes(geometry_of(text, machine)).unit == 64 << 10


@pytest.mark.parametrize(
    ("lengths", "stride", "unqueried"),
    [([8192], 1, 0), ([4096, 4096], 1, 0), ([8193], 2, 4096), ([4096, 4097], 2, 4095), ([3 * 8192], 3, 2 * 8192 - 1)],
)
def test_more_than_8192_granules_of_holes_are_queried_evenly(lengths: list[int], stride: int, unqueried: int) -> None:
    unit = GRANULE
    found = Holes([Hole("kv", unit, unit * (1 + length), ()) for length in lengths], unit)
    assert MAX_HOLE_QUERIES == 8192
    assert (found.stride, found.unqueried) == (stride * unit, unqueried)


class Recorder(faults.Faulty):
    """Notes the queries of access at unmapped addresses."""

    def __init__(self, driver: SimDriver) -> None:
        self.queried: list[int] = []
        super().__init__(driver)

    def mem_get_access(self, address: int, location: Location) -> int:
        try:
            return self._driver.mem_get_access(address, location)
        except DriverError:
            self.queried.append(address)
            raise


def test_both_ends_of_every_hole_are_queried_however_large() -> None:
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        recorder = Recorder(driver)
        report = apply(run_request(LARGE, machine), Ledger(recorder))
    base = next(iter(recorder.mapped))
    for placed in report.placed:
        for index in range(placed.count):
            low = placed.address + index * placed.step + (GRANULE if placed.first == "kv" else 0)
            size = (64 << 30) - GRANULE if placed.first == "kv" else GRANULE
            assert low in recorder.queried
            assert low + size - 1 in recorder.queried
    assert base not in recorder.queried


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_lost_access_is_named_by_its_mapping(check: Check) -> None:
    """No kernel is started, which would end the process (fact 24)."""
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(run_request(HOLE, machine, check), Ledger(faults.GrantsReadingOnlySilently(driver)))
    assert report.checks
    first = report.checks.differences[0]
    assert first.subject.startswith("copy to first in kv at 0x0" if check == "fast" else "fill of first in kv at 0x0")
    assert (first.aspect, first.wanted, first.seen) == ("permitted", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")
    assert first.path == ("chunks", "first")
    assert (report.outcome, report.exit_code, report.leaks) == ("different", 6, ())


def test_memory_that_is_too_small_is_found_by_its_last_byte() -> None:
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        request = run_request("buffers: {b: {location: gpu0, size: 4MiB}}", machine, "full")
        report = apply(request, Ledger(faults.AllocatesLess(driver)))
    assert ("permitted", "fill of b in b at 0x0 by gpu0") in differences(report)


UNREADABLE = """
ranges: {host: {size: 2MiB}, other: {size: 2MiB}}
chunks: {h: {location: host, size: 2MiB}, g: {location: gpu1, size: 2MiB}}
map: {host: h, other: g}
access: {host: {gpu0: r}, other: {gpu1: rw}}
"""


class CopiesNoHostMemory(faults.Faulty):
    """Fails the test if host memory is copied."""

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        host = next(iter(self.mapped))
        assert not host <= address < host + GRANULE, "on hardware the process may be dead"
        return self._driver.memcpy_dtoh(address, count)


def test_a_full_check_copies_no_host_memory() -> None:
    """The CPU would make the copy, and without access end the process (fact 40). A fill is refused without harm."""
    machine = invented(2)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(run_request(UNREADABLE, machine, "full"), Ledger(CopiesNoHostMemory(driver)))
    assert report.exit_code == 0, report
    assert tallies(report.checks)["refused"].looked_at == 2 + 2


PAGES = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}}
map: {kv: [page]}
access: {kv: {gpu0: GRANT}}
"""


class CountsTries(Forwarder):
    """Counts the fills of one byte that succeed, and those that the driver refuses."""

    def __init__(self, driver: SimDriver) -> None:
        self.accepted = self.refused = 0
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        if method != "memset_d8":
            return call

        def counted(address: int, value: int, count: int) -> Any:
            try:
                call(address, value, count)
            except DriverError:
                self.refused += count == 1
                raise
            self.accepted += count == 1

        return counted


@pytest.mark.parametrize(("grant", "counted"), [("rw", "accepted"), ("r", "refused")])
def test_tries_of_access_end_after_a_requested_stop(grant: str, counted: str) -> None:
    """The first of four tries requests the stop; the layout is taken down without the other three."""
    with SimDriver(invented(1)) as sim:
        sim.init()
        driver = CountsTries(sim)
        request = run_request(PAGES.replace("GRANT", grant), sim.machine, "full")
        report = apply(request, Ledger(driver), stop=lambda: 2 * (getattr(driver, counted) > 0))
        assert getattr(driver, counted) == 1
        assert (report.outcome, report.leaks) == ("interrupted", ())
