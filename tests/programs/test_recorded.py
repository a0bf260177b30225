"""Programs over the driver's C functions that were recorded on a GPU, and their answers on the simulator."""

from __future__ import annotations

import pytest

from memtopo.testing.program import SimulatedProgram
from tests.differential import traces
from tests.helpers.specs import ROOT
from tests.programs.player import EXPLAINED, differences

RECORDED = ROOT / "tests" / "programs" / "recorded"
EVERY = 10
"""One of so many random programs is made again each time."""


def test_given_programs_are_answered_as_on_an_h200() -> None:
    _, recorded = traces.read(RECORDED / "h200x1.cases.xz")
    assert differences(recorded) == []


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.exhaustive(seconds=20))])
def test_random_programs_are_answered_as_on_an_h200(every: int) -> None:
    _, recorded = traces.read(RECORDED / "h200x1.random.xz")
    assert differences(list(recorded)[::every]) == []


def test_explained_differences_have_rows() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    rows = page[page.index("## For programs") :]
    assert {name for name, _, _ in EXPLAINED} <= SimulatedProgram.names()
    assert [name for name, _, _ in EXPLAINED if f"`{name}`" not in rows] == []
