"""Lines of a drawing without a bar: titles, lists of entries, and folding of long lines; glyphs of a terminal."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from memtopo.geometry import diagram as picture
from memtopo.geometry.diagram import Diagram

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
        return Text(f"{glyphs.hole if none is None else none} ", "dim")
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

    def lines(self, width: int, glyphs: Glyphs, console: Console) -> Iterator[Text]:
        """The line; a title that is too long folds."""
        start = Text(f"{glyphs.horizontal * (_START - 1)} ", "dim")
        for part in packed(self.title, width - _START, 0, console, hanging=0):
            titled = line(start, part)
            if (left := width - titled.cell_len - 1) > 0:
                titled.append(f" {glyphs.horizontal * left}", "dim")
            yield titled
            start = Text(" " * _START)


@dataclass(frozen=True, slots=True)
class Item:
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

    items: Sequence[Item]
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
            yield line(" " * (INDENT + kind + KEY), (glyphs.text(f"… {self.left_out:,} more"), "dim"))


def _columns(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    columns = Text()
    for cell, width in zip(cells, widths, strict=True):
        if width:
            columns.append_text(cell)
            columns.append(" " * (width - cell.cell_len + GAP))
    return columns


def _item(columns: Text, item: Item, columns_width: int, width: int, console: Console) -> Iterator[Text]:
    for notes in packed(item.notes, width - columns_width, 0, console, hanging=0):
        yield line(columns, notes)
        columns = Text(" " * columns_width)
    if not item.notes:
        columns.rstrip()
        yield columns


def _folded_item(head: Text, item: Item, width: int, console: Console) -> Iterator[Text]:
    name, *others = (cell for cell in item.cells if cell.plain)
    yield from packed([line(head, name), *others, *item.notes], width, 0, console)


_FILLS = "█▒▚░▌▓▀▄"
_PLAIN_FILLS = "#=%+o~^-"
# Okabe and Ito's palette for colour-blind readers; each colour is legible on black and on white.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a500", "#999999")
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_MANY = "*"
_TO_ASCII = str.maketrans({"…": "...", "×": "x", "→": "->"})


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Glyphs and styles for one diagram, with ASCII alone if `ascii`. No information is in the colour alone.

    `letters` is keyed by the `chunk` of a piece or a share, `devices` by name. Entries of chunks beyond the number of
    letters are all `*`.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    ascii: bool = False

    def letter(self, chunk: str) -> str:
        """Letter of an entry of chunks, the same in all bars; a dot for a hole."""
        return self.letters.get(chunk, _MANY) if chunk else self.hole

    def fill(self, device: str) -> str:
        """Fill of a device's memory."""
        fills = _PLAIN_FILLS if self.ascii else _FILLS
        return fills[self.devices.get(device, 0) % len(fills)]

    def colour(self, device: str) -> str:
        """Colour of a device, in rich's notation."""
        return _COLOURS[self.devices.get(device, 0) % len(_COLOURS)]

    def letter_style(self, device: str) -> str:
        """Style of a letter at the first cell of a block on a device."""
        return f"bold black on {self.colour(device)}"

    def text(self, text: str) -> str:
        """A text, transliterated to ASCII if `ascii`."""
        return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode() if self.ascii else text

    @property
    def hole(self) -> str:
        """Fill of addresses without memory, and of free memory."""
        return "." if self.ascii else "·"

    @property
    def taken(self) -> str:
        """Fill of memory in use by others."""
        return "/" if self.ascii else "╱"

    @property
    def horizontal(self) -> str:
        """Horizontal part of a line from a label to the bar."""
        return "-" if self.ascii else "─"

    @property
    def vertical(self) -> str:
        """Vertical part of a line."""
        return "|" if self.ascii else "│"

    @property
    def corner(self) -> str:
        """Corner where a line turns up to the bar."""
        return "'" if self.ascii else "┘"

    @property
    def junction(self) -> str:
        """Corner that joins another line to the same cell."""
        return "+" if self.ascii else "┤"


def glyphs_of(diagram: Diagram, *, ascii: bool) -> Glyphs:
    """Glyphs of a diagram: letters in order of appearance, ranges before memory; devices in order of memory."""
    letters = dict(zip(dict.fromkeys(picture.marks(diagram)), _LETTERS, strict=False))
    devices = {device: index for index, device in enumerate(dict.fromkeys(picture.devices(diagram)))}
    return Glyphs(letters, devices, ascii)
