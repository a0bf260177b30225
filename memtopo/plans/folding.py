"""Folding of plans: similar steps as one row, equal processes as one, and evenly spaced ranges as one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from memtopo.common.text import numbered
from memtopo.kinds.layout import Reservation
from memtopo.kinds.step import Step, StepDescription
from memtopo.plans.report import Placed, ProcessDifference, ProcessPlan, Row

P = TypeVar("P", ProcessPlan, ProcessDifference)


def rows(steps: Iterable[Step], *, undo: bool = False) -> Iterator[Row]:
    """Rows of steps, or of their undo; consecutive similar steps are one row."""
    for _, group in groupby(((step, step.describe()) for step in steps), key=_similarity):
        step, row = _row(group)
        yield replace(row, verb=step.undoing.verb, call=step.undoing.call) if undo else row


def firsts(steps: Iterable[Step]) -> Iterator[int]:
    """Index of the first step of each row of steps."""
    for _, group in groupby(
        enumerate((step, step.describe()) for step in steps), key=lambda each: _similarity(each[1])
    ):
        yield next(iter(group))[0]


def processes(single: Iterable[P]) -> Iterator[P]:
    """Processes with consecutive equal ones of one counted process as one."""
    last: P | None = None
    for new in single:
        if last and _continues(last, new):
            last = replace(last, last=new.last, count=last.count + 1)
            continue
        if last:
            yield last
        last = new
    if last:
        yield last


def placed(ranges: Mapping[str, Reservation]) -> Iterator[Placed]:
    """Addresses of reservations by label; evenly spaced reservations of one entry are merged."""
    series: Placed | None = None
    for label, (address, _) in ranges.items():
        extended = series and _extended(series, label, address)
        if series and not extended:
            yield series
        series = extended or Placed(label, label, 1, address, 0)
    if series:
        yield series


def _continues(last: P, new: P) -> bool:
    entry = last.first.partition(".")[0]
    return new.first.partition(".")[0] == entry and last == replace(
        new, first=last.first, last=last.last, count=last.count
    )


def _extended(series: Placed, label: str, address: int) -> Placed | None:
    """Series with one more reservation, or None if the reservation does not continue it."""
    entry, number = numbered(series.last)
    step = address - series.address if series.count == 1 else series.step
    if number is None or numbered(label) != (entry, number + 1) or address != series.address + series.count * step:
        return None
    return replace(series, last=label, count=series.count + 1, step=step)


def _similarity(item: tuple[Step, StepDescription]) -> tuple[object, ...]:
    step, description = item
    return step.call, description.like, description.bytes_each, description.note


def _row(similar: Iterator[tuple[Step, StepDescription]]) -> tuple[Step, Row]:
    """First of some similar steps, and the row of all of them."""
    step, first = next(similar)
    last, calls, where = first, step.calls, {first.where: None}
    for each, last in similar:
        calls += each.calls
        where[last.where] = None
    return step, Row(
        phase=step.phase,
        verb=step.verb,
        call=step.call,
        first=first.subject,
        last=last.subject,
        calls=calls,
        bytes_each=first.bytes_each,
        where=tuple(filter(None, where)),
        path=step.path,
        note=first.note,
    )
