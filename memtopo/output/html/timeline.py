"""Timeline of a run: its phases one below another, and those of each process side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.output import humanize
from memtopo.output.diagram.markup import text
from memtopo.output.html.document import Column, Markup, Table, note, tables
from memtopo.plans.report import PhaseTime, Report

MOST_PROCESSES = 64
"""Processes that have a row; of more, those that took the longest."""

_MOST_PHASES = 100
_START = "start"
_LONG_START = 0.4
"""Share of the whole time from which on the start of processes is left out, which would hide everything else."""

_GROUPS = {
    "start": ("start",),
    "build": ("open", "reserve", "create", "map", "grant", "bind", "settle"),
    "share": ("export", "import"),
    "check": ("check",),
    "verify": ("write", "read", "fill", "verify", "forbid", "synchronize"),
    "change": ("change", "rehearse"),
    "take down": ("take down",),
}
_HUES = {"start": 7, "build": 0, "share": 3, "check": 1, "verify": 2, "change": 4, "take down": 5, "other": 6}


def timeline(report: Report) -> str:
    """Timeline of the phases of a run, and of its processes; nothing if none has begun."""
    times = [*report.times, *(time for each in report.processes for time in each.times)]
    if not times:
        return ""
    window = _window(times, report.times)
    columns = Column("phase"), Column("steps", "number"), Column("time", "number"), Column("when", "fill")
    rows = [
        (each.phase, f"{each.steps:,}", humanize.duration(each.seconds), _track([each], window))
        for each in report.times
    ]
    return (
        tables(Table.bounded("", columns, rows, _MOST_PHASES))
        + _keys(times)
        + _left_out(window)
        + tables(_processes(report, window))
    )


def _processes(report: Report, window: tuple[float, float]) -> Table:
    """A row for each process that began a phase."""
    lanes = [each for each in report.processes if each.times]
    longest = sorted(lanes, key=lambda each: -_busy(each.times))[:MOST_PROCESSES]
    kept = {each.name for each in longest}
    rows = [
        (each.name, humanize.duration(_busy(each.times)), _track(each.times, window))
        for each in lanes
        if each.name in kept
    ]
    columns = Column("process"), Column("at work", "number"), Column("when", "fill")
    return Table("by process", columns, rows, len(lanes) - len(rows))


def _busy(times: Sequence[PhaseTime]) -> float:
    return sum(each.seconds for each in times)


def _window(times: Sequence[PhaseTime], phases: Sequence[PhaseTime]) -> tuple[float, float]:
    """Seconds between which the timeline is drawn."""
    end = max(each.ended for each in times)
    started = max((each.ended for each in phases if each.phase == _START), default=0.0)
    return (started if started > _LONG_START * end and started < end else 0.0), end


def _track(times: Sequence[PhaseTime], window: tuple[float, float]) -> Markup:
    return Markup(f'<div class="track">{"".join(_segments(times, window))}</div>')


def _segments(times: Sequence[PhaseTime], window: tuple[float, float]) -> Iterator[str]:
    first, last = window
    scale = 100 / (last - first) if last > first else 0.0
    for each in times[:_MOST_PHASES]:
        began, ended = max(each.began, first), min(max(each.ended, each.began), last)
        if ended < first:
            continue
        left, width = min((began - first) * scale, 99.8), max(ended - began, 0.0) * scale
        words = f"{each.phase}: {humanize.duration(each.seconds)}, from {humanize.duration(each.began)} on"
        hue = _HUES[_group(each.phase)]
        yield (
            f'<i title="{text(words)}" style="left:{left:.2f}%;width:{width:.2f}%;'
            f'background:var(--hue{hue});box-shadow:inset 0 0 0 1px var(--edge{hue})"></i>'
        )


def _keys(times: Sequence[PhaseTime]) -> str:
    """Legend of the colours that are used."""
    used = dict.fromkeys(_group(each.phase) for each in times)
    keys = "".join(f'<li><i style="background:var(--hue{_HUES[name]})"></i>{text(name)}</li>' for name in used)
    return f'<ul class="keys">{keys}</ul>'


def _group(phase: str) -> str:
    return next((name for name, phases in _GROUPS.items() if phase in phases), "other")


def _left_out(window: tuple[float, float]) -> str:
    first, last = window
    span = f"The bars are {humanize.duration(last - first)} wide."
    if not first:
        return note(span)
    return note(f"{span} They begin once all processes have started, after {humanize.duration(first)}.")
