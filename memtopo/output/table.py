"""A table of which spec fits which machine, in plain lines."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.text import display_width, printable
from memtopo.output.plain import paint
from memtopo.output.verdicts import verdict
from memtopo.rules.files import Checked

_GAP = "  "


def matrix(checked: Checked, *, colour: bool = False) -> list[str]:
    """A row for each spec and a column for each machine."""
    heading = ["spec", *(printable(machine) for machine in checked.machines)]
    rows = [[printable(file.document.name), *(verdict(each) for each in file.results)] for file in checked.files]
    widths = [max(map(display_width, column)) for column in zip(heading, *rows, strict=True)]
    return [_line(heading, widths, "strong", colour=colour), *(_line(row, widths, "", colour=colour) for row in rows)]


def _line(cells: list[str], widths: list[int], style: str, *, colour: bool) -> str:
    return _GAP.join(_padded(cells, widths, style, colour=colour)).rstrip()


def _padded(cells: list[str], widths: list[int], style: str, *, colour: bool) -> Iterator[str]:
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        kind = style or (_kind(cell) if index else "")
        yield (paint(cell, kind, colour=colour) if kind else cell) + " " * (width - display_width(cell))


def _kind(cell: str) -> str:
    if cell == "ok":
        return ""
    return "error" if "error" in cell else "warning"
