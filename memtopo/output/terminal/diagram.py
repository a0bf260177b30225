"""Drawing of a layout: each range and each memory as a bar to scale, with lines from the labels to the bar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from memtopo.common.text import printable
from memtopo.geometry.diagram import Diagram, MappingSpan, MemoryDiagram, ProcessDiagram, RangeDiagram
from memtopo.output import console, plain
from memtopo.output.console import headline, notes
from memtopo.output.diagram.notation import processes
from memtopo.output.terminal import labels
from memtopo.output.terminal.labels import Importers, importers_of, item_list
from memtopo.output.terminal.lines import Glyphs, TitleLine, glyphs_of
from memtopo.output.terminal.panel import Block, Panel, Part, Row, drawing_lines

if TYPE_CHECKING:
    from memtopo.output.json import PictureDocument

MOST_PROCESSES = 12
MOST_RANGES = 12
MOST_ROWS = 12


Addresses = Mapping[tuple[str, str], int | None]
"""Addresses of ranges, by the first label of the process picture (empty for a single process) and of the range.

None for an address that differs between the processes of a picture.
"""


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
        heads = labels.memories(whole.memory, glyphs) if whole.memory else []
        for index, (shown, head) in enumerate(zip(whole.memory, heads, strict=True)):
            yield _memory(shown, head, labels.shares(shown, glyphs, named=bool(whole.processes)), close=index > 0)


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
            labels.piece(piece, glyphs, times=shown.count, again=index in repeated, access=not alike),
        )
        for index, piece in _labelled(shown.pieces, most)
    ]
    return Panel(labels.range_(shown, access, address, glyphs), shown.size, blocks, rows if mapped else ())


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


@dataclass(frozen=True, slots=True)
class TitledDrawing:
    """Text output of `memtopo draw`, `width` columns wide if that is set."""

    document: PictureDocument
    ascii: bool = False
    width: int | None = None

    def show(self) -> None:
        """Write the drawing to stdout."""
        console.show(self._whole(), width=self.width)

    def text(self) -> str:
        """The drawing without colours, for a file."""
        return console.unstyled(self._whole(), self.width or plain.DEFAULT_WIDTH)

    def _whole(self) -> RenderableType:
        name, state = self.document.name, self.document.state
        head = headline("draw", name if state is None else f"{name} in state {state}", self.document.machine)
        parts: list[RenderableType] = [head, Text(), TerminalDrawing(self.document.picture, self.ascii)]
        if self.document.picture.choices:
            parts += [Text(), notes(self.document.picture.choices)]
        return Group(*parts)
