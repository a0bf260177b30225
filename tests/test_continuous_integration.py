"""Rules of the tests that hold in CI alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SLOW_TESTS, is_of_day
from tests.helpers.command_line import ROOT, environment
from tests.helpers.tools import tool

EXAMPLE = """
import pytest
def test_usual(): pass
@pytest.mark.exhaustive
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


@pytest.mark.parametrize(("prefix", "period"), [("tests/a.py::test_", 10), (f"tests{SLOW_TESTS[0]}test_", 100)])
def test_each_exhaustive_test_is_one_of_one_day_in_ten_or_if_slow_in_a_hundred(prefix: str, period: int) -> None:
    for number in range(50):
        days = [day for day in range(20000, 20200) if is_of_day(f"{prefix}{number}", day)]
        assert days == list(range(days[0], 20200, period))


def test_the_tenth_of_a_number_runs_beside_the_usual_tests(tmp_path: Path) -> None:
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

    usual, *exhaustive = collected("--exhaustive-tenth=20780")
    every = [f"{usual.replace('test_usual', 'test_exhaustive')}[{number}]" for number in range(100)]
    assert exhaustive == [name for name in every if is_of_day(name, 20780)] != []
    assert collected() == [usual]
