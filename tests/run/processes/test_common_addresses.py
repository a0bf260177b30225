"""Agreement of processes on the addresses that they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.kinds.resources import FIRST_AGREED
from memtopo.plans.report import Report
from memtopo.run.messages import Addresses, AgreeOn
from memtopo.run.processes.ensemble import TRIES, NoCommonAddress, agree
from tests.helpers.forwarding import ForwardingDriver
from tests.helpers.lockstep import WrapDriver, apply_together
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import plan_of
from tests.run.processes.crash_runs import run_with_crash
from tests.run.processes.test_crashes import survived
from tests.run.processes.test_dead_conductor import lost

MACHINE = invented(2)
COMMON = Path(__file__).with_name("common.yaml")


def occupied(*addresses: int) -> WrapDriver:
    """Wrapper of a driver in whose process these addresses are taken."""

    def wrap(driver: Any) -> Any:
        for address in addresses:
            assert driver.mem_address_reserve(ADDRESS_BLOCK, 0, address) == address
        return driver

    return wrap


class IgnoresHints(ForwardingDriver):
    """Driver that reserves at its own addresses, from one on."""

    def __init__(self, driver: Any, address: int) -> None:
        super().__init__(driver)
        self._address = address

    def mem_address_reserve(self, size: int, alignment: int, hint: int = 0) -> int:
        del hint
        found: int = self._driver.mem_address_reserve(size, alignment, self._address)
        return found


def addresses(reports: Mapping[str, Report], label: str = "heap") -> set[int]:
    """Addresses of a range in all processes."""
    return {each.address for report in reports.values() for each in report.placed if each.first == label}


def as_declared(reports: Mapping[str, Report]) -> None:
    for report in reports.values():
        assert report.outcome == "ok", report
        found = tallies(report.checks)["address"]
        assert found.as_declared == found.looked_at == 1
        assert report.left
        assert not any(report.left.ledger_after.values())


def test_all_processes_reserve_a_range_at_one_address() -> None:
    reports = apply_together(COMMON, MACHINE)
    as_declared(reports)
    assert addresses(reports) == {FIRST_AGREED}


@pytest.mark.parametrize(
    "taken",
    [
        {"pe.1": [FIRST_AGREED]},
        {"pe.0": [FIRST_AGREED]},
        {"pe.0": [FIRST_AGREED], "pe.1": [FIRST_AGREED], "pe.2": [FIRST_AGREED]},
        {"pe.0": [FIRST_AGREED, 1 << 40], "pe.1": [FIRST_AGREED], "pe.2": [(1 << 40) + ADDRESS_BLOCK]},
        {"pe.0": [FIRST_AGREED], "pe.1": [1 << 40], "pe.2": [(1 << 40) + ADDRESS_BLOCK]},
    ],
)
def test_an_address_that_is_taken_in_a_process_is_given_up_by_all(taken: dict[str, Iterable[int]]) -> None:
    reports = apply_together(COMMON, MACHINE, wrap={label: occupied(*each) for label, each in taken.items()})
    as_declared(reports)
    (address,) = addresses(reports)
    assert address != FIRST_AGREED
    assert address % ADDRESS_BLOCK == 0


def test_processes_go_where_one_of_them_cannot_be_moved() -> None:
    reports = apply_together(COMMON, MACHINE, wrap={"pe.2": lambda driver: IgnoresHints(driver, 5 << 40)})
    as_declared(reports)
    assert addresses(reports) == {5 << 40}


def test_an_agreement_ends_after_so_many_tries() -> None:
    ignoring: dict[str, WrapDriver] = {
        f"pe.{number}": lambda driver, number=number: IgnoresHints(driver, (number + 3) << 40)  # type: ignore[misc]
        for number in range(3)
    }
    with pytest.raises(NoCommonAddress, match=r"after 16 tries, pe.0 has it at 0x30000000000 in place"):
        apply_together(COMMON, MACHINE, wrap=ignoring)


SEVERAL = """
processes:
  pe:
    count: 4
    ranges:
      a: {size: 64MiB, same_address: true}
      b: {size: 2MiB, count: 3, same_address: true}
      c: {size: 96MiB, same_address: true}
"""


@pytest.mark.parametrize("seed", range(5))
def test_several_ranges_are_agreed_on_whatever_is_taken(seed: int) -> None:
    random = Random(seed)
    blocks = [start + ADDRESS_BLOCK * block for start in (FIRST_AGREED, 1 << 40) for block in range(12)]
    taken = {f"pe.{number}": occupied(*random.sample(blocks, 8)) for number in range(4)}
    reports = apply_together(SEVERAL, MACHINE, wrap=taken)
    assert {report.outcome for report in reports.values()} == {"ok"}
    assert len({report.placed for report in reports.values()}) == 1


def counted(count: int, *ranges: str) -> str:
    written = ", ".join(f"r{number}: {{size: 32MiB, same_address: true{each}}}" for number, each in enumerate(ranges))
    return f"processes:\n pe: {{count: {count}, ranges: {{{written}}}}}\n other: {{ranges: {{r: {{size: 2MiB}}}}}}\n"


class Instances:
    """Processes with addresses of their own, which take an address if it is free; answers of each round are kept."""

    def __init__(self, free: Mapping[str, Iterable[int]]) -> None:
        self._free = {label: [*each] for label, each in free.items()}
        self.rounds: list[Mapping[str, AgreeOn]] = []

    def command(self, commands: Mapping[str, AgreeOn]) -> Mapping[str, Addresses]:
        self.rounds.append(commands)
        return {label: Addresses(self._have(label, each.addresses)) for label, each in commands.items()}

    def _have(self, label: str, wanted: Mapping[str, int]) -> dict[str, int]:
        free = self._free[label]
        return {"r0": wanted["r0"] if wanted.get("r0") in free else free[0]}


def test_only_counted_processes_with_common_ranges_take_part() -> None:
    agreed = Instances({"pe.0": [8 << 40], "pe.1": [8 << 40]})
    agree(plan_of(counted(2, ""), MACHINE).processes, agreed.command)
    assert agreed.rounds == [dict.fromkeys(["pe.0", "pe.1"], AgreeOn(each)) for each in ({}, {"r0": 8 << 40})]
    nobody = Instances({})
    agree(plan_of("processes: {pe: {count: 2, ranges: {r: {size: 2MiB}}}}", MACHINE).processes, nobody.command)
    assert not nobody.rounds


def test_processes_that_all_reserve_elsewhere_have_not_agreed() -> None:
    elsewhere = Instances({"pe.0": [7 << 40], "pe.1": [7 << 40]})
    moving = iter(range(1, 100))

    def command(commands: Mapping[str, AgreeOn]) -> Mapping[str, Addresses]:
        address = next(moving) << 40
        return {label: Addresses({"r0": address}) for label in elsewhere.command(commands)}

    with pytest.raises(NoCommonAddress, match=r"pe.0 has it at 0x110000000000 in place of 0x100000000000"):
        agree(plan_of(counted(2, ""), MACHINE).processes, command)


def test_addresses_of_all_processes_are_tried_before_new_ones() -> None:
    found = Instances({"pe.0": [7 << 40, 5 << 40], "pe.1": [6 << 40, 5 << 40], "pe.2": [5 << 40]})
    agree(plan_of(counted(3, ""), MACHINE).processes, found.command)
    assert [each["pe.0"].addresses for each in found.rounds] == [
        {}, {"r0": 7 << 40}, {"r0": 6 << 40}, {"r0": 5 << 40}
    ]  # fmt: skip


@pytest.mark.parametrize("start", [1 << 40, LAST_ADDRESS - 2 * ADDRESS_BLOCK])
def test_addresses_that_are_tried_are_within_the_address_space(start: int) -> None:
    never = Instances({"pe.0": [start], "pe.1": [start + ADDRESS_BLOCK]})
    with pytest.raises(NoCommonAddress):
        agree(plan_of(counted(2, ""), MACHINE).processes, never.command)
    tried = [each["pe.0"].addresses["r0"] for each in never.rounds[1:]]
    assert len({*tried}) == len(tried) == TRIES
    assert all(0 < each <= LAST_ADDRESS - ADDRESS_BLOCK and each % ADDRESS_BLOCK == 0 for each in tried)


def test_ranges_of_different_sizes_and_alignments_are_agreed_on_together() -> None:
    text = counted(2, "", ", align: 1GiB", ", count: 2", ", address: 0x30000000000")
    (first,) = {tuple(each.placed) for each in apply_together(text, MACHINE).values() if len(each.placed) > 1}
    assert [each.first for each in first] == ["r0", "r1", "r2.0", "r3"]
    assert first[1].address % (1 << 30) == 0
    assert first[3].address == 0x30000000000


def test_processes_agree_where_an_address_is_taken_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    done = run_with_crash(COMMON, "nobody", 1, "SIGKILL")
    assert done.report, done.errors
    assert done.report.outcome == "ok", done.report
    assert tallies(done.report.checks)["address"].as_declared == 3
    assert len({each.address for part in done.report.processes for each in part.placed if each.first == "heap"}) == 1


@pytest.mark.parametrize(
    ("process", "call", "name"),
    [
        ("pe.1", "mem_address_free#1", "SIGKILL"),
        pytest.param("pe.0", "mem_address_reserve#3", "SIGSTOP", marks=pytest.mark.exhaustive),
        pytest.param("pe.2", "mem_address_reserve#3", "SIGTERM", marks=pytest.mark.exhaustive),
    ],
)
def test_a_worker_may_die_while_processes_agree(
    process: str, call: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    survived(run_with_crash(COMMON, process, call, name), process, name)


def test_workers_of_a_conductor_that_dies_while_they_agree_take_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    lost(run_with_crash(COMMON, "pe.1", "mem_address_free#1", "SIGKILL", "parent"), "SIGKILL")


def test_a_driver_error_while_processes_agree_undoes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_OCCUPIED", "pe.1")
    done = run_with_crash(COMMON, "pe.1", "mem_address_reserve#3", "CUDA_ERROR_OUT_OF_MEMORY")
    assert done.report, done.errors
    assert (done.report.outcome, done.report.exit_code) == ("failed", 4), done.report
    assert done.report.failure
    assert "reserve heap" in done.report.failure.step
    assert done.report.left
    assert not any(done.report.left.ledger_after.values())
