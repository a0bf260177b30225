"""Budgets as pages: memory by layout and state, combinations of states, and switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from memtopo.common.text import plural
from memtopo.common.units import rounded
from memtopo.language.names import AWAKE
from memtopo.output import humanize
from memtopo.output.blocks import Cell, Page, Section, Table, Toned, columns, notes
from memtopo.session.budget import Budget, Combination, SwitchPeak

MOST_ROWS = 64
"""Rows of combinations, and of switches, that a page has."""

_FEW = 24
"""Combinations that a page lists all."""


def page(budget: Budget) -> Page:
    """The output of `memtopo budget`."""
    sections = [Section("memory by layout", [_memory(budget)]), Section("states together", [_together(budget)])]
    if budget.elastic:
        sections.append(Section("elastic memory while all are awake", [_elastic(budget)]))
    if budget.switches:
        sections.append(Section("peaks of switches, without contexts", [_switches(budget)]))
    where = f"on {humanize.machine(budget.machine)}"
    title = plural(len(budget.layouts), "layout")
    return Page("budget", title, where, sections=[*sections, *notes(_notes(budget))], verdict=_verdict(budget))


def _memory(budget: Budget) -> Table:
    rows: list[Sequence[Cell]] = [("the machine", "", *(rounded(size) for size in budget.memory.values()))]
    for layout in budget.layouts:
        contexts = ("contexts", layout.contexts), *layout.states.items()
        names = [layout.name, *[""] * len(layout.states)]
        rows += [
            (name, state, *(rounded(each[at]) if each.get(at) else "" for at in budget.memory))
            for name, (state, each) in zip(names, contexts, strict=True)
        ]
    return Table(columns("layout", "state", *(f">{at}" for at in budget.memory)), rows)


def _together(budget: Budget) -> Table:
    """A row for each combination, with its memory and what is too much; of many, the few that fit or do not."""
    first, *others = budget.combinations
    lacking, fitting = ([each for each in others if bool(each.shortfalls) is lacks] for lacks in (True, False))
    fewer = lacking if len(lacking) <= len(fitting) else fitting
    word = "the others fit" if fewer is lacking else "the others do not fit"
    if len(others) < _FEW:
        fewer, word = others, ""
    shown = [first, *fewer][:MOST_ROWS]
    rows = [(_states(each), *(rounded(each.memory[at]) for at in budget.memory), _missing(each)) for each in shown]
    heading = columns("not awake", *(f">{at}" for at in budget.memory), "")
    return Table(heading, rows, more=len(budget.combinations) - len(shown), note=word)


def _elastic(budget: Budget) -> Table:
    """A row for each location: what is needed at min, what remains for the layouts to share, and the worst case."""
    rows: list[Sequence[Cell]] = []
    for each in budget.elastic:
        shared = rounded(each.shared) if each.least <= each.has else f"{rounded(each.least - each.has)} too much"
        over = each.most - each.has
        worst = Toned(f"{rounded(over)} too much", "bad") if over > 0 else Toned("fits", "good")
        rows.append((each.location, rounded(each.has), rounded(each.least), shared, rounded(each.most), worst))
    return Table(columns("", ">has", ">at min", ">to share", ">at max", ""), rows)


def _states(found: Combination) -> str:
    """States of the layouts that are not awake."""
    asleep = [f"{name} {state}" for name, state in found.states.items() if state != AWAKE]
    return ", ".join(asleep) or "none"


def _missing(found: Combination) -> Cell:
    over = ", ".join(f"{rounded(each.lacks)} too much on {each.location}" for each in found.shortfalls)
    return Toned(over, "bad") if over else Toned("fits", "good")


def _switches(budget: Budget) -> Table:
    """Rows of switches, with the peaks, and the states of the others beside which they fit; equal ones are one."""
    rows: list[Sequence[Cell]] = []
    for (layout, before, cells), each in groupby(budget.switches, lambda each: _switch(each, budget)):
        rows.append((layout, f"{before} → {', '.join(switch.after for switch in each)}", *cells))
    heading = columns("layout", "switch", *(f">{at}" for at in budget.memory), "fits beside")
    return Table(heading, rows).cut(MOST_ROWS)


def _switch(each: SwitchPeak, budget: Budget) -> tuple[str, str, tuple[Cell, ...]]:
    return each.layout, each.before, (*(rounded(each.memory[at].peak) for at in budget.memory), _beside(each))


def _beside(switch: SwitchPeak) -> Cell:
    fitting, number = len(switch.fitting), len(switch.beside)
    if fitting == number:
        return Toned("all states" if any(each.states for each in switch.beside) else "alone", "good")
    if fitting:
        return f"{fitting:,} of {number:,} states"
    least = min((each.lacks for each in switch.beside), key=lambda lacks: max(lacks.values()))
    return Toned(f"none: {_sizes(least)} too much", "bad")


def _sizes(lacks: Mapping[str, int]) -> str:
    return ", ".join(f"{rounded(size)} on {at}" for at, size in lacks.items())


def _notes(budget: Budget) -> Iterator[str]:
    yield f"a context takes {rounded(budget.context)} for each process and GPU; --context declares another size"
    yield from budget.notes
    if not budget.fitting:
        states = ", ".join(f"{name} {state}" for name, state in budget.closest.states.items())
        over = {each.location: each.lacks for each in budget.closest.shortfalls}
        yield f"least is missing with {states}: {_sizes(over)}"
    if not budget.complete:
        yield "there are too many combinations of states: these have at most one layout that is not awake"


def _verdict(budget: Budget) -> Toned:
    number, fitting = len(budget.combinations), len(budget.fitting)
    counted = f"{fitting:,} of {plural(number, 'combination')} of states"
    if budget.fits and fitting == number:
        return Toned("ok: they fit together in every state" if number > 1 else "ok: they fit together", "good")
    if budget.fits:
        return Toned(f"ok: they fit together while all are awake; {counted} fit", "good")
    if fitting:
        return Toned(f"not all can be awake together; {counted} fit", "bad")
    return Toned("they do not fit together in any combination of states", "bad")
