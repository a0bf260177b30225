"""The list of equivalent mutants."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())["mutant"]


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: entry["before"])
def test_equivalent_mutants_are_of_lines_that_exist(entry: dict[str, str]) -> None:
    lines = {line.strip() for line in (ROOT / entry["file"]).read_text().splitlines()}
    assert lines.issuperset(entry["before"].splitlines())
    assert entry["after"] != entry["before"]
    assert entry["reason"]
