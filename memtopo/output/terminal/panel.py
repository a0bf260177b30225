"""Panels: words on the left, a bar on the right, and between them lines that do not cross.

Labels stand in the order of their places and each line turns up to the bar at the first cell of its piece, so that
those further right pass it by. Where it gets narrow, the words take two lines; where it gets narrower, the bar stands
above them and letters alone tell which is which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from memtopo.common.text import display_width
from memtopo.output.terminal.glyphs import Inks
from memtopo.output.terminal.lines import GAP, INDENT, KEY, Listing, Rule, joined, key, line, packed, padded

HEADINGS = ("chunk", "at", "size", "on", "access", "")
FEWEST = 3  # name, offset and size stay in one line
_NUMBERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One label: which block it belongs to, the mark and the device of its chunks, and words for the `HEADINGS`."""

    block: int
    chunk: str
    device: str
    cells: Sequence[Text]


@dataclass(frozen=True, slots=True)
class Panel:
    """A head beside a bar of `size` bytes, and the labels of its blocks or a dim `detail`.

    Head and detail are parts that stay in one piece where a line has to be folded. No empty line stands before a panel
    that is `close` to the one before it. Without blocks there is no bar.
    """

    head: Sequence[Text]
    size: int = 0
    blocks: Sequence[Block] = ()
    rows: Sequence[Row] = ()
    detail: Sequence[str] = ()
    close: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """How the `width` is shared: `columns` of a label in one line, `widths` of each, `words` and `bar` in all."""

    width: int
    columns: int
    widths: Sequence[int]
    words: int
    bar: int

    @property
    def beside(self) -> bool:
        """Whether there is room for the bar beside the words."""
        return self.columns > 0


Part = Panel | Rule | Listing
"""What a map is made of."""


def drawn(parts: Sequence[Part], width: int, inks: Inks, console: Console) -> Iterator[Text]:
    """Every line of a map, none of them wider than `width`."""
    panels = [part for part in parts if isinstance(part, Panel)]
    frame = _frame(panels, width)
    draft = _Draft(frame, inks, console)
    headings = [draft.headings()] if frame.beside and any(panel.rows for panel in panels) else []
    before: Part | None = None
    for part in parts:
        if before and not (isinstance(before, Rule) or (isinstance(part, Panel) and part.close)):
            yield Text()
        if isinstance(part, Panel):
            yield from headings
            headings = []
            yield from draft.panel(part)
        else:
            yield from part.lines(width, inks, console)
        before = part


def _frame(panels: Sequence[Panel], width: int) -> Frame:
    rows = [row for panel in panels for row in panel.rows]
    widths = [_width([row.cells[column] for row in rows], heading) for column, heading in enumerate(HEADINGS)]
    head, part = _head_widths([panel for panel in panels if panel.blocks])
    most, room = width * 3 // 5, max(16, width // 5)
    for columns in range(len(HEADINGS), FEWEST - 1, -1):
        words = INDENT + KEY + sum(each + GAP for each in widths[:columns] if each)
        words = max(words, head if head <= most else min(part, most))
        if width - words >= room:
            return Frame(width, columns, widths, words, width - words)
    return Frame(width, 0, widths, width, max(1, width - INDENT))


def _head_widths(panels: Sequence[Panel]) -> tuple[int, int]:
    """What the widest head needs in one line, and what the widest part of one needs alone, or a detail."""
    heads = max((joined(panel.head).cell_len for panel in panels), default=0)
    parts = [part.cell_len for panel in panels for part in panel.head]
    parts += [display_width(", ".join(panel.detail)) for panel in panels]
    return INDENT + heads + GAP, INDENT + KEY + max(parts, default=0) + GAP


def _width(cells: Sequence[Text], heading: str) -> int:
    """What a column needs, its heading included; nothing where all of it is empty."""
    widest = max((cell.cell_len for cell in cells), default=0)
    return max(widest, len(heading)) if widest else 0


class _Draft:
    def __init__(self, frame: Frame, inks: Inks, console: Console) -> None:
        self.frame, self.inks, self.console = frame, inks, console

    def headings(self) -> Text:
        words = [Text(heading) for heading in HEADINGS]
        return line(" " * (INDENT + KEY), self._columns(words), style="dim")

    def panel(self, panel: Panel) -> Iterator[Text]:
        if not panel.blocks:
            yield from self._packed(panel.head, self.frame.width, INDENT)
            return
        cells = starts(panel.blocks, panel.size, self.frame.bar)
        drawn = bar(panel.blocks, cells, self.frame.bar, self.inks)
        if self.frame.beside:
            yield from self._head_beside(panel, drawn, [cells[row.block] for row in panel.rows])
            yield from self._rows_beside(panel, cells)
        else:
            yield from self._packed(panel.head, self.frame.words, INDENT)
            yield line(" " * INDENT, drawn)
            yield from self._rows_below(panel)
            yield from self._detail(panel)

    def _head_beside(self, panel: Panel, drawn: Text, anchors: Sequence[int]) -> Iterator[Text]:
        first, *more = self._packed(panel.head, self.frame.words - 1, INDENT)
        yield line(padded(first, self.frame.words), drawn)
        for words in (*more, *self._detail(panel)):
            yield self._with_tree(words, anchors)

    def _detail(self, panel: Panel) -> Iterator[Text]:
        parts = [Text(part, "dim") for part in panel.detail]
        yield from self._packed(parts, self.frame.words - GAP, INDENT + KEY, ", ")

    def _rows_beside(self, panel: Panel, cells: Sequence[int]) -> Iterator[Text]:
        anchors = [cells[row.block] for row in panel.rows]
        for turn, row in enumerate(panel.rows):
            later = anchors[turn + 1 :]
            if more := self._left_out(panel, turn):
                yield self._with_tree(more, [anchors[turn], *later])
            yield self._pointing(row, anchors[turn], later)
            for words in self._details(row):
                yield self._with_tree(words, later)

    def _pointing(self, row: Row, anchor: int, later: Sequence[int]) -> Text:
        words = line(" " * INDENT, self._key(row), self._columns(row.cells), " ")
        told = padded(words, self.frame.words, self.inks.along)
        told.append(self.inks.along * anchor, "dim")
        told.append(self.inks.joint if anchor in later else self.inks.corner, "dim")
        return self._with_tree(told, [cell for cell in later if cell > anchor])

    def _with_tree(self, told: Text, anchors: Sequence[int]) -> Text:
        """A line with those that pass it by on their way to the bar."""
        for cell in anchors:
            if self.frame.words + cell >= told.cell_len:
                told = padded(told, self.frame.words + cell)
                told.append(self.inks.up, "dim")
        return told

    def _details(self, row: Row) -> Iterator[Text]:
        """The words that the columns of the first line had no room for."""
        yield from self._packed(self._rest(row, self.frame.columns), self.frame.words - GAP, INDENT + KEY)

    def _rows_below(self, panel: Panel) -> Iterator[Text]:
        for turn, row in enumerate(panel.rows):
            if more := self._left_out(panel, turn):
                yield more
            name, at, size = row.cells[:FEWEST]
            words = [line(self._key(row), name), Text(f"{size} at {at}"), *self._rest(row, FEWEST)]
            yield from self._packed(words, self.frame.words, INDENT)

    def _left_out(self, panel: Panel, turn: int) -> Text | None:
        """What stands for the blocks between two labels that have none."""
        more = panel.rows[turn].block - panel.rows[turn - 1].block - 1 if turn else 0
        told = Text(self.inks.told(f"… {more:,} more"), "dim")
        return line(" " * (INDENT + KEY), told) if more else None

    def _rest(self, row: Row, columns: int) -> list[Text]:
        return [cell for cell in row.cells[columns:] if cell.plain]

    def _key(self, row: Row) -> Text:
        return key(row.chunk, row.device, self.inks)

    def _columns(self, cells: Sequence[Text]) -> Text:
        told = Text()
        for column, cell in enumerate(cells[: self.frame.columns]):
            if width := self.frame.widths[column]:
                blank = " " * (width - cell.cell_len)
                told.append_text(Text.assemble(blank, cell) if column in _NUMBERS else Text.assemble(cell, blank))
                told.append(" " * GAP)
        told.rstrip()
        return told

    def _packed(self, parts: Sequence[Text], width: int, indent: int, glue: str = " " * GAP) -> Iterator[Text]:
        return packed(parts, width, indent, self.console, glue=glue)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a bar: `count` chunks of one kind, on `devices` in turn; without one it is a hole or `taken`."""

    offset: int
    chunk: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    taken: bool = False


def starts(blocks: Sequence[Block], size: int, width: int) -> list[int]:
    """The first cell of each block, where `size` bytes are `width` cells.

    As long as two thirds of the cells are enough, each block has one of its own, however small it is. Of more blocks
    several begin in one cell, so that the scale is kept.
    """
    cells = [min(block.offset * width // size, width - 1) for block in blocks]
    if len(cells) * 3 > width * 2:
        return cells
    for index in range(1, len(cells)):
        cells[index] = max(cells[index], cells[index - 1] + 1)
    for index in range(len(cells) - 1, -1, -1):
        cells[index] = min(cells[index], width - len(cells) + index)
    return cells


def bar(blocks: Sequence[Block], cells: Sequence[int], width: int, inks: Inks) -> Text:
    """Each block as its letter and the fills of its devices; `cells` is what `starts` gave for this width."""
    drawn = [(inks.hole, "dim")] * width
    taken = 0
    for block, first, end in zip(blocks, cells, [*cells[1:], width], strict=True):
        # Where many blocks share a cell, it is the first chunk's: memory is shown rather than a hole.
        if (block.chunk or block.taken) and (start := max(first, taken)) < max(end, first + 1):
            taken = max(end, first + 1)
            drawn[start:taken] = _cells(block, taken - start, inks)
    line = Text(no_wrap=True, overflow="crop", end="")
    for style, cells_ in groupby(drawn, key=lambda cell: cell[1]):
        line.append("".join(char for char, _ in cells_), style)
    return line


def _cells(block: Block, length: int, inks: Inks) -> list[tuple[str, str]]:
    if block.taken:
        return [(inks.taken, "dim")] * length
    devices = [_device(block, cell, length) for cell in range(length)]
    head = (inks.letter(block.chunk), inks.swatch(devices[0]))
    return [head, *((inks.fill(device), inks.colour(device)) for device in devices[1:])]


def _device(block: Block, cell: int, length: int) -> str:
    """Whose memory a cell shows: to scale where chunks have cells, else the devices in turn, as the chunks are."""
    chunk = cell * block.count // length if block.count <= length else cell
    return block.devices[chunk % len(block.devices)]
