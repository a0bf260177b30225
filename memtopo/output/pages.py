"""Pages drawn: for the terminal, plain without colour, and as Markdown for pasting."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memtopo.common.text import display_width, printable
from memtopo.driver.types import Location

_GAP = 2

# What Markdown, HTML or a forge acts upon: marks, tags, links, mentions, numbers of issues, smileys.
_ACTS = re.compile(r"[^A-Za-z0-9 ,;()×µ%='/.:+-]|[.:/](?=[A-Za-z/])|^[+-]|(?<=^[0-9])\.(?= )")


def drawn(sheets: Sequence[Sheet]) -> RenderableType:
    """A page for 60 columns and more. Nothing is cut: what is too wide folds."""
    parts: list[RenderableType] = []
    for n, sheet in enumerate(sheets):
        parts += [*([Text()] if n else []), _line(sheet.title, "bold")]
        parts += [_table(item) if isinstance(item, Grid) else _paragraph(item) for item in sheet.body]
    return Group(*parts)


def markdown(sheets: Sequence[Sheet]) -> list[str]:
    """The same page as GitHub-flavoured Markdown."""
    lines: list[str] = []
    for n, sheet in enumerate(sheets):
        lines += [*([""] if n else []), f"{'###' if n else '##'} {escaped(sheet.title)}", *_marked(sheet.body)]
    return lines


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in a table or not, and that reads well where it is not drawn."""
    return _ACTS.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def _marked(body: Iterable[str | Grid]) -> Iterator[str]:
    for item in body:
        yield ""
        if isinstance(item, str):
            yield escaped(item.strip())
            continue
        yield _row(item.columns)
        yield _row(["---"] * len(item.columns))
        yield from map(_row, ([escaped(cell) for cell in row] for row in item.rows))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _paragraph(text: str) -> RenderableType:
    indent = len(text) - len(text.lstrip())
    return Padding(_line(text.lstrip()), (0, 0, 0, indent))


def _table(grid: Grid) -> RenderableType:
    if grid.heat:
        return Heat(grid)
    table = Table(box=None, pad_edge=False, padding=(0, 1 if grid.close else _GAP, 0, 0), header_style="dim")
    for n, column in enumerate(grid.columns):
        table.add_column(column, overflow="fold", justify="right" if grid.close and n else "left")
    for row in grid.rows:
        table.add_row(*map(_line, row))
    return table


def _line(text: str, style: str = "") -> Text:
    # A recorded machine may come from anywhere: never markup, never control characters.
    return Text(printable(text), style)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """A table by its headings and rows. Cells of a `close` one stand one blank apart, and numbers to the right.

    `heat` is how much there is in each cell of each row but its first, from 0 to 1, where that is to be seen.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    close: bool = False
    heat: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled part of a page: lines and tables in their order."""

    title: str
    body: Sequence[str | Grid] = field(default=())


def folded(places: Mapping[Location, T], key: Callable[[T], Hashable]) -> list[tuple[str, T]]:
    """Places of equal key as one name, with what the first of them holds."""
    groups: dict[Hashable, list[Location]] = {}
    for place, thing in places.items():
        groups.setdefault(key(thing), []).append(place)
    return [(names(members), places[members[0]]) for members in groups.values()]


def names(places: Iterable[Location]) -> str:
    """`gpu0 to gpu3, host, host:0`."""
    runs: list[list[Location]] = []
    for place in places:
        if runs and place == runs[-1][-1]._replace(id=runs[-1][-1].id + 1):
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004


def word(answer: bool | None, unknown: str = "not known") -> str:  # noqa: FBT001
    """`yes`, `no`, or that nobody knows."""
    return unknown if answer is None else "yes" if answer else "no"


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
