"""The only place where consoles are made: stdout for results, stderr for messages."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memtopo.common.text import printable
from memtopo.output import humanize, plain
from memtopo.plans.report import MachineLine

_BLANK_ENDS = re.compile(r" +(?=(?:\x1b\[0m)?$)", re.MULTILINE)


def results(stream: TextIO | None = None) -> Console:
    """A console for what was asked for: stdout."""
    return _console(stream or sys.stdout)


def messages(stream: TextIO | None = None) -> Console:
    """A console for progress and messages: stderr."""
    return _console(stream or sys.stderr)


def text(renderable: RenderableType, console: Console) -> str:
    """What a console would show, without blanks at the ends of lines."""
    with console.capture() as capture:
        console.print(renderable)
    return _BLANK_ENDS.sub("", capture.get())


def show(renderable: RenderableType, stream: TextIO | None = None, *, width: int | None = None) -> None:
    """Write a plan, a report or another result to stdout; of a `width` in columns where it is not the stream's."""
    stream = stream or sys.stdout
    plain.print_lines(text(renderable, _console(stream, width)).splitlines(), stream)


def unstyled(renderable: RenderableType, width: int) -> str:
    """What a stream of a width without colours would get."""
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
KEPT_WHOLE = 24
ROOMY = 76


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its heading: `right` for numbers."""

    heading: str
    align: Literal["left", "right"] = "left"


def cell(text: str, style: str = "") -> Text:
    """A text from anywhere, as it may be shown."""
    return Text(printable(text), style, overflow="fold")


def headline(command: str, name: str, machine: MachineLine) -> Text:
    """The first line: what was done with which spec on which machine."""
    return Text.assemble((command, "bold"), "  ", printable(name), "  on ", printable(humanize.machine(machine)))


def stacked(texts: Iterable[str], style: str = "") -> Text:
    """Texts below one another, in one cell or alone."""
    return Text("\n", style, overflow="fold").join(map(cell, texts))


@dataclass(frozen=True, slots=True)
class Rows:
    """Aligned columns under dim headings, without lines. Where it gets narrow, everything folds and nothing is cut."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        cells = [[cell(value) if isinstance(value, str) else value for value in row] for row in self.rows]
        for index, column in enumerate(self.columns):
            whole = options.max_width >= ROOMY and self._ordinary([row[index] for row in cells], index)
            table.add_column(column.heading, justify=column.align, no_wrap=whole, overflow="fold")
        for row in cells:
            table.add_row(*row)
        yield Padding(table, (0, 0, 0, INDENT))

    def _ordinary(self, cells: Sequence[Text], index: int) -> bool:
        """Whether a column stays whole, so that it is the last one, or a long one, that folds."""
        last = index == len(self.columns) - 1
        return not last and all(cell.cell_len <= KEPT_WHOLE for cell in cells)


def pairs(rows: Iterable[tuple[str, str]]) -> Padding:
    """Names and what belongs to them, in two columns."""
    return _grid(rows, gap=2)


def notes(texts: Iterable[str]) -> Padding:
    """One `note: …` each, folded under itself."""
    return _grid((("note:", text) for text in texts), gap=1)


def heading(text: str, style: str = "bold") -> Text:
    """What the lines after it are about."""
    return Text(text, style)


def _grid(rows: Iterable[tuple[str, str]], gap: int) -> Padding:
    grid = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(cell(name, "dim"), cell(value))
    return Padding(grid, (0, 0, 0, INDENT))
