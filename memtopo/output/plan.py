"""Plans as tables and a drawing: steps, layout and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.machine.cluster import MachineLine
from memtopo.output import humanize
from memtopo.output.alike import folded
from memtopo.output.console import Column, Rows, digest_line, heading, headline, notes, pairs, stacked
from memtopo.output.terminal.diagram import Addresses, TerminalDrawing
from memtopo.plans.report import PlanSummary, Row

_COLUMNS = (
    Column("step"), Column("what"), Column("calls", "right"), Column("each", "right"), Column("total", "right"),
    Column("where"),
)  # fmt: skip
_ROOM = 16  # columns that remain for the last column of 80


Calls = Mapping[str, Sequence[str]]
"""Driver calls of each row of a plan, as text, by the label of the process."""


def renderable(
    summary: PlanSummary, machine: MachineLine, digest: str | None = None, calls: Calls | None = None
) -> RenderableType:
    """The output of `memtopo plan`, with the digest of the spec, and the driver calls below each row."""
    last: list[RenderableType] = [Text(), digest_line(digest)] if digest else []
    return Group(headline("plan", summary.name, machine), Text(), *body(summary, calls=calls), *last)


def body(summary: PlanSummary, addresses: Addresses | None = None, calls: Calls | None = None) -> list[RenderableType]:
    """A plan without its first line: rows, drawing, memory, numbers of steps and notes.

    `addresses` are those of the ranges of an applied layout, and `calls` are shown below the rows.
    """
    parts: list[RenderableType] = []
    below = calls or {}
    for title, process in folded(summary.processes, below):
        rows = Rows(_COLUMNS, _rows(process.rows), below.get(process.first, ()))
        parts += [heading(title), rows, Text()]
        parts += [notes(process.notes), Text()] if process.notes else []
    if summary.rows:
        parts += [Rows(_COLUMNS, _rows(summary.rows), below.get("", ())), Text()]
    if summary.picture:
        parts += [TerminalDrawing(summary.picture, addresses=addresses or {}), Text()]
    parts.append(pairs([*humanize.parameters(summary.params), *_sums(summary)]))
    if summary.states:
        parts += [Text(), heading("memory by state"), _states(summary.states)]
    return [*parts, Text(), notes(summary.notes)] if summary.notes else parts


def _states(states: Mapping[str, Mapping[str, int]]) -> RenderableType:
    """Memory of each state by location, as a table."""
    locations = list(dict.fromkeys(location for memory in states.values() for location in memory))
    columns = (Column("state"), *(Column(location, "right") for location in locations))
    return Rows(columns, [(name, *(rounded(memory[at]) for at in locations)) for name, memory in states.items()])


def steps(rows: tuple[Row, ...]) -> RenderableType:
    """Rows of a plan as a table."""
    return Rows(_COLUMNS, _rows(rows))


def _rows(rows: tuple[Row, ...]) -> list[tuple[str | Text, ...]]:
    verbs = ["", *(row.verb for row in rows)]
    return [("" if row.verb == before else row.verb, *_cells(row)) for before, row in zip(verbs, rows, strict=False)]


def _cells(row: Row) -> tuple[str | Text, ...]:
    what, total = humanize.subjects(row.first, row.last), humanize.size(row.calls * row.bytes_each)
    return what, f"{row.calls:,}", humanize.size(row.bytes_each), total, _where(row)


def _where(row: Row) -> str | Text:
    where = ", ".join(row.where)
    if not (where and row.note):
        return where or row.note
    together = f"{where} ({row.note})"
    return together if len(together) <= _ROOM else stacked([where, f"({row.note})"])


def _sums(summary: PlanSummary) -> list[tuple[str, str]]:
    sizes = {f"memory on {location}": rounded(amount) for location, amount in summary.memory.items()}
    sizes["address space"] = rounded(summary.reserved)
    widest = max(map(len, sizes.values()))
    steps = f"{summary.calls:,} to build, {summary.teardown_calls:,} to take down"
    return [*((name, amount.rjust(widest)) for name, amount in sizes.items()), ("steps", steps)]
