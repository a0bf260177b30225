"""Differences of plans as tables: what goes, what comes, what stays, and the memory before, after and in between."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.machine.cluster import MachineLine
from memtopo.output.console import Column, Rows, heading, headline, pairs
from memtopo.output.humanize import processes, subjects
from memtopo.output.plan import steps
from memtopo.output.terminal.diagram import TerminalDrawing
from memtopo.plans.report import PlanDifference, ProcessDifference

_MEMORY = (Column("memory"), Column("before", "right"), Column("after", "right"), Column("at most", "right"))


def renderable(found: PlanDifference, machine: MachineLine, command: str = "diff") -> RenderableType:
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
    return Group(*parts, pairs(list(_sums(found))))


def _changes(found: PlanDifference | ProcessDifference, where: str = "") -> Iterator[RenderableType]:
    for title, rows in (("goes", found.undo), ("comes", found.do)):
        if rows:
            yield from (heading(f"{title}{where}"), steps(rows), Text())


def _sums(found: PlanDifference) -> Iterator[tuple[str, str]]:
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
