"""Pages and blocks as text of a terminal, by rich. Every text in them is escaped and free of markup."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from memtopo.common.text import output_line, printable
from memtopo.common.units import rounded
from memtopo.output import blocks, plain
from memtopo.output.blocks import HEAT, Block, Cell, Page, Section, Stacked, Table, Toned, Track
from memtopo.output.diagram.terminal import TerminalDrawing

_BLANK_ENDS = re.compile(r" +(?=(?:\x1b\[0m)?$)", re.MULTILINE)
_STYLES = {"good": "bold green", "bad": "bold red", "warn": "bold yellow", "dim": "dim", "": ""}

Shown = Page | Block | RenderableType


def messages(stream: TextIO | None = None) -> Console:
    """Console for progress and messages: stderr."""
    return _console(stream or sys.stderr)


def text(shown: Shown, console: Console) -> str:
    """Output of a console for a page, as lines of output without blanks at their ends."""
    with console.capture() as capture:
        console.print(rendered(shown))
    lines = _BLANK_ENDS.sub("", capture.get()).split("\n")
    styled = console.color_system is not None
    return "\n".join(output_line(line, styled=styled) for line in lines)


def show(shown: Shown, stream: TextIO | None = None, *, width: int | None = None) -> None:
    """Write a result to stdout, `width` columns wide or as wide as the stream."""
    stream = stream or sys.stdout
    plain.print_lines(text(shown, _console(stream, width)).splitlines(), stream, styled=True)


def unstyled(shown: Shown, width: int) -> str:
    """Text of a page for a width in columns, without colours."""
    stream = io.StringIO()
    console = _console(stream, width, colour=False)
    return "".join(f"{line}\n" for line in text(shown, console).splitlines())


def _console(stream: TextIO, width: int | None = None, *, colour: bool | None = None) -> Console:
    colour = plain.colour(stream) if colour is None else colour
    return Console(
        file=stream,
        width=width or plain.width(stream),
        color_system="auto" if colour else None,
        force_terminal=colour or stream.isatty(),
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
    )


INDENT = 2
GAP = 2
"""Columns between two columns of a table."""
WIDEST_WHOLE_CELL = 24
NARROWEST_WHOLE = 76
NARROWEST_WORDS = 50
"""Columns of a terminal from which on the words of a first column are not divided."""
LONGEST_WHOLE_WORD = 16
NARROWEST_LAST = 12


def cell(text: str, style: str = "") -> Text:
    """Escape a text for the terminal."""
    return Text(printable(text), style, overflow="fold")


def rendered(shown: Shown) -> RenderableType:
    """A page, or a block of one; what rich can render already as it is."""
    render = _RENDERED.get(type(shown))
    return render(shown) if render else shown  # type: ignore[return-value]


def _page(page: Page) -> Iterator[RenderableType]:
    between = []
    if page.title:
        where = f"  {printable(page.where)}" if page.where else ""
        yield Text.assemble((page.command, "bold"), "  ", printable(page.title), where)
        yield from (_indented(cell(fact, "dim"), len(page.command) + 2) for fact in page.facts)
        between = [Text()]
    for section in page.sections:
        yield from (*between, *_section(section))
        between = [Text()]
    if page.verdict:
        yield from (*between, rendered(page.verdict))


def _section(section: Section) -> Iterator[RenderableType]:
    """The title and the blocks; what begins with a text at the left margin has an empty line between it and a table."""
    if section.title:
        yield cell(section.title, _STYLES[section.tone] or "bold")
    for before, block in zip([None, *section.blocks], section.blocks, strict=False):
        start = block.caption if isinstance(block, Table) else block
        if isinstance(before, Table) and isinstance(start, str) and start[:1].strip():
            yield Text()
        yield rendered(block)


def _indented(shown: RenderableType, columns: int = INDENT) -> RenderableType:
    return Padding(shown, (0, 0, 0, columns)) if columns else shown


def _cell(value: Cell) -> Text:
    if isinstance(value, Toned):
        return cell(value.text, _STYLES[value.tone])
    return _stacked(value.lines) if isinstance(value, Stacked) else cell("" if isinstance(value, Track) else value)


def _stacked(texts: Sequence[str]) -> Text:
    return Text("\n", overflow="fold").join(map(cell, texts))


def _pairs(rows: Sequence[tuple[str, str]], gap: int) -> RenderableType:
    grid = Grid.grid(padding=(0, gap, 0, 0))
    for name, value in rows:
        grid.add_row(cell(name, "dim"), cell(value))
    return _indented(grid)


_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 48
"""Columns of a line over time."""


def _sparklines(timeline: blocks.Timeline) -> Iterator[tuple[str, str]]:
    """Each series as a line of bars of eight heights, up to the largest amount of all."""
    for each in timeline.series:
        levels = timeline.levels(each.points, _SPARK)
        bars = "".join(_BARS[-(-level * (len(_BARS) - 1) // (timeline.most or 1))] for level in levels)
        yield each.name, f"{bars}  at most {rounded(each.most)}"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table with dim headings and without rules. On a narrow terminal its cells fold; none is cut.

    Texts below the rows are in lines of their own; on a narrow terminal all of them are below the table.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        table, width = _without_tracks(self.table), options.max_width
        cells = _shaded(table, options) if table.heat else [[*map(_cell, row)] for row in table.rows]
        if table.caption:
            yield cell(f"{table.caption}:")
        yield from _with_texts_below(table, cells, width) if any(table.below) else [_grid(table, cells, width)]
        if table.more:
            yield cell(f"{' ' * INDENT}… and {table.more:,} more")


def _without_tracks(table: Table) -> Table:
    used = [n for n in range(len(table.columns)) if not any(isinstance(row[n], Track) for row in table.rows)]
    return replace(table, columns=[table.columns[n] for n in used], rows=[[row[n] for n in used] for row in table.rows])


def _grid(table: Table, cells: Sequence[Sequence[Text]], width: int) -> RenderableType:
    grid = Grid(box=None, padding=(0, 1 if table.close else GAP, 0, 0), pad_edge=False, header_style="dim")
    last = len(table.columns) - 1
    for index, column in enumerate(table.columns):
        own = [row[index] for row in cells]
        short = all(each.cell_len <= WIDEST_WHOLE_CELL for each in own)
        whole = width >= NARROWEST_WHOLE and short and index < last and not table.close
        words = [cell_len(word) for each in own for word in each.plain.split()] if index == 0 else []
        least = min(LONGEST_WHOLE_WORD, max(words)) if words and width >= NARROWEST_WORDS else None
        heading = Text(printable(column.heading))
        grid.add_column(heading, justify=column.align, no_wrap=whole, overflow="fold", min_width=least)
    for row in cells:
        grid.add_row(*row)
    return _indented(grid)


def _with_texts_below(table: Table, cells: Sequence[Sequence[Text]], width: int) -> Iterator[RenderableType]:
    """Tables of single rows, of equal columns, each with its text below it."""
    headings = [cell(each.heading, "dim") for each in table.columns]
    columns = zip(headings, *cells, strict=True)
    widths = [max(cell_len(line) for each in column for line in each.plain.split("\n")) for column in columns]
    room = width - INDENT - sum(widths[:-1]) - 2 * len(widths)
    if room < min(widths[-1], NARROWEST_LAST):
        yield from (_grid(table, cells, width), *_texts_after_table(table, cells))
        return
    widths[-1] = min(widths[-1], room)
    for row, below in zip([headings, *cells], ["", *table.below], strict=True):
        grid = Grid.grid(padding=(0, 2, 0, 0))
        for column, each in zip(table.columns, widths, strict=True):
            grid.add_column(justify=column.align, overflow="fold", min_width=each, max_width=each)
        grid.add_row(*row)
        yield _indented(grid)
        if below:
            yield _indented(cell(below, "dim"), INDENT + widths[0] + 4)


def _texts_after_table(table: Table, cells: Sequence[Sequence[Text]]) -> Iterator[RenderableType]:
    """The texts of the rows, each with the first cell of its row, or of the last one before that has one."""
    first, found = "", dict[str, None]()
    for row, below in zip(cells, table.below, strict=True):
        first = row[0].plain or first
        found |= {f"{first}: {below}": None} if below else {}
    return (_indented(cell(each, "dim")) for each in ["", *found])


_SHADES = " ░▒▓█"
_ASCII_SHADES = ".:+*#"


def _shaded(table: Table, options: ConsoleOptions) -> list[list[Text]]:
    """Cells with their heat as colours, and as shades where there is room, so that it is legible without colours."""
    cells = [[*map(_cell, row)] for row in table.rows]
    widths = [
        max(map(cell_len, (column.heading, *(row[n].plain for row in cells)))) for n, column in enumerate(table.columns)
    ]
    shades = _ASCII_SHADES if options.ascii_only else _SHADES
    if INDENT + widths[0] + sum(width + 3 for width in widths[1:]) > options.max_width:
        shades = ""
    heated = partial(_heated, shades)
    return [[row[0], *map(heated, row[1:], widths[1:], heat)] for row, heat in zip(cells, table.heat, strict=True)]


def _heated(shades: str, value: Text, width: int, share: float | None) -> Text:
    if share is None:
        return value
    level = min(int(share * len(HEAT)), len(HEAT) - 1)
    shade = f"{shades[level]} " if shades else ""
    return Text(f"{shade}{' ' * (width - value.cell_len)}{value.plain}", f"{HEAT[level][1]} on {HEAT[level][0]}")


_RENDERED: Mapping[type, Callable[[Any], RenderableType]] = {
    Page: lambda page: Group(*_page(page)),
    str: lambda words: _indented(cell(words.lstrip()), len(words) - len(words.lstrip())),
    Toned: lambda toned: cell(toned.text, _STYLES[toned.tone]),
    Table: _Table,
    blocks.Pairs: lambda pairs: _pairs(pairs.rows, GAP),
    blocks.Notes: lambda notes: _pairs([("note:", each) for each in notes.texts], 1),
    blocks.Item: lambda item: Group(_indented(cell(item.text)), _indented(_stacked(item.lines), 2 * INDENT)),
    blocks.Source: lambda source: _stacked(source.lines),
    blocks.Drawing: lambda drawn: TerminalDrawing(
        drawn.diagram, ascii=drawn.ascii, addresses=drawn.addresses, every=drawn.every
    ),
    blocks.Legend: lambda _: Group(),
    blocks.Timeline: lambda timeline: _pairs([*_sparklines(timeline)], GAP),
}
