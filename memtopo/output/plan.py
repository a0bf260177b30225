"""Plans and differences of plans as pages: steps, layout and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import asdict, replace

from memtopo.common.text import first_of, plural
from memtopo.common.units import rounded
from memtopo.diagnostics.messages import LISTED
from memtopo.geometry.diagram import MemoryDiagram
from memtopo.kinds.step import Phase
from memtopo.machine import MachineLine
from memtopo.output import blocks, humanize
from memtopo.output.blocks import Addresses, Cell, Drawing, Page, Pairs, Section, Table, columns, notes, sections
from memtopo.output.diagram import notation
from memtopo.output.humanize import processes, subjects
from memtopo.plans import folding
from memtopo.plans.report import MemoryChange, PlanDifference, PlanSummary, ProcessPlan, Row
from memtopo.session.saved import AwaitedImporter

_ROOM = 16  # columns that remain for the last column of 80

Texts = Mapping[str, Sequence[str]]
"""Texts below the rows of a plan, such as their driver calls, by the label of the process."""


def page(
    summary: PlanSummary,
    machine: MachineLine,
    digest: str | None = None,
    calls: Texts | None = None,
    *,
    every: bool = False,
) -> Page:
    """The output of `memtopo plan`, with the digest of the spec, and the driver calls below each row."""
    # 79 columns, without an indent: it is to be copied.
    last = sections(f"digest  {digest}") if digest else []
    where = f"on {humanize.machine(machine)}"
    return Page("plan", summary.name, where, sections=[*body(summary, below=calls or {}, every=every), *last])


def body(
    summary: PlanSummary, addresses: Addresses | None = None, below: Texts | None = None, *, every: bool = False
) -> list[Section]:
    """A plan without its first line: rows with texts below them, drawing, memory, numbers of steps and notes.

    `addresses` are those of the ranges of an applied layout. Processes that are alike are one, unless `every` one is
    to be shown.
    """
    below, found = below or {}, list[Section]()
    for each in folding.alike(summary.processes, below, every=every):
        found += [Section(_title(each), [_table(each.plan.rows, each.below)]), *notes(each.plan.notes)]
    picture = summary.picture and folding.picture(summary.picture, every=every)
    found += sections(
        _table(summary.rows, below.get("", ())) if summary.rows else None,
        Drawing(picture, addresses=addresses or {}, every=every) if picture else None,
        Pairs([*humanize.parameters(summary.params), *_sums(summary)]),
    )
    states = [Section("memory by state", [_states(summary.states)])] if summary.states else []
    return [*found, *states, *notes(summary.notes)]


Calls = Mapping[tuple[str, str, bool], int]
"""Numbers of calls by the label of the process, the C function, and true for those that take down."""


def summary_page(summary: PlanSummary, machine: MachineLine, calls: Calls, *, every: bool = False) -> Page:
    """The output of `memtopo plan --summary`: memory and calls by process, memory by location, calls by function."""
    alike = [*folding.alike(summary.processes, {}, every=every)]
    rows = [_process(each, calls) for each in alike]
    memory = [_memory(summary, each) for each in (summary.picture.memory if summary.picture else ())]
    plans = [("", summary.rows), *((f" of {processes(each.plan)}", each.plan.rows) for each in alike)]
    made = [(row, of) for of, rows_ in plans for row in rows_ if row.phase in (Phase.CREATE, Phase.IMPORT)]
    named = [(row, f"{row.verb} {subjects(row.first, row.last)}{of}") for row, of in made]
    grows = [(name, f"{', '.join(row.where)} ({row.note})") for row, name in named if row.note and not row.calls]
    counts = Counter[tuple[str, bool]]()
    for (_, function, undo), number in calls.items():
        counts[function, undo] += number
    functions = sorted({function for function, _ in counts})
    by_function = [(name, f"{counts[name, False]:,}", f"{counts[name, True]:,}") for name in functions]
    shown = sections(
        Table(columns("process", ">calls", "memory"), rows) if rows else None,
        Table(columns("memory", ">at first", ">at most", ">of", "with"), memory),
        Pairs(grows) if grows else None,
        Table(columns("function", ">to build", ">to take down"), by_function),
        Pairs([*humanize.parameters(summary.params), *_sums(replace(summary, memory={}))]),
    )
    return Page("plan", summary.name, f"on {humanize.machine(machine)}", sections=shown)


def _process(each: folding.Alike, calls: Calls) -> tuple[str, ...]:
    """Processes that are alike, with the calls that build one of them, and its memory."""
    own = next(iter(each.gpus), "")
    memory = (f"{rounded(size)} on {folding.OWN if at == own else at}" for at, size in each.plan.memory.items())
    number = sum(number for (label, _, undo), number in calls.items() if label == each.plan.first and not undo)
    return _title(each), f"{number:,}", ", ".join(memory)


def _memory(summary: PlanSummary, each: MemoryDiagram) -> tuple[str, ...]:
    """A memory with its bytes at first and with all that a program may create, and the entries that take these."""
    sizes = ((share, notation.multiple(share.count, share.bytes_each)) for share in each.shares)
    names = [f"{share.label or share.chunk} {size}" for share, size in sizes]
    total = "" if each.total is None else rounded(each.total)
    return each.device, rounded(summary.memory.get(each.device, 0)), rounded(each.used), total, ", ".join(names)


def _title(each: folding.Alike) -> str:
    """Processes of a plan, with the GPUs that they are on if that is the difference between them."""
    own = f" on {folding.OWN}: {_listed([*dict.fromkeys(each.gpus)])}" if each.gpus else ""
    return f"{processes(each.plan)}{own}"


def _states(states: Mapping[str, Mapping[str, int]]) -> Table:
    """Memory of each state by location."""
    locations = list(dict.fromkeys(location for memory in states.values() for location in memory))
    rows = [(name, *(rounded(memory.get(at, 0)) for at in locations)) for name, memory in states.items()]
    return Table(columns("state", *(f">{location}" for location in locations)), rows)


def _table(rows: Sequence[Row], below: Sequence[str] = ()) -> Table:
    cells, before = [], ""
    for row in rows:
        sizes = humanize.size(row.bytes_each), humanize.size(row.calls * row.bytes_each)
        verb = "" if row.verb == before else row.verb
        cells.append((verb, subjects(row.first, row.last), f"{row.calls:,}" if row.calls else "", *sizes, _where(row)))
        before = row.verb
    return Table(columns("step", "what", ">calls", ">each", ">total", "where"), cells, below=below)


def _where(row: Row) -> Cell:
    where = ", ".join(row.where)
    if not (where and row.note):
        return where or row.note
    together = f"{where} ({row.note})"
    return together if len(together) <= _ROOM else blocks.Stacked([where, f"({row.note})"])


def _sums(summary: PlanSummary) -> list[tuple[str, str]]:
    sizes = {f"memory on {location}": rounded(amount) for location, amount in summary.memory.items()}
    sizes["address space"] = rounded(summary.reserved)
    widest = max(map(len, sizes.values()))
    steps = f"{summary.calls:,} to build, {summary.teardown_calls:,} to take down"
    return [*((name, amount.rjust(widest)) for name, amount in sizes.items()), ("steps", steps)]


_LISTED = 4


def _listed(gpus: Sequence[str]) -> str:
    numbers = [int(each.removeprefix("gpu")) for each in gpus]
    if len(gpus) > _LISTED and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{gpus[0]} … {gpus[-1]}"
    return ", ".join(gpus)


_MEMORY = columns("memory", ">before", ">after", ">at most")


_WAITS = columns(">process", "command", ">bytes", "of")


def change(page: Page, awaited: Sequence[AwaitedImporter]) -> Page:
    """The output of `memtopo plan` for a change of a held layout: its difference, and the importers it waits for."""
    names = ((str(each.pid or "?"), each.command or "?") for each in awaited)
    rows = [(*name, rounded(each.bytes), ", ".join(each.exports)) for name, each in zip(names, awaited, strict=True)]
    waits = [Section("waits for importers to release memory", [Table(_WAITS, rows)])] if rows else []
    return replace(page, sections=[*page.sections, *waits])


def difference(found: PlanDifference, machine: MachineLine, command: str = "diff", *, every: bool = False) -> Page:
    """The output of `memtopo diff`."""
    if found.steps_equal:
        shown = sections(*_equal(found))
    else:
        memory = [(name, *map(rounded, (each.before, each.after, each.peak))) for name, each in found.memory.items()]
        shown = [*_changes(found, every=every), *_pictures(found, every=every)]
        shown += sections(Table(_MEMORY, memory), Pairs([*_kept_and_lost(found)]))
    return Page(command, f"{found.before} → {found.after}", f"on {humanize.machine(machine)}", sections=shown)


_CHANGE = columns("memory", ">before", ">after", ">change")


def in_short(found: PlanDifference, machine: MachineLine, command: str = "diff", *, pictures: bool = False) -> Page:
    """The change of memory and the entries that differ, with the `pictures` of both layouts below them if requested."""
    memory = [(name, rounded(each.before), rounded(each.after), _signed(each)) for name, each in found.memory.items()]
    if found.steps_equal:
        shown = sections(*_equal(found))
    else:
        shown = sections(Table(_CHANGE, memory), Pairs([*_entries(found), *_kept_and_lost(found)]))
    drawn = _pictures(found) if pictures else ()
    where = f"on {humanize.machine(machine)}"
    return Page(command, f"{found.before} → {found.after}", where, sections=[*shown, *drawn])


def refused(plan: str, error: str) -> Page:
    """The output of `memtopo diff` for a saved plan that is not compared."""
    return Page("diff", plan, sections=sections(f"refused: {error}"))


def _equal(found: PlanDifference) -> Iterator[str | Pairs]:
    """Sentence about equal steps, and the entries and parameters that differ nevertheless."""
    what = "nothing" if found.empty else "no step"
    yield f"{what} differs; {plural(found.kept, 'step')} {'is' if found.kept == 1 else 'are'} equal"
    if not found.empty:
        yield Pairs([*_entries(found), *_contracts(found), *_parameters(found)])


def _entries(found: PlanDifference) -> Iterator[tuple[str, str]]:
    for how, names in asdict(found.entries).items():
        if names:
            yield how, first_of(names, LISTED)


def _contracts(found: PlanDifference) -> Iterator[tuple[str, str]]:
    """Changes of exports, on which importers rely."""
    for each in found.exports[:LISTED]:
        parts = [f"{key} {before} → {after}" for key, (before, after) in each.terms.items() if after]
        if each.terms and not parts:
            parts = ["is removed"]
        if each.released:
            parts.append("importers release its memory first")
        yield "contract", f"export {each.name}: {', '.join(parts)}"
    if len(found.exports) > LISTED:
        yield "contract", f"{len(found.exports) - LISTED:,} more exports"


def _signed(found: MemoryChange) -> str:
    change = found.after - found.before
    return f"{'+' * (change > 0)}{rounded(change)}"


def _pictures(found: PlanDifference, *, every: bool = False) -> Iterator[Section]:
    """Pictures of both layouts, if they differ."""
    if found.picture_before == found.picture_after:
        return
    for title, picture in (("before", found.picture_before), ("after", found.picture_after)):
        if picture:
            yield Section(title, [Drawing(folding.picture(picture, every=every), every=every)])


def _changes(found: PlanDifference, *, every: bool) -> Iterator[Section]:
    """Steps that a change undoes and does, of equal processes once."""
    for title, rows, of in (
        ("goes", found.undo, [(each, each.undo) for each in found.processes]),
        ("comes", found.do, [(each, each.do) for each in found.processes]),
    ):
        if rows:
            yield Section(title, [_table(rows)])
        plans = [ProcessPlan(each.first, each.last, each.count, own, {}, node=each.node) for each, own in of if own]
        for one in folding.alike(plans, {}, every=every):
            yield Section(f"{title} in {_title(one)}", [_table(one.plan.rows)])


def _parameters(found: PlanDifference) -> Iterator[tuple[str, str]]:
    if found.params:
        changes = (f"{name}={before or '-'} → {after or '-'}" for name, (before, after) in found.params.items())
        yield "parameters", ", ".join(changes)


def _kept_and_lost(found: PlanDifference) -> Iterator[tuple[str, str]]:
    if same := [processes(each) for each in found.processes if each.empty]:
        yield "unchanged", ", ".join(same)
    yield from _parameters(found)
    yield "kept", f"{plural(found.kept, 'step')}, with addresses, handles and bytes"
    lost = [(found.lost, ""), *((each.lost, f" of {processes(each)}") for each in found.processes)]
    for labels, where in lost:
        if labels:
            yield "bytes lost", f"{subjects(labels[0], labels[-1])} ({len(labels):,}){where}"
    if found.moved:
        yield "moved", humanize.moved(found.moved, LISTED)
    yield from _contracts(found)
    for name in found.emptied:
        yield "commit lost", f"export {name}: a writer has to commit it again"
