"""Report of `apply` as a page: plan, checks, failure, leaks, teardown, times, verdict; pages of what was not built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError
from memtopo.common.text import numbered, plural
from memtopo.common.units import rounded
from memtopo.geometry.diagram import ProcessDiagram
from memtopo.output import blocks, humanize, plan
from memtopo.output.blocks import Addresses, Cell, Page, Pairs, Section, Table, Tone, Toned, columns
from memtopo.plans import folding
from memtopo.plans.report import Checks, Left, NodeReport, PhaseTime, Placed, ProcessReport, Report, Tally

if TYPE_CHECKING:
    from memtopo.output.json import DiagnosticsDocument, Fault

_LEFT = columns("", ">before", ">held", ">after", ">change")
_NODES = columns("node", "host", "outcome", ">checked", ">open", "processes", "lost")
_DIFFERENCES = columns("aspect", "of", "wanted", "seen", "place")
_TONES: Mapping[str, Tone] = {"ok": "good", "interrupted": "warn", "taken down": "warn"}


def text_page(report: Report, *, every: bool = False) -> Page:
    """The report of one run for a terminal; processes that are alike are one, unless `every` one is to be shown."""
    body = plan.body(report.plan, addresses(report, every=every), every=every)
    return _page(report, _sections(report, body, every=every))


def full_page(report: Report, traced: Sequence[Section] = (), *, every: bool = False) -> Page:
    """The report of one run for a browser, with processes over time, addresses and its traced calls, if any."""
    calls = {each.first: [row.call for row in each.rows] for each in report.plan.processes}
    calls |= {"": [row.call for row in report.plan.rows]}
    body = plan.body(report.plan, addresses(report, every=every), calls, every=every)
    drawn = [each for each in body if isinstance(each.blocks[0], blocks.Drawing)]
    head, planned = Section("", [Pairs([*_facts(report)])]), [each for each in body if each not in drawn]
    found = _sections(report, (), every=every), _lanes(report), traced, _addresses(report)
    return _page(report, chain([head, *drawn], *found, planned, blocks.notes(report.plan.warnings)))


def _page(report: Report, sections: Iterable[Section]) -> Page:
    machine = report.machine
    facts = [f"{humanize.devices(machine.devices)}, driver {machine.driver}"]
    last = Toned(verdict(report), _TONES.get(report.outcome, "bad"))
    return Page("apply", report.name, f"on {humanize.machine(machine)}", facts, [*sections], last)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "exit status", str(report.exit_code)
    if report.started:
        yield "started, UTC", report.started.rstrip("Z").replace("T", " ")
    if report.times:
        yield "time", humanize.duration(max(each.ended for each in report.times))
    if report.checks:
        yield f"as declared, {report.check} check", _counted(report.checks.tallies)
    if report.processes:
        yield "processes", f"{len(report.processes):,}"


def _sections(report: Report, body: Sequence[Section], *, every: bool) -> Iterator[Section]:
    yield from body
    if report.nodes:
        yield Section("nodes", [Table(_NODES, [*map(_node, report.nodes)])])
    if report.processes:
        rows = [_process([*each]) for _, each in groupby(report.processes, partial(_shown, every=every))]
        yield Section("processes", [Table(columns("process", ">pid", "outcome", ">checked", ">open"), rows)])
    if report.checks:
        yield from check_sections(report.checks)
        if report.checks.rates:
            found = [(each, humanize.rate(each.bytes, each.seconds)) for each in report.checks.rates]
            rates = [(each.device, each.verb, each.memory, rounded(each.bytes), rate) for each, rate in found]
            yield Section("bandwidth", [Table(columns("by", "did", "memory", ">bytes", ">rate"), rates)])
    if report.failure:
        fields = ((name, getattr(report.failure, name)) for name in _FAILURE)
        yield Section("failed", [Pairs([(name, value) for name, value in fields if value])], "bad")
    if report.leaks:
        yield Section("left behind", [*_leaks(report)], "bad")
    if report.left:
        yield Section("taken down", [Table(_LEFT, [*_left(report.left)])])
    yield from _times(report)
    yield from blocks.notes(report.notes)


def _node(each: NodeReport) -> tuple[Cell, ...]:
    outcome = Toned(each.outcome, _TONES.get(each.outcome, "bad"))
    return each.name, each.host, outcome, *_counts(each), ", ".join(each.processes), each.lost or ""


def _shown(each: ProcessReport, *, every: bool) -> tuple[object, ...]:
    """Contents of the row of a process, which it shares with its neighbours of the same ones."""
    return each.name if every else numbered(each.name)[0], each.lost, each.outcome, *_counts(each)


def _process(same: Sequence[ProcessReport]) -> tuple[Cell, ...]:
    each = same[0]
    pid = str(each.pid or "") if len(same) == 1 else f"{len(same):,} processes"
    outcome = Toned(each.lost or each.outcome, _TONES.get(each.outcome, "bad"))
    return humanize.subjects(each.name, same[-1].name), pid, outcome, *_counts(each)


def _counts(each: ProcessReport | NodeReport) -> tuple[str, str]:
    """Observations that were as declared, and resources that are open after the teardown."""
    checked = _counted(each.checks.tallies) if each.checks else ""
    return checked, f"{sum(each.left.ledger_after.values()):,}" if each.left else ""


def _counted(tallies: Sequence[Tally]) -> str:
    declared, looked = sum(each.as_declared for each in tallies), sum(each.looked_at for each in tallies)
    return f"{declared:,} of {looked:,}"


_FAILURE = ("step", "error", "reason", "cause", "place", "hint")


def _leaks(report: Report) -> Iterator[blocks.Item]:
    for each in report.leaks:
        stays = (f"{name} stays because of it" for name in each.stays)
        yield blocks.Item(each.what, [each.error, *stays, *([f"requested at {each.place}"] if each.place else [])])


def _left(left: Left) -> Iterator[tuple[Cell, ...]]:
    """Objects in the ledger, descriptors, and free memory, before, while the layout was held, and after that."""
    before, held, after = left.ledger_before, left.ledger_held, left.ledger_after
    kinds = dict.fromkeys((*before, *held, *after))
    counts = [(kind, before.get(kind, 0), held.get(kind, 0) if held else None, after.get(kind, 0)) for kind in kinds]
    for name, first, during, last in (*counts, ("file descriptors", left.fds_before, left.fds_held, left.fds_after)):
        change = Toned(humanize.change(first, last), "bad" if last > first else "")
        yield name, f"{first:,}", "" if during is None else f"{during:,}", f"{last:,}", change
    for free in left.memory:
        more = humanize.change(free.before, free.after, memory=True)
        holding = "" if free.held is None else rounded(free.held)
        yield f"free on {free.device}", rounded(free.before), holding, rounded(free.after), more


def check_sections(checks: Checks) -> Iterator[Section]:
    """Tallies of the checks, and the differences."""
    yield Section("checked", [Pairs([*_tallies(checks.tallies)])])
    more = checks.different - len(checks.differences)
    if checks.differences:
        found = checks.differences
        rows = [(each.aspect, each.subject, each.wanted, Toned(each.seen, "bad"), each.place or "") for each in found]
        width = len(_DIFFERENCES) - (not any(each.place for each in checks.differences))
        table = Table(_DIFFERENCES[:width], [row[:width] for row in rows], more=more)
        hints = dict.fromkeys(f"  hint: {each.hint}" for each in checks.differences if each.hint)
        yield Section("not as declared", [table, *hints], "bad")
    elif more:
        yield Section("not as declared", [f"  … and {more:,} more"], "bad")


def _tallies(tallies: Iterable[Tally]) -> Iterator[tuple[str, str]]:
    counts = [f"{tally.as_declared:,} of {tally.looked_at:,}" if tally.looked_at else "" for tally in tallies]
    widest = max(map(len, counts), default=0)
    for tally, count in zip(tallies, counts, strict=True):
        if count:
            yield tally.aspect, f"{count.rjust(widest)} as declared"
        if tally.not_checked or not count:
            number = f"{tally.not_checked:,} " if tally.not_checked else ""
            yield "" if count else tally.aspect, f"{number}not checked{f': {tally.why_not}' if tally.why_not else ''}"


MOST_LANES = 64
"""Processes over time that are shown; of more, the slowest."""
_MOST_SPANS = 100
_LONG_START = 0.4
"""Share of the whole time from which on the start of processes is left out, which would hide everything else."""
_HUES = {
    "build": (0, ("open", "reserve", "create", "map", "grant", "bind", "settle")),
    "check": (1, ("check",)),
    "verify": (2, ("write", "read", "fill", "verify", "forbid", "synchronize")),
    "share": (3, ("export", "import")),
    "change": (4, ("change", "rehearse")),
    "take down": (5, ("take down",)),
    "start": (7, ("start",)),
    "other": (6, ()),
}
"""Hue of each group of phases."""


def _times(report: Report) -> Iterator[Section]:
    """Phases with their times, side by side on one track."""
    if report.times:
        window = _window(report)
        counted = [(each, f"{each.steps:,}", humanize.duration(each.seconds)) for each in report.times]
        rows = [(each.phase, steps, time, _track([each], window)) for each, steps, time in counted]
        groups = dict.fromkeys(_group(each.phase) for each in _every_time(report))
        legend = blocks.Legend({group: _HUES[group][0] for group in groups})
        yield Section("time", [Table(columns("phase", ">steps", ">time", "when"), rows), legend])


def _lanes(report: Report) -> Iterator[Section]:
    """Phases of each process on a track."""
    lanes = {each.name: (sum(time.seconds for time in each.times), each) for each in report.processes if each.times}
    longest = sorted(lanes, key=lambda name: -lanes[name][0])[:MOST_LANES]
    if longest:
        first, last = window = _window(report)
        shown = [(name, *lanes[name]) for name in lanes if name in longest]
        rows = [(name, humanize.duration(seconds), _track(each.times, window)) for name, seconds, each in shown]
        start = f" They begin once all processes have started, after {humanize.duration(first)}." if first else ""
        table = Table(columns("process", ">at work", "when"), rows, more=len(lanes) - len(rows))
        yield Section("time by process", [table, f"The tracks are {humanize.duration(last - first)} wide.{start}"])


def _every_time(report: Report) -> Iterator[PhaseTime]:
    yield from chain(report.times, *(each.times for each in report.processes))


def _window(report: Report) -> tuple[float, float]:
    """Seconds between which tracks are drawn."""
    end = max(each.ended for each in _every_time(report))
    started = max((each.ended for each in report.times if each.phase == "start"), default=0.0)
    return (started if started > _LONG_START * end and started < end else 0.0), end


def _track(times: Sequence[PhaseTime], window: tuple[float, float]) -> blocks.Track:
    first, last = window
    scale = 1 / (last - first) if last > first else 0.0
    found = []
    for each in times[:_MOST_SPANS]:
        began, ended = max(each.began, first), min(max(each.ended, each.began), last)
        if ended >= first:
            words = f"{each.phase}: {humanize.duration(each.seconds)}, from {humanize.duration(each.began)} on"
            left, length = min((began - first) * scale, 0.998), max(ended - began, 0.0) * scale
            found.append(blocks.TimeSpan(left, length, _HUES[_group(each.phase)][0], words))
    return blocks.Track(found)


def _group(phase: str) -> str:
    return next((name for name, (_, phases) in _HUES.items() if phase in phases), "other")


def _addresses(report: Report) -> Iterator[Section]:
    rows = [("", *_placed(each)) for each in report.placed]
    rows += [(process.name, *_placed(each)) for process in report.processes for each in process.placed]
    if rows:
        yield Section("addresses", [Table(columns("process", "range", ">address", ">step", ">count"), rows)])


def _placed(each: Placed) -> tuple[str, ...]:
    step = rounded(each.step) if each.count > 1 else ""
    return humanize.subjects(each.first, each.last), f"{each.address:#x}", step, f"{each.count:,}"


def addresses(report: Report, *, every: bool = True) -> Addresses:
    """Addresses of the ranges in a report's picture; empty for a layout that was not applied."""
    found: dict[tuple[str, str], int | None] = {}
    if whole := report.plan.picture:
        picture = folding.picture(whole, every=every)
        placed = _by_label(report.placed)
        found |= {("", each.first): placed[each.first] for each in picture.ranges if each.first in placed}
        reports = {each.name: _by_label(each.placed) for each in report.processes}
        for process in picture.processes:
            found |= _common_addresses(process, reports)
    return found


def _common_addresses(process: ProcessDiagram, reports: Mapping[str, Mapping[str, int]]) -> Addresses:
    """Addresses of the ranges of one process picture; None for one that differs between its processes."""
    found: dict[tuple[str, str], int | None] = {}
    for shown in process.picture.ranges:
        labels = _labels(process.first, process.count, process.step)
        known = {reports.get(label, {}).get(shown.first) for label in labels}
        if None not in known:
            found[process.first, shown.first] = known.pop() if len(known) == 1 else None
    return found


def _by_label(placed: Iterable[Placed]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in placed:
        found |= {label: each.address + n * each.step for n, label in enumerate(_labels(each.first, each.count))}
    return found


def _labels(first: str, count: int, step: int = 1) -> Iterator[str]:
    entry, number = numbered(first)
    for index in range(count):
        yield entry if number is None else f"{entry}.{number + index * step}"


def verdict(report: Report) -> str:
    """Outcome of a run in one line."""
    match report.outcome:
        case "ok" if report.checks and any(tally.looked_at for tally in report.checks.tallies):
            return "ok: built, checked and taken down"
        case "ok":
            return "ok: built and taken down; nothing was checked"
        case "different":
            count = report.checks.different if report.checks else 0
            return f"different: {humanize.things(count)} not as declared; {_rest(report)}"
        case "leaked":
            return f"failed: {_rest(report)}"
        case outcome:
            return f"{outcome}: {_rest(report)}"


def _rest(report: Report) -> str:
    """Return what a run left: the named leaks, or the ledger's count if that is more."""
    named = {leak.what for leak in report.leaks} | {name for leak in report.leaks for name in leak.stays}
    open_after = report.left.ledger_after if report.left else {}
    open_before = report.left.ledger_before if report.left else {}
    counted = sum(max(count - open_before.get(kind, 0), 0) for kind, count in open_after.items())
    count = max(len(named), counted)
    if not count:
        return "something is left" if report.outcome == "leaked" else "everything was undone"
    return f"{humanize.things(count)} left"


def diagnostics_page(found: DiagnosticsDocument, lines: Sequence[str], name: str) -> Page:
    """The diagnostics of a spec that was refused; `lines` show them in the text of the spec."""
    warnings = f" and {plural(found.warnings, 'warning')}" if found.warnings else ""
    verdict = Toned(f"invalid: {plural(found.errors, 'error')}{warnings}; nothing was built", "bad")
    machines = ", ".join(dict.fromkeys(each.machine for each in found.results if each.machine))
    table = Table(columns("place", "code", "message", "help"), [*map(_fault, found.diagnostics)])
    sections = [Section("diagnostics", [table]), Section("in the spec", [blocks.Source(lines)])]
    return Page("apply", name, f"on {machines}" if machines else "", sections=sections, verdict=verdict)


def error_page(command: str, error: MemtopoError) -> Page:
    """An error without a result of a command."""
    pairs = [("error", error.message), *(("", line) for line in error.details)]
    pairs += [("hint", error.hint)] if error.hint else []
    verdict = Toned(f"failed, exit status {error.exit_code}", "bad")
    return Page(command, f"{command} failed", sections=[Section("error", [Pairs(pairs)])], verdict=verdict)


def _fault(each: Fault) -> tuple[Cell, ...]:
    place = each.file if each.line is None else f"{each.file}:{each.line}:{each.column}"
    return place, Toned(each.code, "bad" if each.severity == "error" else "warn"), each.message, each.help or ""
