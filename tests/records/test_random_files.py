"""Random snapshots and records, as `tests.fuzz.records` makes them: each command answers them, with bounds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz import records
from tests.fuzz.records import MEBIBYTES, SECONDS, cases, measured

SEED = 29


def check(seed: int, number: int, folder: Path) -> None:
    for count, case in enumerate(islice(cases(seed), number)):
        found = measured(case, folder)
        assert found.fault is None, (seed, count, case.what, case.command, found.fault)


def test_commands_answer_random_files_within_two_seconds_and_300_mib(tmp_path: Path) -> None:
    assert (SECONDS, MEBIBYTES, records.LARGEST) == (2.0, 300, 4 << 20)
    check(SEED, 60, tmp_path)


@pytest.mark.exhaustive(seconds=30)
@pytest.mark.parametrize("block", range(40))
def test_commands_answer_many_random_files_within_two_seconds_and_300_mib(block: int, tmp_path: Path) -> None:
    check(1000 + block, 100, tmp_path)
