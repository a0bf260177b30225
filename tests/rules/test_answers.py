"""The diagnostics of each case in the tables of tests/answers are those that are written below it.

GOLDEN=write writes them; review the difference before you commit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.answers import OF_EXAMPLES, TABLES, kept, read_table, table_text


@pytest.mark.parametrize("path", sorted({*TABLES.glob("*.txt")} - {OF_EXAMPLES}), ids=lambda path: path.stem)
def test_each_case_of_a_table_has_the_written_diagnostics(path: Path) -> None:
    found = table_text(read_table(path.read_text()))
    assert found.splitlines() == kept(path, found).splitlines()
