"""Lines of a drawing in a terminal: titles, lists of entries, bars with labels, folding of long lines, and glyphs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from memtopo.common.text import display_width
from memtopo.output.diagram.notation import SEVERAL

_GLUE = "\ue000"
"""Sign in place of a blank where no line ends: in `16 × 2 MiB`, in `gpu0 rw`."""
_GLUED = re.compile(r"(?<=\d) (?=×|(?:[KMGTPE]i)?B\b|[kMGT]B/s|[mµ]?s\b|min\b|h\b|d\b)|(?<=×) | (?=rw?(?:,|\)|$))")


def words(text: Text) -> Sequence[str]:
    """Words of a text between which lines may end."""
    return _GLUED.sub(_GLUE, text.plain).split()


def wrapped(text: Text, width: int, console: Console) -> Sequence[Text]:
    """Lines of a text, at most `width` columns wide; only a word that is wider is divided."""
    if all(cell_len(line) <= width for line in text.plain.split("\n")):
        return [*text.split("\n")]
    glued = text.copy()
    glued.plain = _GLUED.sub(_GLUE, text.plain)
    lines = glued.wrap(console, width, overflow="fold")
    for line in lines:
        line.rstrip()
        line.plain = line.plain.replace(_GLUE, " ")
    return [*lines]


INDENT = 2
GAP = 2
KEY = 2
_LEAST = 14  # columns for the notes of an item beside the others
_START = 3

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


class Glyphs(Struct, frozen=True):
    """Glyphs and styles for one diagram. No information is in the colour alone.

    `letters` is keyed by the `chunk` of a piece or a share, `devices` by name. Entries of chunks beyond the number of
    letters are all `*`.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]

    def fill(self, device: str) -> str:
        """Fill of a device's memory."""
        return _FILLS[self.devices.get(device, 0) % len(_FILLS)]

    def colour(self, device: str) -> str:
        """Colour of a device, in rich's notation."""
        return _COLOURS[self.devices.get(device, 0) % len(_COLOURS)]

    def letter(self, chunk: str, device: str = "") -> tuple[str, str]:
        """Letter of an entry of chunks, the same in all bars, and its style in a block on a device."""
        return self.letters.get(chunk, SEVERAL), f"bold black on {self.colour(device)}" if device else "bold"

    def key(self, chunk: str, device: str, none: str = _HOLE) -> Text:
        """Letter of an entry of chunks as in the bars; of no chunk, `none`."""
        return Text.assemble(self.letter(chunk, device) if chunk else (none, "dim"), " ")


class TitleLine(Struct, frozen=True):
    """A title in a horizontal line across the whole width."""

    title: Sequence[Text]


class PanelItem(Struct, frozen=True):
    """An entry outside of the ranges: kind, chunk and device of its memory, cells by column, and notes.

    A note is not folded if it fits in a line.
    """

    kind: str
    chunk: str
    device: str
    cells: Sequence[Text]
    notes: Sequence[Text] = ()


class ItemList(Struct, frozen=True):
    """Items, one line each, and the number of those left out."""

    items: Sequence[PanelItem]
    left_out: int = 0


HEADINGS = ("chunk", "at", "size", "on", "access", "")
FEWEST = 3  # columns of a label that are always in one line: name, offset and size
_NUMBER_COLUMNS = (1, 2)


class PanelBlock(Struct, frozen=True):
    """A block of a bar: `count` chunks of one entry, placed round-robin on `devices`; or a hole, or `taken` memory.

    A `label` has a cell for each of the `HEADINGS`.
    """

    offset: int
    chunk: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()
    taken: bool = False
    label: Sequence[Text] = ()


class Panel(Struct, frozen=True):
    """A head beside a bar of `size` bytes, with the labels of its blocks or a dim `detail`.

    Lines are folded between the parts of head and detail. A `close` panel has no empty line before it. Without blocks
    there is no bar.
    """

    head: Sequence[Text]
    size: int = 0
    blocks: Sequence[PanelBlock] = ()
    detail: Sequence[str] = ()
    close: bool = False


PanelPart = Panel | TitleLine | ItemList
"""A part of a drawing."""


def _line(*parts: Text | str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop")


def _padded(text: Text, width: int, char: str = " ") -> Text:
    text.append(char * (width - text.cell_len), "dim" if char != " " else "")
    return text


def _columns(cells: Sequence[Text], widths: Sequence[int], right: Collection[int] = ()) -> Text:
    """Cells in columns of some widths, without those of no width; the `right` ones are aligned so."""
    columns = Text()
    for index, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        if width:
            blank = Text(" " * (width - cell.cell_len))
            columns.append_text(blank + cell if index in right else cell + blank)
            columns.append(" " * GAP)
    return columns


MOST_EVEN = 16
"""Panels whose bars have a width that suits their devices."""


class PanelRenderer:
    """Lines of the parts of a drawing, at most `width` columns wide; all panels have the same columns.

    A label has `_columns` in one line, `_labels` wide in all; without any, the bar is below the head.
    """

    def __init__(self, parts: Sequence[PanelPart], width: int, glyphs: Glyphs, console: Console) -> None:
        self._parts, self._width, self._glyphs, self._console = parts, width, glyphs, console
        panels = [part for part in parts if isinstance(part, Panel)]
        self._cells = [block.label for panel in panels for block in panel.blocks if block.label]
        widest = [max(cell.cell_len for cell in column) for column in zip(*self._cells, strict=True)]
        self._widths = [each and max(each, len(head)) for each, head in zip(widest, HEADINGS, strict=False)]
        drawn = [panel for panel in panels if panel.blocks]
        heads = max((sum(part.cell_len + GAP for part in panel.head) for panel in drawn), default=GAP)
        longest = [part.cell_len for panel in drawn for part in panel.head]
        longest += [display_width(", ".join(panel.detail)) for panel in drawn]
        head, part = INDENT + heads, INDENT + KEY + max(longest, default=0) + GAP
        most, room = width * 3 // 5, max(16, width // 5)
        self._columns, self._labels, self._bar = 0, width, max(1, width - INDENT)
        for columns in range(len(HEADINGS), FEWEST - 1, -1):
            words = INDENT + KEY + sum(each + GAP for each in self._widths[:columns] if each)
            words = max(words, head if head <= most else min(part, most))
            if width - words >= room:
                self._columns, self._labels, self._bar = columns, words, width - words
                break
        self._bar = _even(self._bar, panels)

    def lines(self) -> Iterator[Text]:
        """Every line of the drawing."""
        headings = []
        if self._columns and self._cells:
            names = self._in_columns([Text(heading) for heading in HEADINGS])
            headings = [_line(" " * (INDENT + KEY), names)]
            headings[0].stylize("dim")
        before: PanelPart | None = None
        for part in self._parts:
            if before and not (isinstance(before, TitleLine) or (isinstance(part, Panel) and part.close)):
                yield Text()
            if isinstance(part, Panel):
                yield from headings
                headings = []
                yield from self._panel(part)
            else:
                yield from self._title(part) if isinstance(part, TitleLine) else self._items(part)
            before = part

    def _title(self, part: TitleLine) -> Iterator[Text]:
        """The title in its line; one that is too long folds."""
        start = Text(f"{_HORIZONTAL * (_START - 1)} ", "dim")
        for words in self._packed(part.title, self._width - _START, 0, hanging=0):
            titled = _line(start, words)
            if (left := self._width - titled.cell_len - 1) > 0:
                titled.append(f" {_HORIZONTAL * left}", "dim")
            yield titled
            start = Text(" " * _START)

    def _items(self, part: ItemList) -> Iterator[Text]:
        """The items in columns; on a narrow terminal, each item folds."""
        kind = max(len(item.kind) for item in part.items) + GAP
        columns = zip(*(each.cells for each in part.items), strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        start = INDENT + kind + KEY
        indent = start + sum(each + GAP for each in widths if each)
        for item in part.items:
            key = self._glyphs.key(item.chunk, item.device, none=" ")
            words = _line(" " * INDENT, (item.kind.ljust(kind), "dim"), key)
            if self._width - indent < _LEAST:
                name, *others = (cell for cell in item.cells if cell.plain)
                yield from self._packed([_line(words, name), *others, *item.notes], self._width, 0)
                continue
            words = _line(words, _columns(item.cells, widths))
            for notes in self._packed(item.notes, self._width - indent, 0, hanging=0):
                yield _line(words, notes)
                words = Text(" " * indent)
            if not item.notes:
                words.rstrip()
                yield words
        if part.left_out:
            yield _line(" " * start, (f"… {part.left_out:,} more", "dim"))

    def _panel(self, panel: Panel) -> Iterator[Text]:
        if not panel.blocks:
            yield from self._packed(panel.head, self._width, INDENT)
            return
        cells = first_cells(panel.blocks, panel.size, self._bar)
        drawn = _bar(panel.blocks, cells, self._bar, self._glyphs)
        labelled = [index for index, block in enumerate(panel.blocks) if block.label]
        detail = [Text(part, "dim") for part in panel.detail]
        details = self._packed(detail, self._labels - GAP, INDENT + KEY, ", ")
        if self._columns:
            anchors = [cells[index] for index in labelled]
            first, *more = self._packed(panel.head, self._labels - 1, INDENT)
            yield _line(_padded(first, self._labels), drawn)
            yield from (self._with_lines(words, anchors) for words in (*more, *details))
            yield from self._labels_beside(panel.blocks, labelled, anchors)
        else:
            yield from (*self._packed(panel.head, self._labels, INDENT), _line(" " * INDENT, drawn))
            yield from (*self._labels_below(panel.blocks, labelled), *details)

    def _labels_beside(
        self, blocks: Sequence[PanelBlock], labelled: Sequence[int], anchors: Sequence[int]
    ) -> Iterator[Text]:
        for number, (index, anchor) in enumerate(zip(labelled, anchors, strict=True)):
            block, later = blocks[index], anchors[number + 1 :]
            if more := _left_out(labelled, number):
                yield self._with_lines(more, [anchor, *later])
            key = self._glyphs.key(block.chunk, "".join(block.devices[:1]))
            label = _padded(_line(" " * INDENT, key, self._in_columns(block.label), " "), self._labels, _HORIZONTAL)
            label.append(_HORIZONTAL * anchor + (_JUNCTION if anchor in later else _CORNER), "dim")
            yield self._with_lines(label, [cell for cell in later if cell > anchor])
            # The cells for which the first line has no column.
            for words in self._packed(_filled(block.label[self._columns :]), self._labels - GAP, INDENT + KEY):
                yield self._with_lines(words, later)

    def _with_lines(self, text: Text, anchors: Sequence[int]) -> Text:
        """Add the vertical parts of the lines to some cells of the bar."""
        for cell in anchors:
            if self._labels + cell >= text.cell_len:
                text = _padded(text, self._labels + cell)
                text.append(_VERTICAL, "dim")
        return text

    def _labels_below(self, blocks: Sequence[PanelBlock], labelled: Sequence[int]) -> Iterator[Text]:
        for number, index in enumerate(labelled):
            if more := _left_out(labelled, number):
                yield more
            name, at, size, *others = blocks[index].label
            key = self._glyphs.key(blocks[index].chunk, "".join(blocks[index].devices[:1]))
            words = [_line(key, name), Text(f"{size} at {at}"), *_filled(others)]
            yield from self._packed(words, self._labels, INDENT)

    def _in_columns(self, cells: Sequence[Text]) -> Text:
        columns = _columns(cells[: self._columns], self._widths, _NUMBER_COLUMNS)
        columns.rstrip()
        return columns

    def _packed(
        self, parts: Iterable[Text], width: int, indent: int, glue: str = " " * GAP, hanging: int = INDENT + KEY
    ) -> Iterator[Text]:
        """Lines with as many parts as fit; lines after the first are indented by `hanging`."""
        words: Text | None = None
        for part in parts:
            if words is None:
                words = part
            elif words.cell_len + len(glue) + part.cell_len <= width - indent:
                words = Text.assemble(words, (glue, part.style), part)
            else:
                yield from self._folded(Text.assemble(words, (glue.rstrip(), part.style)), width, indent)
                words, indent = part, hanging
        if words is not None:
            yield from self._folded(words, width, indent)

    def _folded(self, text: Text, width: int, indent: int) -> Iterator[Text]:
        for line in wrapped(text, max(width - indent, 1), self._console):
            line.rstrip()
            yield _line(" " * indent, line)


def _filled(cells: Iterable[Text]) -> list[Text]:
    return [cell for cell in cells if cell.plain]


def _left_out(labelled: Sequence[int], number: int) -> Text | None:
    """Number of blocks without a label before a label."""
    count = labelled[number] - labelled[number - 1] - 1 if number else 0
    return _line(" " * (INDENT + KEY), (f"… {count:,} more", "dim")) if count else None


def _even(width: int, panels: Sequence[Panel]) -> int:
    """Width of bars in which the devices of round-robin chunks have as many cells each, so that they line up.

    It is at most a quarter less than the given one, which is kept if no such width is found.
    """
    striped = [panel for panel in panels if any(len(block.devices) > 1 for block in panel.blocks)][:MOST_EVEN]
    widths = range(width, width * 3 // 4, -1)
    return next((each for each in widths if all(_is_even(panel, each) for panel in striped)), width)


def _is_even(panel: Panel, width: int) -> bool:
    """Return true if each block has a multiple of the cells that its devices take in turns."""
    cells = first_cells(panel.blocks, panel.size, width)
    lengths = zip(panel.blocks, cells, [*cells[1:], width], strict=True)
    return all(
        (end - first) % (block.count if block.count <= end - first else len(block.devices)) == 0
        for block, first, end in lengths
        if len(block.devices) > 1
    )


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


def _bar(blocks: Sequence[PanelBlock], cells: Sequence[int], width: int, glyphs: Glyphs) -> Text:
    """A bar with each block as its letter and the fills of its devices; `cells` are those of `first_cells`."""
    drawn = [(_HOLE, "dim")] * width
    taken = 0
    for block, first, end in zip(blocks, cells, [*cells[1:], width], strict=True):
        # A cell that several blocks share shows the first one with memory.
        if (block.chunk or block.taken) and (start := max(first, taken)) < max(end, first + 1):
            taken = max(end, first + 1)
            drawn[start:taken] = _block_cells(block, taken - start, glyphs)
    line = Text(no_wrap=True, overflow="crop", end="")
    for style, cells_ in groupby(drawn, key=lambda cell: cell[1]):
        line.append("".join(char for char, _ in cells_), style)
    return line


def _block_cells(block: PanelBlock, length: int, glyphs: Glyphs) -> list[tuple[str, str]]:
    """Devices of the memory in cells: to scale if each chunk has a cell, else round-robin as the chunks are."""
    if block.taken:
        return [(_TAKEN, "dim")] * length
    chunks = [cell * block.count // length if block.count <= length else cell for cell in range(length)]
    first, *others = [block.devices[chunk % len(block.devices)] for chunk in chunks]
    return [glyphs.letter(block.chunk, first), *((glyphs.fill(each), glyphs.colour(each)) for each in others)]
