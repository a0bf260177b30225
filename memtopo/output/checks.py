"""What was looked at, and what of it is not as declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from memtopo.output.parts import Column, Rows, cell, heading, pairs
from memtopo.plans.report import Checks, Tally

_DIFFERENCES = (Column("aspect"), Column("of"), Column("wanted"), Column("seen"))


def parts(checks: Checks) -> list[RenderableType]:
    """The tallies, and what is not as declared."""
    shown: list[RenderableType] = [heading("checked"), pairs(_tallies(checks.tallies))]
    if checks.differences:
        rows = [(each.aspect, each.subject, each.wanted, each.seen) for each in checks.differences]
        shown += [Text(), heading("not as declared", "bold red"), Rows(_DIFFERENCES, rows)]
    if more := checks.different - len(checks.differences):
        shown.append(cell(f"  … and {more:,} more"))
    return shown


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
