"""Rules of the tests that hold in CI alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import chain
from math import ceil
from pathlib import Path

import pytest

from tests.conftest import SECONDS_A_DAY, exhaustive_tests
from tests.helpers.command_line import ROOT, environment
from tests.helpers.tools import tool

EXAMPLE = """
import pytest
def test_usual(): pass
@pytest.mark.exhaustive(seconds=8)
@pytest.mark.parametrize("number", range(100))
def test_exhaustive(number): pass
"""


def test_a_missing_program_skips_a_test_but_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no no-such-program here"):
        tool("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="there is no no-such-program here"):
        tool("no-such-program")


def test_each_exhaustive_test_is_one_of_one_day_and_every_day_takes_as_long() -> None:
    costs = {f"{name}[{number}]": cost for name, cost in (("a", 0.5), ("b", 3.0), ("c", 25.0)) for number in range(90)}
    days = [exhaustive_tests(costs, day) for day in range(20000, 20000 + ceil(sum(costs.values()) / SECONDS_A_DAY))]
    assert Counter(chain.from_iterable(days)) == Counter(costs.keys())
    assert exhaustive_tests(costs, 20000 + len(days)) == days[0]
    seconds = [sum(costs[name] for name in each) for each in days]
    assert max(seconds) - min(seconds) <= max(costs.values())


def test_the_exhaustive_tests_of_a_day_run_beside_the_usual_tests(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)

    def collected(*options: str) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "tests.conftest",
            f"-c{ROOT}/pyproject.toml",
        ]
        done = subprocess.run(
            [*command, *options, str(tmp_path)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return [line for line in done.stdout.splitlines() if "::" in line]

    usual, *exhaustive = collected("--exhaustive-day=20780")
    every = [f"{usual.replace('test_usual', 'test_exhaustive')}[{number}]" for number in range(100)]
    of_day = exhaustive_tests(dict.fromkeys(every, 8.0), 20780)
    assert exhaustive == [name for name in every if name in of_day] != []
    assert collected() == [usual]
