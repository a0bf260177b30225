"""Drawing of a layout: each range and each memory as a bar to scale, with lines from the labels to the bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memtopo.common.text import first_words, printable
from memtopo.common.units import by_key, rounded
from memtopo.geometry import diagram as picture
from memtopo.geometry.diagram import Diagram, MappingSpan, MemoryDiagram, ProcessDiagram, RangeDiagram, Resource
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import notation, panel
from memtopo.output.diagram.notation import DrawnSpans, SpanPosition, letters_and_devices, multiple, name_range
from memtopo.output.diagram.panel import Glyphs, ItemList, Panel, PanelItem, PanelRenderer, TitleLine

MOST_PROCESSES = 12
MOST_RANGES = 12
MOST_LINES = 72
"""Lines of processes in a drawing, about, which is not longer than two screens with the memory below them."""
MOST_ROWS = 12
MOST_SHARES = 6
MOST_ITEMS = 24
MOST_IMPORTERS = 4
LONGEST_NAME = 26

Importers = Mapping[tuple[str, str], Sequence[str]]
"""Names of the processes that import an export, by the first label of the exporting process and the export's name."""


class TerminalDrawing(Struct, frozen=True):
    """A drawing for any width, in ASCII if it is to be or the stream supports no more.

    Processes that fit two screens are drawn, or every one of the first.
    """

    drawn: Drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = Glyphs(*letters_and_devices(self.drawn.diagram))
        lines = PanelRenderer([*self._parts(glyphs)], options.max_width, glyphs, console).lines()
        yield from map(panel.in_ascii, lines) if self.drawn.ascii or options.ascii_only else lines

    def _parts(self, glyphs: Glyphs) -> Iterator[panel.PanelPart]:
        whole = self.drawn.diagram
        importers = importers_of(whole)
        for each in whole.processes[: (most := MOST_PROCESSES if self.drawn.every else _fitting(whole.processes))]:
            equal = f"{each.count:,} alike, {each.first} is drawn" if each.alike else f"{each.count:,} equal processes"
            number = [Text(printable(equal), "dim")] if each.count > 1 else []
            yield TitleLine([Text(printable(notation.processes(each)), "bold"), *number])
            yield from self._process(each.first, each.picture, importers, glyphs)
        yield from _more(whole.processes[most:], "process", "processes")
        yield from self._process("", whole, importers, glyphs)
        if whole.processes and whole.memory:
            yield TitleLine([Text("memory", "bold"), Text("of all processes", "dim")])
        heads = _memory_heads(whole.memory, glyphs)
        details = [_shares(each, glyphs, named=bool(whole.processes)) for each in whole.memory]
        for index, (shown, head, detail) in enumerate(zip(whole.memory, heads, details, strict=True)):
            words = [f"each: {detail[0]}", *detail[1:]] if detail and [detail] == details[:index][-1:] else detail
            yield _memory(shown, head, () if [detail] == details[index + 1 :][:1] else words, close=index > 0)

    def _process(self, label: str, shown: Diagram, importers: Importers, glyphs: Glyphs) -> Iterator[panel.PanelPart]:
        drawn = DrawnSpans()
        for each in shown.ranges[:MOST_RANGES]:
            yield _range(each, self._address(label, each), drawn, glyphs)
        yield from _more(shown.ranges[MOST_RANGES:], "range", "ranges")
        items = [item for thing in shown.things for item in _items(thing, glyphs)]
        items += [_export_item(export, importers.get((label, export.name), ())) for export in shown.exports]
        if items:
            yield ItemList(items[:MOST_ITEMS], max(0, len(items) - MOST_ITEMS))

    def _address(self, label: str, shown: RangeDiagram) -> str:
        if (label, shown.first) not in self.drawn.addresses:
            return ""
        found = self.drawn.addresses[label, shown.first]
        return "elsewhere in each" if found is None else f"{'from' if shown.count > 1 else 'at'} {found:#x}"


def _fitting(processes: Sequence[ProcessDiagram]) -> int:
    """Number of processes whose ranges, pieces and items are few enough for two screens, and 1 at least."""
    lines: list[int] = []
    for each in (process.picture for process in processes[:MOST_PROCESSES]):
        ranges = sum(2 + min(len(range_.pieces), MOST_ROWS) for range_ in each.ranges)
        lines.append(3 + len(each.things) + len(each.exports) + ranges)
    return max(1, sum(end <= MOST_LINES for end in accumulate(lines)))


def _more(hidden: Sequence[ProcessDiagram] | Sequence[RangeDiagram], noun: str, nouns: str) -> Iterator[Panel]:
    if count := sum(each.count for each in hidden):
        yield Panel([Text(f"… and {count:,} more {nouns if count > 1 else noun}", "dim")])


def _range(shown: RangeDiagram, address: str, drawn: DrawnSpans, glyphs: Glyphs) -> Panel:
    """A range, of which the first pieces and the last one have labels; `drawn` are the spans before it."""
    accesses = {piece.access for piece in shown.pieces if piece.chunk}
    uniform = len(accesses) < 2  # noqa: PLR2004
    access = "" if shown.mapped else "nothing mapped"
    if accesses and uniform:
        access = notation.granted(*accesses)
    texts = multiple(shown.count, shown.size), address, access, notation.remark(shown)
    head = [Text(clipped(name_range(shown.first, shown.last)), "bold"), *(Text(each) for each in texts if each)]
    blocks = [panel.PanelBlock(piece.offset, piece.chunk, piece.count, piece.locations) for piece in shown.pieces]
    for index in notation.first_and_last(len(blocks), MOST_ROWS) if accesses else ():
        piece = shown.pieces[index]
        again = drawn.add(piece, shown.count, SpanPosition(shown.first, index, piece.offset)) is not None
        label = _label(piece, glyphs, times=shown.count, again=again, access=not uniform)
        blocks[index] = replace(blocks[index], label=label)
    return Panel(head, shown.size, blocks)


def _label(shown: MappingSpan, glyphs: Glyphs, *, times: int, again: bool, access: bool) -> Sequence[Text]:
    """Label of a piece: name, offset, size, location, access if `access`, and origin.

    `times` is the number of equal ranges, and `again` is true for chunks that an earlier piece shows.
    """
    words = notation.span_words(shown, times)
    if not shown.chunk:
        return [Text(cell, "dim") for cell in ("hole", words.at, words.size, "", "", "")]
    handles = f" ({', '.join(map(printable, shown.handles))})" if shown.handles else ""
    repetition = ["again" if again and (times == 1 or shown.step) else "", words.in_each]
    return [
        Text(clipped(words.name), "bold"),
        Text(words.at),
        Text(words.size),
        _location(shown.locations, glyphs, ", ".join([f"{notation.order(shown)}{handles}", *filter(None, repetition)])),
        Text(notation.granted(shown.access) if access else ""),
        Text(", ".join(filter(None, (_origin(shown.origin), words.parts)))),
    ]


def _origin(text: str) -> str:
    """Origin of imported memory: `from server.weights`."""
    return f"from {clipped(text)}" if text else ""


def _location(names: Sequence[str], glyphs: Glyphs, suffix: str = "") -> Text:
    """Locations, each in its colour, and a suffix."""
    shown = [Text(printable(name), glyphs.colour(name.partition("-")[0])) for name in notation.short_names(names)]
    return Text.assemble(Text(", ").join(shown), suffix)


def clipped(name: str) -> str:
    """Shorten a name to `LONGEST_NAME` columns by leaving out its middle."""
    return notation.shortened(name, LONGEST_NAME)


def _memory_heads(shown: Sequence[MemoryDiagram], glyphs: Glyphs) -> Iterator[list[Text]]:
    """Names, used bytes and free bytes of each memory, in columns."""
    rows = []
    for each in shown:
        taken = f"{rounded(each.taken)} taken  " if each.taken else ""
        free = "" if each.free is None else f"{taken}{rounded(each.free)} free"
        names = ", ".join(map(clipped, each.shown_names))
        rows.append((printable(each.device), names, notation.used_bytes(each), free))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for device, names, used, free in rows:
        head = Text(set_cell_size(device, widths[0]), f"bold {glyphs.colour(device)}")
        more = set_cell_size(names, widths[1]), used.rjust(widths[2]), free.rjust(widths[3]) if free else ""
        yield [head, *(Text(each) for each in more if each)]


def _shares(shown: MemoryDiagram, glyphs: Glyphs, *, named: bool) -> list[str]:
    """Chunks of a memory by entry; empty for a single chunk, whose size is the total.

    If `named`, as for several processes, each share has its name.
    """
    if len(shown.shares) == 1 and shown.shares[0].count == 1 and not (named or shown.shares[0].label):
        return []
    texts = []
    for share in shown.shares:
        name = clipped(share.label or (share.chunk if named else ""))
        words = glyphs.letter(share.chunk)[0], name, multiple(share.count, share.bytes_each)
        texts.append(" ".join(filter(None, words)))
    return first_words(texts, MOST_SHARES)


def _memory(shown: MemoryDiagram, head: Sequence[Text], detail: Sequence[str], *, close: bool) -> Panel:
    blocks, offset = [], 0
    for share in shown.shares:
        blocks.append(panel.PanelBlock(offset, share.chunk, share.count, (shown.device,)))
        offset += share.size
    if shown.free:
        blocks.append(panel.PanelBlock(shown.used))
    if shown.taken:
        blocks.append(panel.PanelBlock(shown.used + (shown.free or 0), taken=True))
    # Managed memory may exceed its GPU.
    size = max(shown.used, shown.total or 0)
    return Panel(head, size, blocks, detail=detail, close=close)


def importers_of(whole: Diagram) -> Importers:
    """Importers of each export of a multi-process layout."""
    pictures = {each.first: each for each in whole.processes}
    found = by_key(((flow.source, flow.export), flow) for flow in whole.flows if not flow.outside)
    return {export: list(_importers(flows, pictures)) for export, flows in found.items()}


def _importers(flows: Sequence[picture.HandleFlow], pictures: Mapping[str, ProcessDiagram]) -> Iterator[str]:
    """Names of importing processes: `reader.0`, or `every reader` if all pictures of an entry are among them.

    Those of a node are one if they are all of it: `every rank on a`. Of processes that import from some of the
    exporting ones, as from a neighbour, each exporting process has as many importers: `one reader each`.
    """
    labels = [flow.target for flow in flows if flow.processes == pictures[flow.source].count]
    names: list[str] = []
    for flow in flows:
        if flow.processes < pictures[flow.source].count:
            some = max(pictures[flow.target].count * flow.processes // pictures[flow.source].count, 1)
            names.append(f"{'one' if some == 1 else some} {_entry(flow.target)} each")
    for entry in dict.fromkeys(map(_entry, labels)):
        same = [label for label in pictures if _entry(label) == entry]
        importing = [label for label in same if label in labels]
        if _are_all(importing, same, pictures):
            names.append(f"every {entry}")
            continue
        for node in dict.fromkeys(pictures[label].node for label in importing):
            whole, found = ([each for each in some if pictures[each].node == node] for some in (same, importing))
            every = node and _are_all(found, whole, pictures)
            names += [f"every {entry} on {node}"] if every else [notation.processes(pictures[each]) for each in found]
    yield from first_words(names, MOST_IMPORTERS)


def _are_all(some: Sequence[str], whole: Sequence[str], pictures: Mapping[str, ProcessDiagram]) -> bool:
    """Return true if some drawn processes are all of an entry, which are several."""
    return len(some) == len(whole) and (len(whole) > 1 or pictures[whole[0]].alike)


def _entry(label: str) -> str:
    return label.partition(".")[0]


def _items(shown: Resource, glyphs: Glyphs) -> Iterator[PanelItem]:
    """An entry and its parts, in the same columns."""
    device = "".join(shown.locations[:1])
    notes = [_origin(shown.origin), *map(printable, shown.notes)]
    yield _item(shown.kind, shown, device, _location(shown.locations, glyphs), notes)
    for part in shown.parts:
        yield _item(f"  {part.kind}", part, device, Text(), [f"at {notation.offset(part.offset)}"])


def _export_item(shown: picture.Export, importers: Sequence[str]) -> PanelItem:
    exported = "" if shown.name == shown.first == shown.last else clipped(name_range(shown.first, shown.last))
    notes = [exported, f"→ {printable(', '.join(importers))}" if importers else ""]
    return _item("export", shown, "", Text(f"by {printable(shown.via)}"), notes)


def _item(kind: str, shown: Resource | picture.Export, device: str, where: Text, notes: Iterable[str]) -> PanelItem:
    count = f"{shown.count:,}" if shown.count > 1 else ""
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else count
    cells = [Text(clipped(shown.name), "bold"), Text(size), where]
    return PanelItem(printable(kind), shown.mark, device, cells, [Text(each) for each in notes if each])
