"""Parts of a page: the document, its sections, tables, cards and lists. Every text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from memtopo.common.version import __version__
from memtopo.output.diagram.markup import element, text
from memtopo.output.html.style import style_sheet

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Tone = Literal["good", "bad", "warn", ""]


class Markup(str):
    """A text that is markup, and is not escaped again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Toned:
    """A text of a cell with the colour of success, failure or interruption."""

    text: str
    tone: Tone


Cell = str | Markup | Toned


@dataclass(frozen=True, slots=True)
class Column:
    """Heading of a column, and the class of its cells: `number` aligns right, `fill` takes the room that is left."""

    heading: str
    kind: Literal["number", "fill", ""] = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `more` rows are left out."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    more: int = 0

    @classmethod
    def bounded(cls, caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], most: int) -> Table:
        """Make a table of at most `most` rows; the others are counted."""
        return cls(caption, columns, rows[:most], max(0, len(rows) - most))


def document(title: str, kicker: str, note: str, body: Iterable[str], *, style: str = "") -> str:
    """A page; `body` is markup, and `style` that of a drawing in it."""
    head = (
        '<meta name="generator" content="memtopo">'
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{text(title)}</title>'
        f"<style>{style_sheet()}{style}</style>"
    )
    heading = f'<p class="kicker">{text(kicker)}</p><h1>{text(title)}</h1>'
    soft = f'<p class="soft">{text(note)}</p>' if note else ""
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><header>{heading}{soft}</header>\n'
        f'<main>{"".join(body)}</main><footer class="soft">memtopo {text(__version__)}</footer></body></html>\n'
    )


def section(title: str, *content: str, note: str = "") -> str:
    """A section with its heading; nothing if it is empty."""
    if not any(content):
        return ""
    soft = f'<p class="soft">{text(note)}</p>' if note else ""
    return f"<section><h2>{text(title)}</h2>{soft}{''.join(content)}</section>\n"


def tables(*found: Table) -> str:
    """Tables below one another; those without rows are left out."""
    content = "".join(table(each) for each in found if each.rows)
    return f'<div class="tables">{content}</div>' if content else ""


def table(shown: Table) -> str:
    """A table without the columns that have only empty cells."""
    used = [index for index in range(len(shown.columns)) if any(_words(row[index]) for row in shown.rows)]
    columns = [shown.columns[index] for index in used]
    rows = [[row[index] for index in used] for row in shown.rows]
    return _table(Table(shown.caption, columns, rows, shown.more))


def _table(shown: Table) -> str:
    heads = "".join(_head(column) for column in shown.columns)
    body = "".join(_row(shown.columns, row) for row in shown.rows)
    if shown.more:
        body += f'<tr><td class="soft" colspan="{len(shown.columns)}">… and {shown.more:,} more</td></tr>'
    caption = f"<caption>{text(shown.caption)}</caption>" if shown.caption else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def verdict(words: str, tone: Tone) -> str:
    """Outcome in one line."""
    return f'<p class="verdict {tone}">{text(words)}</p>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Cards with a name and a value each."""
    cards = "".join(f"<div><p>{text(name)}</p><p>{text(value)}</p></div>" for name, value in pairs)
    return f'<div class="facts">{cards}</div>' if cards else ""


def properties(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Names and values, those without a value left out."""
    lines = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs if value)
    return f"<dl>{lines}</dl>" if lines else ""


def listed(lines: Sequence[str], most: int = 100) -> str:
    """Lines as a list of at most `most`; the others are counted."""
    if not lines:
        return ""
    more = [f"… and {len(lines) - most:,} more"] if len(lines) > most else []
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in [*lines[:most], *more]) + "</ul>"


def source(lines: Sequence[str], most: int) -> str:
    """Lines in letters of one width, as on a terminal, at most `most`; the others are counted."""
    more = [f"… and {len(lines) - most:,} more lines"] if len(lines) > most else []
    shown = "\n".join(map(text, [*lines[:most], *more]))
    return f"<pre>{shown}</pre>" if shown else ""


def note(words: str) -> str:
    """A remark below something."""
    return element("p", {"class": "note"}, text(words))


def _head(column: Column) -> str:
    kind = f' class="{column.kind}"' if column.kind else ""
    return f'<th scope="col"{kind}>{text(column.heading)}</th>'


def _row(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    return f"<tr>{''.join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))}</tr>"


def _words(cell: Cell) -> str:
    return cell.text if isinstance(cell, Toned) else cell


def _cell(column: Column, cell: Cell) -> str:
    tone, words = cell.tone if isinstance(cell, Toned) else "", _words(cell)
    kinds = " ".join(filter(None, [column.kind, tone]))
    kind = f' class="{kinds}"' if kinds else ""
    return f'<td data-of="{text(column.heading)}"{kind}>{words if isinstance(words, Markup) else text(words)}</td>'
