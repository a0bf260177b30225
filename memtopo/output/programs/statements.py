"""Statements of a program: calls and exchanges in order, with runs of equal ones as loops.

Calls are equal if they are of the same function and of objects of the same entries. What differs between them (numbers
of objects, offsets, locations) becomes an expression of the loop's variable: linear, a cycle, or a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from memtopo.common.text import numbered
from memtopo.driver.functions import function
from memtopo.plans.calls import Exchange, NamedCall, Object, ObjectAddress

LEAST = 3
"""Repetitions from which on a loop is shorter."""
_LONGEST_BODY = 8
_LONGEST_CYCLE = 16


class Variable(Struct, frozen=True):
    """Objects of one entry: `page` of chunks; `count` of them if they are numbered, else 0."""

    kind: str
    entry: str
    count: int


class Linear(Struct, frozen=True):
    """`base + step * i`; with `every`, `base + step * (i % every) + outer * (i / every)`."""

    base: int
    step: int
    every: int = 0
    outer: int = 0


class Cycle(Struct, frozen=True):
    """Value number `i % n` of n values."""

    values: tuple[Any, ...]


class Listed(Struct, frozen=True):
    """Value number `i - first` of a list."""

    values: tuple[Any, ...]
    first: int


class Operand(Struct, frozen=True):
    """Object of an entry: the only one, or that of a number. As an address it has an `offset`."""

    kind: str
    entry: str
    number: Any = None
    offset: Any = None


class Call(Struct, frozen=True):
    """One call; `made` is what it makes. In a loop, values may be expressions."""

    method: str
    made: Operand | None
    arguments: tuple[tuple[str, Any], ...]


class Pass(Struct, frozen=True):
    """Exchange with another process, or the end of a handle: `close` for a received one, `discard` for a test."""

    action: str
    peer: str = ""


class Loop(Struct, frozen=True):
    """Statements for `i` from `first` to `last`, downwards if `last` is lower."""

    first: int
    last: int
    body: tuple[Call | Pass, ...]


Statement = Call | Pass | Loop
_Turn = Sequence[Call | Pass]


class PhaseBody(Struct, frozen=True):
    """Statements of one phase."""

    phase: str
    undo: bool
    statements: tuple[Statement, ...]


def sections(calls: Sequence[NamedCall | Exchange]) -> Iterator[PhaseBody]:
    """Statements by phase, those of the teardown last."""
    flat = list(_with_ends(calls))
    for (phase, undo), group in groupby(flat, key=lambda each: each[0]):
        yield PhaseBody(phase, undo, tuple(_looped([each for _, each in group])))


def variables(calls: Sequence[NamedCall | Exchange]) -> list[Variable]:
    """Objects that the calls make and that last, by entry, in order."""
    counts: dict[tuple[str, str], int] = {}
    for call in calls:
        if isinstance(call, NamedCall) and call.made and call.made.kind not in ("shared", "secret"):
            found = _reference(call.made)
            key = found.kind, found.entry
            counts[key] = max(counts.get(key, 0), 0 if found.number is None else found.number + 1)
    return [Variable(*key, count) for key, count in counts.items()]


def _with_ends(calls: Sequence[NamedCall | Exchange]) -> Iterator[tuple[tuple[str, bool], Call | Pass]]:
    """Calls and exchanges by phase, with the ends of shareable handles."""
    received = tested = False
    actions = {each.action for each in calls if isinstance(each, Exchange)}
    idle = {end for end, action in (("leave", "receive"), ("await", "send")) if action not in actions}
    for index, each in enumerate(calls):
        where = each.phase, each.phase == "take down"
        if isinstance(each, Exchange):
            if each.action in idle:  # of a process that exchanges handles with itself alone
                continue
            yield where, Pass(each.action, each.peer)  # what is sent ends with that
            received = each.action == "receive"
            continue
        made = _reference(each.made) if each.made else None
        yield where, Call(each.method, made, tuple(_arguments(each)))
        tested |= each.is_test
        if (received or tested) and _ends_step(calls, index):
            yield where, Pass("discard" if tested else "close")
            received = tested = False


def _ends_step(calls: Sequence[NamedCall | Exchange], index: int) -> bool:
    step, after = calls[index], calls[index + 1 : index + 2]
    assert isinstance(step, NamedCall)
    if not after or isinstance(after[0], Exchange):
        return True
    return (after[0].verb, after[0].subject, after[0].undo) != (step.verb, step.subject, step.undo)


def _arguments(call: NamedCall) -> Iterator[tuple[str, Any]]:
    for name, value in call.arguments:
        match value:
            case Object():
                yield name, _reference(value)
            case ObjectAddress(held, offset):
                found = _reference(held)
                yield name, Operand(found.kind, found.entry, found.number, offset)
            case _:
                yield name, value


def _reference(held: Object) -> Operand:
    return Operand(held.kind, *numbered(held.label))


def _shape(each: Call | Pass) -> Hashable:
    """Return the parts of a call that are equal in all calls of a loop."""
    if isinstance(each, Pass):
        return each
    made = (each.made.kind, each.made.entry, each.made.number is None) if each.made else None
    return each.method, made, tuple(_argument_shape(value) for _, value in each.arguments)


def _argument_shape(value: Any) -> Hashable:
    if isinstance(value, Operand):
        return value.kind, value.entry, value.number is None, value.offset is None
    return (tuple, len(value)) if type(value) is tuple else (type(value), 0)


def _looped(flat: Sequence[Call | Pass]) -> Iterator[Statement]:
    shapes = [_shape(each) for each in flat]
    at = 0
    while at < len(flat):
        length, times = _repeated(shapes, at)
        if times < LEAST:
            yield flat[at]
            at += 1
            continue
        turns = [flat[at + turn * length : at + (turn + 1) * length] for turn in range(times)]
        for part in _divided(turns):
            yield from [_loop(part)] if len(part) >= LEAST else [each for turn in part for each in turn]
        at += length * times


def _repeated(shapes: Sequence[Hashable], at: int) -> tuple[int, int]:
    """Length of the shortest body that repeats from here on, and how often it does."""
    for length in range(1, _LONGEST_BODY + 1):
        body, times = shapes[at : at + length], 1
        while shapes[at + times * length : at + (times + 1) * length] == body:
            times += 1
        if times >= LEAST and len(body) == length:
            return length, times
    return 1, 1


def _divided(turns: Sequence[_Turn]) -> list[Sequence[_Turn]]:
    """Parts of a run of equal statements that need no tables, if these are few and long; else the whole run."""
    if not _has_table(_loop(turns)):
        return [turns]
    columns = list(zip(*map(_integers, turns), strict=True))
    parts, first = [], 0
    while first < len(turns):
        end = min((_end_of_progression(column, first) for column in columns), default=len(turns))
        parts.append(turns[first:end])
        first = end
    return parts if LEAST * len(parts) <= len(turns) else [turns]


def _integers(turn: _Turn) -> list[int]:
    """Numbers in the statements of a turn."""
    found: list[int] = []
    for each in turn:
        if isinstance(each, Call):
            for value in (each.made, *_values(each)):
                parts = (value.number, value.offset) if isinstance(value, Operand) else (value,)
                found += [part for part in parts if type(part) is int]
    return found


def _end_of_progression(values: Sequence[int], first: int) -> int:
    """Index behind the last value of an arithmetic progression that begins with the first."""
    end = first + 2
    while end < len(values) and values[end] - values[end - 1] == values[first + 1] - values[first]:
        end += 1
    return min(end, len(values))


def _has_table(loop: Loop) -> bool:
    values = [value for each in loop.body if isinstance(each, Call) for value in (each.made, *_values(each))]
    inner = [part for value in values if isinstance(value, Operand) for part in (value.number, value.offset)]
    return any(isinstance(each, Listed) for each in (*values, *inner))


def _loop(turns: Sequence[_Turn]) -> Loop:
    """One loop for equal statements; its variable is the number of the first object whose numbers are in sequence."""
    count = len(turns)
    at = list(range(count))
    for numbers in _numbers(turns):
        if numbers in (list(range(numbers[0], numbers[0] + count)), list(range(numbers[0], numbers[0] - count, -1))):
            at = numbers
            break
    else:
        if any(low < high for low, high in zip(_integers(turns[-1]), _integers(turns[0]), strict=True)):
            at.reverse()  # addresses that fall are read best if the variable does
    columns = zip(*turns, strict=True)
    return Loop(at[0], at[-1], tuple(_merged(at, column) for column in columns))


def _numbers(turns: Sequence[_Turn]) -> Iterator[list[int]]:
    for column in zip(*turns, strict=True):
        calls = [each for each in column if isinstance(each, Call)]
        for found in ([each.made for each in calls], *zip(*(_values(each) for each in calls), strict=True)):
            numbers = [each.number for each in found if isinstance(each, Operand) and each.number is not None]
            if len(numbers) == len(turns):
                yield numbers


def _values(call: Call) -> list[Any]:
    return [value for _, value in call.arguments]


def _merged(at: Sequence[int], column: Sequence[Call | Pass]) -> Call | Pass:
    first = column[0]
    if isinstance(first, Pass):
        return first
    calls = [each for each in column if isinstance(each, Call)]
    made = _expression(at, [each.made for each in calls])
    values = zip(*(_values(each) for each in calls), strict=True)
    names = function(first.method).arguments
    return Call(first.method, made, tuple(zip(names, (_expression(at, each) for each in values), strict=True)))


def _expression(at: Sequence[int], values: Sequence[Any]) -> Any:
    """A value, or an expression of the loop's variable, which has the values `at`."""
    first = values[0]
    if isinstance(first, Operand):
        number = None if first.number is None else _expression(at, [each.number for each in values])
        offset = None if first.offset is None else _expression(at, [each.offset for each in values])
        return Operand(first.kind, first.entry, number, offset)
    if all(each == first for each in values):
        return first
    ordered = [value for _, value in sorted(zip(at, values, strict=True), key=lambda pair: pair[0])]
    low = min(at)
    if type(first) is int:
        step = ordered[1] - ordered[0]
        end = _end_of_progression(ordered, 0)
        if end == len(ordered):
            return Linear(ordered[0] - step * low, step)
        outer = ordered[end] - ordered[0]
        pairs = (divmod(index, end) for index in range(len(ordered)))
        if low == 0 and ordered == [ordered[0] + outer * quotient + step * rest for quotient, rest in pairs]:
            return Linear(ordered[0], step, end, outer)
    for length in range(2, min(_LONGEST_CYCLE, len(ordered) // 2) + 1):
        if all(value == ordered[index % length] for index, value in enumerate(ordered)):
            return Cycle(tuple(ordered[(index - low) % length] for index in range(length)))
    return Listed(tuple(ordered), low)
