"""Page of a run: the report of `apply` with its drawing and a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memtopo.common.units import rounded
from memtopo.output import humanize
from memtopo.output.diagram.html import figures
from memtopo.output.diagram.svg import style_sheet as drawing_style
from memtopo.output.html.document import (
    Cell,
    Column,
    Table,
    Tone,
    Toned,
    document,
    facts,
    listed,
    note,
    properties,
    section,
    tables,
    verdict,
)
from memtopo.output.html.timeline import timeline
from memtopo.output.html.trace import calls
from memtopo.output.plan import folded
from memtopo.output.report import addresses
from memtopo.output.report import verdict as verdict_of
from memtopo.plans.report import Checks, Leak, Left, NodeReport, Placed, PlanSummary, ProcessReport, Report, Row, Tally
from memtopo.plans.trace import TraceSummary

MOST_ROWS = 400
"""Rows of all plans; of each other table at most `_MOST`."""

_MOST = 200
_STAY = 10
"""Names that a leak keeps from being released, which are listed."""

_TONES: dict[str, Tone] = {"ok": "good", "interrupted": "warn", "taken down": "warn"}


def page(report: Report, trace: TraceSummary | None = None) -> str:
    """The report of a run as an HTML document, whose size is bounded; with the summary of its trace, if it has one."""
    machine = report.machine
    words = f"on {humanize.machine(machine)}: {humanize.devices(machine.devices)}, driver {machine.driver}"
    body = [verdict(verdict_of(report), _tone(report.outcome)), facts(_facts(report)), *_sections(report, trace)]
    style = drawing_style() if report.plan.picture else ""
    return document(report.name, "memtopo apply", words, body, style=style)


def _sections(report: Report, trace: TraceSummary | None) -> Iterator[str]:
    yield _failure(report)
    if report.checks:
        yield _differences(report.checks)
    yield section("Left behind", *map(_leak, report.leaks[:_MOST]))
    if report.plan.picture:
        known = {where: each for where, each in addresses(report).items() if each is not None}
        figure = figures(report.plan.picture, report.name, addresses=known)
        yield section("Layout", f"<figure>{figure}</figure>")
    yield section("Checks", *(_checks(report.checks) if report.checks else [note("Nothing was checked.")]))
    yield section("Timeline", timeline(report))
    yield section("Processes", tables(_nodes(report.nodes), _processes(report.processes)))
    yield section("Plan", *_plan(report.plan), note="Steps in their order; the teardown reverses them.")
    yield section("Driver calls", *(calls(trace) if trace else ()), note="As they were made and traced.")
    if report.left:
        yield section("Taken down", tables(_ledger(report.left), _memory(report.left)))
    yield section("Addresses", tables(_addresses(report)))
    yield section("Notes", listed([*report.plan.notes, *report.notes]), listed(report.plan.warnings))


def _tone(outcome: str) -> Tone:
    return _TONES.get(outcome, "bad")


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "exit status", str(report.exit_code)
    if report.started:
        yield "started, UTC", report.started.rstrip("Z").replace("T", " ")
    if report.times:
        yield "time", humanize.duration(max(each.ended for each in report.times))
    yield "steps", f"{report.plan.calls:,}"
    if report.checks and (looked := sum(tally.looked_at for tally in report.checks.tallies)):
        as_declared = sum(tally.as_declared for tally in report.checks.tallies)
        yield f"as declared, {report.check} check", f"{as_declared:,} of {looked:,}"
    for location, size in [*report.plan.memory.items()][:8]:
        yield f"memory on {location}", rounded(size)
    yield "address space", rounded(report.plan.reserved)
    if report.processes:
        yield "processes", f"{len(report.processes):,}"


def _failure(report: Report) -> str:
    if (failure := report.failure) is None:
        return ""
    pairs = (
        ("step", failure.step), ("error", failure.error), ("reason", failure.reason), ("cause", failure.cause),
        ("place", failure.place), ("hint", failure.hint),
    )  # fmt: skip
    return section("Failure", properties(pairs))


def _leak(leak: Leak) -> str:
    stays = [*leak.stays[:_STAY], *([f"{len(leak.stays) - _STAY:,} more"] if len(leak.stays) > _STAY else [])]
    return properties(
        [("what", leak.what), ("error", leak.error), ("stays because of it", ", ".join(stays)), ("place", leak.place)]
    )


def _checks(checks: Checks) -> Iterator[str]:
    columns = (
        Column("what"), Column("as declared", "number"), Column("looked at", "number"), Column("not checked", "number"),
        Column("why not"),
    )  # fmt: skip
    yield tables(Table("", columns, [_tally(each) for each in checks.tallies]))
    columns = (
        Column("by"), Column("did"), Column("memory"), Column("bytes", "number"), Column("rate", "number")
    )  # fmt: skip
    rows = [
        (each.device, each.verb, each.memory, rounded(each.bytes), humanize.rate(each.bytes, each.seconds))
        for each in checks.rates
    ]
    yield tables(Table.bounded("bandwidth", columns, rows, _MOST))


def _tally(each: Tally) -> tuple[Cell, ...]:
    tone: Tone = "" if not each.looked_at else "good" if each.as_declared == each.looked_at else "bad"
    left = f"{each.not_checked:,}" if each.not_checked else ""
    return each.aspect, Toned(f"{each.as_declared:,}", tone), f"{each.looked_at:,}", left, each.why_not or ""


def _differences(checks: Checks) -> str:
    columns = Column("aspect"), Column("of"), Column("wanted"), Column("seen"), Column("place")
    rows = [
        (each.aspect, each.subject, each.wanted, Toned(each.seen, "bad"), each.place or "")
        for each in checks.differences
    ]
    hints = list(dict.fromkeys(f"hint: {each.hint}" for each in checks.differences if each.hint))
    shown = Table("", columns, rows, checks.different - len(rows))
    return section("Not as declared", tables(shown), listed(hints))


def _plan(plan: PlanSummary) -> Iterator[str]:
    left = MOST_ROWS
    for title, process in folded(plan.processes, {}):
        if left > 0:
            yield tables(_rows(title, process.rows, left))
            yield listed(process.notes)
        left -= len(process.rows)
    yield tables(_rows("", plan.rows, MOST_ROWS))
    if left < 0:
        yield note(f"… and {-left:,} rows more in all")
    yield tables(*_states(plan.states))
    yield properties([*humanize.parameters(plan.params)])


def _rows(caption: str, rows: Sequence[Row], most: int) -> Table:
    columns = (
        Column("step"), Column("driver call"), Column("what"), Column("calls", "number"), Column("each", "number"),
        Column("total", "number"), Column("where"),
    )  # fmt: skip
    return Table.bounded(caption, columns, [_row(row) for row in rows[: most + 1]], most)


def _row(row: Row) -> tuple[Cell, ...]:
    where = " ".join(filter(None, [", ".join(row.where), f"({row.note})" if row.note else ""]))
    return (
        row.verb,
        row.call,
        humanize.subjects(row.first, row.last),
        f"{row.calls:,}",
        humanize.size(row.bytes_each),
        humanize.size(row.calls * row.bytes_each),
        where,
    )


def _states(states: Mapping[str, Mapping[str, int]]) -> Iterator[Table]:
    locations = list(dict.fromkeys(location for memory in states.values() for location in memory))
    columns = Column("state"), *(Column(location, "number") for location in locations)
    rows = [(name, *(rounded(memory.get(at, 0)) for at in locations)) for name, memory in states.items()]
    yield Table.bounded("memory by state", columns, rows, _MOST)


def _processes(processes: Sequence[ProcessReport]) -> Table:
    columns = Column("process"), Column("pid", "number"), Column("outcome"), *_COUNTS
    rows = [
        (each.name, str(each.pid or ""), Toned(each.lost or each.outcome, _tone(each.outcome)), *_counts(each))
        for each in processes
    ]
    return Table.bounded("", columns, rows, _MOST)


_COUNTS = Column("as declared", "number"), Column("open after", "number")


def _nodes(nodes: Sequence[NodeReport]) -> Table:
    columns = Column("node"), Column("host"), Column("outcome"), *_COUNTS, Column("lost"), Column("processes")
    rows = [
        (
            each.name, each.host, Toned(each.outcome, _tone(each.outcome)), *_counts(each), each.lost or "",
            ", ".join(each.processes[:_STAY]) + (" …" if len(each.processes) > _STAY else ""),
        )
        for each in nodes
    ]  # fmt: skip
    return Table.bounded("nodes", columns, rows, _MOST)


def _counts(each: ProcessReport | NodeReport) -> tuple[str, Cell]:
    """Observations that were as declared, and resources that are open after the teardown."""
    tallies = each.checks.tallies if each.checks else ()
    looked = sum(tally.looked_at for tally in tallies)
    checked = f"{sum(tally.as_declared for tally in tallies):,} of {looked:,}" if tallies else ""
    opened = sum(each.left.ledger_after.values()) if each.left else 0
    return checked, Toned(f"{opened:,}", "bad" if opened else "good") if each.left else ""


_LEFT = (
    Column("resource"), Column("before", "number"), Column("held", "number"), Column("after", "number"),
    Column("change", "number"),
)  # fmt: skip


def _ledger(left: Left) -> Table:
    counts = [left.ledger_before, left.ledger_held, left.ledger_after]
    rows = []
    for kind in dict.fromkeys(kind for count in counts for kind in count):
        before, held, after = (count.get(kind, 0) for count in counts)
        rows.append((kind, f"{before:,}", f"{held:,}" if left.ledger_held else "", *_after(before, after)))
    held_fds = "" if left.fds_held is None else f"{left.fds_held:,}"
    rows.append(("file descriptors", f"{left.fds_before:,}", held_fds, *_after(left.fds_before, left.fds_after)))
    return Table.bounded("open resources", _LEFT, rows, _MOST)


def _after(before: int, after: int) -> tuple[str, Cell]:
    return f"{after:,}", Toned(humanize.change(before, after), "good" if after <= before else "bad")


def _memory(left: Left) -> Table:
    rows = [
        (
            each.device, rounded(each.before), "" if each.held is None else rounded(each.held), rounded(each.after),
            humanize.change(each.before, each.after, memory=True),
        )
        for each in left.memory
    ]  # fmt: skip
    return Table.bounded("free memory", (Column("device"), *_LEFT[1:]), rows, _MOST)


def _addresses(report: Report) -> Table:
    placed = [("", each) for each in report.placed]
    placed += [(process.name, each) for process in report.processes for each in process.placed]
    columns = Column("range"), Column("address", "number"), Column("step", "number"), Column("count", "number")
    if not report.processes:
        return Table.bounded("", columns, [_placed(each) for _, each in placed], _MOST)
    rows = [(name, *_placed(each)) for name, each in placed]
    return Table.bounded("", (Column("process"), *columns), rows, _MOST)


def _placed(each: Placed) -> tuple[str, ...]:
    step = rounded(each.step) if each.count > 1 else ""
    return humanize.subjects(each.first, each.last), f"{each.address:#x}", step, f"{each.count:,}"
