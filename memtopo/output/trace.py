"""Summaries of traces: the failed call with those before it, and the calls by function."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.common.text import printable
from memtopo.output import humanize
from memtopo.output.calls import value_text
from memtopo.output.console import Column, Rows, cell, heading, notes, pairs
from memtopo.plans.trace import FailedCall, FunctionTimes, TracedCall, TraceSummary

_COLUMNS = (
    Column("call"), Column("calls", "right"), Column("errors", "right"), Column("total", "right"),
    Column("median", "right"), Column("longest", "right"),
)  # fmt: skip


def renderable(summary: TraceSummary) -> RenderableType:
    """The output of `memtopo trace`."""
    first = summary.traces[0]
    machine = f"{first.machine} (simulated)" if first.simulated else first.machine
    parts: list[RenderableType] = [
        Text.assemble(("trace", "bold"), printable(f"  {first.layout}  on {machine}")),
        Text(),
    ]
    for failed in summary.failed:
        parts += [*_failed(failed), Text()]
    parts += [Rows(_COLUMNS, [*map(times, summary.functions)]), Text(), pairs(_sums(summary))]
    found = tuple(_notes(summary))
    return Group(*parts, Text(), notes(found)) if found else Group(*parts)


def times(each: FunctionTimes) -> tuple[str, ...]:
    """Cells of a C function: its name, calls, errors, and total, median and longest time."""
    errors = f"{each.errors:,}" if each.errors else ""
    return each.function, f"{each.calls:,}", errors, *map(humanize.duration, (each.total, each.median, each.longest))


def _sums(summary: TraceSummary) -> Iterator[tuple[str, str]]:
    names = [each.process for each in summary.traces if each.process]
    if names:
        yield "processes", f"{len(names):,}"
    yield "driver calls", f"{summary.calls:,}"
    yield "time in them", humanize.duration(summary.seconds)


def _notes(summary: TraceSummary) -> Iterator[str]:
    if any(each.simulated for each in summary.traces):
        yield "the times are those of the simulator, not of a driver"
    failures = sum(each.errors for each in summary.functions)
    if failures and not any(each.call.seconds is not None for each in summary.failed):
        yield "the errors are of queries, which the check expects to fail where nothing is mapped"


def _failed(failed: FailedCall) -> Iterator[RenderableType]:
    call = failed.call
    where = f" in {call.process}" if call.process else ""
    if call.seconds is None:
        yield heading(f"the last call{where} did not return")
    else:
        yield heading(f"{call.call} failed{where}: {call.error}", "bold red")
    for each in (*failed.before, call):
        yield Text("  ") + cell(line(each))
    if call.reason:
        yield Text("  ") + cell(f"reason: {call.reason}")


def line(call: TracedCall) -> str:
    """One call: `12  create page.3  cuMemCreate(size=2097152, …) = 5  12.3 µs`."""
    arguments = ", ".join(f"{name}={value_text(value)}" for name, value in call.arguments.items())
    step = f"{'undo ' if call.undo else ''}{call.step}" if call.step else call.phase
    if call.seconds is None:
        ending = " …"
    else:
        result = call.error or (value_text(call.result) if call.result is not None else "")
        ending = f"{f' = {result}' if result else ''}  {humanize.duration(call.seconds)}"
    return f"{call.number}  {step}  {call.call}({arguments}){ending}"
