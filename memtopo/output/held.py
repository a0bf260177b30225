"""Held layouts: the output of `ls`, `show`, `check` and `release`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memtopo.common.text import process_name
from memtopo.common.units import rounded
from memtopo.language.names import AWAKE
from memtopo.output import humanize, report
from memtopo.output.console import INDENT, Column, Rows, cell, digest_line, heading, headline, notes, pairs
from memtopo.output.terminal.diagram import TerminalDrawing
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Changed, Importer, Looked, NodeStatus, Released, Status, Switched
from memtopo.sharing.surveys import Entry, Survey

_LAYOUTS = (
    Column("layout"), Column("state"), Column("process", "right"), Column("exports", "right"),
    Column("importers", "right"), Column("for", "right"),
)  # fmt: skip
_EXPORTS = (
    Column("export"), Column("what"), Column("via"), Column("count", "right"), Column("each", "right"),
    Column("on"),
)  # fmt: skip
_IMPORTERS = (
    Column("process", "right"), Column("uid", "right"), Column("for", "right"), Column("handles", "right"),
    Column("bytes", "right"), Column("of"),
)  # fmt: skip

_UNKNOWN = "?"
"""Id of a process of another pid namespace."""

_OTHER_NAMESPACE = "? is a process of another pid namespace"


def layout_list(survey: Survey, now: float) -> RenderableType:
    """All held layouts, a line each; `now` is the time in seconds since the epoch."""
    remarks = [f"{each.name}: {each.error}" for each in survey.layouts if each.error]
    remarks += [f"{each.name} is on nodes {', '.join(each.nodes)}" for each in survey.layouts if each.nodes]
    if any(each.since is not None and not each.pid for each in survey.layouts):
        remarks.append(_OTHER_NAMESPACE)
    table = Rows(_LAYOUTS, [_entry(each, now) for each in survey.layouts])
    return Group(table, Text(), notes(remarks)) if remarks else table


def layout(status: Status, now: float) -> RenderableType:
    """One held layout with its exports and importers; `now` is the time in seconds since the epoch."""
    machine = cell(f"{humanize.devices(status.machine.devices)}, driver {status.machine.driver}", "dim")
    drawing: list[RenderableType] = [TerminalDrawing(status.picture), Text()] if status.picture else []
    if drawing and status.layout_state not in {None, AWAKE}:
        remark = f"drawn in state {status.layout_state}: what is without memory has it again in state {AWAKE}"
        drawing += [notes([remark]), Text()]
    return Group(
        headline("show", status.name, status.machine),
        Padding(machine, (0, 0, 0, len("show  "))),
        Text(),
        pairs(_properties(status, now)),
        Text(),
        *([digest_line(status.digest), Text()] if status.digest else []),
        *drawing,
        *(_nodes(status.nodes, now) if status.nodes else _shared(status, now)),
        *_namespace_notes(status),
    )


def _nodes(nodes: Sequence[NodeStatus], now: float) -> Iterator[RenderableType]:
    """Each node of a layout with what it exports, and to whom."""
    for number, each in enumerate(nodes):
        if number:
            yield Text()
        at = f", {process_name(each.pid)} at {each.socket}" if each.socket else ""
        where = cell(f"{each.host or 'host unknown'}, {each.state}{at}")
        yield Text.assemble(heading(f"node {each.node}"), "  ", where)
        if each.contexts is not None:
            yield cell(f"{' ' * INDENT}contexts: {_contexts(each.contexts)}")
        if each.socket:
            yield from _shared(each, now)


def _shared(status: Status | NodeStatus, now: float) -> Iterator[RenderableType]:
    """Exports and importers of a holder."""
    yield heading("exports")
    yield Rows(_EXPORTS, [_offer(each) for each in status.offers])
    yield Text()
    yield heading("importers")
    if status.importers:
        yield Rows(_IMPORTERS, [_importer(each, now) for each in status.importers])
    else:
        yield cell(f"{' ' * INDENT}no importer is attached")


def checked(found: Looked) -> RenderableType:
    """Result of a holder's check, with its verdict as the last line."""
    count = found.checks.different
    be = "is" if count == 1 else "are"
    verdict = "ok: as declared" if found.ok else f"different: {humanize.plural(count, 'thing')} {be} not as declared"
    head = Text.assemble(("check", "bold"), "  ", cell(found.name))
    style = "bold green" if found.ok else "bold red"
    return Group(head, Text(), *report.check_sections(found.checks), Text(), cell(verdict, style))


def switched(done: Switched) -> RenderableType:
    """Result of a switch, with its verdict as the last line."""
    return _changed("switch", f"{done.name} to {done.state}", done.state, done)


def changed(done: Changed, spec: str) -> RenderableType:
    """Result of a change to a spec, with its verdict as the last line."""
    emptied = [f"export {each} is not committed any more: a writer has to commit it again" for each in done.emptied]
    return _changed("change", f"{done.name} to {spec}", f"generation {done.generation:,}", done, emptied)


def _changed(command: str, title: str, now: str, done: Switched | Changed, more: Iterable[str] = ()) -> RenderableType:
    kept = [*more]
    kept += [f"{process_name(each.pid)} keeps {rounded(each.bytes)} of memory from being free" for each in done.kept]
    consequences: list[RenderableType] = [notes(kept), Text()] if kept else []
    head = Text.assemble((command, "bold"), "  ", cell(title))
    good = not done.checks.different
    verdict = cell(f"{now}: {'as declared' if good else 'not as declared'}", "bold green" if good else "bold red")
    return Group(head, Text(), *report.check_sections(done.checks), Text(), *consequences, verdict)


def released(done: Released) -> RenderableType:
    """Result of a release and its consequences for importers, with its verdict as the last line."""
    lost = [f"{process_name(each.pid)} lost {_lost(each)}" for each in done.lost]
    kept = [f"{process_name(each.pid)} may keep {rounded(each.bytes)} of memory from being free" for each in done.kept]
    verdict, style = _release_verdict(done)
    consequences: list[RenderableType] = [notes([*lost, *kept]), Text()] if lost or kept else []
    head = Text.assemble(("release", "bold"), "  ", cell(done.name))
    return Group(head, Text(), *consequences, cell(verdict, style))


def _release_verdict(done: Released) -> tuple[str, str]:
    """End of a released layout in one line, and its style."""
    if done.exit_code:
        return f"released, {done.outcome}: {done.reason or 'the report of its holder says why'}", "bold red"
    if done.gone:
        return "released: taken down", "bold green"
    return "released: its holder has not finished taking it down", "bold yellow"


def _lost(importer: Importer) -> str:
    """Exports that an importer used until the release, which ended them."""
    bound = [each for each in importer.taken if each.bound]
    how = "used over ipc" if all(each.via == "ipc" for each in bound) else "used over ipc, or of pools"
    return f"{', '.join(each.export for each in bound) or 'memory'}, which it {how}"


def _entry(entry: Entry, now: float) -> tuple[str, ...]:
    if entry.since is None:
        return entry.name, entry.state, *[""] * 4
    age = humanize.age(now - entry.since)
    return entry.name, entry.state, str(entry.pid or _UNKNOWN), f"{entry.exports:,}", f"{entry.importers:,}", age


def _properties(status: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "held by", f"{process_name(status.pid)}, uid {status.uid}"
    yield "since", f"{_time(status.since)}, for {humanize.age(now - status.since)}"
    if status.deadline is None:
        yield "until", "a signal or a release"
    else:
        yield "until", f"{_time(status.deadline)}, in {humanize.age(status.deadline - now)}"
    yield "state", status.state
    yield "generation", f"{status.generation:,}"
    if status.layout_state:
        others = [name for name in status.layout_states if name != status.layout_state]
        yield "memory", f"{status.layout_state}; other states: {', '.join(others)}"
    if status.memory:
        yield "in use", ", ".join(f"{rounded(size)} on {location}" for location, size in status.memory.items())
    if status.contexts is not None:
        yield "contexts", _contexts(status.contexts)
    if status.spec is not None:
        yield "spec", status.spec
    yield from humanize.parameters(status.params)
    yield "socket", status.socket


def _contexts(gpus: Sequence[str]) -> str:
    """Contexts by GPU, and what they take (fact 73)."""
    if not gpus:
        return "none, so that the memory of the layout alone is in use"
    counts = (f"{count} on {gpu}" for gpu, count in Counter(gpus).items())
    return f"{', '.join(counts)}; each takes some 500 MiB ('memtopo who' has the bytes)"


def _namespace_notes(status: Status) -> list[RenderableType]:
    """Notes on the numbers of processes, if some are of another pid namespace."""
    remarks = []
    if status.importers and status.pid_namespace == "another":
        remarks.append("importers have the numbers of the holder's pid namespace, not of this process's")
    if not all(each.pid for each in status.importers):
        remarks.append("? is a process outside of the holder's pid namespace")
    return [Text(), notes(remarks)] if remarks else []


def _offer(offer: Offer) -> tuple[str, ...]:
    content = f"{offer.commit} by {process_name(offer.writer)}" if offer.commit == "writing" else offer.commit
    what = " ".join([offer.kind, *offer.properties, *([content] if content else [])])
    what += f" ({', '.join(f'{part.name} {rounded(part.size)}' for part in offer.parts)})" if offer.parts else ""
    return offer.name, what, offer.via, f"{offer.count:,}", humanize.size(offer.size), offer.location


def _importer(importer: Importer, now: float) -> tuple[str, ...]:
    age = humanize.age(now - importer.since)
    counts = f"{importer.handles:,}", rounded(importer.bytes)
    return str(importer.pid or _UNKNOWN), str(importer.uid), age, *counts, _taken(importer)


def _taken(importer: Importer) -> str:
    names = ", ".join(each.export for each in importer.taken)
    return names or ("memory" if importer.handles else "nothing at present")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def now() -> float:
    """The current time in seconds since the epoch."""
    return time.time()
