"""Pages of titled sections with lines and tables, rendered for a terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memtopo.common.text import display_width, printable
from memtopo.driver.types import Location

T = TypeVar("T")

_GAP = 2
_SHADES = " ░▒▓█"
_ASCII_SHADES = ".:+*#"
# Five colours of viridis, which ascends in brightness for every kind of colour vision, with a legible text colour.
_COLOURS = ("white on #440154", "white on #3b528b", "white on #1f7f79", "black on #5ec962", "black on #fde725")
# What Markdown, HTML or a forge interprets: markup, tags, links, mentions, issue numbers, emoji codes.
_MARKUP = re.compile(r"[^A-Za-z0-9 ,;()×µ%='/.:+-]|[.:/](?=[A-Za-z/])|^[+-]|(?<=^[0-9])\.(?= )")


@dataclass(frozen=True, slots=True)
class Grid:
    """A table by its headings and rows. A `close` table has one blank between columns and aligns numbers right.

    `heat` colours the cells of each row except its first: from 0 to 1, None for no colour.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    close: bool = False
    heat: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A titled section of a page: lines and tables in their order."""

    title: str
    body: Sequence[str | Grid] = ()


def rendered(sections: Sequence[Section]) -> RenderableType:
    """A page for a terminal of 60 columns or more; lines and cells that are too wide fold."""
    parts: list[RenderableType] = []
    for index, section in enumerate(sections):
        parts += [*([Text()] if index else []), _line(section.title, "bold")]
        for before, item in zip([None, *section.body], section.body, strict=False):
            if isinstance(item, Grid):
                parts.append(_table(item))
            else:
                parts += [*([Text()] if isinstance(before, Grid) else []), _paragraph(item)]
    return Group(*parts)


def markdown(sections: Sequence[Section]) -> list[str]:
    """The same page as GitHub-flavoured Markdown."""
    lines: list[str] = []
    for index, section in enumerate(sections):
        heading = f"{'###' if index else '##'} {_escaped(section.title)}"
        lines += [*([""] if index else []), heading, *_markdown_body(section.body)]
    return lines


def grouped(values: Mapping[Location, T], key: Callable[[T], Hashable]) -> list[tuple[str, T]]:
    """Names of the locations with equal keys, with the value of the first one."""
    groups: dict[Hashable, list[Location]] = {}
    for location, value in values.items():
        groups.setdefault(key(value), []).append(location)
    return [(names(members), values[members[0]]) for members in groups.values()]


def names(locations: Iterable[Location]) -> str:
    """`gpu0 to gpu3, host, host:0`."""
    groups: list[list[Location]] = []
    for location in locations:
        if groups and location == groups[-1][-1]._replace(id=groups[-1][-1].id + 1):
            groups[-1].append(location)
        else:
            groups.append([location])
    return ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in groups)  # noqa: PLR2004


def yes_or_no(answer: bool | None, unknown: str = "not known") -> str:  # noqa: FBT001
    """`yes`, `no`, or `unknown` for None."""
    return unknown if answer is None else "yes" if answer else "no"


def _escaped(text: str) -> str:
    """Escape a text for Markdown, in a table or not, such that it stays legible as plain text."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def _markdown_body(body: Iterable[str | Grid]) -> Iterator[str]:
    for item in body:
        yield ""
        if isinstance(item, str):
            yield _escaped(item.strip())
            continue
        yield _row(item.columns)
        yield _row(["---"] * len(item.columns))
        yield from map(_row, ([_escaped(cell) for cell in row] for row in item.rows))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _paragraph(text: str) -> RenderableType:
    indent = len(text) - len(text.lstrip())
    return Padding(_line(text.lstrip()), (0, 0, 0, indent))


def _table(grid: Grid) -> RenderableType:
    if grid.heat:
        return _HeatMap(grid)
    table = Table(box=None, pad_edge=False, padding=(0, 1 if grid.close else _GAP, 0, 0), header_style="dim")
    for index, column in enumerate(grid.columns):
        table.add_column(column, overflow="fold", justify="right" if grid.close and index else "left")
    for row in grid.rows:
        table.add_row(*map(_line, row))
    return table


def _line(text: str, style: str = "") -> Text:
    # The text of a recorded machine is not trusted: no markup, no control characters.
    return Text(printable(text), style)


class _HeatMap:
    """A grid with heat as colours, and as shades where there is room, so that it is legible without colours."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._cells = [[printable(cell) for cell in row] for row in (grid.columns, *grid.rows)]
        self._widths = [max(map(display_width, column)) for column in zip(*self._cells, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self._widths
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        if first + sum(width + 3 for width in others) > options.max_width:
            shades = ""
        for row, heat in zip(self._cells, ((), *self._grid.heat), strict=True):
            yield Text.assemble(*self._row(row, heat, shades), no_wrap=False, overflow="fold")

    def _row(self, row: Sequence[str], heat: Sequence[float | None], shades: str) -> Iterator[Text | tuple[str, str]]:
        yield row[0].ljust(self._widths[0]), "" if heat else "dim"
        for index, (cell, width) in enumerate(zip(row[1:], self._widths[1:], strict=True)):
            value = heat[index] if heat else None
            level = None if value is None else min(int(value * len(_COLOURS)), len(_COLOURS) - 1)
            shade = "" if not shades else "  " if level is None else f"{shades[level]} "
            yield " ", ""
            yield f"{shade}{' ' * (width - display_width(cell))}{cell}", _style(level, heading=not heat)


def _style(level: int | None, *, heading: bool) -> str:
    return "dim" if heading else "" if level is None else _COLOURS[level]
