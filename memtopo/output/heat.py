"""A square whose cells are coloured by how much there is, and shaded where there is room, so that it reads without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memtopo.common.text import display_width, printable
from memtopo.output.sheets import Grid

_SHADES = " ░▒▓█"
_PLAIN_SHADES = ".:+*#"
# Five of viridis, which ascends in brightness for every eye, with what reads on each.
_COLOURS = ("white on #440154", "white on #3b528b", "white on #1f7f79", "black on #5ec962", "black on #fde725")


class Heat:
    """A grid with heat, from 0 to 1 in each cell but a row's first; None where there is nothing to be told."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        cells = [[printable(cell) for cell in row] for row in (grid.columns, *grid.rows)]
        self._cells = cells
        self._widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self._widths
        shades = _PLAIN_SHADES if options.ascii_only else _SHADES
        if first + sum(width + 3 for width in others) > options.max_width:
            shades = ""
        for row, heat in zip(self._cells, ((), *self._grid.heat), strict=True):
            yield Text.assemble(*self._line(row, heat, shades), no_wrap=False, overflow="fold")

    def _line(self, row: Sequence[str], heat: Sequence[float | None], shades: str) -> Iterator[Text | tuple[str, str]]:
        yield row[0].ljust(self._widths[0]), "" if heat else "dim"
        for turn, (cell, width) in enumerate(zip(row[1:], self._widths[1:], strict=True)):
            much = heat[turn] if heat else None
            level = None if much is None else min(int(much * len(_COLOURS)), len(_COLOURS) - 1)
            mark = "" if not shades else "  " if level is None else f"{shades[level]} "
            yield " ", ""
            yield f"{mark}{' ' * (width - display_width(cell))}{cell}", _style(level, head=not heat)


def _style(level: int | None, *, head: bool) -> str:
    return "dim" if head else "" if level is None else _COLOURS[level]
