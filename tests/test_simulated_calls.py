"""The page of the driver's functions that are simulated."""

from __future__ import annotations

import re

import pytest

from docs import make_simulated_calls
from memtopo.driver.functions import plain_name
from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import METHODS
from memtopo.testing.abi import exported
from memtopo.testing.program import FUNCTIONS, SimulatedProgram
from tests.helpers.simulator import LAXER, STRICTER
from tests.helpers.specs import ROOT

PAGE = make_simulated_calls.PAGE.read_text(encoding="utf-8")
SIMULATED, _, OTHERS = PAGE.partition("\n## Not simulated\n")
ROWS = dict(re.findall(r"^\| `(cu\w+)` \| (.+) \|$", SIMULATED, re.MULTILINE))
PROGRAMS = make_simulated_calls.DIFFERENCES.read_text(encoding="utf-8").partition("\n## For programs\n")[2]
EVERY = {plain_name(name) for name in exported()}


def test_page_of_simulated_calls_is_current() -> None:
    assert make_simulated_calls.page() == PAGE, "if it is better now: make docs"


def test_every_simulated_function_has_a_row() -> None:
    assert set(ROWS) == SimulatedProgram.names()


def test_every_other_function_of_the_driver_is_listed_once() -> None:
    listed = re.findall(r"`(cu\w+)`", OTHERS.partition("\n| group ")[2])
    assert sorted([*listed, *make_simulated_calls.OWN, *ROWS]) == sorted(EVERY)


def test_counts_of_the_page_are_those_of_its_rows() -> None:
    (total, *_, by_gpus) = re.findall(r"in ([\d,]+) recorded calls: (.+)\.", SIMULATED)[0]
    columns = [[int(each.replace(",", "") or 0) for each in row.split(" | ")[1:3]] for row in ROWS.values()]
    sums = [sum(each) for each in zip(*columns, strict=True)]
    assert [f"{each:,}" for each in (sum(sums), *sums)] == [total, *re.findall(r"(\d[\d,]+) on", by_gpus)]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.startswith("measured")])
def test_a_measured_function_is_called_by_a_contract_test(name: str) -> None:
    methods = [method for method in METHODS if call_name(method) == name]
    contract = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "contract").glob("*.py"))
    assert any(re.search(rf"\b{method}\b", contract) for method in methods)


def test_a_function_names_each_section_that_has_a_difference_of_it() -> None:
    stricter = {call_name(method) for method in STRICTER} & set(ROWS)
    laxer = {call_name(method) for method in LAXER} & set(ROWS)
    assert stricter == {name for name, row in ROWS.items() if "[stricter]" in row}
    assert laxer == {name for name, row in ROWS.items() if "[laxer]" in row}


def test_differences_for_programs_are_of_functions_that_programs_call() -> None:
    cells = re.findall(r"^\| (`.+?`) \| .+ \|$", PROGRAMS, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named)) > 30
    assert set(named) <= {each.name for each in FUNCTIONS.values()} | set(make_simulated_calls.OWN)


def test_readme_has_the_numbers_of_the_page() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    first = " ".join(SIMULATED.split("\n\n")[1].split()).partition(":")[0]
    assert first in readme
