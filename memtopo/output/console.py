"""Rich consoles, and the tables and lines that plans and reports consist of.

Every text in them is escaped and free of markup.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memtopo.common.text import output_line, printable
from memtopo.machine.cluster import MachineLine
from memtopo.output import humanize, plain

_BLANK_ENDS = re.compile(r" +(?=(?:\x1b\[0m)?$)", re.MULTILINE)


def messages(stream: TextIO | None = None) -> Console:
    """Console for progress and messages: stderr."""
    return _console(stream or sys.stderr)


def text(renderable: RenderableType, console: Console) -> str:
    """Output of a console for a renderable, as lines of output without blanks at their ends."""
    with console.capture() as capture:
        console.print(renderable)
    lines = _BLANK_ENDS.sub("", capture.get()).split("\n")
    styled = console.color_system is not None
    return "\n".join(output_line(line, styled=styled) for line in lines)


def show(renderable: RenderableType, stream: TextIO | None = None, *, width: int | None = None) -> None:
    """Write a result to stdout, `width` columns wide or as wide as the stream."""
    stream = stream or sys.stdout
    plain.print_lines(text(renderable, _console(stream, width)).splitlines(), stream, styled=True)


def unstyled(renderable: RenderableType, width: int) -> str:
    """Text of a renderable for a width in columns, without colours."""
    stream = io.StringIO()
    console = _console(stream, width, colour=False)
    return "".join(f"{line}\n" for line in text(renderable, console).splitlines())


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


@dataclass(frozen=True, slots=True)
class Column:
    """Heading and alignment of a column: `right` for numbers."""

    heading: str
    align: Literal["left", "right"] = "left"


def cell(text: str, style: str = "") -> Text:
    """Escape a text for the terminal."""
    return Text(printable(text), style, overflow="fold")


def headline(command: str, name: str, machine: MachineLine) -> Text:
    """First line of a result: command, spec and machine."""
    return Text.assemble((command, "bold"), "  ", printable(name), "  on ", printable(humanize.machine(machine)))


def stacked(texts: Iterable[str], style: str = "") -> Text:
    """Texts on lines of their own, in one cell."""
    return Text("\n", style, overflow="fold").join(map(cell, texts))


@dataclass(frozen=True, slots=True)
class Rows:
    """A table with dim headings and without rules. On a narrow terminal its cells fold; none is cut.

    `below` has a text for each row, or an empty one, that is shown in a line of its own below it; on a narrow terminal
    all of them are below the table.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]
    below: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if any(self.below):
            yield from self._with_texts_below(options.max_width)
            return
        cells = [[cell(value) if isinstance(value, str) else value for value in row] for row in self.rows]
        aligned = [column.align for column in self.columns]
        if fitting := _fitting([[*map(_heading, self.columns)], *cells], aligned, GAP, console, options):
            yield fitting
            return
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        for index, column in enumerate(self.columns):
            column_cells = [row[index] for row in cells]
            whole = options.max_width >= NARROWEST_WHOLE and self._stays_whole(column_cells, index)
            least = _longest_word(column_cells) if options.max_width >= NARROWEST_WORDS and index == 0 else None
            table.add_column(_heading(column), justify=column.align, no_wrap=whole, overflow="fold", min_width=least)
        for row in cells:
            table.add_row(*row)
        yield Padding(table, (0, 0, 0, INDENT))

    def _with_texts_below(self, width: int) -> Iterator[RenderableType]:
        """Tables of single rows, of equal columns, each with its text below it."""
        cells = [[cell(value) if isinstance(value, str) else value for value in row] for row in self.rows]
        headings = [Text(printable(each.heading), "dim") for each in self.columns]
        columns = zip(*([headings, *cells]), strict=True)
        widths = [max(map(_longest_line, column)) for column in columns]
        room = width - INDENT - sum(widths[:-1]) - 2 * len(widths)
        if room < min(widths[-1], NARROWEST_LAST):
            yield Rows(self.columns, self.rows)
            yield from self._texts_after_table(cells)
            return
        widths[-1] = min(widths[-1], room)
        indent = INDENT + widths[0] + 2
        for row, text in zip([headings, *cells], ["", *self.below], strict=True):
            table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
            for column, each in zip(self.columns, widths, strict=True):
                table.add_column(justify=column.align, overflow="fold", min_width=each, max_width=each)
            table.add_row(*row)
            yield Padding(table, (0, 0, 0, INDENT))
            if text:
                yield Padding(cell(text, "dim"), (0, 0, 0, indent + 2))

    def _texts_after_table(self, cells: Sequence[Sequence[Text]]) -> Iterator[RenderableType]:
        """The texts of the rows, each with the first cell of its row, or of the last one before that has one."""
        first, found = "", dict[str, None]()
        for row, text in zip(cells, self.below, strict=True):
            first = row[0].plain or first
            found |= {f"{first}: {text}": None} if text else {}
        yield from (Padding(cell(text, "dim"), (0, 0, 0, INDENT)) for text in ["", *found])

    def _stays_whole(self, cells: Sequence[Text], index: int) -> bool:
        """Return True for a column that does not fold: neither the last one nor one with a long cell."""
        last = index == len(self.columns) - 1
        return not last and all(cell.cell_len <= WIDEST_WHOLE_CELL for cell in cells)


def _heading(column: Column) -> Text:
    return Text(printable(column.heading))


def _fitting(
    rows: Sequence[Sequence[Text]], aligned: Sequence[str], gap: int, console: Console, options: ConsoleOptions
) -> Segment | None:
    """A table without colours whose cells are single lines that fit side by side; None for any other.

    It is what a table of rich is then, which takes ten times as long: a small apply would spend 3 % of its time on it.
    """
    texts = [[each.plain for each in row] for row in rows]
    if console.color_system or not rows or any("\n" in text for row in texts for text in row):
        return None
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    if INDENT + sum(widths) + gap * len(widths) > options.max_width:
        return None
    indent, between = " " * INDENT, " " * gap
    return Segment("".join(f"{indent}{between.join(map(_padded, row, widths, aligned))}\n" for row in texts))


def _padded(text: str, width: int, align: str) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if align == "right" else text + blanks


def _longest_line(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.splitlines()), default=0)


def _longest_word(cells: Sequence[Text]) -> int:
    """Columns of the longest word that stays whole, at most `LONGEST_WHOLE_WORD`."""
    return min(LONGEST_WHOLE_WORD, max((cell_len(word) for each in cells for word in each.plain.split()), default=0))


def pairs(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and values in two columns."""
    return _Grid([*rows], GAP)


def digest_line(digest: str) -> Text:
    """Digest of a spec, without an indent: it is to be copied, and its 79 columns fit into one line."""
    return Text.assemble(("digest", "dim"), "  ", printable(digest), overflow="fold")


def notes(texts: Iterable[str]) -> RenderableType:
    """Notes, one `note: …` each, with a hanging indent."""
    return _Grid([("note:", text) for text in texts], 1)


def heading(text: str, style: str = "bold") -> Text:
    """Heading of a section."""
    return Text(printable(text), style)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Dim names and values in two columns."""

    rows: Sequence[tuple[str, str]]
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [(cell(name, "dim"), cell(value)) for name, value in self.rows]
        if fitting := _fitting(cells, ("left", "left"), self.gap, console, options):
            yield fitting
            return
        grid = Table.grid(padding=(0, self.gap, 0, 0), pad_edge=False)
        grid.add_column(overflow="fold")
        grid.add_column(overflow="fold")
        for row in cells:
            grid.add_row(*row)
        yield Padding(grid, (0, 0, 0, INDENT))
