"""Differences of plans as tables: what goes, what comes, what stays, and the memory before, after and in between."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.output.console import Column, Rows, heading, headline, pairs
from memtopo.output.humanize import subjects
from memtopo.output.plan import steps
from memtopo.output.terminal.diagram import TerminalDrawing
from memtopo.plans.report import MachineLine, PlanDifference

_MEMORY = (Column("memory"), Column("before", "right"), Column("after", "right"), Column("at most", "right"))


def renderable(found: PlanDifference, machine: MachineLine, command: str = "diff") -> RenderableType:
    """The output of `memtopo diff`, and of `memtopo plan` for a change."""
    parts: list[RenderableType] = [headline(command, f"{found.before} → {found.after}", machine), Text()]
    if found.empty:
        return Group(*parts, Text(f"nothing differs; {found.kept:,} steps are equal"))
    for title, rows in (("goes", found.undo), ("comes", found.do)):
        if rows:
            parts += [heading(title), steps(rows), Text()]
    for title, picture in (("before", found.picture_before), ("after", found.picture_after)):
        if picture:
            parts += [heading(title), TerminalDrawing(picture, addresses={}), Text()]
    memory = [(name, *map(rounded, (each.before, each.after, each.peak))) for name, each in found.memory.items()]
    parts += [Rows(_MEMORY, memory), Text()]
    return Group(*parts, pairs(list(_sums(found))))


def _sums(found: PlanDifference) -> Iterator[tuple[str, str]]:
    yield "kept", f"{found.kept:,} steps, with addresses, handles and bytes"
    if found.lost:
        yield "bytes lost", f"{subjects(found.lost[0], found.lost[-1])} ({len(found.lost):,})"
