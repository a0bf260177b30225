"""Drawing of a layout: each range and each memory as a bar to scale, with lines from the labels to the bar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memtopo.common.text import printable
from memtopo.common.units import rounded
from memtopo.geometry.diagram import (
    DeviceAccess,
    Diagram,
    Export,
    MappingSpan,
    MemoryDiagram,
    MemoryShare,
    ProcessDiagram,
    RangeDiagram,
    Resource,
)
from memtopo.output.blocks import Addresses
from memtopo.output.diagram.notation import (
    chunk_names,
    granted,
    multiple,
    name_range,
    offset,
    parts,
    processes,
    remark,
    short_names,
    used_bytes,
)
from memtopo.output.terminal.panel import (
    Block,
    Glyphs,
    Item,
    ItemList,
    Panel,
    Part,
    Row,
    TitleLine,
    drawing_lines,
    glyphs_of,
)

MOST_PROCESSES = 12
MOST_RANGES = 12
MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class TerminalDrawing:
    """Drawing of a picture for any width, in ASCII if `ascii` is set or the stream supports no more.

    Draws at most `ranges` ranges of each process, with labels for at most `rows` pieces of each. `addresses` are those
    of the ranges of an applied layout.
    """

    picture: Diagram
    ascii: bool = False
    ranges: int = MOST_RANGES
    rows: int = MOST_ROWS
    addresses: Addresses = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = glyphs_of(self.picture, ascii=self.ascii or options.ascii_only)
        yield from drawing_lines([*self._parts(glyphs)], options.max_width, glyphs, console)

    def _parts(self, glyphs: Glyphs) -> Iterator[Part]:
        whole = self.picture
        importers = importers_of(whole)
        for each in whole.processes[:MOST_PROCESSES]:
            yield TitleLine(_title(each, glyphs))
            yield from self._process(each.first, each.picture, importers, glyphs)
        if more := sum(each.count for each in whole.processes[MOST_PROCESSES:]):
            yield Panel([_more(more, "process", "es", glyphs)])
        yield from self._process("", whole, importers, glyphs)
        if whole.processes and whole.memory:
            yield TitleLine([Text("memory", "bold"), Text("of all processes", "dim")])
        yield from self._memory(glyphs)

    def _process(self, label: str, shown: Diagram, importers: Importers, glyphs: Glyphs) -> Iterator[Part]:
        ranges = shown.ranges[: self.ranges]
        for each, repeated in zip(ranges, _repeated(ranges, self.rows), strict=True):
            yield _range(each, self._address(label, each), glyphs, repeated, self.rows)
        if more := sum(each.count for each in shown.ranges[self.ranges :]):
            yield Panel([_more(more, "range", "s", glyphs)])
        yield from item_list(label, shown, importers, glyphs)

    def _address(self, label: str, shown: RangeDiagram) -> str:
        if (label, shown.first) not in self.addresses:
            return ""
        found = self.addresses[label, shown.first]
        return "elsewhere in each" if found is None else f"{'from' if shown.count > 1 else 'at'} {found:#x}"

    def _memory(self, glyphs: Glyphs) -> Iterator[Panel]:
        whole = self.picture
        heads = memories(whole.memory, glyphs) if whole.memory else []
        for index, (shown, head) in enumerate(zip(whole.memory, heads, strict=True)):
            yield _memory(shown, head, shares(shown, glyphs, named=bool(whole.processes)), close=index > 0)


def _title(shown: ProcessDiagram, glyphs: Glyphs) -> list[Text]:
    title = [Text(glyphs.text(printable(processes(shown))), "bold")]
    return [*title, Text(f"{shown.count:,} processes alike", "dim")] if shown.count > 1 else title


def _more(count: int, noun: str, plural: str, glyphs: Glyphs) -> Text:
    return Text(glyphs.text(f"… and {count:,} more {noun}{plural * (count > 1)}"), "dim")


class _MappedChunks:
    """Chunks that the drawing has shown, so that further mappings of them can be labelled `again`."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def add(self, piece: MappingSpan, times: int) -> bool:
        """Add the chunks of a piece of `times` equal ranges; return True if some were added before."""
        if not piece.elsewhere:
            return False
        first, last = piece.indices(times)
        spans = self._spans.setdefault((piece.chunk, piece.origin), [])
        found = any(first < stop and start < last for start, stop in spans)
        spans.append((first, last))
        return found


def _range(shown: RangeDiagram, address: str, glyphs: Glyphs, repeated: Collection[int], most: int) -> Panel:
    mapped = [piece for piece in shown.pieces if piece.chunk]
    alike = all(piece.access == mapped[0].access for piece in mapped)
    access = mapped[0].access if mapped and alike else None
    blocks = [Block(piece.offset, piece.chunk, piece.count, piece.locations) for piece in shown.pieces]
    rows = [
        Row(
            index,
            piece.chunk,
            "".join(piece.locations[:1]),
            piece_cells(piece, glyphs, times=shown.count, again=index in repeated, access=not alike),
        )
        for index, piece in _labelled(shown.pieces, most)
    ]
    return Panel(range_(shown, access, address, glyphs), shown.size, blocks, rows if mapped else ())


def _repeated(ranges: Iterable[RangeDiagram], most: int) -> Iterator[frozenset[int]]:
    """Indices of the labelled pieces of each range with chunks that an earlier label has."""
    mapped = _MappedChunks()
    for each in ranges:
        yield frozenset(index for index, piece in _labelled(each.pieces, most) if mapped.add(piece, each.count))


def _labelled(pieces: Sequence[MappingSpan], most: int) -> Iterable[tuple[int, MappingSpan]]:
    """The pieces with a label: all, or the first ones and the last one."""
    numbered = list(enumerate(pieces))
    return numbered if len(numbered) <= most else [*numbered[: most - 1], numbered[-1]]


def _memory(shown: MemoryDiagram, head: Sequence[Text], detail: Sequence[str], *, close: bool) -> Panel:
    offsets = accumulate((share.size for share in shown.shares), initial=0)
    blocks = [
        Block(offset, share.chunk, share.count, (shown.device,))
        for offset, share in zip(offsets, shown.shares, strict=False)
    ]
    if shown.free:
        blocks.append(Block(shown.used))
    if shown.taken:
        blocks.append(Block(shown.used + (shown.free or 0), taken=True))
    # Managed memory may exceed its GPU.
    size = max(shown.used, shown.total or 0)
    return Panel(head, size, blocks, detail=detail, close=close)


LONGEST_NAME = 26
MOST_SHARES = 6


def piece_cells(shown: MappingSpan, glyphs: Glyphs, *, times: int, again: bool, access: bool) -> list[Text]:
    """Cells of a piece: name, offset, size, location, access if `access`, and origin.

    `times` is the number of equal ranges, and `again` is true for chunks that an earlier piece shows.
    """
    if not shown.chunk:
        hole = ("hole", offset(shown.offset), rounded(shown.size), "", "", "")
        return [Text(cell, "dim") for cell in hole]
    cells = [
        Text(glyphs.text(clipped(chunk_names(shown, times)))),
        Text(offset(shown.offset)),
        Text(glyphs.text(multiple(shown.count, shown.bytes_each))),
        location(shown.locations, glyphs, f"{_handles(shown)}{_repetition(shown, times, again=again)}"),
        Text(glyphs.text(granted(shown.access)) if access else ""),
        Text(glyphs.text(", ".join(filter(None, (origin(shown.origin), parts(shown)))))),
    ]
    cells[0].stylize("bold")
    return cells


def range_(shown: RangeDiagram, access: Sequence[DeviceAccess] | None, address: str, glyphs: Glyphs) -> list[Text]:
    """Name, size and address of one range or several equal ones, and the access if it is the same everywhere."""
    name = name_range(shown.first, shown.last)
    access_text = granted(access) if access is not None else "" if shown.mapped else "nothing mapped"
    texts = [clipped(name), multiple(shown.count, shown.size), address, access_text, remark(shown)]
    parts = [Text(glyphs.text(text)) for text in texts if text]
    parts[0].stylize("bold")
    return parts


def memories(shown: Sequence[MemoryDiagram], glyphs: Glyphs) -> list[list[Text]]:
    """Names, used bytes and free bytes of each memory, in columns."""
    rows = [
        (
            printable(memory.device),
            ", ".join(map(clipped, memory.shown_names)),
            used_bytes(memory),
            _free(memory),
        )
        for memory in shown
    ]
    device, names, used, free = (max(map(cell_len, column), default=0) for column in zip(*rows, strict=True))
    return [
        [
            Text(glyphs.text(set_cell_size(row[0], device)), f"bold {glyphs.colour(row[0])}"),
            *([Text(glyphs.text(set_cell_size(row[1], names)))] if names else []),
            Text(row[2].rjust(used)),
            *([Text(row[3].rjust(free))] if row[3] else []),
        ]
        for row in rows
    ]


def shares(shown: MemoryDiagram, glyphs: Glyphs, *, named: bool) -> list[str]:
    """Chunks of a memory by entry; empty for a single chunk, whose size is the total.

    If `named`, as for several processes, each share has its name.
    """
    if len(shown.shares) == 1 and shown.shares[0].count == 1 and not (named or shown.shares[0].label):
        return []
    texts = [
        f"{glyphs.letter(share.chunk)} {_name(share, named=named)}{multiple(share.count, share.bytes_each)}"
        for share in shown.shares[:MOST_SHARES]
    ]
    left_out = len(shown.shares) - MOST_SHARES
    return [*map(glyphs.text, texts), *([f"{left_out:,} more"] if left_out > 0 else [])]


def _name(share: MemoryShare, *, named: bool) -> str:
    name = share.label or (share.chunk if named else "")
    return f"{clipped(name)} " if name else ""


def origin(text: str) -> str:
    """Origin of imported memory: `from server.weights`."""
    return f"from {clipped(text)}" if text else ""


def location(names: Sequence[str], glyphs: Glyphs, suffix: str = "") -> Text:
    """Locations, each in its colour, and a suffix."""
    parts: list[str | tuple[str, str]] = []
    for name in short_names(names):
        parts += [", " if parts else "", (glyphs.text(printable(name)), glyphs.colour(name.partition("-")[0]))]
    return Text.assemble(*parts, glyphs.text(suffix))


def clipped(name: str) -> str:
    """Shorten a name to `LONGEST_NAME` columns by leaving out its middle."""
    shown = printable(name)
    if cell_len(shown) <= LONGEST_NAME:
        return shown
    kept = LONGEST_NAME // 2
    start, end = set_cell_size(shown, kept - 1), set_cell_size(shown[::-1], LONGEST_NAME - kept)[::-1]
    return f"{start.rstrip()}…{end.lstrip()}"


def _free(shown: MemoryDiagram) -> str:
    taken = f"{rounded(shown.taken)} taken  " if shown.taken else ""
    return "" if shown.free is None else f"{taken}{rounded(shown.free)} free"


def _repetition(shown: MappingSpan, times: int, *, again: bool) -> str:
    """Other mappings of the same chunks, and the step to the chunks of the next equal range."""
    if times > 1 and not shown.step:
        return ", same in each"
    ahead = f", {shown.step:+,} in each" if times > 1 and shown.step != shown.count else ""
    return f"{', again' if again else ''}{ahead}"


def _handles(shown: MappingSpan) -> str:
    return f" ({', '.join(map(printable, shown.handles))})" if shown.handles else ""


MOST_ITEMS = 24
MOST_IMPORTERS = 4

Importers = Mapping[tuple[str, str], Sequence[str]]
"""Names of the processes that import an export, by the first label of the exporting process and the export's name."""


def item_list(process: str, shown: Diagram, importers: Importers, glyphs: Glyphs) -> Iterator[ItemList]:
    """The entries of a process outside of its ranges, and its exports; nothing if there are none."""
    items = [item for thing in shown.things for item in _items(thing, glyphs)]
    items += [_export_item(export, importers.get((process, export.name), ()), glyphs) for export in shown.exports]
    if items:
        yield ItemList(items[:MOST_ITEMS], max(0, len(items) - MOST_ITEMS))


def importers_of(whole: Diagram) -> Importers:
    """Importers of each export of a multi-process layout."""
    pictures = {each.first: each for each in whole.processes}
    found: dict[tuple[str, str], list[str]] = {}
    for flow in whole.flows:
        if not flow.outside:
            found.setdefault((flow.source, flow.export), []).append(flow.target)
    return {export: list(_importers(labels, pictures)) for export, labels in found.items()}


def _importers(labels: Sequence[str], pictures: Mapping[str, ProcessDiagram]) -> Iterator[str]:
    """Names of importing processes: `reader.0`, or `every reader` if all pictures of an entry are among them."""
    names: list[str] = []
    for entry in dict.fromkeys(map(_entry, labels)):
        same = [label for label in pictures if _entry(label) == entry]
        importing = [label for label in same if label in labels]
        every = 1 < len(same) == len(importing)
        names += [f"every {entry}"] if every else _by_node(entry, same, importing, pictures)
    yield from names[:MOST_IMPORTERS]
    if left_out := len(names[MOST_IMPORTERS:]):
        yield f"{left_out:,} more"


def _by_node(
    entry: str, same: Sequence[str], importing: Sequence[str], pictures: Mapping[str, ProcessDiagram]
) -> Iterator[str]:
    """Names of some processes of an entry, those of a node as one if they are all of it: `every rank on a`."""
    for node in dict.fromkeys(pictures[label].node for label in importing):
        whole = [label for label in same if pictures[label].node == node]
        found = [label for label in importing if pictures[label].node == node]
        every = node and 1 < len(whole) == len(found)
        yield from [f"every {entry} on {node}"] if every else [processes(pictures[label]) for label in found]


def _entry(label: str) -> str:
    return label.partition(".")[0]


def _items(shown: Resource, glyphs: Glyphs) -> Iterator[Item]:
    """An entry and its parts, in the same columns."""
    yield _entry_item(shown, glyphs)
    for part in shown.parts:
        at = Text(glyphs.text(f"at {offset(part.offset)}"))
        cells = [*_cells(part.name, multiple(part.count, part.bytes_each), glyphs), Text()]
        yield Item(glyphs.text(f"  {printable(part.kind)}"), part.mark, "".join(shown.locations[:1]), cells, [at])


def _entry_item(shown: Resource, glyphs: Glyphs) -> Item:
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else _count(shown.count)
    notes = [origin(shown.origin), *map(printable, shown.notes)]
    cells = [*_cells(shown.name, size, glyphs), location(shown.locations, glyphs)]
    device = shown.locations[0] if shown.locations else ""
    return Item(
        glyphs.text(printable(shown.kind)),
        shown.mark,
        device,
        cells,
        [Text(glyphs.text(each)) for each in notes if each],
    )


def _export_item(shown: Export, importers: Sequence[str], glyphs: Glyphs) -> Item:
    size = multiple(shown.count, shown.bytes_each) if shown.bytes_each else _count(shown.count)
    exported = "" if shown.name == shown.first == shown.last else clipped(name_range(shown.first, shown.last))
    notes = [exported, f"→ {printable(', '.join(importers))}" if importers else ""]
    cells = [*_cells(shown.name, size, glyphs), Text(glyphs.text(f"by {printable(shown.via)}"))]
    return Item("export", shown.mark, "", cells, [Text(glyphs.text(each)) for each in notes if each])


def _count(count: int) -> str:
    return f"{count:,}" if count > 1 else ""


def _cells(name: str, size: str, glyphs: Glyphs) -> list[Text]:
    return [Text(glyphs.text(clipped(name)), "bold"), Text(glyphs.text(size))]
