"""Driver calls of a run on its page, from its trace: those that failed, and all by function."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.output import humanize
from memtopo.output.html.document import Column, Table, Toned, listed, note, tables
from memtopo.output.trace import line, times
from memtopo.plans.trace import FailedCall, TraceSummary

_MOST = 200
_MOST_FAILED = 20


def calls(summary: TraceSummary) -> Iterator[str]:
    """Parts of the section on the driver calls of a run."""
    for failed in summary.failed[:_MOST_FAILED]:
        yield from _failed(failed)
    if (more := len(summary.failed) - _MOST_FAILED) > 0:
        yield note(f"… and {more:,} calls more that failed")
    columns = (
        Column("driver call"), Column("calls", "number"), Column("errors", "number"), Column("total", "number"),
        Column("median", "number"), Column("longest", "number"),
    )  # fmt: skip
    yield tables(Table.bounded("", columns, [*map(times, summary.functions)], _MOST))
    words = f"{summary.calls:,} calls took {humanize.duration(summary.seconds)}."
    simulated = any(each.simulated for each in summary.traces)
    yield note(f"{words} The times are those of the simulator." if simulated else words)


def _failed(failed: FailedCall) -> Iterator[str]:
    """A call that failed or did not return, after those before it."""
    call = failed.call
    process = f" in {call.process}" if call.process else ""
    ending = "did not return" if call.seconds is None else f"failed: {call.error}"
    yield tables(Table("", [Column("failed")], [[Toned(f"{call.call}{process} {ending}", "bad")]]))
    yield listed([line(each) for each in (*failed.before, call)])
    if call.reason:
        yield note(f"reason: {call.reason}")
