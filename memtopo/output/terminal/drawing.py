"""A layout as a drawing: each range and each memory as a bar to scale, with a line from every label to its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from memtopo.common.text import printable
from memtopo.output import console, plain
from memtopo.output.console import headline
from memtopo.output.diagram.model import MemoryDiagram, Diagram, MappingSpan, ProcessDiagram, RangeDiagram
from memtopo.output.diagram.notation import processes
from memtopo.output.json import PictureDocument
from memtopo.output.terminal import labels
from memtopo.output.terminal.glyphs import Inks, inks
from memtopo.output.terminal.labels import Targets, beside, targets
from memtopo.output.terminal.lines import Rule
from memtopo.output.terminal.panel import Block, Panel, Part, Row, drawn

MOST_PROCESSES = 12
MOST_RANGES = 12
MOST_ROWS = 12


Addresses = Mapping[tuple[str, str], int | None]
"""Where ranges begin, by the first label of the process's picture (none where there is one process) and the range's
own; None where that is not the same in all processes of the picture."""


@dataclass(frozen=True, slots=True)
class Map:
    """The drawing of a picture, for any width; `ascii` draws with ASCII alone, as does a stream that has no more.

    At most `ranges` ranges of each process are drawn, and at most `rows` pieces of each get a label; the bar shows all
    of them. `addresses` are those of the ranges in a layout that stood.
    """

    picture: Diagram
    ascii: bool = False
    ranges: int = MOST_RANGES
    rows: int = MOST_ROWS
    addresses: Addresses = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = inks(self.picture, ascii=self.ascii or options.ascii_only)
        yield from drawn([*self._parts(used)], options.max_width, used, console)

    def _parts(self, used: Inks) -> Iterator[Part]:
        whole = self.picture
        taken = targets(whole)
        for each in whole.processes[:MOST_PROCESSES]:
            yield Rule(_title(each, used))
            yield from self._process(each.first, each.picture, taken, used)
        if more := sum(each.count for each in whole.processes[MOST_PROCESSES:]):
            yield Panel([_more(more, "process", "es", used)])
        yield from self._process("", whole, taken, used)
        if whole.processes and whole.memory:
            yield Rule([Text("memory", "bold"), Text("of all processes", "dim")])
        yield from self._memory(used)

    def _process(self, label: str, shown: Diagram, taken: Targets, used: Inks) -> Iterator[Part]:
        seen = _Seen()
        for each in shown.ranges[: self.ranges]:
            yield _range(each, self._address(label, each), used, seen, self.rows)
        if more := sum(each.count for each in shown.ranges[self.ranges :]):
            yield Panel([_more(more, "range", "s", used)])
        yield from beside(label, shown, taken, used)

    def _address(self, label: str, shown: RangeDiagram) -> str:
        if (label, shown.first) not in self.addresses:
            return ""
        found = self.addresses[label, shown.first]
        return "elsewhere in each" if found is None else f"{'from' if shown.count > 1 else 'at'} {found:#x}"

    def _memory(self, used: Inks) -> Iterator[Panel]:
        whole = self.picture
        heads = labels.memories(whole.memory, used) if whole.memory else []
        for turn, (shown, head) in enumerate(zip(whole.memory, heads, strict=True)):
            yield _memory(shown, head, labels.shares(shown, used, named=bool(whole.processes)), close=turn > 0)


def _title(shown: ProcessDiagram, used: Inks) -> list[Text]:
    told = [Text(used.told(printable(processes(shown))), "bold")]
    return [*told, Text(f"{shown.count:,} processes alike", "dim")] if shown.count > 1 else told


def _more(count: int, thing: str, plural: str, used: Inks) -> Text:
    return Text(used.told(f"… and {count:,} more {thing}{plural * (count > 1)}"), "dim")


class _Seen:
    """Which chunks the drawing has shown already, so that the next time can be called that."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def again(self, piece: MappingSpan, times: int) -> bool:
        if not piece.elsewhere:
            return False
        first, last = piece.index, piece.index + piece.count + piece.step * (times - 1)
        spans = self._spans.setdefault((piece.chunk, piece.origin), [])
        found = any(first < stop and start < last for start, stop in spans)
        spans.append((first, last))
        return found


def _range(shown: RangeDiagram, address: str, used: Inks, seen: _Seen, most: int) -> Panel:
    mapped = [piece for piece in shown.pieces if piece.chunk]
    alike = all(piece.access == mapped[0].access for piece in mapped)
    access = mapped[0].access if mapped and alike else None
    blocks = [Block(piece.offset, piece.chunk, piece.count, piece.locations) for piece in shown.pieces]
    rows = [
        Row(
            index,
            piece.chunk,
            "".join(piece.locations[:1]),
            labels.piece(piece, used, times=shown.count, again=again, access=not alike),
        )
        for index, piece in _labelled(shown.pieces, most)
        for again in [seen.again(piece, shown.count)]
    ]
    return Panel(labels.range_(shown, access, address, used), shown.size, blocks, rows if mapped else ())


def _labelled(pieces: Sequence[MappingSpan], most: int) -> Iterable[tuple[int, MappingSpan]]:
    """The pieces that get a label: all, or the first ones and the last one."""
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
    size = shown.used if shown.total is None else shown.total
    return Panel(head, size, blocks, detail=detail, close=close)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A picture as `memtopo draw` shows it: in ASCII alone, and `width` columns wide, where that is asked for."""

    drawn: PictureDocument
    ascii: bool = False
    width: int | None = None

    def show(self) -> None:
        """Write it to stdout."""
        console.show(self._whole(), width=self.width)

    def text(self) -> str:
        """What a file without colours gets."""
        return console.unstyled(self._whole(), self.width or plain.DEFAULT_WIDTH)

    def _whole(self) -> RenderableType:
        head = headline("draw", self.drawn.name, self.drawn.machine)
        return Group(head, Text(), Map(self.drawn.picture, self.ascii))
