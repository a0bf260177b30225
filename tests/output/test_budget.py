"""Budgets as they are shown: of many combinations of states, the few that fit or the few that do not."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB
from memtopo.output.blocks import Table
from memtopo.output.budget import page
from tests.session.test_budget import of, sleeping


@pytest.mark.parametrize(
    ("context", "shown", "note"),
    [
        (GiB // 2, ["none", "a asleep", "a weights"], "the others fit"),
        (20 * GiB, ["none", *(f"{a}b asleep, c asleep" for a in ("", "a asleep, ", "a weights, "))],
         "the others do not fit"),
    ],
)  # fmt: skip
def test_of_many_combinations_the_fewer_ones_are_listed_and_what_holds_for_the_others_is_said(
    context: int, shown: list[str], note: str
) -> None:
    found = of(sleeping("a", 8, 1), sleeping("b", 20, 20), sleeping("c", 20, 20), context=context)
    section = next(each for each in page(found).sections if each.title == "states together")
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [*map(str, (row[0] for row in table.rows))] == shown
    assert (table.note, table.more) == (note, 27 - len(shown))
