"""Pages of records: the memory at a moment, and the comparison with a spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from memtopo.common.text import plural
from memtopo.common.units import rounded
from memtopo.output import humanize
from memtopo.output.blocks import Page, Section, Series, Table, Timeline, Toned, columns, notes, sections
from memtopo.records import MemoryRow, RecordSummary
from memtopo.records.comparison import Comparison

_MOST_ROWS = 40


def show_page(summary: RecordSummary) -> Page:
    """The output of `memtopo show RECORD`."""
    where = f"{summary.moment}, {humanize.duration(summary.time)} after its begin"
    processes = plural(len(summary.processes), "process")
    facts = [f"{summary.calls:,} calls of {processes} on {summary.machine}"]
    found = [Section("memory", [_table(summary.memory)])] if summary.memory else sections("no memory")
    found += sections(timeline(summary))
    left = [Section("never freed by the program", [_table(summary.leaks)])] if summary.leaks else []
    return Page("show", summary.name, where, facts, [*found, *left, *notes(_notes(summary))])


def timeline(summary: RecordSummary) -> Timeline | None:
    """Memory by location over the time of a record."""
    series = [Series(location, points) for location, points in summary.timeline.items()]
    return Timeline(summary.seconds, series) if series else None


def _table(rows: Sequence[MemoryRow]) -> Table:
    cells = [
        (each.location, each.kind, each.process, each.source, f"{each.objects:,}", rounded(each.size)) for each in rows
    ]
    headings = columns("where", "memory", "process", "from", ">objects", ">size")
    return Table(headings, cells).cut(_MOST_ROWS).filled()


def _notes(summary: RecordSummary) -> Iterator[str]:
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
