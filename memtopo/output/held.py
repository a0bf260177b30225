"""Held layouts, and processes that use GPU memory: the output of `ls`, `show`, `check`, `release` and `who`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from memtopo.common.text import plural, process_name
from memtopo.common.units import rounded
from memtopo.diagnostics.messages import LISTED
from memtopo.language.names import AWAKE
from memtopo.output import humanize
from memtopo.output.blocks import Cell, Drawing, Page, Pairs, Section, Stacked, Table, Toned, columns, notes, sections
from memtopo.output.report import check_sections
from memtopo.plans import folding
from memtopo.sharing.held import Entry, Survey
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import (
    Changed,
    HeapUse,
    Importer,
    LayoutEnd,
    Looked,
    NodeStatus,
    Released,
    Status,
    Switched,
)
from memtopo.storage.saved import Saved
from memtopo.storage.tensors import Loaded

if TYPE_CHECKING:
    from memtopo.driver.types import GpuMemory, ProcessMemory
    from memtopo.usage import LayoutUse, ProcessUsage, Usage

T = TypeVar("T")

_LAYOUTS = columns("layout", "state", ">process", ">exports", ">importers", ">for")
_EXPORTS = columns("export", "what", "via", ">count", ">each", "on")
_IMPORTERS = columns(">process", ">uid", ">for", ">handles", ">bytes", "of")

_HEAPS = columns("heap", ">allocations", ">allocated", ">in memory")

_UNKNOWN = "?"
"""Id of a process of another pid namespace, or a value that could not be read."""


def layout_list(survey: Survey, now: float) -> Page:
    """All held layouts, a line each; `now` is the time in seconds since the epoch."""
    remarks = [f"{each.name}: {each.reason}" for each in survey.layouts if each.error]
    remarks += [f"{each.name}: {note}" for each in survey.layouts for note in _end(each.end)]
    remarks += [f"{each.name} is on nodes {', '.join(each.nodes)}" for each in survey.layouts if each.nodes]
    if any(each.since is not None and not each.pid for each in survey.layouts):
        remarks.append("? is a process of another pid namespace")
    table = Table(_LAYOUTS, [_entry(each, now) for each in survey.layouts])
    return Page("ls", "", sections=[*sections(table), *notes(remarks)])


def layout(status: Status, now: float, *, every: bool = False) -> Page:
    """One held layout with its exports and importers; `now` is the time in seconds since the epoch."""
    remarks = [*_end(status.end)]
    if status.picture and status.layout_state not in {None, AWAKE}:
        remarks.append(f"drawn in state {status.layout_state}: what is without memory has it again in state {AWAKE}")
    nodes = [section for each in status.nodes for section in _node(each, now)]
    digest = f"digest  {status.digest}" if status.digest else None  # 79 columns, without an indent: to be copied
    drawing = Drawing(folding.picture(status.picture, every=every), every=every) if status.picture else None
    found = [*sections(Pairs([*_properties(status, now)]), digest, drawing), *notes(remarks)]
    if status.heaps:
        found.append(Section("heaps", [Table(_HEAPS, [_heap(each) for each in status.heaps])]))
    found += [*(nodes or _shared(status, now)), *notes(_namespace_notes(status))]
    facts = [f"{humanize.devices(status.machine.devices)}, driver {status.machine.driver}"]
    return Page("show", status.name, f"on {humanize.machine(status.machine)}", facts, found)


def _node(node: NodeStatus, now: float) -> Iterator[Section]:
    """One node of a layout with its exports and importers."""
    at = f", {process_name(node.pid)} at {node.socket}" if node.socket else ""
    title = f"node {node.node}  {node.host or 'host unknown'}, {node.state}{at}"
    yield Section(title, [] if node.contexts is None else [f"  contexts: {_contexts(node.contexts)}"])
    if node.socket:
        yield from _shared(node, now)


def _end(end: LayoutEnd | None) -> Iterator[str]:
    """Notes on a layout of a user's processes that has ended, while some of them still have memory."""
    if end:
        yield str(end)
        if end.remedy:
            yield end.remedy


def _shared(status: Status | NodeStatus, now: float) -> Iterator[Section]:
    """Exports and importers of a holder."""
    yield Section("exports", [Table(_EXPORTS, [_offer(each) for each in status.offers])])
    lent = {each.name for each in status.offers if each.lends}
    importers = Table(_IMPORTERS, [_importer(each, lent, now) for each in status.importers])
    yield Section("importers", [importers if status.importers else "  no importer is attached"])


def checked(found: Looked) -> Page:
    """Result of a holder's check."""
    different = Toned(f"different: {humanize.things(found.checks.different)} not as declared", "bad")
    verdict = Toned("ok: as declared", "good") if found.ok else different
    return Page("check", found.name, sections=[*check_sections(found.checks)], verdict=verdict)


def switched(done: Switched) -> Page:
    """Result of a switch."""
    return _changed("switch", f"{done.name} to {done.state}", f"state {done.state}", done)


def changed(done: Changed, spec: str) -> Page:
    """Result of a change to a spec."""
    emptied = [f"export {each} is not committed any more: a writer has to commit it again" for each in done.emptied]
    moved = [humanize.moved(done.moved, LISTED)] if done.moved else []
    return _changed("change", f"{done.name} to {spec}", f"generation {done.generation:,}", done, [*moved, *emptied])


def _changed(command: str, title: str, now: str, done: Switched | Changed, more: Iterable[str] = ()) -> Page:
    kept = (f"{process_name(each.pid)} keeps {rounded(each.bytes)} of memory from being free" for each in done.kept)
    verdict = Toned(f"ok: {now} is as declared", "good")
    if done.checks.different:
        verdict = Toned(f"different: {now} is not as declared", "bad")
    found = [*check_sections(done.checks), *sections(Pairs([*_amounts(done)])), *notes([*more, *kept])]
    return Page(command, title, sections=found, verdict=verdict)


def _amounts(done: Switched | Changed) -> Iterator[tuple[str, str]]:
    """Memory that a change has freed and taken, and its time."""
    for word, sign in ("freed", -1), ("taken", 1):
        sizes = [(each.location, sign * (each.after - each.before)) for each in done.memory]
        if found := [f"{rounded(size)} on {location}" for location, size in sizes if size > 0]:
            yield word, ", ".join(found)
    if done.seconds is not None:
        yield "in", humanize.duration(done.seconds)


def saved(done: Saved) -> Page:
    """Result of a save."""
    remarks = [f"not saved: {', '.join(done.left_out)}"] if done.left_out else []
    if not done.direct:
        remarks.append("the file system has no direct I/O: files were written through the page cache")
    written = f"{rounded(done.written)} written, {rounded(done.unchanged)} unchanged"
    verdict = Toned(f"saved: {plural(done.pieces, 'piece')}, {written}", "good")
    return Page("save", f"{done.name} to {done.folder}", sections=notes(remarks), verdict=verdict)


def loaded(done: Loaded) -> Page:
    """Result of a load."""
    verdict = Toned(f"loaded: {plural(done.tensors, 'tensor')}, {rounded(done.size)}", "good")
    return Page("load", f"{done.name}, export {done.into}", verdict=verdict)


def released(done: Released) -> Page:
    """Result of a release and its consequences for importers."""
    lost = [f"{process_name(each.pid)} lost {_lost(each)}" for each in done.lost]
    kept = [f"{process_name(each.pid)} may keep {rounded(each.bytes)} of memory from being free" for each in done.kept]
    verdict = Toned("released: its holder has not finished taking it down", "warn")
    if done.end:
        kept += [*_end(done.end)]
        verdict = Toned("not taken down: processes of the layout still have memory", "bad")
    if done.exit_code:
        verdict = Toned(f"released, {done.outcome}: {done.reason or 'the report of its holder says why'}", "bad")
    elif done.gone:
        verdict = Toned("released: taken down", "good")
    return Page("release", done.name, sections=notes([*lost, *kept]), verdict=verdict)


def _lost(importer: Importer) -> str:
    """Exports that an importer used until the release, which ended them."""
    bound = [each for each in importer.taken if each.bound]
    how = "used over ipc" if all(each.via == "ipc" for each in bound) else "used over ipc, or of pools"
    return f"{', '.join(each.export for each in bound) or 'memory'}, which it {how}"


def _entry(entry: Entry, now: float) -> tuple[str, ...]:
    if entry.since is None:
        return entry.name, entry.state, *[""] * 4
    age = humanize.age(now - entry.since)
    state = ", ".join(filter(None, (entry.state, entry.layout_state)))
    return entry.name, state, str(entry.pid or _UNKNOWN), f"{entry.exports:,}", f"{entry.importers:,}", age


def _properties(status: Status, now: float) -> Iterator[tuple[str, str]]:
    yield "held by", f"{process_name(status.pid)}, uid {status.uid}"
    yield "since", f"{_time(status.since)}, for {humanize.age(now - status.since)}"
    end = status.deadline
    yield "until", f"{_time(end)}, in {humanize.age(end - now)}" if end is not None else "a signal or a release"
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


def _namespace_notes(status: Status) -> Iterator[str]:
    """Notes on the numbers of processes, if some are of another pid namespace."""
    if status.importers and status.pid_namespace == "another":
        yield "importers have the numbers of the holder's pid namespace, not of this process's"
    if not all(each.pid for each in status.importers):
        yield "? is a process outside of the holder's pid namespace"


def _heap(heap: HeapUse) -> tuple[str, ...]:
    name = f"{heap.process}.{heap.heap}" if heap.process else heap.heap
    return name, f"{heap.allocations:,}", rounded(heap.bytes), rounded(heap.mapped)


def _offer(offer: Offer) -> tuple[str, ...]:
    content = f"{offer.commit} by {process_name(offer.writer)}" if offer.commit == "writing" else offer.commit
    what = " ".join([offer.kind, *offer.properties, *([content] if content else [])])
    what += f" ({', '.join(f'{part.name} {rounded(part.size)}' for part in offer.parts)})" if offer.parts else ""
    what += f", {offer.lends.lent:,} lent" if offer.lends else ""
    what += f", {offer.lends.sealed:,} sealed" if offer.lends and offer.lends.sealed else ""
    return offer.name, what, offer.via, f"{offer.count:,}", humanize.size(offer.size), offer.location


def _importer(importer: Importer, lent: Collection[str], now: float) -> tuple[str, ...]:
    age = humanize.age(now - importer.since)
    counts = f"{importer.handles:,}", rounded(importer.bytes)
    # A lent export has the number of chunks that the importer has.
    names = ", ".join(f"{each.handles:,} of " * (each.export in lent) + each.export for each in importer.taken)
    taken = names or ("memory" if importer.handles else "nothing at present")
    return str(importer.pid or _UNKNOWN), str(importer.uid), age, *counts, taken


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


_GPUS = columns(">GPU", "name", ">total", ">used", ">free", ">by processes")
_PROCESSES = columns(">process", ">uid", "command", ">for", "memory", "open", "layout")


def usage_page(usage: Usage, now: float) -> Page:
    """GPUs and processes, and what could not be read; `now` is the time in seconds since the epoch."""
    gpus = Section("GPUs, numbered as by nvidia-smi", [Table(_GPUS, [_gpu(each, usage) for each in usage.gpus])])
    processes = Section("processes", [Table(_PROCESSES, [_process(each, now) for each in usage.processes])])
    found = [gpus] if usage.gpus else []
    found.append(processes if usage.processes else Section("", ["no process was found that uses GPU memory"]))
    return Page("who", "", sections=[*found, *notes(f"not known: {each}" for each in usage.unknown)])


def _gpu(gpu: GpuMemory, usage: Usage) -> tuple[str, ...]:
    sizes = [memory.bytes for each in usage.processes for memory in each.memory if memory.gpu == gpu.index]
    listed = sum(size for size in sizes if size is not None)
    by_processes = rounded(listed) if None not in sizes else f"{rounded(listed)} and {_UNKNOWN}"
    amounts = (_known(size, rounded) for size in (gpu.total, gpu.used, gpu.free))
    return str(gpu.index), gpu.name or _UNKNOWN, *amounts, by_processes


def _process(process: ProcessUsage, now: float) -> tuple[Cell, ...]:
    age = _known(process.since, lambda since: humanize.age(now - since))
    names = _known(process.pid), _known(process.uid), _known(process.command), age
    memory = Stacked([f"{_instance(each)}: {_known(each.bytes, rounded)}" for each in process.memory])
    return *names, memory, Stacked([*_open(process)]), Stacked([*map(_layout, process.layouts)])


def _instance(memory: ProcessMemory) -> str:
    return f"GPU {memory.gpu}" + ("" if memory.instance is None else f".{memory.instance}")


def _open(process: ProcessUsage) -> Iterator[str]:
    if process.devices is None:
        yield _UNKNOWN
    for device in process.devices or ():
        yield f"{device.file.removeprefix('/dev/')} × {device.descriptors:,}"
    for buffer in process.dma_buffers or ():
        exporter = f" of {buffer.exporter}" if buffer.exporter else ""
        yield f"dma-buf{exporter}: {_known(buffer.bytes, rounded)}"


def _layout(use: LayoutUse) -> str:
    of = use.layout + (" (simulated)" if use.simulated else "")
    size = "" if use.bytes is None else f": {rounded(use.bytes)}"
    if use.role == "holder":
        return f"holds {of}{size}"
    if use.role == "process":
        return f"{use.label} of {of}{size}{' in heaps' * bool(size)}"
    if use.role == "child":
        return f"child of the holder of {of}"
    holder = f"process {use.holder}" if use.holder else "another pid namespace"
    if use.role == "orphan":
        return f"imported from {of}, whose holder {holder} has ended"
    return f"imports from {of} of {holder}{size}"


def _known(value: T | None, words: Callable[[T], str] = str) -> str:
    return _UNKNOWN if value is None else words(value)
