"""Panels: words on the left, a bar on the right, and between them lines that do not cross.

Labels stand in the order of their places and each line turns up to the bar at the first cell of its piece, so that
those further right pass it by. Where it gets narrow, the words take two lines; where it gets narrower, the bar stands
above them and letters alone tell which is which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from memtopo.render.bar import Block, bar, starts
from memtopo.render.inks import Inks

INDENT = 2
GAP = 2
KEY = 2
HEADINGS = ("chunk", "at", "size", "on", "access")
FEWEST = 3  # name, offset and size stay in one line
_NUMBERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One label: which block it belongs to, what marks its chunks, and its words, one for each of `HEADINGS`."""

    block: int
    chunk: str
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
    """How the width is shared: `columns` of a label in one line, `widths` of each, `words` and `bar` in all."""

    columns: int
    widths: Sequence[int]
    words: int
    bar: int

    @property
    def beside(self) -> bool:
        """Whether there is room for the bar beside the words."""
        return self.columns > 0


def drawn(panels: Sequence[Panel], width: int, inks: Inks, console: Console) -> Iterator[Text]:
    """Every line of a map, none of them wider than `width`."""
    frame = _frame(panels, width)
    draft = _Draft(frame, inks, console)
    if frame.beside and any(panel.rows for panel in panels):
        yield draft.headings()
    for turn, panel in enumerate(panels):
        if turn and not panel.close:
            yield Text()
        yield from draft.panel(panel)


def _frame(panels: Sequence[Panel], width: int) -> Frame:
    rows = [row for panel in panels for row in panel.rows]
    widths = [_width([row.cells[column] for row in rows], heading) for column, heading in enumerate(HEADINGS)]
    heads = INDENT + max((_joined(panel.head).cell_len for panel in panels if panel.blocks), default=0) + GAP
    room = max(16, width // 5)
    for columns in range(len(HEADINGS), FEWEST - 1, -1):
        words = INDENT + KEY + sum(each + GAP for each in widths[:columns] if each)
        words = max(words, heads if heads <= width * 3 // 5 else 0)
        if width - words >= room:
            return Frame(columns, widths, words, width - words)
    return Frame(0, widths, width, max(1, width - INDENT))


def _width(cells: Sequence[Text], heading: str) -> int:
    """What a column needs, its heading included; nothing where all of it is empty."""
    widest = max((cell.cell_len for cell in cells), default=0)
    return max(widest, len(heading)) if widest else 0


class _Draft:
    def __init__(self, frame: Frame, inks: Inks, console: Console) -> None:
        self.frame, self.inks, self.console = frame, inks, console

    def headings(self) -> Text:
        words = [Text(heading) for heading in HEADINGS]
        return _line(Text(" " * (INDENT + KEY)), self._columns(words), style="dim")

    def panel(self, panel: Panel) -> Iterator[Text]:
        if not panel.blocks:
            yield _line(Text(" " * INDENT), _joined(panel.head))
            return
        cells = starts(panel.blocks, panel.size, self.frame.bar)
        line = bar(panel.blocks, cells, self.frame.bar, self.inks)
        if self.frame.beside:
            yield from self._head_beside(panel, line, [cells[row.block] for row in panel.rows])
            yield from self._rows_beside(panel, cells)
        else:
            yield from self._packed(panel.head, self.frame.words, INDENT)
            yield _line(Text(" " * INDENT), line)
            yield from self._rows_below(panel)
            yield from self._detail(panel)

    def _head_beside(self, panel: Panel, line: Text, anchors: Sequence[int]) -> Iterator[Text]:
        first, *more = self._packed(panel.head, self.frame.words - 1, INDENT)
        yield _line(_padded(first, self.frame.words), line)
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
            for line in self._details(row):
                yield self._with_tree(line, later)

    def _pointing(self, row: Row, anchor: int, later: Sequence[int]) -> Text:
        words = _line(self._key(row), self._columns(row.cells))
        words.append(" ")
        line = _padded(words, self.frame.words, self.inks.along)
        line.append(self.inks.along * anchor, "dim")
        line.append(self.inks.joint if anchor in later else self.inks.corner, "dim")
        return self._with_tree(line, [cell for cell in later if cell > anchor])

    def _with_tree(self, line: Text, anchors: Sequence[int]) -> Text:
        """A line with those that pass it by on their way to the bar."""
        for cell in anchors:
            if self.frame.words + cell >= line.cell_len:
                line = _padded(line, self.frame.words + cell)
                line.append(self.inks.up, "dim")
        return line

    def _details(self, row: Row) -> Iterator[Text]:
        """The words that the columns of the first line had no room for."""
        yield from self._packed(self._rest(row, self.frame.columns), self.frame.words - GAP, INDENT + KEY)

    def _rows_below(self, panel: Panel) -> Iterator[Text]:
        for turn, row in enumerate(panel.rows):
            if more := self._left_out(panel, turn):
                yield more
            name, at, size = row.cells[:FEWEST]
            words = [_line(self._key(row), name)[INDENT:], Text(f"{size} at {at}"), *self._rest(row, FEWEST)]
            yield from self._packed(words, self.frame.words, INDENT)

    def _left_out(self, panel: Panel, turn: int) -> Text | None:
        """What stands for the blocks between two labels that have none."""
        more = panel.rows[turn].block - panel.rows[turn - 1].block - 1 if turn else 0
        told = Text(self.inks.told(f"… {more:,} more"), "dim")
        return _line(Text(" " * (INDENT + KEY)), told) if more else None

    def _rest(self, row: Row, columns: int) -> list[Text]:
        return [cell for cell in row.cells[columns:] if cell.plain]

    def _key(self, row: Row) -> Text:
        return Text(f"{' ' * INDENT}{self.inks.letter(row.chunk)} ", "bold" if row.chunk else "dim")

    def _columns(self, cells: Sequence[Text]) -> Text:
        line = Text()
        for column, cell in enumerate(cells[: self.frame.columns]):
            if width := self.frame.widths[column]:
                blank = " " * (width - cell.cell_len)
                line.append_text(Text.assemble(blank, cell) if column in _NUMBERS else Text.assemble(cell, blank))
                line.append(" " * GAP)
        line.rstrip()
        return line

    def _packed(self, parts: Sequence[Text], width: int, indent: int, glue: str = "  ") -> Iterator[Text]:
        """As many parts to a line as fit; later lines stand as far in as details do."""
        line: Text | None = None
        for part in parts:
            if line is None:
                line = part
            elif line.cell_len + len(glue) + part.cell_len <= width - indent:
                line = Text.assemble(line, (glue, part.style), part)
            else:
                yield from self._folded(Text.assemble(line, (glue.rstrip(), part.style)), width, indent)
                line, indent = part, INDENT + KEY
        if line is not None:
            yield from self._folded(line, width, indent)

    def _folded(self, text: Text, width: int, indent: int) -> Iterator[Text]:
        for line in text.wrap(self.console, max(width - indent, 1), overflow="fold"):
            line.rstrip()
            yield _line(Text(" " * indent), line)


def _line(*parts: Text | str, style: str = "") -> Text:
    line = Text.assemble(*parts, no_wrap=True, overflow="crop")
    line.stylize(style)
    return line


def _joined(parts: Sequence[Text]) -> Text:
    return Text("  ").join(parts)


def _padded(line: Text, width: int, char: str = " ") -> Text:
    line.append(char * (width - line.cell_len), "dim" if char != " " else "")
    return line
