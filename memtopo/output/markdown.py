"""Validation results as GitHub-flavoured Markdown, for a job's summary or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memtopo.common.errors import MemtopoError
from memtopo.common.text import output_line, printable
from memtopo.output import diagnostics, validation
from memtopo.rules.files import Checked

MOST_ROWS = 200
MOST_LINES = 600
"""Limits on table rows and on lines of diagnostics; a comment may have 65,536 characters."""

_WIDTH = 100
_TICKS = re.compile(r"`+")
_PLAIN = re.compile(r"[A-Za-z0-9 /-]")


def lines(checked: Checked) -> list[str]:
    """A summary, a table and the diagnostics, up to `MOST_LINES` lines of them."""
    rows = _rows(checked)
    head = ["spec", "result"] if checked.variants > 1 else ["spec", *checked.machines]
    return [
        "## memtopo",
        "",
        _escaped(validation.total(checked)),
        "",
        _row([_escaped(cell) for cell in head]),
        _row(["---"] * len(head)),
        *(_row(row) for row in rows[:MOST_ROWS]),
        *(
            ["", f"{len(rows) - MOST_ROWS:,} more {'rows' if checked.variants > 1 else 'files'} are not shown."]
            if len(rows) > MOST_ROWS
            else []
        ),
        *_diagnostics(checked),
    ]


def failure(error: MemtopoError) -> list[str]:
    """The page of a validation that could not be made."""
    hint = ["", f"hint: {_escaped(error.hint)}"] if error.hint else []
    return ["## memtopo", "", f"**error:** {_escaped(error.message)}", *hint]


def _rows(checked: Checked) -> list[list[str]]:
    """The rows of the table, those that fail first."""
    rows = sorted(validation.rows(checked), key=lambda row: not any(map(checked.failed, row[1])))
    return [[_name(name), *(_emphasized(validation.verdict(each)) for each in results)] for name, results in rows]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(name: str) -> str:
    return f"<code>{_escaped(name)}</code>"


def _emphasized(verdict: str) -> str:
    return verdict if verdict == "ok" else f"**{verdict}**"


def _diagnostics(checked: Checked) -> Iterator[str]:
    found = [
        output_line(line)
        for file in checked.files
        for line in diagnostics.text(validation.merged(file), file.document, width=_WIDTH)
    ]
    if not found:
        return
    shown = found[:MOST_LINES]
    fence = "`" * max(3, 1 + max((len(ticks) for line in shown for ticks in _TICKS.findall(line)), default=0))
    yield from ("", f"{fence}text", *shown, fence)
    if len(found) > len(shown):
        yield from ("", f"{len(found) - len(shown):,} more lines are not shown.")


def _escaped(text: str) -> str:
    """Escape every character that has a meaning in Markdown or HTML, in a table or not."""
    return "".join(char if _PLAIN.match(char) else f"&#{ord(char)};" for char in printable(text))
