"""Budgets as they are shown: of many combinations of states, the few that fit or the few that do not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.common.units import GiB
from memtopo.output.blocks import Notes, Table, Toned
from memtopo.output.budget import page
from memtopo.session.budget import Budget
from tests.session.test_budget import of, sleeping


def table_of(found: Budget, title: str) -> Table:
    section = next(each for each in page(found).sections if each.title.startswith(title))
    (table,) = section.blocks
    assert isinstance(table, Table)
    return table


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
    table = table_of(found, "states together")
    assert [*map(str, (row[0] for row in table.rows))] == shown
    assert (table.note, table.more) == (note, 27 - len(shown))


def beside(found: Budget) -> dict[tuple[str, str], str]:
    """Words on the states beside which each switch fits, by layout and switch."""
    rows = [
        [each.text if isinstance(each, Toned) else str(each) for each in row] for row in table_of(found, "peaks").rows
    ]
    return {(layout, switch): words for layout, switch, *_, words in rows}


def test_a_switch_has_the_number_of_states_beside_which_it_fits() -> None:
    """Switches of one state with the same peak and the same number are one row."""
    some, every = "2 of 3 states", "all states"
    assert beside(of(sleeping("a", 8, 40), sleeping("b", 16, 20))) == {
        (name, switch): words
        for name in "ab"
        for switch, words in {
            "awake → asleep, weights": some, "asleep → awake": some, "asleep → weights": every,
            "weights → awake": some, "weights → asleep": every,
        }.items()
    }  # fmt: skip
    assert {*beside(of(sleeping("a", 8, 40))).values()} == {"alone"}
    least = beside(of(sleeping("a", 8, 40), sleeping("b", 16, 30), context=40 * GiB))
    assert least["a", "asleep → weights"].startswith("none: 8.")


A, B = sleeping("a", 8, 40), sleeping("b", 16, 20)


@pytest.mark.parametrize(
    ("found", "words", "tone"),
    [
        (of(A), "ok: they fit together in every state", "good"),
        (of(A.partition("states:")[0]), "ok: they fit together", "good"),
        (of(A, sleeping("c", 8, 8)), "ok: they fit together in every state", "good"),
        (of(A, B), "not all can be awake together; 8 of 9 combinations of states fit", "bad"),
        (of(A, B, context=40 * GiB), "they do not fit together in any combination of states", "bad"),
    ],
)
def test_the_verdict_on_a_budget_has_the_combinations_that_fit(found: Budget, words: str, tone: str) -> None:
    assert page(found).verdict == (words, tone)


def notes_of(found: Budget) -> list[str]:
    return [
        text
        for each in page(found).sections
        for block in each.blocks
        if isinstance(block, Notes)
        for text in block.texts
    ]


def test_what_is_least_is_named_only_if_nothing_fits_and_that_combinations_are_left_out() -> None:
    assert [note for note in notes_of(of(A, B)) if "least" in note or "too many" in note] == []
    found = replace(of(A, B, context=40 * GiB), complete=False)
    least, many = notes_of(found)[-2:]
    assert least == "least is missing with a asleep, b asleep: 841 MiB on gpu0"
    assert many.startswith("there are too many combinations of states")
