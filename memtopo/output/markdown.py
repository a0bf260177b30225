"""Pages as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from memtopo.common.text import printable
from memtopo.output.blocks import Block, Page, Stacked, Table, Toned

# What Markdown, HTML or a forge interprets: markup, tags, links, mentions, issue numbers, emoji codes.
_MARKUP = re.compile(r"[^A-Za-z0-9 ,;()×µ%='/.:+-]|[.:/](?=[A-Za-z/])|^[+-]|(?<=^[0-9])\.(?= )")


def page_lines(page: Page) -> list[str]:
    """A page of paragraphs and tables, as lines."""
    lines = [f"## {escaped(page.title)}", *(line for fact in page.facts for line in ("", escaped(fact)))]
    for section in page.sections:
        lines += ["", f"### {escaped(section.title)}", *(line for block in section.blocks for line in _block(block))]
    return lines


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from ("", f"{escaped(block.caption)}:") if block.caption else ()
        cells = ([_words(cell) for cell in row] for row in block.rows)
        yield from ("", *table([escaped(column.heading) for column in block.columns], cells))
    else:
        yield from ("", _words(block).strip())


def _words(shown: object) -> str:
    if isinstance(shown, Stacked):
        return "; ".join(map(escaped, shown.lines))
    return escaped(shown.text if isinstance(shown, Toned) else str(shown))


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table; the cells are escaped already."""
    yield from map(_row, (heads, ["---"] * len(heads), *rows))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Escape every character that has a meaning in Markdown or HTML, or for a forge."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text))
