"""Plans as tables and a drawing: steps, layout and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.machine.cluster import MachineLine
from memtopo.output import humanize
from memtopo.output.console import Column, Rows, digest_line, heading, headline, notes, pairs, stacked
from memtopo.output.humanize import processes, subjects
from memtopo.output.terminal.diagram import Addresses, TerminalDrawing
from memtopo.plans.report import PlanDifference, PlanSummary, ProcessDifference, ProcessPlan, Row

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


OWN = "its GPU"
"""Words in place of the GPU that differs from process to process."""

_GPU = re.compile(r"(\bgpu[0-9]+\b)")
_LISTED = 4


class Alike(NamedTuple):
    """Consecutive processes under one title; the `shown` one has the label of the first, and the steps of each."""

    title: str
    shown: ProcessPlan


def folded(processes: Iterable[ProcessPlan], below: Mapping[str, Sequence[str]]) -> Iterator[Alike]:
    """Fold processes whose rows, with the texts `below` them, differ by nothing but one GPU of each process."""
    for _, group in groupby(processes, key=lambda each: (each.first.partition(".")[0], each.node)):
        run: list[_Steps] = []
        for each in group:
            steps = _Steps.of(each, below)
            if run and _own_gpus([*run, steps]) is None:
                yield _alike(run)
                run = []
            run.append(steps)
        yield _alike(run)


class _Steps(NamedTuple):
    """Steps of a process as text: without the GPUs in it, and these."""

    process: ProcessPlan
    text: str
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, process: ProcessPlan, below: Mapping[str, Sequence[str]]) -> _Steps:
        text = "\n".join(_texts(process, below))
        return cls(process, _GPU.sub("", text), tuple(_GPU.findall(text)))


def _texts(process: ProcessPlan, below: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for row in process.rows:
        yield f"{row.phase} {row.verb} {row.call} {row.calls} {row.bytes_each}"
        yield from (row.first, row.last, row.note, "\t".join(row.where))
    yield from (*process.notes, *below.get(process.first, ()))


def _own_gpus(run: Sequence[_Steps]) -> tuple[str, ...] | None:
    """GPU of each process, by which alone they differ; None if they differ otherwise, and empty if they do not."""
    if run[-1].text != run[0].text:
        return None
    differing = {column for column in zip(*(each.gpus for each in run), strict=True) if len(set(column)) > 1}
    return None if len(differing) > 1 else next(iter(differing), ())


def _alike(run: Sequence[_Steps]) -> Alike:
    every, gpus = [each.process for each in run], _own_gpus(run)
    first = every[0]
    if len(every) == 1:
        return Alike(humanize.processes(first), first)
    together = replace(first, last=every[-1].last, count=sum(each.count for each in every))
    rows = tuple(_row(*each) for each in zip(*(process.rows for process in every), strict=True))
    notes = tuple(map(_merged, zip(*(process.notes for process in every), strict=True)))
    own = f" on {OWN}: {_listed(list(dict.fromkeys(gpus)))}" if gpus else ""
    return Alike(f"{humanize.processes(together)}{own}", replace(together, rows=rows, notes=notes))


def _row(first: Row, *others: Row) -> Row:
    """One row for those of all processes."""
    every = (first, *others)
    return replace(
        first,
        first=_merged([each.first for each in every]),
        last=_merged([each.last for each in every]),
        where=tuple(map(_merged, zip(*(each.where for each in every), strict=True))),
        note=_merged([each.note for each in every]),
    )


def _merged(texts: Sequence[str]) -> str:
    """Text that several have in common, with `OWN` where their GPUs differ."""
    columns = zip(*map(_GPU.split, texts), strict=True)
    return "".join(each[0] if len(set(each)) == 1 else OWN for each in columns)


def _listed(gpus: Sequence[str]) -> str:
    numbers = [int(each.removeprefix("gpu")) for each in gpus]
    if len(gpus) > _LISTED and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{gpus[0]} … {gpus[-1]}"
    return ", ".join(gpus)


_MEMORY = (Column("memory"), Column("before", "right"), Column("after", "right"), Column("at most", "right"))


def changes(found: PlanDifference, machine: MachineLine, command: str = "diff") -> RenderableType:
    """The output of `memtopo diff`, and of `memtopo plan` for a change."""
    parts: list[RenderableType] = [headline(command, f"{found.before} → {found.after}", machine), Text()]
    if found.empty:
        return Group(*parts, Text(f"nothing differs; {found.kept:,} steps are equal"))
    parts += _changes(found)
    for process in found.processes:
        parts += _changes(process, f" in {processes(process)}")
    for title, picture in (("before", found.picture_before), ("after", found.picture_after)):
        if picture:
            parts += [heading(title), TerminalDrawing(picture, addresses={}), Text()]
    memory = [(name, *map(rounded, (each.before, each.after, each.peak))) for name, each in found.memory.items()]
    parts += [Rows(_MEMORY, memory), Text()]
    return Group(*parts, pairs(list(_difference_sums(found))))


def _changes(found: PlanDifference | ProcessDifference, where: str = "") -> Iterator[RenderableType]:
    for title, rows in (("goes", found.undo), ("comes", found.do)):
        if rows:
            yield from (heading(f"{title}{where}"), steps(rows), Text())


def _difference_sums(found: PlanDifference) -> Iterator[tuple[str, str]]:
    if same := [processes(each) for each in found.processes if each.empty]:
        yield "unchanged", ", ".join(same)
    if found.params:
        changes = (f"{name}={before or '-'} → {after or '-'}" for name, (before, after) in found.params.items())
        yield "parameters", ", ".join(changes)
    yield "kept", f"{found.kept:,} steps, with addresses, handles and bytes"
    lost = [(found.lost, ""), *((each.lost, f" of {processes(each)}") for each in found.processes)]
    for labels, where in lost:
        if labels:
            yield "bytes lost", f"{subjects(labels[0], labels[-1])} ({len(labels):,}){where}"
    for name in found.emptied:
        yield "commit lost", f"export {name}: a writer has to commit it again"
