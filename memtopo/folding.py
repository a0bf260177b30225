"""Plans folded for whoever reads them: like steps in one row, like processes told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from memtopo.report import Row
from memtopo.steps import Reading, Step


def rows(steps: Sequence[Step]) -> Iterator[Row]:
    """The rows of some steps, neighbours that are alike in one."""
    for _, group in groupby(((step, step.reading()) for step in steps), key=_likeness):
        yield _row(list(group))


def _likeness(item: tuple[Step, Reading]) -> tuple[object, ...]:
    step, reading = item
    return step.call, reading.like, reading.bytes_each, reading.note


def _row(like: list[tuple[Step, Reading]]) -> Row:
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
