"""A report as it is read from top to bottom: machine, plan, checks, failure, what is left, time, verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memtopo.common.units import rounded
from memtopo.output import checks, placed, plan, words
from memtopo.output.parts import INDENT, Column, Rows, cell, heading, headline, notes, pairs, stacked
from memtopo.plans.report import Failure, Leak, Left, PhaseTime, ProcessReport, Rate, Report

_OUTCOME_STYLES = {"ok": "bold green", "interrupted": "bold yellow"}
_LEFT = (
    Column(""), Column("before", "right"), Column("held", "right"), Column("after", "right"),
    Column("change", "right"),
)  # fmt: skip
_PROCESSES = (
    Column("process"),
    Column("pid", "right"),
    Column("outcome"),
    Column("checked", "right"),
    Column("open", "right"),
)
_RATES = (Column("by"), Column("did"), Column("memory"), Column("bytes", "right"), Column("rate", "right"))
_TIMES = (Column("phase"), Column("steps", "right"), Column("time", "right"))


def renderable(report: Report) -> RenderableType:
    """One run of `apply`, with its verdict as the last line."""
    sections = [part for part in _sections(report) if part]
    spaced = (line for part in sections for line in (*part, Text()))
    verdict = cell(words.verdict(report), _OUTCOME_STYLES.get(report.outcome, "bold red"))
    return Group(*spaced, verdict)


def _sections(report: Report) -> Iterator[list[RenderableType]]:
    yield _machine(report)
    yield plan.body(report.plan, placed.addresses(report))
    yield _processes(report.processes) if report.processes else []
    yield checks.parts(report.checks) if report.checks else []
    yield _rates(report.checks.rates) if report.checks else []
    yield _failure(report.failure) if report.failure else []
    yield [heading("left behind", "bold red"), *map(_leak, report.leaks)] if report.leaks else []
    yield _left(report.left) if report.left else []
    yield _times(report.times)
    yield [notes(report.notes)] if report.notes else []


def _machine(report: Report) -> list[RenderableType]:
    machine = report.machine
    facts = cell(f"{words.devices(machine.devices)}, driver {machine.driver}", "dim")
    return [headline("apply", report.name, machine), Padding(facts, (0, 0, 0, len("apply  ")))]


def _processes(processes: tuple[ProcessReport, ...]) -> list[RenderableType]:
    return [heading("processes"), Rows(_PROCESSES, [_process(each) for each in processes])]


def _process(each: ProcessReport) -> tuple[str, ...]:
    checked = opened = ""
    if each.checks:
        looked = sum(tally.looked_at for tally in each.checks.tallies)
        checked = f"{sum(tally.as_declared for tally in each.checks.tallies):,} of {looked:,}"
    if each.left:
        opened = f"{sum(each.left.ledger_after.values()):,}"
    return each.name, str(each.pid), each.lost or each.outcome, checked, opened


def _rates(rates: tuple[Rate, ...]) -> list[RenderableType]:
    rows = [
        (each.device, each.verb, each.memory, rounded(each.bytes), words.rate(each.bytes, each.seconds))
        for each in rates
    ]
    return [heading("bandwidth"), Rows(_RATES, rows)] if rows else []


def _failure(failure: Failure) -> list[RenderableType]:
    told = {
        "step": failure.step,
        "error": failure.error,
        "reason": failure.reason,
        "cause": failure.cause,
        "place": failure.place,
        "hint": failure.hint,
    }
    return [heading("failed", "bold red"), pairs((name, value) for name, value in told.items() if value)]


def _leak(leak: Leak) -> RenderableType:
    stays = (f"{thing} stays because of it" for thing in leak.stays)
    more = stacked([leak.error, *stays, *([f"asked for at {leak.place}"] if leak.place else [])])
    return Padding(Group(cell(leak.what), Padding(more, (0, 0, 0, INDENT))), (0, 0, 0, INDENT))


def _left(left: Left) -> list[RenderableType]:
    return [heading("taken down"), Rows(_LEFT, [*_ledger(left), *_memory(left)])]


def _ledger(left: Left) -> Iterator[tuple[str, ...]]:
    states = left.ledger_before, left.ledger_held, left.ledger_after
    for kind in dict.fromkeys(kind for state in states for kind in state):
        before, after = left.ledger_before.get(kind, 0), left.ledger_after.get(kind, 0)
        held = f"{left.ledger_held.get(kind, 0):,}" if left.ledger_held else ""
        yield kind, f"{before:,}", held, f"{after:,}", words.change(before, after)
    before, after = left.fds_before, left.fds_after
    held = "" if left.fds_held is None else f"{left.fds_held:,}"
    yield "file descriptors", f"{before:,}", held, f"{after:,}", words.change(before, after)


def _memory(left: Left) -> Iterator[tuple[str, ...]]:
    for free in left.memory:
        change = words.change(free.before, free.after, memory=True)
        held = "" if free.held is None else rounded(free.held)
        yield f"free on {free.device}", rounded(free.before), held, rounded(free.after), change


def _times(times: tuple[PhaseTime, ...]) -> list[RenderableType]:
    if not times:
        return []
    rows = [(time.phase, f"{time.steps:,}", words.duration(time.seconds)) for time in times]
    return [heading("time"), Rows(_TIMES, rows)]
