"""Summaries of traces: the failed call with those before it, and the calls by function."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.output import humanize
from memtopo.output.blocks import Page, Pairs, Section, Table, columns, notes, sections
from memtopo.output.calls import value_text
from memtopo.plans.trace import FailedCall, FunctionTimes, TracedCall, TraceSummary

_COLUMNS = columns("call", ">calls", ">errors", ">total", ">median", ">longest")


def page(summary: TraceSummary) -> Page:
    """The output of `memtopo trace`."""
    first = summary.traces[0]
    where = f"on {first.machine}{' (simulated)' if first.simulated else ''}"
    return Page("trace", first.layout, where, sections=driver_calls(summary))


def driver_calls(summary: TraceSummary) -> list[Section]:
    """The calls that failed, each after those before it, and all calls by function."""
    functions = Section("driver calls", [Table(_COLUMNS, [*map(_times, summary.functions)])])
    return [*map(_failed, summary.failed), functions, *sections(Pairs([*_sums(summary)])), *notes(_notes(summary))]


def _times(each: FunctionTimes) -> tuple[str, ...]:
    """Cells of a C function: its name, calls, errors, and total, median and longest time."""
    errors = f"{each.errors:,}" if each.errors else ""
    return each.function, f"{each.calls:,}", errors, *map(humanize.duration, (each.total, each.median, each.longest))


def _sums(summary: TraceSummary) -> Iterator[tuple[str, str]]:
    names = [each.process for each in summary.traces if each.process]
    if names:
        yield "processes", f"{len(names):,}"
    yield "calls", f"{summary.calls:,}"
    yield "time in them", humanize.duration(summary.seconds)


def _notes(summary: TraceSummary) -> Iterator[str]:
    if any(each.simulated for each in summary.traces):
        yield "the times are those of the simulator, not of a driver"
    failures = sum(each.errors for each in summary.functions)
    if failures and not any(each.call.seconds is not None for each in summary.failed):
        yield "the errors are of queries, which the check expects to fail where nothing is mapped"


def _failed(failed: FailedCall) -> Section:
    call = failed.call
    where = f" in {call.process}" if call.process else ""
    lines = [f"  {_line(each)}" for each in (*failed.before, call)]
    lines += [f"  reason: {call.reason}"] if call.reason else []
    if call.seconds is None:
        return Section(f"the last call{where} did not return", lines)
    return Section(f"{call.call} failed{where}: {call.error}", lines, "bad")


def _line(call: TracedCall) -> str:
    """One call: `12  create page.3  cuMemCreate(size=2097152, …) = 5  12.3 µs`."""
    arguments = ", ".join(f"{name}={value_text(value)}" for name, value in call.arguments.items())
    step = f"{'undo ' if call.undo else ''}{call.step}" if call.step else call.phase
    if call.seconds is None:
        ending = " …"
    else:
        result = call.error or (value_text(call.result) if call.result is not None else "")
        ending = f"{f' = {result}' if result else ''}  {humanize.duration(call.seconds)}"
    return f"{call.number}  {step}  {call.call}({arguments}){ending}"
