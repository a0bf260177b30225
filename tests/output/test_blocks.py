"""A page of every kind of block, as text of a terminal, as HTML and as Markdown."""

from __future__ import annotations

import re

import pytest

from memtopo.output import ci, console, html
from memtopo.output.blocks import (
    Item,
    Notes,
    Page,
    Pairs,
    Section,
    Series,
    Source,
    Stacked,
    Table,
    Timeline,
    Toned,
    columns,
)

EVIL = "<b>[red]x\x1b[2J"
TABLE = Table(columns(EVIL, ">n"), [("a", Toned(EVIL, "bad")), (Stacked([EVIL, "c"]), "2")], EVIL, more=7)
BLOCKS = (EVIL, Toned(EVIL, "bad"), TABLE, Pairs([(EVIL, EVIL)]), Notes([EVIL]), Item(EVIL, [EVIL]), Source([EVIL]))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_a_text_in_any_block_is_shown_as_text_and_is_no_markup(block: str | Table) -> None:
    page = Page("apply", EVIL, EVIL, [EVIL], [Section(EVIL, [block])], Toned(EVIL, "good"))
    within = len(re.findall(r"red", str(block)))
    text, document = console.unstyled(page, 200), html.document(page)
    assert text.count("<b>[red]x\\x1b[2J") == within + 5
    assert document.count("&lt;b&gt;[red]x\\x1b[2J") >= within + 6
    assert "<b>" not in document
    assert "\x1b" not in text + document
    if isinstance(block, str | Table):
        assert "<b>" not in "\n".join(ci.page_lines(page))


def test_an_amount_holds_until_the_next_point_of_a_timeline() -> None:
    points = [(0.5, 3), (0.5, 5), (3.5, 1)]
    assert [*Timeline(4.0, [Series("a", points)]).levels(points, 5)] == [5, 5, 5, 5, 5]
    assert [*Timeline(4.0, []).levels([(1.0, 7), (4.0, 0)], 4)] == [0, 7, 7, 7]


def test_rows_that_are_left_out_are_counted() -> None:
    page = Page("apply", "x", sections=[Section("", [Table(columns("a"), [("b",)] * (html.MOST_TABLE_ROWS + 2))])])
    assert "… and 2 more" in html.document(page)
    assert "… and 7 more" in console.unstyled(TABLE, 80)
