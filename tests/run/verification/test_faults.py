"""Faults of a driver, one at a time: what each check finds of them is as the matrix says, in tests and documents."""

from __future__ import annotations

import json

import pytest

from memtopo.plans.report import Check
from tests.helpers.fault_matrix import DIFFERENCES, FAILURE, LEAK, LENT, MATRIX, NAMES, SHARED, Fault, table
from tests.helpers.faults import Faulty
from tests.helpers.specs import ROOT

FIRST = json.loads(DIFFERENCES.read_text())


@pytest.mark.parametrize("check", ["fast", "full"])
@pytest.mark.parametrize("fault", MATRIX, ids=lambda fault: fault.driver.__name__)
def test_a_check_finds_of_a_fault_what_the_matrix_says(fault: Fault, check: Check) -> None:
    """A difference ends in exit 6, and what stays in exit 5. The first of each aspect is that of the golden file."""
    found, exit_code, first = fault.run(check)
    assert first == FIRST[fault.key(check)]
    assert found == (fault.fast if check == "fast" else fault.full)
    assert exit_code == (5 if LEAK in found else 4 if FAILURE in found else 6 if found else 0)


@pytest.mark.parametrize("spec", NAMES, ids=NAMES.values())
@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_driver_without_a_fault_is_as_declared(spec: str, check: Check) -> None:
    process = "server" if spec in {LENT, SHARED} else ""
    sound = Fault("", Faulty, spec, "", "", process)
    assert sound.run(check) == ("", 0, {})


def test_the_matrix_has_forty_faults_and_stands_in_the_documents() -> None:
    assert len(MATRIX) >= 40
    assert len(FIRST) == 2 * len(MATRIX)
    assert table() in (ROOT / "docs" / "verification.md").read_text()
