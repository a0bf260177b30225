"""Processes of one entry that do the same steps, each on a GPU of its own, as one in text output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from memtopo.output import humanize
from memtopo.plans.report import ProcessPlan, Row

OWN = "its GPU"
"""Words in place of the GPU that differs from process to process."""

_GPU = re.compile(r"(\bgpu[0-9]+\b)")
_LISTED = 4


class Alike(NamedTuple):
    """Consecutive processes under one title; the `shown` one has the label of the first, and the steps of each."""

    title: str
    shown: ProcessPlan


def folded(processes: Iterable[ProcessPlan], below: Mapping[str, Sequence[str]]) -> Iterator[Alike]:
    """Fold processes whose rows, with the texts `below` them, differ by nothing but one GPU of each process."""
    for _, group in groupby(processes, key=lambda each: (each.first.partition(".")[0], each.node)):
        run: list[_Steps] = []
        for each in group:
            steps = _Steps.of(each, below)
            if run and _own_gpus([*run, steps]) is None:
                yield _alike(run)
                run = []
            run.append(steps)
        yield _alike(run)


class _Steps(NamedTuple):
    """Steps of a process as text: without the GPUs in it, and these."""

    process: ProcessPlan
    text: str
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, process: ProcessPlan, below: Mapping[str, Sequence[str]]) -> _Steps:
        text = "\n".join(_texts(process, below))
        return cls(process, _GPU.sub("", text), tuple(_GPU.findall(text)))


def _texts(process: ProcessPlan, below: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for row in process.rows:
        yield f"{row.phase} {row.verb} {row.call} {row.calls} {row.bytes_each}"
        yield from (row.first, row.last, row.note, "\t".join(row.where))
    yield from (*process.notes, *below.get(process.first, ()))


def _own_gpus(run: Sequence[_Steps]) -> tuple[str, ...] | None:
    """GPU of each process, by which alone they differ; None if they differ otherwise, and empty if they do not."""
    if run[-1].text != run[0].text:
        return None
    differing = {column for column in zip(*(each.gpus for each in run), strict=True) if len(set(column)) > 1}
    return None if len(differing) > 1 else next(iter(differing), ())


def _alike(run: Sequence[_Steps]) -> Alike:
    every, gpus = [each.process for each in run], _own_gpus(run)
    first = every[0]
    if len(every) == 1:
        return Alike(humanize.processes(first), first)
    together = replace(first, last=every[-1].last, count=sum(each.count for each in every))
    rows = tuple(_row(*each) for each in zip(*(process.rows for process in every), strict=True))
    notes = tuple(map(_merged, zip(*(process.notes for process in every), strict=True)))
    own = f" on {OWN}: {_listed(list(dict.fromkeys(gpus)))}" if gpus else ""
    return Alike(f"{humanize.processes(together)}{own}", replace(together, rows=rows, notes=notes))


def _row(first: Row, *others: Row) -> Row:
    """One row for those of all processes."""
    every = (first, *others)
    return replace(
        first,
        first=_merged([each.first for each in every]),
        last=_merged([each.last for each in every]),
        where=tuple(map(_merged, zip(*(each.where for each in every), strict=True))),
        note=_merged([each.note for each in every]),
    )


def _merged(texts: Sequence[str]) -> str:
    """Text that several have in common, with `OWN` where their GPUs differ."""
    columns = zip(*map(_GPU.split, texts), strict=True)
    return "".join(each[0] if len(set(each)) == 1 else OWN for each in columns)


def _listed(gpus: Sequence[str]) -> str:
    numbers = [int(each.removeprefix("gpu")) for each in gpus]
    if len(gpus) > _LISTED and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{gpus[0]} … {gpus[-1]}"
    return ", ".join(gpus)
