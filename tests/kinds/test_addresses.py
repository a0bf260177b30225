"""Addresses of ranges: fixed ones that are known to miss (fact 11), and those that all processes agree on."""

from __future__ import annotations

from contextlib import closing

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.types import ADDRESS_BLOCK, DriverError
from memtopo.drivers.sim import SimDriver
from memtopo.geometry.groups import RangeGroup
from memtopo.kinds.layout import Layout
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.resources import AGREED, SAME_ADDRESS, ReserveRange
from memtopo.output.diagram.build import build_diagram
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, diagnose, plan_of, steps_of

CHUNK = "chunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def helps(ranges: str) -> list[str | None]:
    """Help of each MT307 of a spec with these ranges; `r` has a chunk."""
    return [each.help for each in diagnose(f"ranges: {{{ranges}}}\n{CHUNK}") if each.code == "MT307"]


def test_the_suggested_address_does() -> None:
    ranges = [f"a{n}: {{size: 2MiB, address: {0x20000000000 + n * 0x4000000:#x}, fixed: true}}" for n in range(50)]
    (near,) = helps(", ".join([*ranges, "r: {size: 40MiB, address: 0x20060000000, fixed: true}"]))
    address = str(near).split()[1].rstrip(",")
    assert helps(", ".join([*ranges, f"r: {{size: 40MiB, address: {address}, fixed: true}}"])) == []


def test_only_the_first_of_many_overlaps_have_a_suggestion() -> None:
    """Each compares the range with all others."""
    found = helps(", ".join(f"r{n}: {{size: 2MiB, address: 0x20000000000, fixed: true}}" for n in range(20)))
    assert [bool(each) for each in found] == [True] * 10 + [False] * 9


PE = (
    "processes:\n pe: {COUNTranges: {heap: {size: 4MiB, same_address: trueMORE}, own: {size: 64MiB}}, "
    "chunks: {c: {location: gpu0, size: 4MiB}}, map: {heap: c, own: c}, access: {heap: {gpu0: rw}, own: {gpu0: rw}}}\n"
)


def pe(more: str = "", count: str = "count: 2, ") -> str:
    return PE.replace("MORE", more).replace("COUNT", count)


def test_such_a_range_begins_at_a_block_and_is_reserved_first() -> None:
    """Fact 11."""
    machine = invented(2)
    member = plan_of(pe().replace("own", "aaa"), machine).processes["pe.1"]
    steps = steps_of(member, ReserveRange)
    assert [(step.label, step.align, step.same) for step in steps] == [("heap", ADDRESS_BLOCK, True), ("aaa", 0, False)]
    assert [row.note for row in member.summary().rows if row.verb == "reserve"] == [SAME_ADDRESS, ""]


def test_a_drawing_says_that_the_address_is_the_same() -> None:
    geometry = clean_geometry(pe())
    assert geometry.processes["pe.0"].of(RangeGroup)["heap"].same_address
    drawn = build_diagram(geometry, invented(2)).processes[0].picture.ranges
    assert {each.first: each.same_address for each in drawn} == {"heap": True, "own": False}


@pytest.mark.parametrize("agreed", [{}, {"heap": 5 << 40}])
def test_a_check_finds_an_address_that_was_not_agreed_on(agreed: dict[str, int]) -> None:
    step = ReserveRange((), "heap", ADDRESS_BLOCK, ADDRESS_BLOCK, 0, fixed=False, same=True)
    with closing(SimDriver(invented(2))) as driver:
        driver.init()
        layout = Layout()
        layout.of(AGREED).update(agreed)
        step.do(driver, layout)
        (wrong,) = (each for each in step.check(driver, layout) if each.expected != each.observed)
        assert (wrong.aspect, wrong.observed) == ("address", hex(layout.address("heap")))
        step.relocate(driver, layout, 5 << 40)
        assert layout.address("heap") == 5 << 40
        assert bool([each for each in step.check(driver, layout) if each.expected != each.observed]) is not bool(agreed)
        step.undo(driver, layout)
        assert not layout.ranges


def test_a_range_that_could_not_be_reserved_elsewhere_is_not_freed_again() -> None:
    step = ReserveRange((), "heap", ADDRESS_BLOCK, ADDRESS_BLOCK, 0, fixed=False, same=True)
    with closing(SimDriver(invented(1))) as simulator:
        simulator.init()
        driver, layout = Failing(simulator, 2, only={"mem_address_reserve"}), Layout()
        ledger = Ledger(driver)
        step.do(ledger, layout)
        with pytest.raises(DriverError):
            step.relocate(ledger, layout, 5 << 40)
        assert (layout.ranges, ledger.empty) == ({}, True)
        step.undo(ledger, layout)


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        (pe(), False),
        (pe().replace("own: {size: 64MiB}", "own: {size: 32MiB}"), False),
        (pe(", align: 64MiB"), True),
        (pe().replace(", same_address: true", ""), True),
        (pe().replace("heap: {size: 4MiB", "heap: {size: 8MiB"), True),
    ],
)
def test_a_change_leaves_the_addresses_that_processes_agreed_on(after: str, refused: bool) -> None:
    before, changed = (clean_geometry(text).processes["pe.0"] for text in (pe(), after))
    assert [each.code for each in RANGES.refused_changes(before, changed)] == ["MT810"] * refused
    assert [each.code for each in RANGES.refused_changes(changed, before)] == ["MT810"] * refused
