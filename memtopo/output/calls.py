"""Driver calls as text, as in C with the names of a spec, and pages of their records: traces, replays, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memtopo.common.text import plural
from memtopo.common.units import exact, rounded, shorten
from memtopo.driver.recorder import DriverCall
from memtopo.driver.types import PoolProperties, Properties
from memtopo.driver.values import ADDRESSES, argument_text, constant_text, property_flags
from memtopo.output import humanize
from memtopo.output.blocks import Page, Pairs, Section, Series, Table, Timeline, Toned, columns, notes, sections
from memtopo.plans.calls import CallNames, Exchange, NamedCall, Object, ObjectAddress, PlannedCall, reference

if TYPE_CHECKING:
    from memtopo.plans.trace import FailedCall, TracedCall, TraceSummary
    from memtopo.records import MemoryRow, RecordSummary
    from memtopo.records.comparison import Comparison
    from memtopo.records.replay import Replay, ReplayDifference


TEST = "a test: not kept, importers get handles of their own"
"""Note on an export that a plan makes to find errors while it builds."""


def in_short(calls: Sequence[DriverCall]) -> str:
    """Functions of the calls of one step with the flags that matter, without calls that make a context current.

    Locations and sizes are left out, which the row of a plan has.
    """
    found: dict[str, list[str]] = {}
    for call in calls:
        if call.method not in ("ctx_push_current", "ctx_pop_current"):
            found.setdefault(call.function, list(_flags(call)))
    return ", ".join(" ".join((name, *flags)) for name, flags in found.items())


def _flags(call: DriverCall) -> Iterator[str]:
    for name, value in call.arguments.items():
        if isinstance(value, Properties | PoolProperties):
            yield from property_flags(value)
        elif name in ("kind", "advice", "attribute", "flags") and value:
            yield f"{name}={constant_text(call.method, name, value)}"
        elif name == "value":
            yield f"value={value:#x}" if value > 1 << 20 else f"value={value}"
        elif name in ("alignment", "address") and call.method == "mem_address_reserve" and value:
            yield f"{name}={exact(value) if name == 'alignment' else hex(value)}"


def line(call: NamedCall) -> str:
    """One call as in C: `cuMemMap(kv+2MiB, size=2MiB, offset=0, page.1, flags=0)`."""
    arguments = [f"&{call.made.label}"] if call.made else []
    arguments += [_argument(call.method, name, value) for name, value in call.arguments]
    note = f" /* {TEST} */" if call.is_test else ""
    return f"{call.function}({', '.join(filter(None, arguments))}){note}"


def _argument(method: str, name: str, value: Any) -> str:
    match value:
        case int() if not isinstance(value, Enum):
            return _number(method, name, value)
        case ObjectAddress(held, offset):
            return f"{held.label}+{exact(offset)}" if offset else held.label
        case Object() | Exchange():
            return f"fd=<from {value.peer}>" if isinstance(value, Exchange) and name == "fd" else str(reference(value))
    return argument_text(method, name, value)


@lru_cache(typed=True)
def _number(method: str, name: str, value: int) -> str:
    if name == "0":
        return "0"
    if name in ("size", "count", "alignment", "offset", "max_size"):
        return f"{name}={exact(value)}"
    return f"{name}={value:#x}" if name in ADDRESSES and value else f"{name}={constant_text(method, name, value)}"


_EXCHANGES = {
    "receive": "/* receive {0.export}.{0.number} from {0.peer} */",
    "send": "/* send {0.export}.{0.number} to {0.peer} */",
    "leave": "/* report that all that was imported is released */",
    "await": "/* wait until all others have released what they imported */",
}
"""Exchanges with another process, as comments."""


_MOST_LINES = 1024


class CallLines:
    """Lines of `memtopo plan --calls` for one process: its calls by phase, which are written as they are added."""

    def __init__(self, label: str, write: Callable[[list[str]], object]) -> None:
        self._write, self._names = write, CallNames()
        self._lines = [label, ""] if label else []
        self._phase: str | None = None

    def add(self, entry: PlannedCall) -> None:
        """Add the next call or exchange; a call of no step has no line."""
        if isinstance(entry, DriverCall) and not entry.of_step:
            return
        if entry.phase != self._phase:
            self._lines += [*([""] if self._phase is not None else []), f"  {entry.phase}"]
            self._phase = entry.phase
        named = self._names.name_call(entry)
        text = line(named) if isinstance(named, NamedCall) else _EXCHANGES[named.action].format(named)
        self._lines.append(f"    {text}")
        if len(self._lines) >= _MOST_LINES:
            self._flush()

    def end(self) -> None:
        """Write the last lines."""
        self._lines += [""] if self._phase is not None else []
        self._flush()

    def _flush(self) -> None:
        self._write(self._lines)
        self._lines = []


_LARGE = 1 << 32
_LONGEST, _LONGEST_LINE = 400, 2000
"""Characters of an argument, such as the access of 8 GPUs, and of all arguments of a recorded call."""


def value_text(value: Any) -> str:
    """A value of a trace: large numbers, which are addresses and handles, in hexadecimal digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={value_text(each)}" for name, each in value.items() if each) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(value_text, value)) + "}"
    if isinstance(value, int) and value >= _LARGE:
        return f"{value:#x}"
    return str(value)


_FUNCTIONS = columns("call", ">calls", ">errors", ">total", ">median", ">longest")


def trace_page(summary: TraceSummary) -> Page:
    """The output of `memtopo trace`."""
    first = summary.traces[0]
    where = f"on {first.machine}{' (simulated)' if first.simulated else ''}"
    return Page("trace", first.layout or "captured program", where, sections=driver_calls(summary))


def driver_calls(summary: TraceSummary) -> list[Section]:
    """The calls that failed, each after those before it, and all calls by function."""
    rows = []
    for each in summary.functions:
        times = map(humanize.duration, (each.total, each.median, each.longest))
        rows.append((each.function, f"{each.calls:,}", f"{each.errors:,}" if each.errors else "", *times))
    functions = Section("driver calls", [Table(_FUNCTIONS, rows)])
    names = [each.process for each in summary.traces if each.process]
    sums = [("processes", f"{len(names):,}")] if names else []
    sums += [("calls", f"{summary.calls:,}"), ("time in them", humanize.duration(summary.seconds))]
    return [*map(_failed, summary.failed), functions, *sections(Pairs(sums)), *notes(_notes(summary))]


def _notes(summary: TraceSummary) -> Iterator[str]:
    if any(each.simulated for each in summary.traces):
        yield "the times are those of the simulator, not of a driver"
    failures = sum(each.errors for each in summary.functions) if summary.traces[0].layout else 0
    if failures and not any(each.call.seconds is not None for each in summary.failed):
        yield "the errors are of queries, which the check expects to fail where nothing is mapped"


def replay_page(found: Replay) -> Page:
    """The output of `memtopo replay`."""
    rows = [(each.function, f"{each.calls:,}", each.reason) for each in found.left_out]
    left_out = [Section("calls that were not made", [Table(columns("call", ">calls", "reason"), rows)])] if rows else []
    sums = [("processes", f"{found.processes:,}")] if found.processes > 1 else []
    sums += [("calls", f"{found.calls:,}"), ("made", f"{found.made:,}")]
    errors = found.other_errors.items()
    others = (f"with other errors than in the record, {number:,} × {error}" for error, number in errors)
    different = [_different(found.difference)] if found.difference else []
    where = f"on {humanize.machine(found.machine)}"
    parts = [*different, *left_out, *sections(Pairs(sums)), *notes(others)]
    verdict = Toned("error: a call ends otherwise than in the record", "bad") if different else _AGREES
    return Page("replay", found.record, where, sections=parts, verdict=verdict)


_AGREES = Toned("ok: all calls that were made end as in the record", "good")


def _different(found: ReplayDifference) -> Section:
    call = found.call
    where = f" in {call.process}" if call.process else ""
    recorded = f"the record has {call.error or 'success'}"
    lines = [f"  {_traced_line(each)}" for each in (*found.before, call)]
    lines += [f"  reason: {found.reason}"] if found.reason else []
    return Section(f"{call.call}{where}: {found.error or 'success'}, and {recorded}", lines, "bad")


def _failed(failed: FailedCall) -> Section:
    call = failed.call
    where = f" in {call.process}" if call.process else ""
    lines = [f"  {_traced_line(each)}" for each in (*failed.before, call)]
    lines += [f"  reason: {call.reason}"] if call.reason else []
    if call.seconds is None:
        return Section(f"the last call{where} did not return", lines)
    return Section(f"{call.call} failed{where}: {call.error}", lines, "bad")


def _traced_line(call: TracedCall) -> str:
    """One call: `12  create page.3  cuMemCreate(size=2097152, …) = 5  12.3 µs`."""
    arguments = ", ".join(f"{shorten(name)}={_shortened(value)}" for name, value in call.arguments.items())
    step = f"{'undo ' if call.undo else ''}{call.step}" if call.step else call.phase
    if call.seconds is None:
        ending = " …"
    else:
        result = call.error or (_shortened(call.result) if call.result is not None else "")
        ending = f"{f' = {result}' if result else ''}  {humanize.duration(call.seconds)}"
    return f"{call.number}  {step}  {call.call}({shorten(arguments, _LONGEST_LINE)}){ending}"


def _shortened(value: Any) -> str:
    return shorten(value_text(value), _LONGEST)


_MOST_ROWS = 40


def show_page(summary: RecordSummary) -> Page:
    """The output of `memtopo show RECORD`."""
    where = f"{summary.moment}, {humanize.duration(summary.time)} after its begin"
    processes = plural(len(summary.processes), "process")
    facts = [f"{summary.calls:,} calls of {processes} on {summary.machine}"]
    found = [Section("memory", [_table(summary.memory)])] if summary.memory else sections("no memory")
    found += sections(timeline(summary))
    left = [Section("never freed by the program", [_table(summary.leaks)])] if summary.leaks else []
    return Page("show", summary.name, where, facts, [*found, *left, *notes(_memory_notes(summary))])


def timeline(summary: RecordSummary) -> Timeline | None:
    """Memory by location over the time of a record."""
    series = [Series(location, points) for location, points in summary.timeline.items()]
    return Timeline(summary.seconds, series) if series else None


def _table(rows: Sequence[MemoryRow]) -> Table:
    amounts = [(f"{row.objects:,}", rounded(row.size)) for row in rows]
    cells = [(row.location, row.kind, row.process, row.source, *each) for row, each in zip(rows, amounts, strict=True)]
    headings = columns("where", "memory", "process", "from", ">objects", ">size")
    return Table(headings, cells).cut(_MOST_ROWS).filled()


def _memory_notes(summary: RecordSummary) -> Iterator[str]:
    if summary.marks:
        yield f"moments that the program marked: {', '.join(summary.marks)}"
    peaks = [f"{location} {rounded(size)}" for location, size in summary.peaks.items()]
    if peaks:
        yield f"the most at any time: {', '.join(peaks)}"
    yield "contexts, kernels and what the driver has for itself are not in a record of calls"


def comparison_page(found: Comparison) -> Page:
    """The output of `memtopo diff SPEC RECORD`."""
    rows = [
        (each.section, each.location, rounded(each.size), each.words, f"{each.in_spec:,}", f"{each.in_record:,}")
        for each in found.differences
    ]
    headings = columns("memory", "where", ">size of each", "with", ">in the spec", ">in the record")
    below = [each.position or "" for each in found.differences]
    table = Table(headings, rows, below=below).cut(_MOST_ROWS).filled()
    within = f", within {found.within * 100:g}% of the bytes" if found.within else ""
    if rows:
        places = Counter(each.section for each in found.differences)
        what = ", ".join(f"{count} of {section}" for section, count in places.items())
        verdict = Toned(f"the record differs from the spec: {what}", "bad")
    else:
        verdict = Toned(f"the record has the memory of the spec{within}", "good")
    title = f"{found.spec} → {found.record}"
    return Page("diff", title, f"at {found.moment}", sections=sections(table if rows else None), verdict=verdict)
