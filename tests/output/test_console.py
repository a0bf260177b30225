"""Tables of names and numbers at the widths of terminals, with and without colours."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from memtopo.output import console
from memtopo.output.blocks import Notes, Pairs, Stacked, Table, columns

COLUMNS = columns("chunk", ">bytes", "", "where")
TABLES = (
    Table(
        COLUMNS,
        [("page.0 … page.15", "2 MiB", "", "gpu0"), ("块 hot", "1,024 MiB", "", "gpu0, gpu1"), ("", "", "", "")],
    ),
    Table(COLUMNS, []),
    Table(COLUMNS, [("page", "2 MiB", "", Stacked(["gpu0", "(fd)"]))]),
    Pairs([("memory on gpu0", "  48 MiB"), ("steps", "42 to build, 41 to take down"), ("块", "")]),
    Pairs([]),
    Notes(["access is verified in both directions, from each GPU", "two notes"]),
)


@pytest.mark.parametrize("width", [16, 30, 42, 43, 44, 45, 46, 47, 48, 80])
@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_the_same_with_and_without_colours(
    table: console.Shown, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = console.text(table, console.console_of(io.StringIO(), width, colour=True))
    assert "\x1b[" in coloured or coloured == "\n" * coloured.count("\n")
    shown = Text.from_ansi(coloured).plain
    assert [line.rstrip() for line in shown.splitlines()] == console.unstyled(table, width).splitlines()
