"""Reports of `apply`: machine, plan, checks, failure, leaks, teardown, times and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memtopo.common.text import numbered
from memtopo.common.units import rounded
from memtopo.geometry.diagram import ProcessDiagram
from memtopo.output import humanize, plan
from memtopo.output.console import INDENT, Column, Rows, cell, heading, headline, notes, pairs, stacked
from memtopo.output.terminal.diagram import Addresses
from memtopo.plans.report import (
    Checks,
    Failure,
    Leak,
    Left,
    NodeReport,
    PhaseTime,
    Placed,
    ProcessReport,
    Rate,
    Report,
    Tally,
)

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
_NODES = (
    Column("node"),
    Column("host"),
    Column("outcome"),
    Column("checked", "right"),
    Column("open", "right"),
    Column("processes"),
    Column("lost"),
)
_RATES = (Column("by"), Column("did"), Column("memory"), Column("bytes", "right"), Column("rate", "right"))
_TIMES = (Column("phase"), Column("steps", "right"), Column("time", "right"))


def renderable(report: Report) -> RenderableType:
    """The report of one run, with its verdict as the last line."""
    sections = [part for part in _sections(report) if part]
    spaced = (line for part in sections for line in (*part, Text()))
    last = cell(verdict(report), _OUTCOME_STYLES.get(report.outcome, "bold red"))
    return Group(*spaced, last)


def _sections(report: Report) -> Iterator[list[RenderableType]]:
    yield _machine(report)
    yield plan.body(report.plan, addresses(report))
    yield _nodes(report.nodes) if report.nodes else []
    yield _processes(report.processes) if report.processes else []
    yield check_sections(report.checks) if report.checks else []
    yield _rates(report.checks.rates) if report.checks else []
    yield _failure(report.failure) if report.failure else []
    yield [heading("left behind", "bold red"), *map(_leak, report.leaks)] if report.leaks else []
    yield _left(report.left) if report.left else []
    yield _times(report.times)
    yield [notes(report.notes)] if report.notes else []


def _machine(report: Report) -> list[RenderableType]:
    machine = report.machine
    facts = cell(f"{humanize.devices(machine.devices)}, driver {machine.driver}", "dim")
    return [headline("apply", report.name, machine), Padding(facts, (0, 0, 0, len("apply  ")))]


def _nodes(nodes: tuple[NodeReport, ...]) -> list[RenderableType]:
    rows = [
        (each.name, each.host, each.outcome, *_counts(each), ", ".join(each.processes), each.lost or "")
        for each in nodes
    ]
    return [heading("nodes"), Rows(_NODES, rows)]


def _processes(processes: tuple[ProcessReport, ...]) -> list[RenderableType]:
    return [heading("processes"), Rows(_PROCESSES, [_process(each) for each in processes])]


def _process(each: ProcessReport) -> tuple[str, ...]:
    return each.name, str(each.pid or ""), each.lost or each.outcome, *_counts(each)


def _counts(each: ProcessReport | NodeReport) -> tuple[str, str]:
    """Observations that were as declared, and resources that are open after the teardown."""
    checked = opened = ""
    if each.checks:
        looked = sum(tally.looked_at for tally in each.checks.tallies)
        checked = f"{sum(tally.as_declared for tally in each.checks.tallies):,} of {looked:,}"
    if each.left:
        opened = f"{sum(each.left.ledger_after.values()):,}"
    return checked, opened


def _rates(rates: tuple[Rate, ...]) -> list[RenderableType]:
    rows = [
        (each.device, each.verb, each.memory, rounded(each.bytes), humanize.rate(each.bytes, each.seconds))
        for each in rates
    ]
    return [heading("bandwidth"), Rows(_RATES, rows)] if rows else []


def _failure(failure: Failure) -> list[RenderableType]:
    fields = {
        "step": failure.step,
        "error": failure.error,
        "reason": failure.reason,
        "cause": failure.cause,
        "place": failure.place,
        "hint": failure.hint,
    }
    return [heading("failed", "bold red"), pairs((name, value) for name, value in fields.items() if value)]


def _leak(leak: Leak) -> RenderableType:
    stays = (f"{name} stays because of it" for name in leak.stays)
    more = stacked([leak.error, *stays, *([f"requested at {leak.place}"] if leak.place else [])])
    return Padding(Group(cell(leak.what), Padding(more, (0, 0, 0, INDENT))), (0, 0, 0, INDENT))


def _left(left: Left) -> list[RenderableType]:
    return [heading("taken down"), Rows(_LEFT, [*_ledger(left), *_memory(left)])]


def _ledger(left: Left) -> Iterator[tuple[str, ...]]:
    states = left.ledger_before, left.ledger_held, left.ledger_after
    for kind in dict.fromkeys(kind for state in states for kind in state):
        before, after = left.ledger_before.get(kind, 0), left.ledger_after.get(kind, 0)
        held = f"{left.ledger_held.get(kind, 0):,}" if left.ledger_held else ""
        yield kind, f"{before:,}", held, f"{after:,}", humanize.change(before, after)
    before, after = left.fds_before, left.fds_after
    held = "" if left.fds_held is None else f"{left.fds_held:,}"
    yield "file descriptors", f"{before:,}", held, f"{after:,}", humanize.change(before, after)


def _memory(left: Left) -> Iterator[tuple[str, ...]]:
    for free in left.memory:
        change = humanize.change(free.before, free.after, memory=True)
        held = "" if free.held is None else rounded(free.held)
        yield f"free on {free.device}", rounded(free.before), held, rounded(free.after), change


def _times(times: tuple[PhaseTime, ...]) -> list[RenderableType]:
    if not times:
        return []
    rows = [(time.phase, f"{time.steps:,}", humanize.duration(time.seconds)) for time in times]
    return [heading("time"), Rows(_TIMES, rows)]


_DIFFERENCES = (Column("aspect"), Column("of"), Column("wanted"), Column("seen"), Column("place"))


def check_sections(checks: Checks) -> list[RenderableType]:
    """Tallies of the checks, and the differences."""
    sections: list[RenderableType] = [heading("checked"), pairs(_tallies(checks.tallies))]
    if checks.differences:
        rows = [(each.aspect, each.subject, each.wanted, each.seen, each.place or "") for each in checks.differences]
        columns = _DIFFERENCES if any(each.place for each in checks.differences) else _DIFFERENCES[:-1]
        shown = Rows(columns, [row[: len(columns)] for row in rows])
        sections += [Text(), heading("not as declared", "bold red"), shown]
        hints = dict.fromkeys(each.hint for each in checks.differences if each.hint)
        sections += [cell(f"  hint: {hint}") for hint in hints]
    if more := checks.different - len(checks.differences):
        sections.append(cell(f"  … and {more:,} more"))
    return sections


def _tallies(tallies: Iterable[Tally]) -> Iterator[tuple[str, str]]:
    counts = [f"{tally.as_declared:,} of {tally.looked_at:,}" if tally.looked_at else "" for tally in tallies]
    widest = max(map(len, counts), default=0)
    for tally, count in zip(tallies, counts, strict=True):
        if count:
            yield tally.aspect, f"{count.rjust(widest)} as declared"
        if tally.not_checked or not count:
            why = f": {tally.why_not}" if tally.why_not else ""
            yield "" if count else tally.aspect, f"{_number(tally.not_checked)}not checked{why}"


def _number(count: int) -> str:
    return f"{count:,} " if count else ""


def addresses(report: Report) -> Addresses:
    """Addresses of the ranges in a report's picture; empty for a layout that was not applied."""
    picture = report.plan.picture
    if picture is None:
        return {}
    found: dict[tuple[str, str], int | None] = {}
    for shown in picture.ranges:
        if (at := _address(report.placed, shown.first)) is not None:
            found["", shown.first] = at
    reports = {each.name: each.placed for each in report.processes}
    for process in picture.processes:
        found |= _common_addresses(process, reports)
    return found


def _common_addresses(process: ProcessDiagram, reports: Mapping[str, Sequence[Placed]]) -> Addresses:
    """Addresses of the ranges of one process picture; None for one that differs between its processes."""
    found: dict[tuple[str, str], int | None] = {}
    for shown in process.picture.ranges:
        known = {_address(reports.get(label, ()), shown.first) for label in _labels(process)}
        if None not in known:
            found[process.first, shown.first] = known.pop() if len(known) == 1 else None
    return found


def _labels(process: ProcessDiagram) -> Iterator[str]:
    entry, number = numbered(process.first)
    for index in range(process.count):
        yield entry if number is None else f"{entry}.{number + index * process.step}"


def _address(placed: Sequence[Placed], label: str) -> int | None:
    entry, number = numbered(label)
    for group in placed:
        first, start = numbered(group.first)
        if entry == first and (number is None) is (start is None):
            index = (number or 0) - (start or 0)
            if 0 <= index < group.count:
                return group.address + index * group.step
    return None


def verdict(report: Report) -> str:
    """Outcome of a run in one line."""
    match report.outcome:
        case "ok":
            return f"ok: {_ok(report)}"
        case "different":
            count = report.checks.different if report.checks else 0
            be = "is" if count == 1 else "are"
            return f"different: {humanize.plural(count, 'thing')} {be} not as declared; {_rest(report)}"
        case "leaked":
            return f"failed: {_rest(report)}"
        case outcome:
            return f"{outcome}: {_rest(report)}"


def _left_count(report: Report) -> int:
    """Number of resources that a run left: the named leaks, or the ledger's count if that is more."""
    named = {leak.what for leak in report.leaks} | {name for leak in report.leaks for name in leak.stays}
    open_after = report.left.ledger_after if report.left else {}
    open_before = report.left.ledger_before if report.left else {}
    counted = sum(max(count - open_before.get(kind, 0), 0) for kind, count in open_after.items())
    return max(len(named), counted)


def _ok(report: Report) -> str:
    if report.checks and any(tally.looked_at for tally in report.checks.tallies):
        return "built, checked and taken down"
    return "built and taken down; nothing was checked"


def _rest(report: Report) -> str:
    count = _left_count(report)
    if not count:
        return "something is left" if report.outcome == "leaked" else "everything was undone"
    return f"{humanize.plural(count, 'thing')} {'is' if count == 1 else 'are'} left"
