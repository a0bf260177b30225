"""Pages drawn: for the terminal, plain without colour, and as Markdown for pasting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memtopo.common.text import printable
from memtopo.output.heat import Heat
from memtopo.output.sheets import Grid, Sheet

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
