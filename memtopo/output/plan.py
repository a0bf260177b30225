"""Plans and differences of plans as pages: steps, layout and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from memtopo.common.units import rounded
from memtopo.diagnostics.messages import LISTED
from memtopo.machine import MachineLine
from memtopo.output import blocks, humanize
from memtopo.output.blocks import Addresses, Cell, Drawing, Page, Pairs, Section, Table, columns, notes, sections
from memtopo.output.humanize import processes, subjects
from memtopo.plans import folding
from memtopo.plans.report import MemoryChange, PlanDifference, PlanSummary, ProcessDifference, ProcessPlan, Row

_COLUMNS = columns("step", "what", ">calls", ">each", ">total", "where")
_ROOM = 16  # columns that remain for the last column of 80

Texts = Mapping[str, Sequence[str]]
"""Texts below the rows of a plan, such as their driver calls, by the label of the process."""


def page(
    summary: PlanSummary,
    machine: MachineLine,
    digest: str | None = None,
    calls: Texts | None = None,
    *,
    every: bool = False,
) -> Page:
    """The output of `memtopo plan`, with the digest of the spec, and the driver calls below each row."""
    # 79 columns, without an indent: it is to be copied.
    last = sections(f"digest  {digest}") if digest else []
    where = f"on {humanize.machine(machine)}"
    return Page("plan", summary.name, where, sections=[*body(summary, below=calls or {}, every=every), *last])


def body(
    summary: PlanSummary, addresses: Addresses | None = None, below: Texts | None = None, *, every: bool = False
) -> list[Section]:
    """A plan without its first line: rows with texts below them, drawing, memory, numbers of steps and notes.

    `addresses` are those of the ranges of an applied layout. Processes that are alike are one, unless `every` one is
    to be shown.
    """
    below, found = below or {}, list[Section]()
    whole = (folding.Alike(each, below.get(each.first, ())) for each in summary.processes)
    for process, texts, gpus in whole if every else folding.alike(summary.processes, below):
        title = f"{processes(process)}{f' on {folding.OWN}: {_listed([*dict.fromkeys(gpus)])}' if gpus else ''}"
        found += [Section(title, [_table(process.rows, texts)]), *notes(process.notes)]
    picture = summary.picture if every or not summary.picture else folding.picture(summary.picture)
    found += sections(
        _table(summary.rows, below.get("", ())) if summary.rows else None,
        Drawing(picture, addresses=addresses or {}, every=every) if picture else None,
        Pairs([*humanize.parameters(summary.params), *_sums(summary)]),
    )
    states = [Section("memory by state", [_states(summary.states)])] if summary.states else []
    return [*found, *states, *notes(summary.notes)]


def _states(states: Mapping[str, Mapping[str, int]]) -> Table:
    """Memory of each state by location."""
    locations = list(dict.fromkeys(location for memory in states.values() for location in memory))
    rows = [(name, *(rounded(memory.get(at, 0)) for at in locations)) for name, memory in states.items()]
    return Table(columns("state", *(f">{location}" for location in locations)), rows)


def _table(rows: Sequence[Row], below: Sequence[str] = ()) -> Table:
    cells, before = [], ""
    for row in rows:
        sizes = humanize.size(row.bytes_each), humanize.size(row.calls * row.bytes_each)
        verb = "" if row.verb == before else row.verb
        cells.append((verb, subjects(row.first, row.last), f"{row.calls:,}" if row.calls else "", *sizes, _where(row)))
        before = row.verb
    return Table(_COLUMNS, cells, below=below)


def _where(row: Row) -> Cell:
    where = ", ".join(row.where)
    if not (where and row.note):
        return where or row.note
    together = f"{where} ({row.note})"
    return together if len(together) <= _ROOM else blocks.Stacked([where, f"({row.note})"])


def _sums(summary: PlanSummary) -> list[tuple[str, str]]:
    sizes = {f"memory on {location}": rounded(amount) for location, amount in summary.memory.items()}
    sizes["address space"] = rounded(summary.reserved)
    widest = max(map(len, sizes.values()))
    steps = f"{summary.calls:,} to build, {summary.teardown_calls:,} to take down"
    return [*((name, amount.rjust(widest)) for name, amount in sizes.items()), ("steps", steps)]


_LISTED = 4


def _listed(gpus: Sequence[str]) -> str:
    numbers = [int(each.removeprefix("gpu")) for each in gpus]
    if len(gpus) > _LISTED and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{gpus[0]} … {gpus[-1]}"
    return ", ".join(gpus)


_MEMORY = columns("memory", ">before", ">after", ">at most")


def difference(found: PlanDifference, machine: MachineLine, command: str = "diff") -> Page:
    """The output of `memtopo diff`, and of `memtopo plan` for a change."""
    if found.empty:
        shown = sections(_equal(found))
    else:
        memory = [(name, *map(rounded, (each.before, each.after, each.peak))) for name, each in found.memory.items()]
        shown = [
            *_changes(found),
            *(each for process in found.processes for each in _changes(process, f" in {processes(process)}")),
            *_pictures(found),
            *sections(Table(_MEMORY, memory), Pairs([*_kept_and_lost(found)])),
        ]
    return Page(command, f"{found.before} → {found.after}", f"on {humanize.machine(machine)}", sections=shown)


_CHANGE = columns("memory", ">before", ">after", ">change")


def in_short(found: PlanDifference, machine: MachineLine, *, pictures: bool = False) -> Page:
    """The change of memory and the entries that differ, with the `pictures` of both layouts below them if requested."""
    memory = [(name, rounded(each.before), rounded(each.after), _signed(each)) for name, each in found.memory.items()]
    entries = [
        (how, f"{', '.join(names[:LISTED])}{f' and {len(names) - LISTED:,} more' * (len(names) > LISTED)}")
        for how, names in asdict(found.entries).items()
        if names
    ]
    facts = Pairs([*entries, *(() if found.empty else _kept_and_lost(found))])
    shown = sections(_equal(found) if found.empty else Table(_CHANGE, memory), facts if facts.rows else None)
    drawn = _pictures(found) if pictures else ()
    where = f"on {humanize.machine(machine)}"
    return Page("diff", f"{found.before} → {found.after}", where, sections=[*shown, *drawn])


def _equal(found: PlanDifference) -> str:
    return f"nothing differs; {found.kept:,} steps are equal"


def _signed(found: MemoryChange) -> str:
    change = found.after - found.before
    return f"{'+' * (change > 0)}{rounded(change)}"


def _pictures(found: PlanDifference) -> Iterator[Section]:
    for title, picture in (("before", found.picture_before), ("after", found.picture_after)):
        if picture:
            yield Section(title, [Drawing(picture)])


def _changes(found: PlanDifference | ProcessDifference, where: str = "") -> Iterator[Section]:
    for title, rows in (("goes", found.undo), ("comes", found.do)):
        if rows:
            yield Section(f"{title}{where}", [_table(rows)])


def _kept_and_lost(found: PlanDifference) -> Iterator[tuple[str, str]]:
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
