"""Pages as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from memtopo.common.text import printable
from memtopo.output.blocks import Block, Drawing, Page, Pairs, Stacked, Table, Toned
from memtopo.output.plain import DEFAULT_WIDTH

# What Markdown, HTML or a forge interprets: markup, tags, links, mentions, issue numbers, emoji codes.
_MARKUP = re.compile(r"[^A-Za-z0-9 ,;()×µ%='/.:+-]|[.:/](?=[A-Za-z/])|^[+-]|(?<=^[0-9])\.(?= )")

_TICKS = re.compile(r"`+")
MOST_LINES = 600
"""Limit on the lines of a block of text; a comment may have 65,536 characters."""


def page_lines(page: Page) -> list[str]:
    """A page of paragraphs, names with values, tables and drawings, as lines."""
    lines = [f"## {escaped(page.title)}", *(line for fact in page.facts for line in ("", escaped(fact)))]
    for section in page.sections:
        title = ["", f"### {escaped(section.title)}"] if section.title else []
        lines += [*title, *(line for block in section.blocks for line in _block(block))]
    return lines


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from ("", f"{escaped(block.caption)}:") if block.caption else ()
        cells = ([_words(cell) for cell in row] for row in block.rows)
        yield from ("", *table([escaped(column.heading) for column in block.columns], cells))
    elif isinstance(block, Pairs):
        yield from ("", *(f"- {escaped(name)}: {escaped(value)}" for name, value in block.rows))
    elif isinstance(block, Drawing):
        from memtopo.output import console  # noqa: PLC0415 slow to import, and needed for drawings only

        yield from fenced(console.unstyled(block, DEFAULT_WIDTH).splitlines())
    else:
        yield from ("", _words(block).strip())


def fenced(lines: Sequence[str]) -> Iterator[str]:
    """Lines of a block of text, up to `MOST_LINES` of the `lines`, none of which can end it."""
    shown = lines[:MOST_LINES]
    fence = "`" * max(3, 1 + max((len(ticks) for line in shown for ticks in _TICKS.findall(line)), default=0))
    yield from ("", f"{fence}text", *shown, fence)
    if len(lines) > MOST_LINES:
        yield from ("", f"{len(lines) - MOST_LINES:,} more lines are not shown.")


def _words(shown: object) -> str:
    if isinstance(shown, Stacked):
        return "; ".join(map(escaped, shown.lines))
    return escaped(shown.text if isinstance(shown, Toned) else str(shown))


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table; the cells are escaped already."""
    yield from (f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def escaped(text: str) -> str:
    """Escape every character that has a meaning in Markdown or HTML, or for a forge."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
