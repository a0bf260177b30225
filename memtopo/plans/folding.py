"""Plans folded for whoever reads them: like steps in one row, like processes told once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from memtopo.kinds.layout import Reservation
from memtopo.kinds.step import Step, StepDescription
from memtopo.plans.report import Placed, Row


def rows(steps: Sequence[Step]) -> Iterator[Row]:
    """The rows of some steps, neighbours that are alike in one."""
    for _, group in groupby(((step, step.describe()) for step in steps), key=_likeness):
        yield _row(list(group))


def placed(ranges: Mapping[str, Reservation]) -> Iterator[Placed]:
    """Where reservations are, by their labels; those of one entry that are equally far apart in one."""
    run: Placed | None = None
    for label, (address, _) in ranges.items():
        longer = run and _longer(run, label, address)
        if run and not longer:
            yield run
        run = longer or Placed(label, label, 1, address, 0)
    if run:
        yield run


def _longer(run: Placed, label: str, address: int) -> Placed | None:
    """The run with one more, if that goes on with it."""
    entry, _, number = run.last.partition(".")
    step = address - run.address if run.count == 1 else run.step
    if not number or label != f"{entry}.{int(number) + 1}" or address != run.address + run.count * step:
        return None
    return replace(run, last=label, count=run.count + 1, step=step)


def _likeness(item: tuple[Step, StepDescription]) -> tuple[object, ...]:
    step, reading = item
    return step.call, reading.like, reading.bytes_each, reading.note


def _row(like: list[tuple[Step, StepDescription]]) -> Row:
    step, first = like[0]
    return Row(
        phase=step.phase,
        verb=step.verb,
        call=step.call,
        first=first.subject,
        last=like[-1][1].subject,
        calls=len(like),
        bytes_each=first.bytes_each,
        where=tuple(dict.fromkeys(reading.where for _, reading in like if reading.where)),
        path=step.path,
        note=first.note,
    )
