"""Folding of plans: similar steps as one row, equal processes as one, and evenly spaced ranges as one entry.

For output alone, processes that are alike are one as well, in plans and in drawings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from memtopo.common.text import numbered
from memtopo.geometry.diagram import Diagram, HandleFlow, ProcessDiagram
from memtopo.kinds.layout import Reservation
from memtopo.kinds.step import Phase, Step, StepDescription
from memtopo.plans.report import Placed, ProcessDifference, ProcessPlan, Row

P = TypeVar("P", ProcessPlan, ProcessDifference)
T = TypeVar("T", ProcessDiagram, "Alike")
S = TypeVar("S")

OWN = "its GPU"
"""Words in place of the GPU that differs from process to process."""
_OWN = re.compile(r"(\bgpu[0-9]+\b|(?<=[^\W\d]\.)[0-9]+\b)")
"""What may differ between processes that are alike: a GPU, or the number of a label."""
_PAIR = 2


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
    return _merged(single, _continued)


class Alike(NamedTuple):
    """One plan for processes that are alike, with a text below each row, and the GPU of each process if they differ.

    Its rows have `OWN` in place of these GPUs, and words in place of numbers: `own`, `next` (that of the next process
    of the entry by number, and of the first one for the last), `previous`, `+2`.
    """

    plan: ProcessPlan
    below: Sequence[str]
    gpus: Sequence[str] = ()


def alike(plans: Iterable[ProcessPlan], below: Mapping[str, Sequence[str]], *, every: bool = False) -> Iterator[Alike]:
    """Plans of processes, one for those of an entry that differ by nothing but their numbers and one GPU of each.

    `below` has the texts below the rows of a process by its first label. Rows of what a process imports from each
    process of an entry are one. With `every`, the plans are as they are.
    """
    if every:
        yield from (Alike(each, below.get(each.first, ())) for each in plans)
        return
    found = [*plans]
    totals = _totals(found)
    merged = (_of_siblings(each, below.get(each.first, ()), totals) for each in found)
    for run, words in _runs(merged, totals, lambda each: each.plan, _text):
        members = [each.plan for each in run]
        rows = tuple(_one_row(each, words) for each in zip(*(each.rows for each in members), strict=True))
        notes = tuple(_in_words(each, words) for each in zip(*(each.notes for each in members), strict=True))
        count = sum(each.count for each in members)
        plan = replace(members[0], last=members[-1].last, count=count, rows=rows, notes=notes)
        yield Alike(plan, run[0].below, next((gpus for gpus, word in words.items() if word == OWN), ()))


def picture(whole: Diagram, *, every: bool = False) -> Diagram:
    """Diagram with the first one of processes that are alike, in place of all of them; with `every`, as it is."""
    if every:
        return whole
    firsts, shown, flows = dict[str, str](), list[ProcessDiagram](), Counter[HandleFlow]()
    totals = _totals(whole.processes)
    runs = _runs(whole.processes, totals, lambda each: each, lambda each: repr(replace(each.picture, memory=())))
    for run, _ in runs:
        first, count = run[0], sum(each.count for each in run)
        firsts |= {each.first: first.first for each in run}
        both = replace(first, last=run[-1].last, count=count, step=1, alike=True)
        shown.append(first if len(run) == 1 else both)
    for flow in whole.flows:
        if firsts.get(flow.target, flow.target) == flow.target:
            flows[replace(flow, source=firsts.get(flow.source, flow.source), processes=0)] += flow.processes
    return replace(
        whole,
        processes=tuple(shown),
        flows=tuple(replace(flow, processes=processes) for flow, processes in flows.items()),
    )


def placed(ranges: Mapping[str, Reservation]) -> Iterator[Placed]:
    """Addresses of reservations by label; evenly spaced reservations of one entry are merged."""
    single = (Placed(label, label, 1, address, 0) for label, (address, _) in ranges.items())
    return _merged(single, _extended)


def _merged(items: Iterable[S], joined: Callable[[S, S], S | None]) -> Iterator[S]:
    """Items in order, with neighbours as one where `joined` makes one of the latest and the next."""
    latest: S | None = None
    for each in items:
        both = joined(latest, each) if latest else None
        if latest and not both:
            yield latest
        latest = both or each
    if latest:
        yield latest


def _totals(every: Iterable[ProcessPlan | ProcessDiagram]) -> Counter[str]:
    """Numbers of the processes of each entry."""
    totals = Counter[str]()
    for each in every:
        totals[each.first.partition(".")[0]] += each.count
    return totals


def _runs(
    every: Iterable[T],
    totals: Mapping[str, int],
    process: Callable[[T], ProcessPlan | ProcessDiagram],
    text: Callable[[T], str],
) -> Iterator[tuple[Sequence[T], Mapping[tuple[str, ...], str]]]:
    """Neighbours that are alike by their texts, with the words for what differs between them."""

    def shape(item: tuple[T, Sequence[str]]) -> tuple[object, ...]:
        found = process(item[0])
        return found.first.partition(".")[0], found.node, item[1][::2]

    for (entry, *_), group in groupby(((each, _OWN.split(text(each))) for each in every), key=shape):
        run, texts = zip(*group, strict=True)
        numbers = [numbered(process(each).first)[1] or 0 for each in run]
        if (words := _words(numbers, totals[str(entry)], [each[1::2] for each in texts])) is None:
            yield from (([each], {}) for each in run)
        else:
            yield run, words


def _words(own: Sequence[int], total: int, found: Sequence[Sequence[str]]) -> Mapping[tuple[str, ...], str] | None:
    """Words for the numbers and GPUs that differ, by those of each process; None if they differ otherwise.

    `own` are the numbers of the processes, of `total` in the entry.
    """
    differing = {each: None for each in zip(*found, strict=True) if len({*each}) > 1}
    gpus = next((each for each in differing if each[0].startswith("gpu")), ())
    words = dict[tuple[str, ...], str]()
    for each in differing:
        if each[0].startswith("gpu"):
            turn = gpus.index(each[0]) if each[0] in gpus else 0
            if gpus[turn:] + gpus[:turn] != each:
                return None
            words[each] = f"GPU of {_distance(turn, len(gpus))}" if turn else OWN
        else:
            turn = (int(each[0]) - own[0]) % total
            if any((number + turn) % total != int(other) for number, other in zip(own, each, strict=True)):
                return None
            words[each] = _distance(turn, total)
    return words


def _distance(turn: int, total: int) -> str:
    """Word for another process in a ring of some processes."""
    return {0: "own", 1: "next" if total > _PAIR else "other", total - 1: "previous"}.get(turn, f"+{turn}")


def _in_words(texts: Sequence[str], words: Mapping[tuple[str, ...], str]) -> str:
    """Text that several processes have in common, with words for what differs."""
    parts = zip(*map(_OWN.split, texts), strict=True)
    return "".join(words.get(each, each[0]) for each in parts)


def _one_row(every: Sequence[Row], words: Mapping[tuple[str, ...], str]) -> Row:
    first, last, note = (
        _in_words([getattr(each, name) for each in every], words) for name in ("first", "last", "note")
    )
    where = tuple(_in_words(each, words) for each in zip(*(each.where for each in every), strict=True))
    return replace(every[0], first=first, last=last, where=where, note=note)


def _text(each: Alike) -> str:
    rows = ((row.phase, row.verb, row.call, row.calls, row.bytes_each) for row in each.plan.rows)
    words = ((row.first, row.last, row.note, *row.where) for row in each.plan.rows)
    return repr((*rows, *words, each.plan.notes, each.below))


def _of_siblings(plan: ProcessPlan, below: Sequence[str], totals: Mapping[str, int]) -> Alike:
    """Plan with one row for what is imported from each process of an entry, after that of the process's own."""
    counts = Counter(numbered(row.first)[0] for row in plan.rows if row.phase == Phase.IMPORT)
    same: dict[tuple[object, ...], list[tuple[Row, str]]] = {}
    for index, row in enumerate(plan.rows):
        entry, where = numbered(row.first)[0], tuple(_OWN.sub("*", each) for each in row.where)
        only = row.verb, row.bytes_each, row.note, where
        of_all = row.phase == Phase.IMPORT and counts[entry] == totals.get(_source(row), counts[entry])
        key = (entry, bool(row.calls), *only) if of_all else (index,)
        same.setdefault(key, []).append((row, below[index] if below else ""))
    first = {key[0]: at for at, key in reversed([*enumerate(same)])}
    ordered = sorted(same, key=lambda key: (first[key[0]], len(key) > 1 and key[1]))
    found = [(_joined([row for row, _ in same[key]]), same[key][0][1]) for key in ordered]
    return Alike(replace(plan, rows=tuple(row for row, _ in found)), [text for _, text in found if below])


def _source(row: Row) -> str:
    """Entry of the process that a row of an import names first."""
    return row.where[0].partition(".")[0] if row.where else ""


def _joined(rows: Sequence[Row]) -> Row:
    first, *more = rows
    if not more:
        return first
    name, where = f"{numbered(first.first)[0]}.*", tuple(_OWN.sub("*", each) for each in first.where)
    return replace(first, first=name, last=name, calls=sum(each.calls for each in rows), where=where)


def _continued(last: P, new: P) -> P | None:
    """Processes with one more that is equal to them, or None if it is not, or of another entry."""
    if new.first.partition(".")[0] != last.first.partition(".")[0]:
        return None
    equal = last == replace(new, first=last.first, last=last.last, count=last.count)
    return replace(last, last=new.last, count=last.count + 1) if equal else None


def _extended(series: Placed, new: Placed) -> Placed | None:
    """Series with one more reservation, or None if the reservation does not continue it."""
    entry, number = numbered(series.last)
    step = new.address - series.address if series.count == 1 else series.step
    in_step = new.address == series.address + series.count * step
    if number is None or numbered(new.last) != (entry, number + 1) or not in_step:
        return None
    return replace(series, last=new.last, count=series.count + 1, step=step)


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
