"""Bytes of the verification: which faults of memory they tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from memtopo.driver.kernels import Area, KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import HandleType
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Check, Report, Tally
from memtopo.run.apply import apply
from tests.helpers.faults import GRANULE, Faulty, SilentHandles
from tests.helpers.lockstep import WrapDriver, apply_together
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import OWN_AND_IMPORTED, run_request

ONE = """
ranges: {r: {size: 4MiB}}
chunks: {c: {location: gpu0, size: 4MiB}}
map: {r: c}
access: {r: {gpu0: rw}}
"""


def report_of(text: str, wrap: WrapDriver, check: Check, *, seed: int = 4711) -> Report:
    machine = invented(2)
    with SimDriver(machine) as driver:
        driver.init()
        request = replace(run_request(text, machine, check), seed=seed)
        return apply(request, Ledger(wrap(driver)))


def subjects(report: Report) -> list[str]:
    assert report.checks
    return [each.subject for each in report.checks.differences]


class LosesLastByte(Faulty):
    """Loses the last byte of each copy to memory."""

    def memcpy_htod(self, address: int, data: bytes) -> None:
        self._driver.memcpy_htod(address, data[:-1])


def test_every_byte_of_a_sample_is_compared() -> None:
    report = report_of(ONE, LosesLastByte, "fast")
    assert subjects(report) == ["c in r at 0x0 by gpu0", "c in r at 0x3fffc0 by gpu0"]


def test_both_ends_of_a_chunk_are_counted_as_bytes() -> None:
    found = tallies(report_of(ONE, lambda driver: driver, "fast").checks)
    assert found["bytes"] == Tally("bytes", 2, 2)


class RepeatsFirstGranule(Faulty):
    """Gives the second granule of the chunk the memory of the end of the first, and its end that of the start."""

    def _at(self, address: int, count: int) -> int:
        start = next(iter(self.mapped))
        at = address - start
        return start + (2 * GRANULE - at - count if at >= GRANULE else at)

    def memcpy_htod(self, address: int, data: bytes) -> None:
        self._driver.memcpy_htod(self._at(address, len(data)), data)

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        return self._driver.memcpy_dtoh(self._at(address, count), count)


def test_both_ends_of_a_chunk_have_different_bytes() -> None:
    assert subjects(report_of(ONE, RepeatsFirstGranule, "fast")) == ["c in r at 0x0 by gpu0"]


class MapsOwnChunkForImport(SilentHandles):
    """Maps the process's own chunk where the imported one is to be."""

    def map_chunk(self, address: int, size: int, handle: int) -> None:
        del handle
        self._driver.mem_map(address, size, self.created[0])


@pytest.mark.parametrize("check", ["fast", "full"])
def test_chunks_of_one_name_in_two_processes_have_different_bytes(check: Check) -> None:
    reports = apply_together(OWN_AND_IMPORTED, invented(2), check, {"reader": MapsOwnChunkForImport})
    assert reports["server"].exit_code == reports["reader"].exit_code == 6
    assert any(each.startswith("i ") for each in subjects(reports["reader"]))


class LosesLaterWrites(Faulty):
    """Loses what is written to imported memory."""

    imported = 0

    def mem_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        self.imported = self._driver.mem_import_from_shareable_handle(shared, kind)
        return self.imported

    def _lost(self, address: int) -> bool:
        return any(at <= address < at + GRANULE and self.mapped[at] == self.imported for at in self.mapped)

    def memcpy_htod(self, address: int, data: bytes) -> None:
        if not self._lost(address):
            self._driver.memcpy_htod(address, data)

    def fill(self, areas: Sequence[Area]) -> None:
        self._driver.fill([each for each in areas if not self._lost(each.address)])


@pytest.mark.parametrize("check", ["fast", "full"])
def test_each_round_writes_different_bytes(check: Check) -> None:
    """Bytes of an earlier round do not pass for those of a later one."""
    reports = apply_together(OWN_AND_IMPORTED, invented(2), check, {"reader": LosesLaterWrites})
    assert any(each.startswith("c ") for each in subjects(reports["server"]))


class RecordsFills(Faulty):
    """Notes the seed of each fill."""

    def __init__(self, driver: KernelDriver) -> None:
        self.seeds: list[int] = []
        super().__init__(driver)

    def fill(self, areas: Sequence[Area]) -> None:
        self.seeds.extend(each.seed for each in areas)
        self._driver.fill(areas)


def test_each_run_fills_different_bytes() -> None:
    """Bytes that an earlier run left in the memory do not pass for those of this one."""
    recorders: list[RecordsFills] = []

    def recording(driver: KernelDriver) -> RecordsFills:
        recorders.append(RecordsFills(driver))
        return recorders[-1]

    for seed in (1, 2, 1):
        assert report_of(ONE, recording, "full", seed=seed).exit_code == 0
    first, second, again = (each.seeds for each in recorders)
    assert first == again
    assert not set(first) & set(second)
    assert first
