"""Lines of a drawing without a bar: titles, lists of entries, and folding of long lines; glyphs of a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from memtopo.common.text import display_width
from memtopo.output.diagram.notation import SEVERAL

INDENT = 2
GAP = 2
KEY = 2


def line(*parts: Text | str | tuple[str, str], style: str = "") -> Text:
    """One line made of parts."""
    assembled = Text.assemble(*parts, no_wrap=True, overflow="crop")
    assembled.stylize(style)
    return assembled


def joined(parts: Sequence[Text]) -> Text:
    """Parts in one line, with gaps between them."""
    return Text(" " * GAP).join(parts)


def padded(text: Text, width: int, char: str = " ") -> Text:
    """A line padded to a width in columns."""
    text.append(char * (width - text.cell_len), "dim" if char != " " else "")
    return text


def key(chunk: str, device: str, glyphs: Glyphs, none: str | None = None) -> Text:
    """Letter of an entry of chunks as in the bars; of no chunk, `none` or the glyph of a hole."""
    if not chunk:
        return Text(f"{_HOLE if none is None else none} ", "dim")
    return Text.assemble((glyphs.letter(chunk), glyphs.letter_style(device) if device else "bold"), " ")


def packed(
    parts: Iterable[Text],
    width: int,
    indent: int,
    console: Console,
    *,
    glue: str = " " * GAP,
    hanging: int = INDENT + KEY,
) -> Iterator[Text]:
    """Lines with as many parts as fit; lines after the first are indented by `hanging`."""
    packed_line: Text | None = None
    for part in parts:
        if packed_line is None:
            packed_line = part
        elif packed_line.cell_len + len(glue) + part.cell_len <= width - indent:
            packed_line = Text.assemble(packed_line, (glue, part.style), part)
        else:
            yield from _folded(Text.assemble(packed_line, (glue.rstrip(), part.style)), width, indent, console)
            packed_line, indent = part, hanging
    if packed_line is not None:
        yield from _folded(packed_line, width, indent, console)


def _folded(text: Text, width: int, indent: int, console: Console) -> Iterator[Text]:
    for folded in text.wrap(console, max(width - indent, 1), overflow="fold"):
        folded.rstrip()
        yield line(" " * indent, folded)


_LEAST = 14  # columns for the notes of an item beside the others
_START = 3


@dataclass(frozen=True, slots=True)
class TitleLine:
    """A title in a horizontal line across the whole width."""

    title: Sequence[Text]

    def lines(self, width: int, console: Console) -> Iterator[Text]:
        """The line; a title that is too long folds."""
        start = Text(f"{_HORIZONTAL * (_START - 1)} ", "dim")
        for part in packed(self.title, width - _START, 0, console, hanging=0):
            titled = line(start, part)
            if (left := width - titled.cell_len - 1) > 0:
                titled.append(f" {_HORIZONTAL * left}", "dim")
            yield titled
            start = Text(" " * _START)


@dataclass(frozen=True, slots=True)
class PanelItem:
    """An entry outside of the ranges: kind, chunk and device of its memory, cells by column, and notes.

    A note is not folded if it fits in a line.
    """

    kind: str
    chunk: str
    device: str
    cells: Sequence[Text]
    notes: Sequence[Text] = ()


@dataclass(frozen=True, slots=True)
class ItemList:
    """Items, one line each, and the number of those left out."""

    items: Sequence[PanelItem]
    left_out: int = 0

    def lines(self, width: int, glyphs: Glyphs, console: Console) -> Iterator[Text]:
        """The items in columns; on a narrow terminal, each item folds."""
        kind = max(len(item.kind) for item in self.items) + GAP
        columns = zip(*(item.cells for item in self.items), strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        start = INDENT + kind + KEY
        columns_width = start + sum(each + GAP for each in widths if each)
        for item in self.items:
            head = line(" " * INDENT, (item.kind.ljust(kind), "dim"), key(item.chunk, item.device, glyphs, none=" "))
            if width - columns_width < _LEAST:
                yield from _folded_item(head, item, width, console)
            else:
                yield from _item(line(head, _columns(item.cells, widths)), item, columns_width, width, console)
        if self.left_out:
            yield line(" " * (INDENT + kind + KEY), (f"… {self.left_out:,} more", "dim"))


def _columns(cells: Sequence[Text], widths: Sequence[int], right: Collection[int] = ()) -> Text:
    """Cells in columns of some widths, without those of no width; the `right` ones are aligned so."""
    columns = Text()
    for index, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        if width:
            blank = Text(" " * (width - cell.cell_len))
            columns.append_text(blank + cell if index in right else cell + blank)
            columns.append(" " * GAP)
    return columns


def _item(columns: Text, item: PanelItem, columns_width: int, width: int, console: Console) -> Iterator[Text]:
    for notes in packed(item.notes, width - columns_width, 0, console, hanging=0):
        yield line(columns, notes)
        columns = Text(" " * columns_width)
    if not item.notes:
        columns.rstrip()
        yield columns


def _folded_item(head: Text, item: PanelItem, width: int, console: Console) -> Iterator[Text]:
    name, *others = (cell for cell in item.cells if cell.plain)
    yield from packed([line(head, name), *others, *item.notes], width, 0, console)


_FILLS = "█▒▚░▌▓▀▄"
# Okabe and Ito's palette for colour-blind readers; each colour is legible on black and on white.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a500", "#999999")
_HOLE, _TAKEN = "·", "╱"
_HORIZONTAL, _VERTICAL, _CORNER, _JUNCTION = "─", "│", "┘", "┤"
_ASCII = str.maketrans(f"{_FILLS}·╱─│┘┤…×→", "#=%+o~^-./-|'+~x>")


def in_ascii(line: Text) -> Text:
    """A line with a sign of ASCII in place of each other one, in the same columns."""
    line.plain = "".join(char if char.isascii() else "?" * display_width(char) for char in line.plain.translate(_ASCII))
    return line


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Glyphs and styles for one diagram. No information is in the colour alone.

    `letters` is keyed by the `chunk` of a piece or a share, `devices` by name. Entries of chunks beyond the number of
    letters are all `*`.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]

    def letter(self, chunk: str) -> str:
        """Letter of an entry of chunks, the same in all bars; a dot for a hole."""
        return self.letters.get(chunk, SEVERAL) if chunk else _HOLE

    def fill(self, device: str) -> str:
        """Fill of a device's memory."""
        return _FILLS[self.devices.get(device, 0) % len(_FILLS)]

    def colour(self, device: str) -> str:
        """Colour of a device, in rich's notation."""
        return _COLOURS[self.devices.get(device, 0) % len(_COLOURS)]

    def letter_style(self, device: str) -> str:
        """Style of a letter at the first cell of a block on a device."""
        return f"bold black on {self.colour(device)}"


HEADINGS = ("chunk", "at", "size", "on", "access", "")
FEWEST = 3  # columns of a label that are always in one line: name, offset and size
_NUMBER_COLUMNS = (1, 2)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A label: index of its block, entry and device of its chunks, and cells for the `HEADINGS`."""

    block: int
    chunk: str
    device: str
    cells: Sequence[Text]


@dataclass(frozen=True, slots=True)
class Panel:
    """A head beside a bar of `size` bytes, and the labels of its blocks or a dim `detail`.

    Lines are folded between the parts of head and detail. A `close` panel has no empty line before it. Without blocks
    there is no bar.
    """

    head: Sequence[Text]
    size: int = 0
    blocks: Sequence[PanelBlock] = ()
    rows: Sequence[PanelRow] = ()
    detail: Sequence[str] = ()
    close: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Division of the `width`: `columns` of a label in one line, `widths` of each, `labels` and `bar` in all."""

    width: int
    columns: int
    widths: Sequence[int]
    labels: int
    bar: int

    @property
    def side_by_side(self) -> bool:
        """True if there is room for the bar beside the labels."""
        return self.columns > 0


PanelPart = Panel | TitleLine | ItemList
"""A part of a drawing."""


def drawing_lines(parts: Sequence[PanelPart], width: int, glyphs: Glyphs, console: Console) -> Iterator[Text]:
    """Every line of a drawing, at most `width` columns wide."""
    panels = [part for part in parts if isinstance(part, Panel)]
    frame = _frame(panels, width)
    renderer = _PanelRenderer(frame, glyphs, console)
    headings = [renderer.headings()] if frame.side_by_side and any(panel.rows for panel in panels) else []
    before: PanelPart | None = None
    for part in parts:
        if before and not (isinstance(before, TitleLine) or (isinstance(part, Panel) and part.close)):
            yield Text()
        if isinstance(part, Panel):
            yield from headings
            headings = []
            yield from renderer.panel(part)
        else:
            yield from part.lines(width, console) if isinstance(part, TitleLine) else part.lines(width, glyphs, console)
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
    """Widths of the longest head in one line, and of the longest part of a head or detail."""
    heads = max((joined(panel.head).cell_len for panel in panels), default=0)
    parts = [part.cell_len for panel in panels for part in panel.head]
    parts += [display_width(", ".join(panel.detail)) for panel in panels]
    return INDENT + heads + GAP, INDENT + KEY + max(parts, default=0) + GAP


def _width(cells: Sequence[Text], heading: str) -> int:
    """Width of a column with its heading; 0 if all cells are empty."""
    widest = max((cell.cell_len for cell in cells), default=0)
    return max(widest, len(heading)) if widest else 0


@dataclass(frozen=True, slots=True)
class _PanelRenderer:
    """Lines of panels that share a frame."""

    frame: Frame
    glyphs: Glyphs
    console: Console

    def headings(self) -> Text:
        words = [Text(heading) for heading in HEADINGS]
        return line(" " * (INDENT + KEY), self._columns(words), style="dim")

    def panel(self, panel: Panel) -> Iterator[Text]:
        if not panel.blocks:
            yield from self._packed(panel.head, self.frame.width, INDENT)
            return
        cells = first_cells(panel.blocks, panel.size, self.frame.bar)
        drawn = bar(panel.blocks, cells, self.frame.bar, self.glyphs)
        if self.frame.side_by_side:
            yield from self._head_beside(panel, drawn, [cells[row.block] for row in panel.rows])
            yield from self._rows_beside(panel, cells)
        else:
            yield from self._packed(panel.head, self.frame.labels, INDENT)
            yield line(" " * INDENT, drawn)
            yield from self._rows_below(panel)
            yield from self._detail(panel)

    def _head_beside(self, panel: Panel, drawn: Text, anchors: Sequence[int]) -> Iterator[Text]:
        first, *more = self._packed(panel.head, self.frame.labels - 1, INDENT)
        yield line(padded(first, self.frame.labels), drawn)
        for words in (*more, *self._detail(panel)):
            yield self._with_lines(words, anchors)

    def _detail(self, panel: Panel) -> Iterator[Text]:
        parts = [Text(part, "dim") for part in panel.detail]
        yield from self._packed(parts, self.frame.labels - GAP, INDENT + KEY, ", ")

    def _rows_beside(self, panel: Panel, cells: Sequence[int]) -> Iterator[Text]:
        anchors = [cells[row.block] for row in panel.rows]
        for index, row in enumerate(panel.rows):
            later = anchors[index + 1 :]
            if more := self._left_out(panel, index):
                yield self._with_lines(more, [anchors[index], *later])
            yield self._label(row, anchors[index], later)
            for words in self._details(row):
                yield self._with_lines(words, later)

    def _label(self, row: PanelRow, anchor: int, later: Sequence[int]) -> Text:
        words = line(" " * INDENT, self._key(row), self._columns(row.cells), " ")
        label = padded(words, self.frame.labels, _HORIZONTAL)
        label.append(_HORIZONTAL * anchor, "dim")
        label.append(_JUNCTION if anchor in later else _CORNER, "dim")
        return self._with_lines(label, [cell for cell in later if cell > anchor])

    def _with_lines(self, text: Text, anchors: Sequence[int]) -> Text:
        """Add the vertical parts of the lines to some cells of the bar."""
        for cell in anchors:
            if self.frame.labels + cell >= text.cell_len:
                text = padded(text, self.frame.labels + cell)
                text.append(_VERTICAL, "dim")
        return text

    def _details(self, row: PanelRow) -> Iterator[Text]:
        """The cells for which the first line has no column."""
        yield from self._packed(self._rest(row, self.frame.columns), self.frame.labels - GAP, INDENT + KEY)

    def _rows_below(self, panel: Panel) -> Iterator[Text]:
        for index, row in enumerate(panel.rows):
            if more := self._left_out(panel, index):
                yield more
            name, at, size = row.cells[:FEWEST]
            words = [line(self._key(row), name), Text(f"{size} at {at}"), *self._rest(row, FEWEST)]
            yield from self._packed(words, self.frame.labels, INDENT)

    def _left_out(self, panel: Panel, index: int) -> Text | None:
        """Number of blocks without a label before a label."""
        count = panel.rows[index].block - panel.rows[index - 1].block - 1 if index else 0
        note = Text(f"… {count:,} more", "dim")
        return line(" " * (INDENT + KEY), note) if count else None

    def _rest(self, row: PanelRow, columns: int) -> list[Text]:
        return [cell for cell in row.cells[columns:] if cell.plain]

    def _key(self, row: PanelRow) -> Text:
        return key(row.chunk, row.device, self.glyphs)

    def _columns(self, cells: Sequence[Text]) -> Text:
        columns = _columns(cells[: self.frame.columns], self.frame.widths, _NUMBER_COLUMNS)
        columns.rstrip()
        return columns

    def _packed(self, parts: Sequence[Text], width: int, indent: int, glue: str = " " * GAP) -> Iterator[Text]:
        return packed(parts, width, indent, self.console, glue=glue)


@dataclass(frozen=True, slots=True)
class PanelBlock:
    """A block of a bar: `count` chunks of one entry, placed round-robin on `devices`; or a hole, or `taken` memory."""

    offset: int
    chunk: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    taken: bool = False


def first_cells(blocks: Sequence[PanelBlock], size: int, width: int) -> list[int]:
    """The first cell of each block of a bar that shows `size` bytes in `width` cells.

    If there are at most two thirds as many blocks as cells, each block has a cell of its own. Otherwise several blocks
    may begin in one cell, which keeps the scale.
    """
    cells = [min(block.offset * width // size, width - 1) for block in blocks]
    if len(cells) * 3 > width * 2:
        return cells
    for index in range(1, len(cells)):
        cells[index] = max(cells[index], cells[index - 1] + 1)
    for index in range(len(cells) - 1, -1, -1):
        cells[index] = min(cells[index], width - len(cells) + index)
    return cells


def bar(blocks: Sequence[PanelBlock], cells: Sequence[int], width: int, glyphs: Glyphs) -> Text:
    """A bar with each block as its letter and the fills of its devices; `cells` are those of `first_cells`."""
    drawn = [(_HOLE, "dim")] * width
    taken = 0
    for block, first, end in zip(blocks, cells, [*cells[1:], width], strict=True):
        # A cell that several blocks share shows the first one with memory.
        if (block.chunk or block.taken) and (start := max(first, taken)) < max(end, first + 1):
            taken = max(end, first + 1)
            drawn[start:taken] = _cells(block, taken - start, glyphs)
    line = Text(no_wrap=True, overflow="crop", end="")
    for style, cells_ in groupby(drawn, key=lambda cell: cell[1]):
        line.append("".join(char for char, _ in cells_), style)
    return line


def _cells(block: PanelBlock, length: int, glyphs: Glyphs) -> list[tuple[str, str]]:
    if block.taken:
        return [(_TAKEN, "dim")] * length
    devices = [_device(block, cell, length) for cell in range(length)]
    head = (glyphs.letter(block.chunk), glyphs.letter_style(devices[0]))
    return [head, *((glyphs.fill(device), glyphs.colour(device)) for device in devices[1:])]


def _device(block: PanelBlock, cell: int, length: int) -> str:
    """Device of the memory in a cell: to scale if each chunk has a cell, else round-robin as the chunks are."""
    chunk = cell * block.count // length if block.count <= length else cell
    return block.devices[chunk % len(block.devices)]
