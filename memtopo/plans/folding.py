"""Folding of plans: similar steps as one row, equal processes as one, and evenly spaced ranges as one entry.

For output alone, processes that are alike are one as well, in plans and in drawings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.text import numbered
from memtopo.geometry.diagram import Diagram, HandleFlow, ProcessDiagram
from memtopo.kinds.layout import Reservation
from memtopo.kinds.runs import StepRun
from memtopo.kinds.step import Phase, Step, StepDescription
from memtopo.plans.report import Placed, ProcessDifference, ProcessPlan, Row

P = TypeVar("P", ProcessPlan, ProcessDifference)
T = TypeVar("T", ProcessDiagram, "Alike")
S = TypeVar("S")

OWN = "its GPU"
"""Words in place of the GPU that differs from process to process."""
_OWN = re.compile(r"(\bgpu[0-9]+\b|(?<=[^\W\d]\.)[0-9]+\b)")
"""What may differ between processes that are alike: a GPU, or the number of a label."""
_NAME = r"([^\W\d]\w*)\.$"
_PAIR = 2


def rows(items: Iterable[Step | StepRun], *, undo: bool = False) -> Iterator[Row]:
    """Rows of steps, or of their undo; consecutive similar steps are one row."""
    for _, group in groupby(_described(items), key=_similarity):
        step, row = _row(group)
        yield replace(row, verb=step.undoing.verb, call=step.undoing.call) if undo else row


def firsts(items: Iterable[Step | StepRun]) -> Iterator[int]:
    """Index of the first single step of each row."""
    for _, group in groupby(_described(items), key=_similarity):
        yield next(iter(group)).number


def processes(single: Iterable[P]) -> Iterator[P]:
    """Processes with consecutive equal ones of one counted process as one."""
    return _merged(single, _continued)


class Alike(Struct, frozen=True):
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
    counts = _Counts.of(found)
    merged = (_of_siblings(each, below.get(each.first, ()), counts) for each in found)
    for run, words in _runs(merged, counts, lambda each: each.plan, _text):
        members = [each.plan for each in run]
        rows = tuple(_one_row(each, words) for each in zip(*(each.rows for each in members), strict=True))
        notes = tuple(_in_words(each, words) for each in zip(*(each.notes for each in members), strict=True))
        count = sum(each.count for each in members)
        plan = replace(members[0], last=members[-1].last, count=count, rows=rows, notes=notes)
        yield Alike(plan, run[0].below, next((gpus for (_, gpus), word in words.items() if word == OWN), ()))


def picture(whole: Diagram, *, every: bool = False) -> Diagram:
    """Diagram with the first one of processes that are alike, in place of all of them; with `every`, as it is."""
    if every:
        return whole
    firsts, shown, flows = dict[str, str](), list[ProcessDiagram](), Counter[HandleFlow]()
    counts = _Counts.of(whole.processes)
    runs = _runs(whole.processes, counts, lambda each: each, lambda each: repr(replace(each.picture, memory=())))
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


class _Counts(Struct, frozen=True):
    """Numbers of processes: of each entry, and of each entry on each node."""

    entries: Mapping[str, int]
    nodes: Mapping[tuple[str, str | None], int]

    @classmethod
    def of(cls, every: Iterable[ProcessPlan | ProcessDiagram]) -> _Counts:
        """Count processes."""
        entries, nodes = Counter[str](), Counter[tuple[str, str | None]]()
        for each in every:
            entries[_entry(each)] += each.count
            nodes[_entry(each), each.node] += each.count
        return cls(entries, nodes)


_Words = Mapping[tuple[str, tuple[str, ...]], str]
"""Words for what differs between processes, by the name in front of it and by what each process has there."""


def _entry(process: ProcessPlan | ProcessDiagram) -> str:
    return process.first.partition(".")[0]


def _runs(
    every: Iterable[T], counts: _Counts, process: Callable[[T], ProcessPlan | ProcessDiagram], text: Callable[[T], str]
) -> Iterator[tuple[Sequence[T], _Words]]:
    """Neighbours that are alike by their texts, with the words for what differs between them."""

    def shape(item: tuple[T, Sequence[str]]) -> tuple[object, ...]:
        found = process(item[0])
        return _entry(found), found.node, item[1][::2]

    for _, group in groupby(((each, _OWN.split(text(each))) for each in every), key=shape):
        run, texts = zip(*group, strict=True)
        numbers = [numbered(process(each).first)[1] or 0 for each in run]
        if (words := _words(numbers, _entry(process(run[0])), counts.entries, texts)) is None:
            yield from (([each], {}) for each in run)
        else:
            yield run, words


def _words(own: Sequence[int], entry: str, totals: Mapping[str, int], texts: Sequence[Sequence[str]]) -> _Words | None:
    """Words for the numbers and GPUs that differ between the `own` processes of an entry; None for other differences.

    Numbers of processes are those of the entry; others, as those of imports, may be those of the node, too.
    """
    columns = dict.fromkeys(each for each in _columns(texts) if len({*each[1]}) > 1)
    gpus = next((column for _, column in columns if column[0].startswith("gpu")), ())
    words = dict[tuple[str, tuple[str, ...]], str]()
    for name, column in columns:
        if column[0].startswith("gpu"):
            turn = gpus.index(column[0]) if column[0] in gpus else 0
            if gpus[turn:] + gpus[:turn] != column:
                return None
            words[name, column] = f"GPU of {_distance(turn, len(gpus))}" if turn else OWN
            continue
        on_node = [each - own[0] for each in own]
        if name not in totals and [*map(int, column)] == on_node:
            words[name, column] = _distance(0, len(own))
        elif (distance := _turn(own, column, totals[entry])) is not None:
            words[name, column] = _distance(distance, totals[entry])
        else:
            return None
    return words


def _columns(texts: Sequence[Sequence[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the texts at each place where they may differ, with the name in front of it."""
    parts = [*zip(*texts, strict=True)]
    for before, column in zip(parts[::2], parts[1::2], strict=False):
        yield match[1] if (match := re.search(_NAME, before[0])) else "", column


def _turn(own: Sequence[int], column: Sequence[str], total: int) -> int | None:
    """Distance, in a ring of some processes, from each process to its number in a column; None if they differ."""
    turns = {(int(other) - number) % total for number, other in zip(own, column, strict=True)}
    return turns.pop() if len(turns) == 1 and max(map(int, column)) < total else None


def _distance(turn: int, total: int) -> str:
    """Word for a process at a distance in a ring."""
    return {total - 1: "previous", 1: "next" if total > _PAIR else "other", 0: "own"}.get(turn, f"+{turn}")


def _in_words(texts: Sequence[str], words: _Words) -> str:
    """Text that several processes have in common, with words for what differs."""
    split = [_OWN.split(each) for each in texts]
    shown = [*split[0]]
    for number, (name, column) in enumerate(_columns(split)):
        shown[2 * number + 1] = words.get((name, column), column[0])
    return "".join(shown)


def _one_row(every: Sequence[Row], words: _Words) -> Row:
    first, last, note = (
        _in_words([getattr(each, name) for each in every], words) for name in ("first", "last", "note")
    )
    where = tuple(_in_words(each, words) for each in zip(*(each.where for each in every), strict=True))
    return replace(every[0], first=first, last=last, where=where, note=note)


def _text(each: Alike) -> str:
    rows = ((row.phase, row.verb, row.call, row.calls, row.bytes_each) for row in each.plan.rows)
    words = ((row.first, row.last, row.note, *row.where) for row in each.plan.rows)
    return repr((*rows, *words, each.plan.notes, each.below))


def _of_siblings(plan: ProcessPlan, below: Sequence[str], counts: _Counts) -> Alike:
    """Plan with one row for what is imported from each process of an entry, after that of the process's own.

    Also for imports from each process of the entry on the node.
    """
    imported = Counter(numbered(row.first)[0] for row in plan.rows if row.phase == Phase.IMPORT)
    same: dict[tuple[object, ...], list[tuple[Row, str]]] = {}
    for index, row in enumerate(plan.rows):
        entry, where = numbered(row.first)[0], tuple(_OWN.sub("*", each) for each in row.where)
        only = row.verb, row.bytes_each, row.note, where
        source, number = (row.where[0].partition(".")[0] if row.where else ""), imported[entry]
        whole = (counts.entries.get(source, number), counts.nodes.get((source, plan.node)))
        of_all = row.phase == Phase.IMPORT and number in whole
        key = (entry, bool(row.calls), *only) if of_all else (index,)
        same.setdefault(key, []).append((row, below[index] if below else ""))
    first = {key[0]: at for at, key in reversed([*enumerate(same)])}
    ordered = sorted(same, key=lambda key: (first[key[0]], len(key) > 1 and key[1]))
    found = [(_joined([row for row, _ in same[key]]), same[key][0][1]) for key in ordered]
    return Alike(replace(plan, rows=tuple(row for row, _ in found)), [text for _, text in found if below])


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


class _Described(NamedTuple):
    """Step with its description, the calls that it stands for, and its number in the plan."""

    step: Step
    description: StepDescription
    calls: int
    number: int


def _described(items: Iterable[Step | StepRun]) -> Iterator[_Described]:
    """Describe steps; of a run, those in which all occurs that its row shows."""
    index = 0
    for item in items:
        if not isinstance(item, StepRun):
            yield _Described(item, item.describe(), item.calls, index)
            index += 1
            continue
        *firsts, last = *item[: min(item.period, len(item) - 1)], item[-1]
        for number, step in enumerate(firsts):
            yield _Described(step, step.describe(), step.calls, index + number)
        yield _Described(last, last.describe(), last.calls * (len(item) - len(firsts)), index + len(firsts))
        index += len(item)


def _similarity(item: _Described) -> tuple[object, ...]:
    step, description, *_ = item
    return step.call, description.like, description.bytes_each, description.note


def _row(similar: Iterator[_Described]) -> tuple[Step, Row]:
    """First of some similar steps, and the row of all of them."""
    step, first, calls, _ = next(similar)
    last, where = first, {first.where: None}
    for _, last, more, _ in similar:
        calls += more
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
