"""Pages and blocks as text of a terminal, by rich. Every text in them is escaped and free of markup."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, TextIO

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from memtopo.common.text import output_line, printable
from memtopo.common.units import rounded
from memtopo.output import blocks, plain
from memtopo.output.blocks import HEAT, Block, Cell, Page, Section, Stacked, Table, Toned, Track, columns
from memtopo.output.diagram.panel import words, wrapped
from memtopo.output.diagram.terminal import TerminalDrawing

_BLANK_ENDS = re.compile(r" +(?=(?:\x1b\[0m)?$)", re.MULTILINE)
_STYLES = {"good": "bold green", "bad": "bold red", "warn": "bold yellow", "dim": "dim", "": ""}

Shown = Page | Block | RenderableType


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
    plain.print_lines(text(shown, console_of(stream, width)).splitlines(), stream, styled=True)


def unstyled(shown: Shown, width: int) -> str:
    """Text of a page for a width in columns, without colours."""
    stream = io.StringIO()
    console = console_of(stream, width, colour=False)
    return "".join(f"{line}\n" for line in text(shown, console).splitlines())


def console_of(stream: TextIO, width: int | None = None, *, colour: bool | None = None) -> Console:
    """Console that writes to a stream, `width` columns wide or as wide as it, in colours if it gets some."""
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
    )


INDENT = 2
GAP = 2
"""Columns between two columns of a table."""
LONGEST_WHOLE_WORD = 40
NARROWEST_LAST = 12
"""Width down to which the last column alone gives way if that is enough; otherwise the widest ones do."""


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
    return _Table(Table(columns("", ""), [(Toned(name, "dim"), value) for name, value in rows]), gap, headings=False)


_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 48
"""Columns of a line over time."""


def _sparklines(timeline: blocks.Timeline) -> Iterator[tuple[str, str]]:
    """Each series as a line of bars of eight heights, up to the largest amount of all."""
    for each in timeline.series:
        levels = timeline.levels(each.points, _SPARK)
        bars = "".join(_BARS[-(-level * (len(_BARS) - 1) // (timeline.most or 1))] for level in levels)
        yield each.name, f"{bars}  at most {rounded(each.most)}"


class _Table(Struct, frozen=True):
    """A table with dim headings and without rules, in which no word or number is divided, and none is cut.

    On a narrow terminal columns fold between words, the last one first, then the widest ones. If that is not enough,
    they go to a line below each row, from the last one on. Texts below the rows are in lines of their own.
    """

    table: Table
    gap: int = GAP
    headings: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, width = _without_tracks(self.table), options.max_width
        rows = _shaded(table, options) if table.heat else [[*map(_cell, row)] for row in table.rows]
        gap = 1 if table.close else self.gap
        if self.headings:
            rows.insert(0, [cell(column.heading, "dim") for column in table.columns])
        widths = _widths(rows, width - INDENT, gap)
        if table.caption:
            yield cell(f"{table.caption}:")
        left = min(INDENT + sum(widths[:1]) + 4, width // 3)
        for number, row in enumerate(rows, -self.headings):
            wraps = [wrapped(each, room, console) for each, room in zip(row, widths, strict=False)]
            for parts in zip_longest(*wraps, fillvalue=Text()):
                yield _line(table, parts, widths, gap)
            for each in _below(table, number, row[len(widths) :]):
                yield _indented(_lines(cell(each, "dim"), width - left, console), left)
        if table.more:
            yield cell(f"{' ' * INDENT}… and {table.more:,} more")


def _without_tracks(table: Table) -> Table:
    used = [n for n in range(len(table.columns)) if not any(isinstance(row[n], Track) for row in table.rows)]
    return replace(table, columns=[table.columns[n] for n in used], rows=[[row[n] for n in used] for row in table.rows])


def _below(table: Table, number: int, moved: Sequence[Text]) -> Iterator[str]:
    """Lines below a row: the cells of the columns that gave way, with their headings, and its text."""
    if number >= 0:
        hidden = zip(table.columns[len(table.columns) - len(moved) :], moved, strict=True)
        words = (f"{column.heading}: {each.plain}".removeprefix(": ") for column, each in hidden if each)
        text = table.below[number] if table.below else ""
        yield from filter(None, (", ".join(" ".join(each.split()) for each in words), text))


def _widths(rows: Sequence[Sequence[Text]], room: int, gap: int) -> list[int]:
    """Widths of the first columns, as many as fit without a divided word; the first one is always among them."""
    columns = [*zip(*rows, strict=True)]
    for shown in range(len(columns), 0, -1):
        free = max(1, room - gap * (shown - 1))
        longest = (max((cell_len(word) for each in one for word in words(each)), default=0) for one in columns[:shown])
        least = [min(each, LONGEST_WHOLE_WORD) for each in longest]
        lines = ([cell_len(line) for each in column for line in each.plain.split("\n")] for column in columns)
        widths = [min(max(each), max(free, floor)) for each, floor in zip(lines, least, strict=False)]
        if (left := free - sum(widths[:-1])) >= max(least[-1], NARROWEST_LAST):
            widths[-1] = min(widths[-1], left)
        while sum(widths) > free and (wide := [n for n in range(shown) if widths[n] > least[n]]):
            widths[max(wide, key=lambda n: (widths[n], n))] -= 1
        if sum(widths) <= free:
            return widths
    return [max(1, room)] * min(1, len(columns))


def _lines(text: Text, width: int, console: Console) -> Text:
    return Text("\n", overflow="fold").join(wrapped(text, width, console))


def _line(table: Table, parts: Sequence[Text], widths: Sequence[int], gap: int) -> Text:
    """Line of a row, whose parts are not wider than their columns: a grid of rich measures and wraps them again."""
    line = Text(" " * INDENT, no_wrap=True, overflow="ignore")
    for column, part, width in zip(table.columns, parts, widths, strict=False):
        if column.align == "right":
            part.rstrip()
            line.append(" " * (width - part.cell_len)).append_text(part)
        else:
            line.append_text(part).append(" " * (width - part.cell_len))
        line.append(" " * gap)
    return line


def _shaded(table: Table, options: ConsoleOptions) -> list[list[Text]]:
    """Cells with their heat as colours, and as shades where there is room, so that it is legible without colours."""
    cells = [[*map(_cell, row)] for row in table.rows]
    texts = zip(
        [column.heading for column in table.columns], *([each.plain for each in row] for row in cells), strict=True
    )
    widths = [max(map(cell_len, column)) for column in texts]
    shades = ".:+*#" if options.ascii_only else " ░▒▓█"
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
    blocks.Drawing: TerminalDrawing,
    blocks.Legend: lambda _: Group(),
    blocks.Timeline: lambda timeline: _pairs([*_sparklines(timeline)], GAP),
}
