"""Lines of a map: put together from parts, folded where they are too long, and never cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from memtopo.output.terminal.glyphs import Inks

INDENT = 2
GAP = 2
KEY = 2


def line(*parts: Text | str | tuple[str, str], style: str = "") -> Text:
    """Parts in one line."""
    told = Text.assemble(*parts, no_wrap=True, overflow="crop")
    told.stylize(style)
    return told


def joined(parts: Sequence[Text]) -> Text:
    """Parts a gap apart."""
    return Text(" " * GAP).join(parts)


def padded(told: Text, width: int, char: str = " ") -> Text:
    """A line made as long as that, if it is not yet."""
    told.append(char * (width - told.cell_len), "dim" if char != " " else "")
    return told


def key(chunk: str, device: str, inks: Inks, none: str | None = None) -> Text:
    """What marks a kind of chunk, as the bars have it; the mark of a hole, or `none`, where there is none."""
    if not chunk:
        return Text(f"{inks.hole if none is None else none} ", "dim")
    return Text.assemble((inks.letter(chunk), inks.swatch(device) if device else "bold"), " ")


def packed(
    parts: Iterable[Text], width: int, indent: int, console: Console, *, glue: str = " " * GAP, deep: int = INDENT + KEY
) -> Iterator[Text]:
    """As many parts to a line as fit; lines after the first stand as `deep` in as details do."""
    told: Text | None = None
    for part in parts:
        if told is None:
            told = part
        elif told.cell_len + len(glue) + part.cell_len <= width - indent:
            told = Text.assemble(told, (glue, part.style), part)
        else:
            yield from _folded(Text.assemble(told, (glue.rstrip(), part.style)), width, indent, console)
            told, indent = part, deep
    if told is not None:
        yield from _folded(told, width, indent, console)


def _folded(text: Text, width: int, indent: int, console: Console) -> Iterator[Text]:
    for told in text.wrap(console, max(width - indent, 1), overflow="fold"):
        told.rstrip()
        yield line(" " * indent, told)


_LEAST = 14  # columns that the last words want beside the others
_START = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """A title in a line across the whole width."""

    title: Sequence[Text]

    def lines(self, width: int, inks: Inks, console: Console) -> Iterator[Text]:
        """The line; a title that is too long for one folds."""
        start = Text(f"{inks.along * (_START - 1)} ", "dim")
        for words in packed(self.title, width - _START, 0, console, deep=0):
            told = line(start, words)
            if (left := width - told.cell_len - 1) > 0:
                told.append(f" {inks.along * left}", "dim")
            yield told
            start = Text(" " * _START)


@dataclass(frozen=True, slots=True)
class Item:
    """What is in no range: its kind, the mark and the device of its memory, its words by column, and more of them.

    Those are parts that stay in one piece each.
    """

    kind: str
    chunk: str
    device: str
    cells: Sequence[Text]
    more: Sequence[Text] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Items, a line each, and how many there are beside them."""

    items: Sequence[Item]
    more: int = 0

    def lines(self, width: int, inks: Inks, console: Console) -> Iterator[Text]:
        """In columns; where it is too narrow for them, with all that does not fit below the name."""
        kind = max(len(item.kind) for item in self.items) + GAP
        columns = zip(*(item.cells for item in self.items), strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        start = INDENT + kind + KEY
        words = start + sum(each + GAP for each in widths if each)
        for item in self.items:
            head = line(" " * INDENT, (item.kind.ljust(kind), "dim"), key(item.chunk, item.device, inks, none=" "))
            if width - words < _LEAST:
                yield from _below(head, item, width, console)
            else:
                yield from _beside(line(head, _columns(item.cells, widths)), item, words, width, console)
        if self.more:
            yield line(" " * (INDENT + kind + KEY), (inks.told(f"… {self.more:,} more"), "dim"))


def _columns(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    told = Text()
    for cell, width in zip(cells, widths, strict=True):
        if width:
            told.append_text(cell)
            told.append(" " * (width - cell.cell_len + GAP))
    return told


def _beside(told: Text, item: Item, words: int, width: int, console: Console) -> Iterator[Text]:
    for more in packed(item.more, width - words, 0, console, deep=0):
        yield line(told, more)
        told = Text(" " * words)
    if not item.more:
        told.rstrip()
        yield told


def _below(head: Text, item: Item, width: int, console: Console) -> Iterator[Text]:
    name, *others = (cell for cell in item.cells if cell.plain)
    yield from packed([line(head, name), *others, *item.more], width, 0, console)
